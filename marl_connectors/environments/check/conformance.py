"""Runs PettingZoo's and Gymnasium's own tests of an environment, with findings instead of tracebacks."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper

from marl_connectors.environments.check.calls import CallFailed, warning_text
from marl_connectors.environments.check.checked_episodes import Session

_SECONDS = 5.0
"""The approximate number of seconds that one of these tests may play."""


def run_conformance_tests(make: Callable[[], Any], session: Session, *, can_make: bool, seed: int) -> None:
    """Runs the tests that apply.

    Args:
        make: Returns an environment to test.
        session: Collects the findings.
        can_make: Whether ``make`` returns a new environment each time, which may be closed.
        seed: The seed of the spaces that the tests sample actions from.
    """
    env: Any = make()
    if isinstance(env, gym.Env):
        _run(
            "gymnasium's check_env",
            lambda: gymnasium_check_env(env, skip_render_check=True, skip_close_check=True),
            session,
        )
    else:
        _run_pettingzoos(env, make, session, can_make=can_make, seed=seed)
    if can_make:
        with contextlib.suppress(Exception):
            env.close()


def _run_pettingzoos(env: Any, make: Callable[[], Any], session: Session, *, can_make: bool, seed: int) -> None:
    try:
        from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
    except ImportError as error:
        text = f"PettingZoo's tests cannot be imported: {error}"
        session.findings.note("conformance-not-run", text, advice="Install what they need to run them too.")
        return
    turns = isinstance(env, AECEnv)
    cycles = _cycles(session, turns)
    if not turns and "infos" in session.masks_in:
        text = "PettingZoo's tests for parallel environments were left out: they ignore action masks in infos"
        session.findings.note("conformance-not-run", text)
        return
    seed_spaces(env, seed)
    if turns:
        _run("pettingzoo's api_test", lambda: api_test(env, num_cycles=cycles), session)
    else:
        wrapped: Any = BaseParallelWrapper(env)  # the test sets max_cycles, which must not change the environment
        _run("pettingzoo's parallel_api_test", lambda: parallel_api_test(wrapped, num_cycles=cycles), session)
    if not can_make or session.findings.has("seed"):
        return
    cycles = min(cycles, 50)
    if turns:
        _run("pettingzoo's seed_test", lambda: seed_test(make, num_cycles=cycles), session)
    elif not session.masks_in:  # it chooses forbidden actions
        _run("pettingzoo's parallel_seed_test", lambda: parallel_seed_test(make, num_cycles=cycles), session)


def _cycles(session: Session, turn_based: bool) -> int:
    totals = session.totals
    seconds = totals.step_seconds / max(totals.steps, 1)
    turns = len(session.seen) if turn_based else 1
    return max(5, min(1000, int(_SECONDS / (2 * turns * max(seconds, 1e-7)))))


def seed_spaces(env: Any, seed: int) -> None:
    """Seeds the action spaces, so that the tests sample the same actions in each run."""
    for number, agent in enumerate(getattr(env, "possible_agents", None) or []):
        with contextlib.suppress(Exception):
            env.action_space(agent).seed(seed + number)


def _run(name: str, test: Callable[[], Any], session: Session) -> None:
    session.calls.check_time()
    with warnings.catch_warnings(record=True) as caught, _silence():
        warnings.simplefilter("always")
        with contextlib.suppress(CallFailed):
            session.calls(name, test, kind="conformance", at_least=12 * _SECONDS)
    for each in caught:
        text = warning_text(each)
        if issubclass(each.category, (DeprecationWarning, ResourceWarning)) or "unwrapped version" in text:
            continue
        what = f"{name} warns: {text.rstrip('.')}"
        session.findings.note("conformance", what, level="note", advice="", part=(name, text))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppresses the tests' standard output and the log messages of PettingZoo's wrappers."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
