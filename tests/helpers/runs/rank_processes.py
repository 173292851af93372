"""Processes in which learners update modules together, and the same updates by one learner."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from marl_connectors.environments.vector import worker_process

_NUMBERS = itertools.count()


class Updates(NamedTuple):
    """Updates of one learner.

    Attributes:
        episodes: For each update the pickled episodes, as they were before it.
        timesteps: The ``timesteps`` of each update.
        results: What each update returned.
        state: The learner's state after the last update.
    """

    episodes: list[bytes]
    timesteps: list[dict[str, int]]
    results: list[dict[str, Any]]
    state: dict[str, Any]


class RankResult(NamedTuple):
    """What one rank has done: the results of its updates and its state, or the error that ended them."""

    results: list[dict[str, Any]]
    state: dict[str, Any]
    error: str | None = None


Prepare = Callable[[Any], None]
"""A function that changes the algorithm before its first update."""


def updates_of_one(make_config: Callable[[], Any], number: int, prepare: Prepare | None = None) -> Updates:
    """Samples and updates in this process."""
    algo = make_config().build_algo()
    if prepare is not None:
        prepare(algo)
    found = Updates([], [], [], {})
    for _ in range(number):
        episodes = algo._sample().episodes()
        found.episodes.append(pickle.dumps(episodes))
        found.timesteps.append({"num_env_steps_sampled_lifetime": algo.env_runner.num_env_steps})
        found.results.append(algo.learner.update(episodes=episodes, timesteps=found.timesteps[-1]))
    state = algo.learner.get_state()
    algo.stop()
    return found._replace(state=state)


def sub_environment_of(episode: Any) -> int:
    """The number of an episode's sub-environment."""
    return int(str(episode.id_).split("-")[0])


def shares_by_env(episodes: bytes, rank_of: Callable[[int], int], size: int) -> list[tuple[bytes, list[int]]]:
    """The pickled episodes of each rank and their positions; ``rank_of`` maps the numbers of sub-environments."""
    whole = pickle.loads(episodes)
    found = []
    for rank in range(size):
        positions = [i for i, episode in enumerate(whole) if rank_of(sub_environment_of(episode)) == rank]
        found.append((pickle.dumps([whole[i] for i in positions]), positions))
    return found


def run_rank(
    make_config: Callable[[], Any],
    shares: Sequence[tuple[bytes, list[int]]],
    timesteps: Sequence[dict[str, int]],
    prepare: Prepare | None,
    store: str,
    rank: int,
    size: int,
    timeout_s: float,
) -> RankResult:
    """Updates with one of several learners."""
    from marl_connectors.learner.ranks import Ranks

    algo = make_config().env_runners(num_env_workers=0).build_algo()
    if prepare is not None:
        prepare(algo)
    ranks = Ranks(torch.distributed.FileStore(store, size), rank, size, device=algo.learner.device, timeout_s=timeout_s)
    algo.learner.ranks = ranks
    results: list[dict[str, Any]] = []
    error = None
    try:
        for (episodes, positions), steps in zip(shares, timesteps, strict=True):
            own = pickle.loads(episodes)
            results.append(ranks.update(algo.learner, episodes=own, timesteps=steps, positions=positions))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        if not isinstance(raised, RuntimeError):
            error += traceback.format_exc()
    ranks.leave()
    algo.stop()
    return RankResult(results, algo.learner.get_state(), error)


class RankPool:
    """Processes that stay alive for many runs of ranks."""

    def __init__(self, size: int):
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([])  # beside what all tests preload
        worker_process._start_forkserver()
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for _ in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def run(
        self,
        make_config: Callable[[], Any],
        shares: Sequence[Sequence[tuple[bytes, list[int]]]],
        timesteps: Sequence[dict[str, int]],
        prepare: Prepare | None = None,
        timeout_s: float = 60.0,
    ) -> list[RankResult]:
        """Runs the updates on ranks of which each has its ``shares``, one share for each update."""
        size = len(shares)
        store = str(Path(self._folder.name) / f"store{next(_NUMBERS)}")
        for rank, own in enumerate(shares):
            arguments = (make_config, own, timesteps, prepare, store, rank, size, timeout_s)
            self._pipes[rank].send_bytes(pickle.dumps((run_rank, arguments)))
        found = [pickle.loads(pipe.recv_bytes()) for pipe in self._pipes[:size]]
        for result in found:
            if isinstance(result, str):
                raise AssertionError(result)
        return found

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(20)
            process.kill()
        self._folder.cleanup()


def _serve(pipe: Any) -> None:
    import warnings

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = function(*arguments)
        except BaseException:
            result = traceback.format_exc()
        pipe.send_bytes(pickle.dumps(result))


def largest_difference(state: Any, other: Any) -> float:
    """The largest difference of numbers in two states of modules."""
    if isinstance(state, dict):
        assert state.keys() == other.keys()
        return max((largest_difference(state[key], other[key]) for key in state), default=0.0)
    one, two = np.asarray(state, np.float64), np.asarray(other, np.float64)
    assert one.shape == two.shape
    return float(np.abs(one - two).max(initial=0.0))
