"""``marl-connectors record``, with real environments."""

import json
import os
import shlex
import signal
import sys
import threading

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import EpisodeReader
from marl_connectors.algorithms import algorithm
from marl_connectors.algorithms.fitting.progress import PlayProgress
from marl_connectors.cli import record
from marl_connectors.cli.main import main
from marl_connectors.errors import EnvError


def test_random_play_is_recorded(tmp_path, capsys):
    words = [
        "record",
        "random",
        "--env",
        "CartPole-v1",
        "--episodes",
        "5",
        "--num-envs",
        "2",
        "--out",
        str(tmp_path / "a"),
    ]
    assert main(words) == 0
    assert "5 episodes at random. Return of an agent per episode:" in capsys.readouterr().out
    reader = EpisodeReader(tmp_path / "a", complete_episodes=True)
    assert (reader.num_episodes, reader.num_incomplete) == (5, 0)
    assert main(words) == 2
    assert "holds recorded episodes already" in capsys.readouterr().err


def test_the_seed_decides_what_is_played(tmp_path):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        words = ["record", "random", "--env", "CartPole-v1", "--episodes", "2", "--seed", seed]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    lengths = [[len(episode) for episode in EpisodeReader(tmp_path / name)] for name in "abc"]
    assert lengths[0] == lengths[1] != lengths[2]


def test_the_policies_of_a_run_are_recorded(tmp_path, capsys):
    algo = small_config(LifeEnv).multi_agent(policies="independent").build_algo()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    assert main(["record", path, "--episodes", "3", "--out", str(tmp_path / "a"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["episodes"], found["results"]["num_episodes"]) == (3, 3)
    (episode, *_) = EpisodeReader(tmp_path / "a", order="in_order").sample()
    assert "action_logp" in next(iter(episode.agent_episodes.values())).extra_model_outputs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["random"], "record random: name the environment: --env ENV"),
        (["random", "--env", "CartPole-v1", "--explore"], "leave --explore and --no-explore out"),
        (["random", "--env", "CartPol-v1"], "CartPol"),
        (["run", "--env", "CartPole-v1"], "record: --env is for random play; run has the environment"),
        (["run", "--num-envs", "2"], "--num-envs is for random play"),
        (["run"], "expected a checkpoint at run, but nothing is there"),
        (["random", "--env", "CartPole-v1", "--episodes", "0"], "--episodes"),
        (["random", "--env", "CartPole-v1", "--epsiodes", "1"], "Did you mean '--episodes'"),
    ],
)
def test_a_mistake_is_one_clear_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["record", *words, "--out", "data"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_the_folder_is_needed(capsys):
    assert main(["record", "random", "--env", "CartPole-v1"]) == 2
    assert "--out" in capsys.readouterr().err


OF_FIVE_STEPS = ["record", "random", "--env", "CartPole-v1", "--env-config", "max_episode_steps=5", "--num-envs", "2"]
"""Both sub-environments end their episodes in the same steps, so 0, 2, 4, ... episodes have ended."""


@pytest.fixture
def when(monkeypatch):
    """Lets something happen as soon as a number of episodes has ended; two episodes are written at a time."""

    def set_up(number, act):
        class Acting(PlayProgress):
            def __call__(self, done):
                super().__call__(done)
                if done == number:
                    act()

        monkeypatch.setattr(record, "PlayProgress", Acting)
        monkeypatch.setattr(algorithm, "_EPISODES_AT_A_TIME", 2)

    return set_up


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def stopping(*numbers):
    left = list(numbers)

    def stop():
        while left:
            os.kill(os.getpid(), left.pop())

    return stop


@needs_signals
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_a_signal_keeps_the_episodes_that_are_complete_and_says_how_to_go_on(numbers, when, tmp_path, capsys):
    when(4, stopping(*numbers))
    assert main([*OF_FIVE_STEPS, "--episodes", "10", "--seed", "3", "--out", str(tmp_path / "a b")]) == 128 + numbers[0]
    told = capsys.readouterr().out
    assert f"4 of 10 episodes are complete in {tmp_path / 'a b'}. Next:\n" in told
    assert "Stopped at once." in told if len(numbers) > 1 else "4 episodes at random." in told
    show, rest = (shlex.split(line) for line in told.splitlines()[-2:])
    assert main(show[show.index("data") :]) == 0
    assert "4 whole episodes in 4 chunks" in capsys.readouterr().out
    others = rest[rest.index("with") + 1 : rest.index("and")]
    assert others == ["--episodes", "6", "--seed", "4"]
    assert main([*OF_FIVE_STEPS, *others, "--out", str(tmp_path / "a b-2")]) == 0
    both = EpisodeReader([tmp_path / "a b", tmp_path / "a b-2"])
    assert [len(episode) for episode in both] == [5] * 10


@needs_signals
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT)])
def test_a_signal_before_the_first_episode_leaves_nothing_behind(numbers, when, tmp_path, capsys):
    when(0, stopping(*numbers))
    words = [*OF_FIVE_STEPS, "--episodes", "2", "--out", str(tmp_path / "new" / "a")]
    assert main(words) == 130
    assert "No episode was written. The same command begins anew." in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    assert main(words) == 0


@needs_signals
def test_json_says_whether_a_signal_came(when, tmp_path, capsys):
    when(4, stopping(signal.SIGTERM))
    assert main([*OF_FIVE_STEPS, "--episodes", "10", "--json", "--out", str(tmp_path / "a")]) == 143
    found = json.loads(capsys.readouterr().out)
    assert (found["stopped"], found["episodes"], found["results"]["num_episodes"]) == (True, 10, 4)


def test_an_error_says_which_episodes_are_complete(when, tmp_path, capsys):
    def fail():
        raise EnvError("the simulator is gone.")

    when(4, fail)
    assert main([*OF_FIVE_STEPS, "--episodes", "10", "--out", str(tmp_path / "a")]) == 2
    told = capsys.readouterr()
    assert f"Stopped by an error. 4 of 10 episodes are complete in {tmp_path / 'a'}." in told.out
    assert told.err == "marl-connectors: error: the simulator is gone.\n"
    assert EpisodeReader(tmp_path / "a").num_episodes == 4


def test_progress_is_shown(when, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PlayProgress.__init__.__kwdefaults__, "first_s", 1e-3)
    shown = threading.Event()
    monkeypatch.setattr(PlayProgress, "_print", lambda self, line: (print(line), shown.set()))
    when(4, lambda: (shown.clear(), shown.wait(60)))
    assert main([*OF_FIVE_STEPS, "--episodes", "10", "--out", str(tmp_path / "a")]) == 0
    assert "  4 of 10 episodes (0:0" in capsys.readouterr().out
