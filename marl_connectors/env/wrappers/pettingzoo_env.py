"""RLlib's wrappers of PettingZoo environments. PettingZoo environments need none here."""

from __future__ import annotations

from typing import TypeVar

_Env = TypeVar("_Env")


def PettingZooEnv(env: _Env) -> _Env:
    """Returns a turn-based (AEC) environment unchanged."""
    return env


def ParallelPettingZooEnv(env: _Env) -> _Env:
    """Returns a parallel environment unchanged."""
    return env
