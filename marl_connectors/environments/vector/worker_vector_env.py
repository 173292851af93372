"""Sub-environments that are stepped by worker processes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing.util import Finalize
from typing import Any

from gymnasium import Space

from marl_connectors.environments.rules.env_failures import EnvRestarts
from marl_connectors.environments.rules.step_result import Event, StepResult, joined, joined_states
from marl_connectors.environments.vector.action_history import ActionHistory
from marl_connectors.environments.vector.kinds import vector_env_of
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.environments.vector.vector_env import VectorEnv, add_observed
from marl_connectors.environments.vector.worker import Reply, WorkerTask, packed_maker, spaces_of
from marl_connectors.environments.vector.worker_process import WorkerLost, WorkerProcess
from marl_connectors.errors import ConfigError, EnvError, MarlConnectorsError
from marl_connectors.typing import AgentID, Tree

_First = list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]


def make_vector_env(
    make_env: Callable[..., Any],
    *,
    num_envs: int,
    seed: int,
    num_workers: int = 0,
    timeout_s: float | None = None,
    restarts: EnvRestarts | None = None,
    state_space: Space | None = None,
    first_number: int = 0,
) -> VectorEnv:
    """Makes several sub-environments of one kind, in this process or in worker processes.

    Args:
        make_env: Makes one sub-environment: a PettingZoo parallel environment, or one with the same methods. If it has
            ``is_batched=True``, it makes a natively batched environment of as many sub-environments as it is told.
        num_envs: The number of sub-environments.
        seed: The run's seed.
        num_workers: The number of worker processes to spread them over; 0 for none.
        timeout_s: Seconds that a worker may take for a step or a reset of its sub-environments; None for no limit.
        restarts: How to continue after failures; None to raise an error.
        state_space: The space of the environments' ``state()`` if states are used; else None.
        first_number: The number of the first sub-environment among all sub-environments of the run.

    Returns:
        The VectorEnv of the class that fits the environment.

    Raises:
        ConfigError: If worker processes or restarts are requested for a natively batched environment.
        EnvError: If a sub-environment cannot be made.
    """
    settings = {"seed": seed, "first_number": first_number, "restarts": restarts, "state_space": state_space}
    if getattr(make_env, "is_batched", False):
        _check_possible(num_workers, restarts)
        return vector_env_of([make_env(num_envs)], make_env=make_env, **settings)
    if num_workers:
        return WorkerVectorEnv(make_env, num_envs=num_envs, num_workers=num_workers, timeout_s=timeout_s, **settings)
    return vector_env_of([make_env() for _ in range(num_envs)], make_env=make_env, **settings)


def _check_possible(num_workers: int, restarts: EnvRestarts | None) -> None:
    if num_workers:
        raise ConfigError(
            f"num_env_workers={num_workers}: the environment is natively batched, so all sub-environments step "
            f"in one call, in one process. Set num_env_workers=0, and num_envs_per_env_runner to their number."
        )
    if restarts is not None:
        raise ConfigError(
            "restart_failed_sub_environments=True: the environment is natively batched, so a failure is one of all "
            "sub-environments, and none can be replaced alone. Set it to False."
        )


class WorkerVectorEnv(VectorEnv):
    """A VectorEnv whose sub-environments are in worker processes, an equal share in each.

    Steps have the same results as in this process: each worker has a VectorEnv with some of the sub-environments.
    Observations are in columns of shared memory; everything else is a pickled message.

    Attributes:
        workers: The process handles of the workers.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        num_envs: int,
        num_workers: int,
        timeout_s: float | None = None,
        **settings: Any,
    ):
        """Starts the workers and makes the sub-environments; see ``make_vector_env``.

        Raises:
            ConfigError: If ``make_env`` cannot be sent to another process.
            EnvError: If a sub-environment cannot be made.
        """
        super().__init__([None] * num_envs, **settings)
        maker = packed_maker(make_env, num_workers)
        num_workers = min(num_workers, num_envs)
        bounds = [num_envs * i // num_workers for i in range(num_workers + 1)]
        self.workers = [
            WorkerProcess(
                WorkerTask(maker, begin, self.sub_envs[begin].number, end - begin, self._restarts, self._state_space),
                spaces_of(make_env),
                self.sub_envs[begin:end],
                timeout_s,
            )
            for begin, end in itertools.pairwise(bounds)
        ]
        self._are_up = False
        # Not weakref.finalize: at exit, this comes before multiprocessing waits for its processes.
        self._at_exit = Finalize(self, _kill, (self.workers,), exitpriority=0)
        self._start_all()

    def _kinds(self) -> list[str]:
        return [f"in {len(self.workers)} worker processes"]

    def _uses(self) -> Iterable[tuple[SubEnvironment, Any]]:
        return ()

    @property
    def envs(self) -> list[Any]:
        """Always raises an EnvError: the environments are in other processes."""
        raise EnvError(
            f"num_env_workers={len(self.workers)}: env.envs is not available, because the environments are in worker "
            f"processes. Put the data that a callback needs into the infos, or set num_env_workers=0."
        )

    def _start_all(self) -> None:
        with self._all_end_on_error():
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                try:
                    self.turn_based, self.one_at_a_time = worker.finish_start()
                except WorkerLost as loss:
                    raise EnvError(
                        f"num_env_workers: a worker process {loss}. Its output may say why. A script that defines its "
                        f"own environment must start its run below `if __name__ == '__main__':`."
                    ) from None
            self._are_up = True

    def reset_all(self) -> _First:
        """Starts the next episode of every sub-environment, and starts the workers if they were ended."""
        with self._all_end_on_error():
            if not self._are_up:
                self._start_all()
            first: _First = []
            for worker in self.workers:
                self._send_reset(worker)
            for worker in self.workers:
                try:
                    first += self._take(worker.receive()).result
                except WorkerLost as loss:
                    first += self._restart(worker, loss)
            return first

    def _send_reset(self, worker: WorkerProcess) -> None:
        worker.send("reset", self.seed, [(sub_env.episode_number, sub_env.num_failures) for sub_env in worker.sub_envs])

    def step(self, actions: Any) -> StepResult:
        """Steps all sub-environments, and resets those whose episode ended; see VectorEnv."""
        with self._all_end_on_error():
            self._send_steps(actions)
            results = []
            for worker in self.workers:
                try:
                    reply = worker.receive()
                except WorkerLost as loss:
                    results.append(self._replace_all(worker, loss))
                    continue
                for sub_env in worker.sub_envs:
                    sub_env.t += 1
                results.append(worker.read_step(self._take(reply)))
            return joined(results)

    def states(self) -> Tree | None:
        """Returns the states after the newest resets and steps; see VectorEnv."""
        return joined_states([worker.env_states for worker in self.workers])

    def _send_steps(self, actions: Any) -> None:
        if not self._are_up:
            raise EnvError(
                "num_env_workers: the worker processes were ended, by close() or after an error. Start new episodes: "
                "sample(force_reset=True)."
            )
        end = 0
        for worker in self.workers:
            first = end
            for sub_env in worker.sub_envs:
                begin, end = end, end + len(sub_env.agents)
                sub_env.newest_actions.append(actions[begin:end])
            worker.send_step(actions[first:end])

    def _take(self, reply: Reply) -> Reply:
        """Updates this process's records of sub-environments from a worker's reply, and returns the reply."""
        self.failures += reply.failures
        for state in reply.states:
            sub_env = self.sub_envs[state.index]
            _begin_episode(sub_env, state.episode_number)
            sub_env.agents, sub_env.t, sub_env.num_failures = state.agents, state.t, state.num_failures
        return reply

    # Lost workers.

    def _replace_all(self, worker: WorkerProcess, loss: WorkerLost) -> StepResult:
        """Begins other episodes in all sub-environments of a lost worker."""
        result = StepResult([], [], rewarded=[])
        if not self.turn_based:
            result.rewards, result.rewarded = [0.0] * sum(len(sub_env.agents) for sub_env in worker.sub_envs), None
        result.events = [Event(sub_env.index, sub_env.t, is_over=True, is_dropped=True) for sub_env in worker.sub_envs]
        for sub_env, first in zip(worker.sub_envs, self._restart(worker, loss), strict=True):
            add_observed(result, sub_env, *first)
        return result

    def _restart(self, worker: WorkerProcess, loss: WorkerLost) -> _First:
        """Starts a worker and new episodes in all of its sub-environments, if the run may continue after a loss."""
        while True:
            index, last_reset, episode_number, _ = worker.current_call
            sub_env = self.sub_envs[index]
            if last_reset == index:
                _begin_episode(sub_env, episode_number)
            self._failed(sub_env, self._loss(sub_env, loss))
            self._start_until_ready(worker, sub_env)
            self._send_reset(worker)
            try:
                return self._take(worker.receive()).result
            except WorkerLost as another:
                loss = another

    def _loss(self, sub_env: SubEnvironment, loss: WorkerLost) -> EnvError:
        advice = ""
        if self._restarts is None:
            advice = " With restart_failed_sub_environments=True, the run would continue with a new environment."
        return EnvError(f"{self._who(sub_env)}: its worker process {loss}.{advice}")

    def _start_until_ready(self, worker: WorkerProcess, sub_env: SubEnvironment) -> None:
        """Starts a worker, repeatedly until its environments are made. Errors count as failures of ``sub_env``."""
        while True:
            worker.start()
            try:
                worker.finish_start()
                return
            except WorkerLost as loss:
                self._failed(sub_env, self._loss(sub_env, loss))
            except MarlConnectorsError as error:
                failure = EnvError(f"{self._who(sub_env)}: {error}")
                failure.__cause__ = error.__cause__
                self._failed(sub_env, failure)

    # For checkpoints.

    def replay(
        self, sub_env: SubEnvironment, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """Replays an unfinished episode in its worker; see VectorEnv."""
        with self._all_end_on_error():
            if not self._are_up:
                self._start_all()
            worker = next(worker for worker in self.workers if sub_env in worker.sub_envs)
            worker.send("replay", self.seed, sub_env.index, episode_number, steps, wanted)
            try:
                reply = worker.receive()
            except WorkerLost as loss:
                raise EnvError(
                    f"{self._who(sub_env)}: while its episode was replayed, its worker process {loss}. Pass "
                    f"new_episodes=True (--new-episodes on the command line) to begin new episodes with everything "
                    f"else from the checkpoint."
                ) from None
            self._take(reply)
            sub_env.history, sub_env.newest_actions = ActionHistory(), [list(actions) for actions in steps]
            return reply.result

    # Closing.

    def close(self) -> None:
        """Closes all sub-environments and ends the workers. Workers that do not end within some seconds are killed."""
        try:
            if self._are_up:
                for worker in self.workers:
                    worker.send_stop()
                began = time.monotonic()
                for worker in self.workers:
                    worker.finish_stop(max(worker.stop_timeout_s - (time.monotonic() - began), 0.0))
        finally:
            self._end_all()

    @contextlib.contextmanager
    def _all_end_on_error(self) -> Iterator[None]:
        """Ends all workers if the block raises, also by Ctrl-C, because their state is unknown then."""
        try:
            yield
        except BaseException:
            self._end_all()
            raise

    def _end_all(self) -> None:
        self._are_up = False
        _kill(self.workers)


def _begin_episode(sub_env: SubEnvironment, episode_number: int) -> None:
    """Records the episode that a worker has begun, if it is a new one."""
    if sub_env.episode_number != episode_number:
        sub_env.episode_number, sub_env.t = episode_number, 0
        sub_env.newest_actions, sub_env.history = [], ActionHistory()


def _kill(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.kill()
