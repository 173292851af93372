"""An environment that breaks its contract gets one line: which copy, which agent, which step, what came, what to do."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, ScriptEnv, Step, small_config
from marl_connectors.errors import EnvError

BAD = np.array([0.5, np.nan], np.float32)


def steps_of(bad, at, **fields):
    """Ten steps of agents ``a`` and ``b``; what ``b`` gets at step ``at`` is ``bad``."""
    steps = [Step({"a": t, "b": t}, {"a": 1.0, "b": 1.0}) for t in range(at + 10)]
    if "reward" in fields:
        steps[at].rewards["b"] = bad
    else:
        steps[at].obs["b"] = bad
    steps[-1].truncated = ("a", "b")
    return steps


def build(steps, *, checking=True, policies="independent", fragment=5, **spaces_of):
    config = small_config(lambda: ScriptEnv([steps], **spaces_of), disable_env_checking=not checking)
    config.env_runners(rollout_fragment_length=fragment)
    return config.multi_agent(policies=policies).build_algo()


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (BAD, "NaN.*component 1"),
        (
            np.array([0.5, 2000.0], np.float32),
            r"Box\(2,\) float32.*component 1.*2000\.0.*\[-1000\.0, 1000\.0\]",
        ),
        (np.zeros(3, np.float32), r"Box\(2,\) float32.*\(3,\).*\(2,\)"),
        ("text", r"Box\(2,\) float32.*'text'"),
    ],
)
def test_the_smoke_test_finds_bad_observations(bad, words):
    with pytest.raises(EnvError) as caught:
        build(steps_of(bad, 3))
    text = one_line(caught)
    assert re.search(rf"step 3.*agent 'b'.*{words}", text)


@pytest.mark.parametrize("bad", [np.nan, np.inf, "much", [1.0, 2.0], None])
def test_the_smoke_test_finds_rewards_that_are_no_finite_number(bad):
    with pytest.raises(EnvError, match=r"(?s)step 3.*'b'"):
        build(steps_of(bad, 3, reward=True))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (BAD, "'b'.*step 23.*NaN"),
        (
            np.zeros(3, np.float32),
            r"'b'.*Box\(2,\) float32.*\(3,\).*\(2,\)",
        ),
        ("text", r"'b'.*Box\(2,\) float32.*'text'"),
    ],
)
def test_bad_observations_are_found_later_too(bad, words):
    algo = build(steps_of(bad, 23), fragment=12)
    algo.env_runner.sample()
    with pytest.raises(EnvError) as caught:
        algo.env_runner.sample()
    text = one_line(caught)
    assert re.search(f"sub-environment 0.*{words}", text)


def test_a_bad_last_observation_is_found():
    steps = [
        Step({"a": 0, "b": 0}),
        Step({"a": 0, "b": np.zeros(3, np.float32)}, {}, terminated=("b",)),
        Step({"a": 0}, {}, ("a",)),
    ]
    with pytest.raises(
        EnvError,
        match=r"(?s)'b'.*Box\(2,\).*float32.*\(3,\).*\(2,\)",
    ):
        build(steps, checking=False).env_runner.sample(num_timesteps=1)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, None])
def test_rewards_that_are_not_finite_are_found_later_too(bad):
    algo = build(steps_of(bad, 23, reward=True), fragment=12)
    algo.env_runner.sample()
    with pytest.raises(
        EnvError,
        match=r"(?s)sub-environment 0.*'b'.*(nan|-inf|None)",
    ):
        algo.env_runner.sample()


@pytest.mark.few(1)
@pytest.mark.parametrize("bad", ["much", [1.0, 2.0]])
def test_a_reward_that_is_no_number_is_named(bad):
    algo = build(steps_of(bad, 23, reward=True), fragment=12)
    algo.env_runner.sample()
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*episode 0.*step 23.*'b'"):
        algo.env_runner.sample()


def test_a_reward_beyond_float32_is_named_and_not_an_infinite_loss():
    largest = float(np.finfo(np.float32).max)
    build(steps_of(largest, 23, reward=True), fragment=24).env_runner.sample()
    algo = build(steps_of(-1e300, 23, reward=True), fragment=12)
    algo.env_runner.sample()
    with pytest.raises(EnvError, match=r"(?s)'b'.*step 22.*-1e\+300.*float32.*3.4e.*38"):
        algo.env_runner.sample()


def test_a_reward_for_an_absent_agent_must_be_a_number_too():
    steps = [
        Step({"a": 0, "b": 0}),
        Step({"a": 0, "b": 0}, {}, ("b",)),
        Step({"a": 0}, {"b": np.nan}),
        Step({"a": 0}, {}, ("a",)),
    ]
    with pytest.raises(EnvError, match=r"(?s)'b'.*\bnan\b"):
        build(steps, checking=False).env_runner.sample(num_timesteps=2)


def test_without_checks_an_observation_may_leave_its_space_but_nan_stays_an_error():
    algo = build(steps_of(np.array([2000, 0], np.float32), 3), checking=False)
    (episode,) = algo.env_runner.sample()
    assert episode.agent_episodes["b"].get_observations(3)[0] == 2000.0
    with pytest.raises(EnvError, match=r"(?s)step 3.*NaN"):
        build(steps_of(BAD, 3), checking=False).env_runner.sample()


def test_a_live_agent_without_an_observation_is_named():
    steps = [Step({"a": 0, "b": 0}), Step({"a": 0}, {"a": 0, "b": 0}, agents=["a", "b"])]
    with pytest.raises(EnvError, match=r"(?s)step 1.*'b'"):
        build(steps, checking=False).env_runner.sample(num_timesteps=1)
    with pytest.raises(EnvError, match=r"(?s)step 0.*'b'"):
        build([Step({"a": 0}, agents=["a", "b"])], checking=False).env_runner.sample()


def test_an_agent_that_leaves_without_a_flag_is_named():
    steps = [Step({"a": 0, "b": 0}), Step({"a": 0}, {"a": 0, "b": 0}, agents=["a"])]
    with pytest.raises(EnvError, match=r"(?s)'b'.*env.agents"):
        build(steps, checking=False).env_runner.sample(num_timesteps=1)


def test_an_agent_that_leaves_without_a_flag_but_still_observes_is_named_soon():
    both = {"a": 0, "b": 0}
    steps = [Step(both), *[Step(both, both, agents=["a", "b"])] * 3, *[Step(both, both, agents=["a"])] * 30]
    with pytest.raises(EnvError, match=r"(?s)step 16.*'b'.*env.agents"):
        build(steps, checking=False).env_runner.sample(num_timesteps=30)


def test_a_reset_without_agents_is_named():
    with pytest.raises(EnvError, match=r"(?s)reset\(\).*env.agents"):
        build([Step({"a": 0}, agents=[])], checking=False).env_runner.sample()


class Breaks(gymnasium.Env):
    """Raises in the step or reset that it is told."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, step=10**9, reset=10**9):
        self.left = {"step": step, "reset": reset}

    def _count(self, what):
        self.left[what] -= 1
        if self.left[what] < 0:
            raise RuntimeError(f"no {what} today")

    def reset(self, *, seed=None, options=None):
        self._count("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._count("step")
        return np.zeros(2, np.float32), 0.0, True, False, {}


def test_an_env_that_raises_in_the_smoke_test_is_named():
    for settings in ({"step": 0}, {"reset": 0}):
        with pytest.raises(EnvError, match=r"(?s)Breaks.*sub-environment 0.*RuntimeError") as caught:
            small_config(Breaks, env_config=settings).build_algo()
        one_line(caught)


def test_an_env_that_raises_later_is_named_with_its_seed_and_actions():
    runner = small_config(Breaks, env_config={"step": 2}, disable_env_checking=True).build_algo().env_runner
    with pytest.raises(
        EnvError,
        match=r"(?s)sub-environment 0.*episode 2.*step 0.*\(seed \d+\).*step\(\{'default_agent': [01]\}\)",
    ):
        runner.sample(num_timesteps=3)
    runner = small_config(Breaks, env_config={"reset": 2}, disable_env_checking=True).build_algo().env_runner
    with pytest.raises(EnvError, match=r"(?s)episode 2.*step 0.*reset\(seed=\d+\).*RuntimeError"):
        runner.sample(num_timesteps=3)
