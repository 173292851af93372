"""Errors out of the code of environments and users say where they were raised, and have the original as cause."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import ConnectorV2, DefaultModelConfig, PPOConfig, make_env
from marl_connectors.cli.main import main
from marl_connectors.errors import (
    ConnectorError,
    EnvError,
    MappingError,
    MarlConnectorsError,
    ModuleError,
    describe_error,
    place_of_definition,
    place_of_error,
)
from marl_connectors.rl_module.rl_module import RLModuleSpec

HERE = Path(__file__).name
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def fails():
    import json as module

    return module()  # TypeError: 'module' object is not callable


def caught(function):
    with pytest.raises(Exception) as info:  # noqa: PT011
        function()
    return info.value


# The helper.


def test_the_place_is_that_of_the_own_code_though_the_error_was_raised_deeper():
    def calls_numpy():
        np.reshape(np.zeros(3), (2, 2))

    def calls_python():
        json.loads("{")

    for function in (fails, calls_numpy, calls_python):
        assert re.search(rf"{HERE}:\d+ in {function.__name__}$", place_of_error(caught(function)))


def test_an_error_that_was_never_raised_has_no_place():
    error = ValueError("never raised")
    assert place_of_error(error) == "" and describe_error(error) == "ValueError: never raised"


def test_an_error_is_one_line_with_its_place():
    def speaks():
        raise ValueError("one\n  two.")

    assert re.fullmatch(rf"ValueError: one two \(.*{HERE}:\d+ in speaks\)", describe_error(caught(speaks)))
    assert re.fullmatch(rf"AssertionError \(.*{HERE}:\d+ in silent\)", describe_error(caught(silent)))


def silent():
    raise AssertionError


def test_a_syntax_error_is_where_the_file_has_it(tmp_path, monkeypatch):
    (tmp_path / "broken_env.py").write_text("x = 1\ndef (:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match=r"fails to import: SyntaxError: .* \(broken_env\.py:2\)\.") as info:
        make_env("broken_env:make")
    assert isinstance(info.value.__cause__, SyntaxError)


def test_files_are_named_as_seen_from_here(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "my_env.py").write_text("\n\nclass Env:\n    def __init__(self):\n        1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvError, match=r"ZeroDivisionError: division by zero \(deep/my_env\.py:5 in __init__\)\."):
        make_env("deep.my_env:Env")


# Each kind of place.


class Sound(gymnasium.Env):
    observation_space, action_space = BOX, spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.is_tried_out = seed == 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


class FailsToBeMade(Sound):
    def __init__(self):
        fails()


class FailsInReset(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed) if seed == 0 else fails()


class FailsInStep(Sound):
    def step(self, action):
        return super().step(action) if self.is_tried_out else fails()


class FailsAtOnce(Sound):
    def step(self, action):
        return fails()


class FailsInSpace(Sound):
    @property
    def observation_space(self):
        return fails()


class FailsInRender(Sound):
    def render(self):
        return fails()


class FailsInClose(Sound):
    def close(self):
        fails()


class NoAgents(ParallelEnv):
    metadata = {"name": "no agents"}

    def reset(self, seed=None, options=None):
        return fails()


class FailsInAgents(NoAgents):
    @property
    def possible_agents(self):
        return fails()


class Team(ParallelEnv):
    metadata = {"name": "team", "render_modes": []}
    possible_agents = ["a", "b"]
    state_space = BOX

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", np.zeros(2, np.float32)), {a: {} for a in "ab"}

    def step(self, actions):
        self.agents = []
        seen = dict.fromkeys("ab", np.zeros(2, np.float32))
        return seen, dict.fromkeys("ab", 0.0), dict.fromkeys("ab", True), dict.fromkeys("ab", False), {}

    def state(self):
        return fails()


class FailingPiece(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return fails()


def config_of(env, num_env_workers=0):
    config = PPOConfig().environment(env).env_runners(num_env_workers=num_env_workers, rollout_fragment_length=2)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=(4,)))
    return config.training(train_batch_size_per_learner=4, minibatch_size=4, num_epochs=1).debugging(seed=0)


def train(config):
    algo = config.build_algo()
    try:
        algo.train()
    finally:
        algo.stop()


def fails_as_mapping(agent_id, episode, **kwargs):
    return fails()


def failing_wrapper(env):
    return fails()


PLACES = {
    "constructor": (EnvError, lambda: make_env(FailsToBeMade)),
    "reset": (EnvError, lambda: train(config_of(FailsInReset))),
    "step": (EnvError, lambda: train(config_of(FailsInStep))),
    "trial": (EnvError, lambda: train(config_of(FailsAtOnce))),
    "space": (EnvError, lambda: train(config_of(FailsInSpace))),
    "reset for agents": (EnvError, lambda: train(config_of(NoAgents))),
    "possible_agents": (EnvError, lambda: train(config_of(FailsInAgents))),
    "render": (EnvError, lambda: config_of(FailsInRender).build_algo().render_episode(max_frames=2)),
    "wrapper": (EnvError, lambda: make_env(Sound, wrappers=[failing_wrapper])),
    "mapping": (MappingError, lambda: train(config_of(Team).multi_agent(policy_mapping_fn=fails_as_mapping))),
    "piece": (
        ConnectorError,
        lambda: train(config_of(Sound).env_runners(env_to_module_connector=lambda env: FailingPiece())),
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_every_kind_of_error_says_where_and_has_a_cause_with_its_traceback(name):
    kind, call = PLACES[name]
    error = caught(call)
    assert isinstance(error, kind), error
    assert re.search(rf"'module' object is not callable \(.*{HERE}:\d+ in fails\)", str(error)), error
    cause = error.__cause__
    while isinstance(cause, MarlConnectorsError):
        cause = cause.__cause__
    assert isinstance(cause, TypeError)
    frame = cause.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    assert frame.tb_frame.f_code.co_name == "fails"


def test_a_state_that_raises_says_where():
    from marl_connectors import MAPPOConfig

    config = MAPPOConfig().environment(Team).env_runners(num_env_workers=0).training(critic_obs="state")
    with pytest.raises(EnvError, match=rf"state\(\) raised TypeError: 'module' .* \(.*{HERE}:\d+ in fails\)"):
        train(config)


def test_a_module_that_raises_says_where():
    from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

    class Module(DefaultPPORLModule):
        def _forward(self, batch, **kwargs):
            return fails()

    config = config_of(Sound).rl_module(rl_module_spec=RLModuleSpec(Module))
    with pytest.raises(ModuleError, match=rf"raised TypeError: 'module' .* \(.*{HERE}:\d+ in fails\)"):
        train(config)


def test_a_callbacks_error_passes_as_it_is():
    def on_sample_end(**kwargs):
        fails()

    config = config_of(Sound).callbacks(on_sample_end=on_sample_end)
    error = caught(lambda: train(config))
    assert type(error) is TypeError and place_of_error(error).endswith("in fails")


def test_a_close_that_raises_is_logged_with_its_place(caplog):
    with caplog.at_level(logging.WARNING):
        train(config_of(FailsInClose))
    assert re.search(rf"close\(\) raised TypeError: 'module' .* \(.*{HERE}:\d+ in fails\)\.", caplog.text)


def test_a_maker_that_is_called_wrongly_is_named_with_its_place():
    def make(size, *, colour):
        raise AssertionError("never called")

    with pytest.raises(EnvError, match=rf"TypeError: .*missing.* \(when .*{HERE}:\d+ was called\)"):
        make_env(make, {"size": 1})
    assert place_of_definition(make).endswith(f"{HERE}:{make.__code__.co_firstlineno}")
    assert place_of_definition(len) == ""


# In worker processes.

MODULE = """
import gymnasium
import numpy as np


class InWorker(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, where="step"):
        self.where = where

    def fail(self, where):
        if self.where == where:
            np.reshape(np.zeros(3), (2, 2))

    def reset(self, *, seed=None, options=None):
        if seed != 0:
            self.fail("reset")
        self.is_tried_out = seed == 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if not self.is_tried_out:
            self.fail("step")
        return np.zeros(2, np.float32), 0.0, True, False, {}
"""


@pytest.mark.parametrize("where", ["reset", "step"])
def test_errors_in_workers_say_where_and_keep_their_traceback(tmp_path, monkeypatch, where):
    (tmp_path / "worker_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = config_of("worker_env:InWorker", num_env_workers=1).environment(env_config={"where": where})
    with pytest.raises(EnvError, match=r"ValueError: cannot reshape .* \(worker_env\.py:15 in fail\)") as info:
        train(config)
    assert "Traceback" in str(info.value.__cause__) and "in fail" in str(info.value.__cause__)
    sys.modules.pop("worker_env", None)


def test_a_failure_that_is_survived_is_logged_with_its_place(caplog):
    config = config_of(FailsInStep).fault_tolerance(
        restart_failed_sub_environments=True, num_consecutive_env_failures_tolerance=2
    )
    with caplog.at_level(logging.WARNING), pytest.raises(EnvError, match="has failed 3 times"):
        train(config)
    assert re.search(rf"raised TypeError: 'module' .* \(.*{HERE}:\d+ in fails\)", caplog.text)


def test_the_command_line_shows_the_place(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad_env.py").write_text("import json\n\n\ndef make():\n    return json()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "bad_env:make"]) == 2
    said = "could not be made: TypeError: 'module' object is not callable (bad_env.py:5 in make). Check"
    assert said in capsys.readouterr().err
    sys.modules.pop("bad_env", None)
