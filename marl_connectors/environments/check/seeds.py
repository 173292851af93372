"""Checks that an episode is determined by its seed and its actions alone."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from marl_connectors.environments.check.calls import CallFailed, digest, global_draws, global_random_state
from marl_connectors.environments.check.checked_episodes import (
    CheckedEnv,
    Mismatch,
    Played,
    play,
    replay,
    replay_by_steps,
)
from marl_connectors.environments.check.report import Findings
from marl_connectors.environments.rules.violations import Level

_ATTEMPTS = 3
_REPEATED_STEPS = 60
"""An episode that is always the same is replayed three times, a short one until this many steps were the same."""


def play_and_watch(
    checked_env: CheckedEnv, seed: int, rng: np.random.Generator, max_steps: int, findings: Findings
) -> Played:
    """Plays an episode, as ``play`` does, and adds a finding if a global random generator was used."""
    before = global_draws()
    episode = play(checked_env, seed, rng, max_steps)
    after = global_draws()
    for name, state in before.items():
        if after[name] != state:
            what = f"the environment draws from {name}'s global generator, or seeds it"
            findings.note("global-random-state", what, part=name)
    return episode


class SeedChecks:
    """Plays an episode again under various conditions."""

    def __init__(
        self,
        findings: Findings,
        fresh: Callable[[], CheckedEnv] | None,
        *,
        seed: int,
        nondeterministic: bool,
    ):
        """Prepares the checks.

        Args:
            findings: Collects the findings.
            fresh: Makes a CheckedEnv of a new environment; None if there is only one environment.
            seed: The first seed.
            nondeterministic: Whether the environment is registered as nondeterministic.
        """
        self._findings = findings
        self._fresh = fresh
        self._seed = seed
        self._level: Level = "note" if nondeterministic else "error"

    def run(self, checked_env: CheckedEnv, episode: Played, rng: np.random.Generator, max_steps: int) -> None:
        """Runs all checks.

        Args:
            checked_env: The environment that has played ``episode``, and others after it.
            episode: The episode to repeat. It was played with global generators that were seeded with 0.
            rng: Draws actions.
            max_steps: The number of env steps after which an episode is stopped.
        """
        if self._repeats(checked_env, episode, rng, max_steps):
            self._depends_on_seed(checked_env, episode, rng, max_steps)
            self._after_half_an_episode(checked_env, episode)
            self._beside_another(checked_env, episode)

    def _repeats(self, checked_env: CheckedEnv, episode: Played, rng: np.random.Generator, max_steps: int) -> bool:
        """Whether the same seed leads to the same episode, in a new environment and in one that has played before."""
        if self._fresh is not None:
            other = self._fresh()
            try:
                elsewhere = self._replay(other, episode, 1)
                if elsewhere is not None:
                    with_same_globals = self._replay(other, episode, 0)
                    follows = "the global random state" if with_same_globals is None else ""
                    self._report(elsewhere, "in another instance", follows)
                    return False
            finally:
                other.env.close()
        again = self._replay(checked_env, episode, 1)
        if again is None:
            return True
        if self._fresh is None and self._replay(checked_env, episode, 0) is None:
            self._report(again, "a second time", "the global random state")
        elif self._seed_matters(checked_env, episode, rng, max_steps):
            self._report(again, "a second time", "what was played before", leaks=True)
        else:
            self._report(again, "a second time", "")
        return False

    def _seed_matters(self, checked_env: CheckedEnv, episode: Played, rng: np.random.Generator, max_steps: int) -> bool:
        """Whether two environments in the same state lead to different episodes if they get different seeds."""
        try:
            one, other = (self._fresh() if self._fresh else copy.deepcopy(checked_env) for _ in "ab")
        except CallFailed:
            raise
        except Exception:  # the environment contains something that cannot be copied
            return False
        try:
            with global_random_state(0):
                first = play(one, episode.seed, rng, max_steps)
            with global_random_state(0):
                mismatch, _ = replay(other, self._seed + 101, first)
            return mismatch is not None
        finally:
            if self._fresh:  # closing a deep copy might close something of the original environment
                one.env.close()
                other.env.close()

    def _replay(self, checked_env: CheckedEnv, episode: Played, global_seed: int) -> Mismatch | None:
        with global_random_state(global_seed):
            mismatch, in_infos = replay(checked_env, episode.seed, episode)
        if mismatch is None and in_infos is not None:
            what = f"reset(seed={episode.seed}) and the same actions lead to other infos at step {in_infos.step}"
            self._findings.note("seed-infos", what, in_infos.agent, step=in_infos.step)
        return mismatch

    def _after_half_an_episode(self, checked_env: CheckedEnv, episode: Played) -> None:
        """Checks that a reset in the middle of an episode is complete."""
        half = dataclasses.replace(episode, steps=episode.steps[: len(episode.steps) // 2])
        if half.steps and self._replay(checked_env, half, 1) is None:
            mismatch = self._replay(checked_env, episode, 1)
            if mismatch is not None:
                self._report(
                    mismatch, "after a reset in the middle of an episode", "what was played before", leaks=True
                )

    def _beside_another(self, checked_env: CheckedEnv, episode: Played) -> None:
        """Checks that two environments that step in turn, one of them a step later, do not influence each other."""
        if self._fresh is None or self._findings.has("global-random-state"):  # they do; a finding says so
            return
        other = self._fresh()
        try:
            with global_random_state(1):
                seen = _clash(checked_env, other, episode)
        finally:
            other.env.close()
        if seen:
            self._findings.note("copies", f"Two instances that step in turn influence each other: {seen}")

    def _report(self, mismatch: Mismatch, when: str, follows: str, *, leaks: bool = False) -> None:
        level: Level | None = self._level
        kind = "seed"
        if mismatch.apart is not None or leaks:
            level, kind = None, "seed-leak" if mismatch.apart is None else "seed-slightly-off"
        because = f". It follows {follows}" if follows else ""
        by = f", {mismatch.apart:.1g} off," if mismatch.apart is not None else ""
        what = f"the same seed and the same actions lead to {_different(mismatch, by)}, when played {when}{because}"
        self._findings.note(kind, what, mismatch.agent, level=level, step=mismatch.step)

    def _depends_on_seed(
        self, checked_env: CheckedEnv, episode: Played, rng: np.random.Generator, max_steps: int
    ) -> None:
        if self._always_same(checked_env, (self._seed + 101 + i for i in itertools.count()), episode):
            what = "Different seeds lead to the same episode, for the same actions"
            self._findings.note("seed-without-effect", what)
            return
        with global_random_state(0):
            unseeded = play(checked_env, None, rng, max_steps)
        if self._always_same(checked_env, itertools.repeat(None), unseeded):
            self._findings.note("reset-repeats", "Each reset() without a seed begins the same episode again")

    def _always_same(self, checked_env: CheckedEnv, seeds: Iterator[int | None], episode: Played) -> bool:
        """Whether resets always lead to this episode. Short ones are repeated more often, to exclude chance."""
        attempts = max(_ATTEMPTS, math.ceil(_REPEATED_STEPS / max(1, len(episode.steps))))
        return all(self._same(checked_env, seed, episode) for seed in itertools.islice(seeds, attempts))

    def _same(self, checked_env: CheckedEnv, seed: int | None, episode: Played) -> bool:
        with global_random_state(1):
            return self._alike(replay(checked_env, seed, episode))

    def _alike(self, outcome: tuple[Mismatch | None, Mismatch | None]) -> bool:
        """Whether two episodes were the same. Infos are ignored if they differ even for the same seed."""
        mismatch, in_infos = outcome
        return mismatch is None and (in_infos is None or self._findings.has("seed-infos"))


def _clash(checked_env: CheckedEnv, other: CheckedEnv, episode: Played) -> str:
    """Plays one episode in two environments, one of them a step later, and describes a mismatch; ``""`` for none."""
    behind = itertools.chain([None], replay_by_steps(other, episode.seed, episode))
    for mismatch in replay_by_steps(checked_env, episode.seed, episode):
        given = checked_env.session.given.newest()
        for name, found in (("first", mismatch), ("second", next(behind, None))):
            if found is not None and found.what != "info" and found.apart is None:
                return f"the {name} one returns {_different(found)} than alone"
        if any(digest(value) != token for value, token in given):
            return "the second one writes to the arrays or infos that the first one returned"
    return ""


def _different(mismatch: Mismatch, by: str = "") -> str:
    where = "the reset" if mismatch.step == 0 else f"step {mismatch.step}"
    what = {"flags": "other flags", "agents": "other agents to act"}.get(mismatch.what, f"another {mismatch.what}")
    return f"{what}{by} at {where}"


def is_nondeterministic(env: Any) -> bool:
    """Whether a Gymnasium environment is registered as nondeterministic."""
    return bool(getattr(getattr(env, "spec", None), "nondeterministic", False))
