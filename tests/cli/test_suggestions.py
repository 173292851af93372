"""What the command line suggests works: each command is carried out as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from marl_connectors.cli import suggestions
from marl_connectors.cli.main import main

ENVS = '''
"""Environments of a user's, in the current folder."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Crowd(ParallelEnv):
    """Agents without an end of new names, of whom only the first is announced."""

    metadata = {"name": "crowd", "render_modes": []}
    render_mode = None

    def __init__(self, names="x", sizes=(2, 2), known=1):
        self.names, self.sizes = names, sizes
        self.possible_agents = [f"{names}_{i}" for i in range(known)]
        self.episode = 0

    def observation_space(self, agent):
        size = self.sizes[int(agent.rpartition("_")[2]) % 2]
        return spaces.Box(-1.0, 1.0, (size,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _see(self):
        seen = {a: np.zeros(self.observation_space(a).shape, np.float32) for a in self.agents}
        return seen, {a: {} for a in self.agents}

    def reset(self, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        self.agents = list(self.possible_agents)
        return self._see()

    def step(self, actions):
        self.t += 1
        over = self.t == 4
        seen, infos = self._see()
        rewards, ends = dict.fromkeys(self.agents, 1.0), dict.fromkeys(self.agents, over)
        cuts = dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return seen, rewards, ends, cuts, infos


class Newcomers(Crowd):
    def reset(self, seed=None, options=None):
        super().reset()
        self.agents = [*self.possible_agents, f"{self.names}_{seed % 100 + 5}"]
        return self._see()


class Whimsical(Crowd):
    """Does something else each time: what it gives does not follow from the seed."""

    number = 0

    def _see(self):
        Whimsical.number += 1
        seen, infos = super()._see()
        return {a: np.full_like(v, np.sin(Whimsical.number)) for a, v in seen.items()}, infos


def one_for_all(agent_id, episode, **kwargs):
    return "all"
'''
TINY = [
    *["--steps", "30", "--num-envs", "2", "--num-env-workers", "0", "--hidden", "4", "--eval-episodes", "1"],
    *["--set", "train_batch_size_per_learner=20", "--set", "minibatch_size=10", "--set", "num_epochs=1", "--no-video"],
]
KINDS = {
    "several, shared": ["own_envs:Crowd", "--env-config", "known=3", "--env-config", "names='7'"],
    "unlike spaces": [
        *["own_envs:Crowd", "--env-config", "known=2", "--env-config", "sizes=(2, 3)", "--policies", "independent"]
    ],
    "a named folder": ["own_envs:Crowd", "--env-config", "known=2", "--out", "a folder/run"],
    "some modules are trained": [
        *["own_envs:Crowd", "--env-config", "known=2", "--policies", "independent"],
        *["--set", "policies_to_train=['x_0']", "--keep-best", "env_runners/module_episode_returns/x_1/mean"],
    ],
}
SEVERAL_ALGORITHMS = """
from marl_connectors import DQNConfig, MixedConfig, PPOConfig

ppo = PPOConfig().training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1)
dqn = DQNConfig().training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=8)
config = MixedConfig().environment("own_envs:Crowd", env_config={"known": 2}).algorithms({"x_0": ppo, "x_1": dqn})
config.multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2, num_env_workers=0)
config.rl_module(model_config={"fcnet_hiddens": [4]})
"""
SLOW_KINDS = {
    "one agent": ["own_envs:Crowd", "--env-config", "names=5"],
    "several, independent": ["own_envs:Crowd", "--env-config", "known=2", "--policies", "independent"],
    "new names": ["own_envs:Newcomers"],
    "masks ignored": ["marl_envs.masked_v0", "--action-mask-key", "none", "--env-config", "ep_len=4"],
    "gymnasium": ["CartPole-v1", "--seed", "3"],
    "in turns": ["marl_envs.last_stone_v0", "--policies", "independent"],
    "masks": ["marl_envs.masked_v0", "--env-config", "illegal=raise"],
    "central critics": ["marl_envs.masked_v0", "--algo", "mappo", "--set", "critic_obs=joint_observations"],
    "a mapping function": ["own_envs:Crowd", "--env-config", "known=2", "--mapping", "own_envs:one_for_all"],
    "modules": [
        *["own_envs:Crowd", "--env-config", "known=2", "--mapping", "own_envs:one_for_all", "--modules", "all,more"]
    ],
    "patterns": ["marl_envs.masked_v0", "--policies", "agent_0=x y,agent*=z"],
    "the best of a module": [
        *["own_envs:Crowd", "--env-config", "known=2"],
        *["--keep-best", "min:env_runners/module_episode_returns/default_policy/std"],
    ],
    "settings of one module": [
        *["own_envs:Crowd", "--env-config", "known=2", "--policies", "independent"],
        *["--set", "algorithm_config_overrides_per_module={'x_1': {'lr': 0.1}}"],
    ],
    "no check": ["own_envs:Crowd", "--no-env-check", "--env-config", "known=2"],
    "wrapped": ["own_envs:Crowd", "--env-config", "known=2", "--wrap", "own_envs.wrapped:1"],
    "many steps at once": ["own_envs:Crowd", "--steps", "3", "--env-config", "known=2"],
}
WRAPPER = """

def wrapped(env, number):
    return env
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    import sys

    (tmp_path / "own_envs.py").write_text(ENVS + WRAPPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("own_envs", None)


def suggested(text):
    lines = text.partition("Next:\n")[2].splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ")]


def all_of_it_works(words, capsys, tiny=TINY):
    given = [*tiny, *words] if "--steps" not in words else [*tiny[2:], *words]
    assert main(["train", *given]) == 0
    commands = suggested(capsys.readouterr().out)
    assert [command[0] for command in commands].count("marl-connectors") == 2 and len(commands) == 3
    for command in commands:
        if command[0] == "tensorboard":
            assert list(Path(command[2]).glob("events.out.*"))
            continue
        status = main(command[1:])
        out, err = capsys.readouterr()
        assert (status, err) == (0, ""), command
        assert out


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_that_a_run_suggests_works(kind, folder, capsys):
    all_of_it_works(KINDS[kind], capsys)


@pytest.mark.slow
def test_every_command_that_a_run_of_several_algorithms_suggests_works(folder, capsys):
    (folder / "mixed.py").write_text(SEVERAL_ALGORITHMS)
    tiny = [*["--steps", "30", "--eval-episodes", "1", "--no-video"], "--config", "mixed.py"]
    all_of_it_works(["--keep-best", "env_runners/module_episode_returns/x_0/mean"], capsys, tiny)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW_KINDS)
def test_every_command_that_other_runs_suggest_works(kind, folder, capsys):
    all_of_it_works(SLOW_KINDS[kind], capsys)


@pytest.mark.slow
def test_what_was_changed_when_a_run_went_on_is_suggested_too(folder, capsys):
    assert main(["train", "CartPole-v1", *TINY, "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--untrusted", "--steps", "60", "--eval-episodes", "1"]) == 0
    evaluate, *_, resume = suggested(capsys.readouterr().out)
    assert evaluate[-1] == resume[-1] == "--untrusted" and resume[-3:-1] == ["--steps", "120"]
    for command in (evaluate, resume):
        assert main(command[1:]) == 0, command


def test_an_environment_that_does_not_repeat_itself_can_be_evaluated(folder, capsys):
    assert main(["train", *TINY, "own_envs:Whimsical"]) == 0
    commands = suggested(capsys.readouterr().out)
    assert main(commands[0][1:]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("steps", "done", "more"), [(100, 100, 200), (100, 120, 200), (10, 4104, 8208), (100, 200, 400), (100, 199, 200)]
)
def test_a_run_is_given_more_steps_than_it_has_done(steps, done, more):
    assert suggestions.more_steps(steps, done) == more > done


@pytest.mark.parametrize(
    ("steps", "options", "end"),
    [(None, {}, "runs/a"), (900, {}, "runs/a --steps 900"), (None, {"trusted": False}, "runs/a --untrusted")],
)
def test_a_run_that_was_given_more_steps_is_resumed_with_them(steps, options, end):
    assert suggestions.resume(Path("runs/a"), steps, **options).endswith(f"--resume {end}")


def test_a_first_run_is_suggested_on_an_environment_that_is_there(folder, capsys, monkeypatch):
    import importlib.util

    assert main(["train"]) == 2
    words = shlex.split(capsys.readouterr().err.partition("Try: ")[2])
    from marl_connectors.environments.registry.factory import make_env

    make_env(words[2]).close()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert suggestions.first_run() == "marl-connectors train CartPole-v1"


def test_a_folder_that_is_no_run_is_not_to_be_resumed(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "file").touch()
    assert main(["train", "own_envs:Crowd", "--out", "out"]) == 2
    assert capsys.readouterr().err.endswith("exists. Choose another.\n")
    words = ["own_envs:Crowd", *TINY, "--out", "run"]
    assert main(["train", *words]) == 0
    capsys.readouterr()
    assert main(["train", *words]) == 2
    command = shlex.split(capsys.readouterr().err.partition("continue with: ")[2])
    assert main([*command[1:], "--steps", "60"]) == 0


def test_a_stopped_run_that_was_given_more_steps_goes_on_with_them(command):
    command("train", "fake_env", "--steps", "200", "--out", "a")
    load = command.load

    def interrupted(checkpoint, changed=None, **options):
        algo = load(checkpoint, changed, **options)
        algo.interrupt_at = algo.iteration + 1
        return algo

    from marl_connectors.cli import training_run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "load_algorithm", interrupted)
        assert command("train", "--resume", "a", "--steps", "600") == 130
    words = shlex.split(command.out.partition("Resume with: ")[2])
    assert words == ["marl-connectors", "train", "--resume", "a"]
    assert command(*words[1:]) == 0
    assert "Continuing from iteration 3" in command.out
