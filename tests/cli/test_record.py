"""``marl-connectors record``, with real environments."""

import json

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import EpisodeReader
from marl_connectors.cli.main import main


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
        (["random", "--env", "CartPole-v1", "--explore"], "leave --explore out"),
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


def test_the_folder_is_needed(capsys):
    assert main(["record", "random", "--env", "CartPole-v1"]) == 2
    assert "--out" in capsys.readouterr().err
