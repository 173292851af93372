"""The policies and observations of ``latency.py``, the same in each library, and how their actions are timed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

CASES = ("feed-forward", "LSTM", "pieces")
"""Networks of 2x64 cells; the same with an LSTM; and for a Dict space, whose numbers are standardised and flattened."""
OWN_CASES = ("in turns", "masked boards")
"""Of this library only, one observation at a time: two agents with a network of 2x64 cells that are asked in turns; and
two players of tictactoe with convolutions and action masks."""
HIDDEN, CELLS, SEQUENCE = 64, 64, 20
WARM_UP, CALLS, LEAST_CALLS, SECONDS = 50, 2000, 100, 4.0


class VectorEnv(gym.Env):
    """An environment with vectors of 16 floats, whose steps cost almost nothing."""

    observation_space: Any = spaces.Box(-5.0, 5.0, (16,), np.float32)
    action_space: Any = spaces.Discrete(5)

    def __init__(self, config: Any = None):
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any):
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 25, {}


class DictEnv(VectorEnv):
    """The same with 8 floats, and one of 8 numbers."""

    observation_space: Any = spaces.Dict(
        {"floats": spaces.Box(-5.0, 5.0, (8,), np.float32), "kind": spaces.Discrete(8)}
    )


def env_of(case: str) -> type[VectorEnv]:
    """Returns the environment of a case."""
    return DictEnv if case == "pieces" else VectorEnv


def observations_of(case: str, rows: int, number: int = 64) -> list[Any]:
    """Returns some observations: single ones if ``rows`` is 1, otherwise batches ``[rows, ...]``."""
    rng = np.random.default_rng(0)
    lead = () if rows == 1 else (rows,)

    if case == "masked boards":
        boards = [rng.integers(0, 2, (3, 3, 2)).astype(np.int8) for _ in range(number)]
        return [{"observation": board, "action_mask": (board.sum(-1).ravel() == 0).astype(np.int8)} for board in boards]

    def floats(size: int) -> np.ndarray:
        return rng.uniform(-5.0, 5.0, (*lead, size)).astype(np.float32)

    if case != "pieces":
        return [floats(16) for _ in range(number)]
    return [{"floats": floats(8), "kind": np.asarray(rng.integers(8, size=lead))[()]} for _ in range(number)]


class Timing(NamedTuple):
    """The CPU times of single calls, in microseconds, which are their latencies on an idle core."""

    median: float
    p99: float


def timed(call: Callable[[Any], Any], given: list[Any]) -> Timing:
    """Times calls one by one, with one of ``given`` after the other."""
    for i in range(WARM_UP):
        call(given[i % len(given)])
    times: list[int] = []
    until = time.perf_counter() + SECONDS
    while len(times) < CALLS and (time.perf_counter() < until or len(times) < LEAST_CALLS):
        value = given[len(times) % len(given)]
        began = time.thread_time_ns()
        call(value)
        times.append(time.thread_time_ns() - began)
    return Timing(statistics.median(times) / 1e3, float(np.percentile(times, 99)) / 1e3)


class Acting(NamedTuple):
    """A loaded policy.

    Attributes:
        act: Returns the actions of an observation, or of a batch of observations.
        forward: The network's own forward pass with its usual input, without arguments; None if it is not measured.
    """

    act: Callable[[Any], Any]
    forward: Callable[[], Any] | None = None


def run(save: Callable[[str, Path], None], load: Callable[[str, Path, int], Acting]) -> None:
    """The command line of each library's script: ``save FOLDER CASE ...`` or ``act FOLDER CASE ROWS``.

    ``act`` prints the processor seconds from the start of the process to the first action, and the times of actions.
    """
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "save":
        for case in sys.argv[3:]:
            save(case, folder / case)
        print("{}")
        return
    case, rows = sys.argv[3], int(sys.argv[4])
    loaded = load(case, folder / case, rows)
    given = observations_of(case, rows)
    loaded.act(given[0])
    found: dict[str, Any] = {"start_s": time.process_time()}
    found["act_us"], found["act_p99_us"] = timed(loaded.act, given)
    if loaded.forward is not None:
        forward = loaded.forward
        found["forward_us"], found["forward_p99_us"] = timed(lambda _: forward(), given)
    print(json.dumps(found))
