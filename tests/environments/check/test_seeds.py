"""What ``check_env`` finds when an episode is played again."""

from __future__ import annotations

import random
import time
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from helpers.envs.sound_envs import SMALL, Sound, SoundAEC, SoundGym, found, kinds
from marl_connectors.environments.check.calls import digest
from marl_connectors.environments.check.check_env import check_env

# Seeds.


class IgnoresSeed(Sound):
    def seeded(self, seed):
        if not hasattr(self, "rng"):
            self.rng = np.random.default_rng()


class OneGeneratorForAll(Sound):
    def seeded(self, seed):
        if not hasattr(self, "rng"):
            self.rng = np.random.default_rng(7)


class AlwaysTheSame(Sound):
    def seeded(self, seed):
        self.rng = np.random.default_rng(7)


class SeedsByDefault(Sound):
    def seeded(self, seed):
        self.rng = np.random.default_rng(0 if seed is None else seed)


class FromGlobals(Sound):
    def seeded(self, seed):
        pass

    def observe(self, agent):
        return np.random.uniform(-1, 1, 3).astype(np.float32)


class FromPythonGlobals(FromGlobals):
    def observe(self, agent):
        return np.float32([random.random(), 0, 0])


class SeedsGlobals(FromGlobals):
    def seeded(self, seed):
        np.random.seed(seed)


class Remembers(Sound):
    """The number of earlier steps moves what it observes late in an episode."""

    total = 0
    strength = 0.5

    def observe(self, agent):
        self.total += 1
        usual = super().observe(agent)
        return np.clip(usual / 2 + self.strength * (self.t > 3) * (self.total % 7) / 7, -1, 1).astype(np.float32)


class RemembersALittle(Remembers):
    strength = 1e-5


class LateReward(Sound):
    """Repeats all but the reward of its last step."""

    def rewards(self, actions):
        self.total = getattr(self, "total", 0) + 1
        return dict.fromkeys(actions, float(self.total) if self.t == 5 else 0.0)


class ClockInInfo(Sound):
    def info(self, agent):
        return {"seconds": time.perf_counter()}


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.zeros((2, 1)), "b": (1, "x")},
        {"a": np.zeros(2, np.float32), "b": (1, "x")},
        {"a": np.zeros(2), "b": (1, "y")},
        {"a": np.zeros(2), "b": (True, "x")},
        {"a": np.zeros(2), "c": (1, "x")},
        {"a": np.zeros(2)},
    ],
)
def test_digests_tell_data_apart(other):
    assert digest(other) != digest({"a": np.zeros(2), "b": (1, "x")})
    assert digest({"a": np.zeros(2), "b": (1, "x"), "o": object()}) == digest(
        {"a": np.zeros(2), "b": (1, "x"), "o": object()}
    )


class ClockAndOneSeed(ClockInInfo, AlwaysTheSame):
    """Infos tell nothing about its seeds."""


class ClockAndNoSeed(ClockInInfo, IgnoresSeed):
    """Both differ in the same step."""


@pytest.mark.few(3)
@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize(
    ("env", "kind", "level", "words"),
    [
        (IgnoresSeed, "seed", "error", "another observation at the reset"),
        (ClockAndNoSeed, "seed", "error", "another observation at the reset"),
        (OneGeneratorForAll, "seed", "error", "another observation at the reset, when played a second time"),
        (FromGlobals, "seed", "error", "It follows the global random state"),
        (FromPythonGlobals, "seed", "error", "It follows the global random state"),
        (Remembers, "seed-leak", "warning", "another observation at step 4"),
        (RemembersALittle, "seed-slightly-off", "warning", "off, at step 4"),
        (LateReward, "seed-leak", "warning", "another reward at step 5"),
        (ClockAndOneSeed, "seed-without-effect", "note", "Different seeds"),
        (ClockInInfo, "seed-infos", "warning", "lead to other infos at step 0"),
        (AlwaysTheSame, "seed-without-effect", "note", "Different seeds lead to the same episode"),
        (SeedsByDefault, "reset-repeats", "warning", "begins the same episode again"),
    ],
)
def test_seeds(env, kind, level, words, as_object):
    assert words in found(env() if as_object else env, kind, level).what


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(6))
def test_short_episodes_that_are_alike_by_chance_are_no_finding(seed):
    report = check_env("marl_envs.first_step_v0", seed=seed, conformance=False)
    assert not {"reset-repeats", "seed-without-effect"} & {finding.kind for finding in report.findings}


def test_where_copies_cannot_be_made_a_seed_that_fails_is_an_error():
    class Single(Remembers):
        def __deepcopy__(self, memo):
            raise TypeError("it holds a socket")

    found(Single(), "seed", "error")
    found(Single, "seed-leak", "warning")


def test_an_object_is_not_closed_through_its_copies():
    closed = []

    class Closes(Remembers):
        def close(self):
            closed.append(self)

    check_env(Closes(), **SMALL)
    assert not closed
    check_env(Closes, **SMALL)
    assert len(closed) == 4  # the one that is played, one to compare with, and two with different seeds


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("env", "name"), [(FromGlobals, "np.random"), (SeedsGlobals, "np.random"), (FromPythonGlobals, "random")]
)
def test_global_generators_are_named(env, name):
    assert f"draws from {name}'s global generator" in found(env, "global-random-state", "warning").what
    assert check_env(SeedsGlobals, **SMALL).ok  # it does repeat


def test_what_says_that_it_cannot_be_repeated_gets_a_note_only():
    class Chancy(SoundGym):
        spec = gymnasium.envs.registration.EnvSpec("Chancy-v0", nondeterministic=True)

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=None)

    found(Chancy, "seed", "note")


class ResetsHalf(Sound):
    """A reset in the middle of an episode does not begin a new one."""

    def reset(self, seed=None, options=None):
        t = self.t if self.agents else 0
        given = super().reset(seed)
        self.t = t
        return given


def test_a_reset_in_the_middle_of_an_episode_must_be_one():
    finding = found(ResetsHalf, "seed-leak", "warning")
    assert "when played after a reset in the middle of an episode" in finding.what


class CountsForAll(Sound):
    """All copies have one clock."""

    clock: ClassVar = {"t": 0}

    def reset(self, seed=None, options=None):
        self.clock["t"] = 0
        return super().reset(seed)

    def rewards(self, actions):
        self.clock["t"] += 1
        return dict.fromkeys(actions, float(self.clock["t"]))


class OneBufferForAll(Sound):
    """All copies write observations to the same arrays."""

    buffers: ClassVar = {agent: np.zeros(3, np.float32) for agent in "ab"}

    def observe(self, agent):
        self.buffers[agent][:] = super().observe(agent)
        return self.buffers[agent]


class OneClockForAllTurns(SoundAEC):
    clock: ClassVar = {"turn": 0}

    def reset(self, seed=None, options=None):
        super().reset(seed)
        self.clock["turn"] = 0

    def observe(self, agent):
        return np.full(3, self.clock["turn"] / 100, np.float32)

    def after(self, agent):
        super().after(agent)
        self.clock["turn"] += 1


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (CountsForAll, "the first one returns another reward at step 2 than alone"),
        (OneBufferForAll, "the second one writes to the arrays or infos that the first one returned"),
        (OneClockForAllTurns, "returns another observation"),
    ],
)
def test_copies_must_be_apart(env, words):
    assert words in found(env, "copies", "error").what


class ResetsItself(SoundGym):
    """Its last observation is the first one of the next episode."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return np.zeros(2, np.float32) if truncated else observation, reward, terminated, truncated, info


class Resting(ResetsItself):
    """Stays where it is."""

    def step(self, action):
        _, *rest = super().step(action)
        return np.zeros(2, np.float32), *rest


class TerminatesItself(ResetsItself):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, truncated, False, info


def test_the_last_observation_is_not_the_next_episodes_first():
    found(ResetsItself, "last-observation-is-first", "warning")
    for env in (SoundGym, Resting, TerminatesItself):
        assert "last-observation-is-first" not in kinds(check_env(env, **SMALL))
