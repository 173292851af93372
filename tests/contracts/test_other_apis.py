"""Environments of other APIs get a hint of how to wrap them: several agents in one, several rewards, the old gym."""

from __future__ import annotations

import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors import PPOConfig, check_env, make_env, register_env
from marl_connectors.errors import EnvError

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def build(env):
    return PPOConfig().environment(env).env_runners(num_env_workers=0).debugging(seed=0).build_algo()


def two():
    return tuple(np.zeros(2, np.float32) for _ in range(2))


class TwoInOne(gymnasium.Env):
    """As warehouses and foraging games have it: Tuple spaces, and a list of rewards."""

    observation_space = spaces.Tuple((BOX, BOX))
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))

    def reset(self, *, seed=None, options=None):
        return two(), {}

    def step(self, actions):
        return two(), [0.0, 1.0], False, False, {}


class WithListsOfFlags(TwoInOne):
    def step(self, actions):
        return two(), 0.0, [False, False], [False, False], {}


class WithoutInfos(TwoInOne):
    """As before Gymnasium: lists of spaces, and nothing but observations from ``reset``."""

    def reset(self, *, seed=None, options=None):
        return list(two())


class WithListsOfSpaces(TwoInOne):
    observation_space, action_space = [BOX, BOX], [spaces.Discrete(3)] * 2


@pytest.mark.parametrize("env", [TwoInOne, WithListsOfFlags, WithoutInfos, WithListsOfSpaces])
def test_several_agents_in_one_gymnasium_environment_are_told_to_become_a_parallel_env(env):
    with pytest.raises(EnvError, match=r"(?s)\b2\b.*Gymnasium.*PettingZoo.*ParallelEnv"):
        build(env)


def test_an_environment_with_tuple_spaces_that_is_sound_is_fine():
    class Sound(TwoInOne):
        def step(self, actions):
            return two(), 1.0, True, False, {}

    build(Sound).stop()


class Rewards(gymnasium.Env):
    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, reward, first=0):
        self.reward, self.first = reward, first

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), self.reward if self.t > self.first else 0.0, False, self.t == 60, {}


VECTORS = [np.zeros(3), [0.0, 0.0, 1.0], (1.0, 2.0, 3.0)]
HINT = r"(?s)\b3\b.*objectives"


@pytest.mark.parametrize("reward", VECTORS)
def test_vector_rewards_are_told_to_be_weighed(reward):
    with pytest.raises(EnvError, match=HINT):
        build(lambda: Rewards(reward))
    algo = build(lambda: Rewards(reward, first=30))
    with pytest.raises(EnvError, match=HINT):
        algo.env_runner.sample(num_timesteps=40)
    algo.stop()
    (finding,) = [f for f in check_env(lambda: Rewards(reward), episodes=1).errors if f.kind == "reward"]
    assert "several objectives" in finding.advice


def test_one_bad_number_is_not_taken_for_several():
    with pytest.raises(EnvError, match=r"(?s)\bnan\b.*Rewards"):
        build(lambda: Rewards(float("nan")))


# The old gym.


@pytest.fixture
def gym(monkeypatch):
    """A stand-in for the package of that name."""
    module = types.ModuleType("gym")

    class Env:
        observation_space, action_space = BOX, spaces.Discrete(2)

    class Space:
        pass

    Env.__module__ = Space.__module__ = "gym.core"
    module.Env, module.Space = Env, Space
    monkeypatch.setitem(sys.modules, "gym", module)
    return module


def test_an_environment_of_the_old_gym_is_named_as_such(gym):
    class OldEnv(gym.Env):
        pass

    words = r"(?s)OldEnv.*shimmy.openai_gym_compatibility.GymV26CompatibilityV0"
    with pytest.raises(EnvError, match=words):
        make_env(OldEnv)
    register_env("old", lambda config: OldEnv())
    with pytest.raises(EnvError, match=words):
        make_env("old")


def test_a_space_of_the_old_gym_is_named_as_such(gym):
    class OldSpace(gymnasium.Env):
        observation_space, action_space = gym.Space(), spaces.Discrete(2)

    with pytest.raises(EnvError, match="gym"):
        build(OldSpace)


def test_four_values_from_step_and_one_from_reset_are_named_as_those_of_the_old_gym():
    class OldStep(Rewards):
        def step(self, action):
            return np.zeros(2, np.float32), 0.0, False, {}

    class OldReset(Rewards):
        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32)

    with pytest.raises(EnvError, match=r"(?s)step\(\).*\b4\b.*\b5\b.*0\.26"):
        build(lambda: OldStep(0.0))
    with pytest.raises(EnvError, match=r"(?s)reset\(\).*0\.26.*reset\(\)"):
        build(lambda: OldReset(0.0))


# Gymnasium ids that nobody has registered.


@pytest.mark.parametrize("name", ["MyEnv-v0", "my_games/MyEnv-v3"])
def test_an_id_that_is_not_registered_yet_gets_a_hint_to_name_its_package(name):
    with pytest.raises(EnvError, match=f'"its_package:{name}"'):
        make_env(name)


@pytest.mark.parametrize("name", ["MyEnv-v0", "my_games/MyEnv-v3", "CartPole-v77"])
def test_an_id_that_a_maker_asks_gymnasium_for_gets_the_same_hint(name):
    def make():
        return gymnasium.make(name)

    with pytest.raises(EnvError, match=r"test_other_apis\.py:\d+") as info:
        make_env(make)
    assert isinstance(info.value.__cause__, gymnasium.error.UnregisteredEnv)
    assert '"its_package:MyEnv-v0"' in str(info.value)
