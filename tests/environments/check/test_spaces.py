"""What ``check_env`` finds in spaces, and in actions out of them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.sound_envs import SMALL, Sound, found
from marl_connectors.environments.check.check_env import check_env


def with_space(kind, space):
    class Broken(Sound):
        def observation_space(self, agent):
            return space() if kind == "observation" and agent == "b" else super().observation_space(agent)

        def action_space(self, agent):
            return space() if kind == "action" and agent == "b" else super().action_space(agent)

    return Broken


class NarrowerLater(Sound):
    n = 4

    def reset(self, seed=None, options=None):
        self.action_spaces["b"] = spaces.Discrete(self.n)
        self.n -= 1
        return super().reset(seed)


class ChangesInPlace(NarrowerLater):
    def reset(self, seed=None, options=None):
        self.observation_spaces["b"].high[0] += 1
        return Sound.reset(self, seed)


class WiderLater(Sound):
    bound = 1.0

    def reset(self, seed=None, options=None):
        self.observation_spaces["b"] = spaces.Box(-self.bound, self.bound, (3,), np.float32)
        self.bound += 1
        return super().reset(seed)


def upside_down():
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    space.high[1] = -2.0
    return space


def without_bounds():
    space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    space.low[0] = np.nan
    return space


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("env", "kind", "level", "words"),
    [
        (with_space("observation", lambda: {}["b"]), "space-missing", "error", "raised KeyError: 'b'"),
        (with_space("action", lambda: 5), "space-missing", "error", "action_space('b') is 5, not a gymnasium space"),
        (with_space("observation", lambda: spaces.Text(5)), "space-unsupported", "error", "is Text"),
        (with_space("observation", upside_down), "space-bounds", "error", "lower bound above its upper bound"),
        (with_space("observation", without_bounds), "space-bounds", "error", "bounds that are NaN"),
        (
            with_space("action", lambda: spaces.Discrete(4)),
            "space-rebuilt",
            "note",
            "action_space('b') is a new object each time",
        ),
        (NarrowerLater, "space-changed", "error", "action_space('b') was Discrete(4) and is Discrete(3) now"),
        (ChangesInPlace, "space-changed", "warning", "is Box(-1.0, [2. 1. 1.]"),
        (WiderLater, "space-changed", "warning", "was Box(-1.0, 1.0, (3,), float32) and is Box(-2.0, 2.0"),
    ],
)
def test_spaces(env, kind, level, words):
    assert words in found(env, kind, level).what


def test_the_random_state_of_its_spaces_is_left_alone():
    env = Sound()
    env.action_space("a").seed(5)
    before = env.action_space("a").np_random.bit_generator.state
    check_env(env, **SMALL)
    assert env.action_space("a").np_random.bit_generator.state == before


def test_an_action_of_its_own_space_that_it_refuses_is_an_error():
    class Refuses(Sound):
        def rewards(self, actions):
            if actions["a"] == 3:
                raise IndexError("no such move")
            return super().rewards(actions)

    finding = found(Refuses, "raised", "error", episodes=8)
    assert "step() with actions from the action space raised IndexError: no such move" in finding.what


def test_a_step_that_writes_to_its_actions_is_a_warning():
    class Clips(Sound):
        def __init__(self, render_mode=None):
            super().__init__(render_mode)
            self.action_spaces = {a: spaces.Box(-1.0, 1.0, (2,), np.float32) for a in "ab"}

        def step(self, actions):
            actions["b"] *= 0.5
            return super().step(actions)

    assert found(Clips, "action-changed", "warning").agent == "b"
