"""Mapping functions that do not work, and agents that do not fit the module that they map to, are named."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import ScriptEnv, Step, small_config
from marl_connectors.errors import MappingError

STEPS = [Step({"a": t, "b": t}, {"a": 1.0, "b": 1.0}) for t in range(10)]
STEPS.append(Step({"a": 10, "b": 10}, {"a": 1.0, "b": 1.0}, truncated=("a", "b")))


def build(steps, **spaces_of):
    config = small_config(lambda: ScriptEnv([steps], **spaces_of), disable_env_checking=True)
    return config.multi_agent(policies="shared").build_algo()


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("mapping", "policies", "words"),
    [
        (lambda a, e, **kw: 1 / 0, None, "policy_mapping_fn.*ZeroDivisionError"),
        (lambda a, e, **kw: 7, None, r"\b7\b.*'a'"),
        (lambda a, e, **kw: "", None, "'' .*'a'"),
        (lambda a, e, **kw: "\ud800", None, r"'\\ud800'.*'a'"),
        (lambda a, e, **kw: "red", ["blue"], "'a'.*'red'.*'blue'"),
        ("a*=red", None, r"'b'.*'a\*'"),
        ("a=red,b=blue,c*=green", None, r"'c\*'.*'green'"),
    ],
)
def test_a_mapping_function_that_does_not_work_is_named(mapping, policies, words):
    config = small_config(lambda: ScriptEnv([STEPS])).multi_agent(policies=policies, policy_mapping_fn=mapping)
    with pytest.raises(MappingError, match=words) as caught:
        config.build_algo()
    one_line(caught)


@pytest.mark.parametrize("kind", ["observation_spaces", "action_spaces"])
def test_agents_with_different_spaces_cannot_share_a_module(kind):
    other = {"observation_spaces": spaces.Box(-1, 1, (3,), np.float32), "action_spaces": spaces.Discrete(5)}[kind]
    with pytest.raises(
        MappingError,
        match=f"(?s)'a'.*'b'.*'default_policy'.*{kind[:-7]}",
    ):
        build(STEPS, **{kind: {"b": other}})


def test_agents_of_other_actions_cannot_take_over_a_module_later():
    steps = [Step({"a": 0}), Step({"a": 0, "z": 0}, {"a": 0.0}), Step({"a": 0, "z": 0}, {}, ("a", "z"))]
    algo = build(steps, possible_agents=["a"], action_spaces={"z": spaces.Discrete(5)})
    with pytest.raises(MappingError, match=r"(?s)'z'.*'default_policy'.*Discrete\(2\)"):
        algo.env_runner.sample(num_timesteps=2)
