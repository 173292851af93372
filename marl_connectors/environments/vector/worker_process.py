"""Process handles: start, message and stop worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.environments.rules.env_failures import CLOSE_TIMEOUT_S
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.channel import channel
from marl_connectors.environments.vector.shared_memory import AgentSpaces, SharedColumns
from marl_connectors.environments.vector.sub_environment import EnvCall, SubEnvironment
from marl_connectors.environments.vector.worker import (
    LEFT_TO_PARENT,
    Reply,
    WorkerTask,
    acting_in,
    needs_main_script,
    run_worker,
)
from marl_connectors.environments.vector.worker_threads import one_thread_for_children
from marl_connectors.errors import ConfigError
from marl_connectors.typing import Tree

_LOG = logging.getLogger(__name__)

_START_TIMEOUT_S = 300.0  # importing an environment's packages may take long on a busy machine
_STOP_TIMEOUT_S = 5.0


class WorkerLost(Exception):
    """A worker process ended, or took too long and was killed. The message says why."""


@contextlib.contextmanager
def _without_main_script() -> Iterator[None]:
    """Keeps a process that is started in the block from importing the running script.

    The script may lack a ``__main__`` guard. ``multiprocessing`` finds it in ``sys.modules`` and has no setting for it.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _start_forkserver() -> None:
    """Starts the process that workers are forked from, if it does not run yet.

    The process blocks the signals that only this process is to handle, since they are often sent to all processes of
    a group or job.
    """
    from multiprocessing import resource_tracker
    from multiprocessing.forkserver import ensure_running  # not there on every platform

    resource_tracker.ensure_running()  # first, because it unblocks SIGTERM when it has started
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _started_by(pid: int) -> list[int]:
    """Returns the ids of a process's child processes and of their descendants. On other systems than Linux, none."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has just ended
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, other in parents.items() if other == parent]
    return found[1:]


class WorkerProcess:
    """Starts a worker process, exchanges messages with it, and ends it.

    Attributes:
        sub_envs: This process's records of the sub-environments that the worker steps.
        columns: The shared memory of both processes.
        env_states: The states of the environments after the newest answer; None if states are not used.
    """

    def __init__(
        self,
        task: WorkerTask,
        agent_spaces: AgentSpaces,
        sub_envs: list[SubEnvironment],
        timeout_s: float | None,
    ):
        """Prepares a worker without starting it.

        Args:
            task: The arguments of the process, without the memory.
            agent_spaces: The spaces of the agents that are known.
            sub_envs: The sub-environments that the worker is to step.
            timeout_s: Seconds that an answer may take; None for no limit.

        Raises:
            ConfigError: On Windows.
        """
        if sys.platform == "win32":
            raise ConfigError("num_env_workers: worker processes need Linux or macOS. Set num_env_workers=0.")
        self.sub_envs = sub_envs
        self._task = task
        self._agent_spaces = agent_spaces
        self._timeout_s = timeout_s
        self._needs_main = any(map(needs_main_script, (task.maker, pickle.dumps(task.restarts))))
        self.env_states: Tree | None = None
        self._process: BaseProcess | None = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """The process id; None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def current_call(self) -> list[int]:
        """The worker's ``VectorEnv.current_call``, also after its end. The second number is -1 before a reset."""
        return self.columns.current_call.tolist()

    def _number_of(self, index: int) -> int:
        """Returns the number in the run of a sub-environment with this index."""
        return self.sub_envs[0].number + index - self.sub_envs[0].index

    def start(self) -> None:
        """Starts a process. It is ready once ``finish_start`` has returned."""
        self.kill()
        task = self._task
        self.columns = SharedColumns(self._agent_spaces, task.num_envs)
        self.columns.current_call[:] = task.first_index, -1, -1, EnvCall.STEP
        task = dataclasses.replace(task, memory=self.columns.memory)
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([run_worker.__module__])
        with one_thread_for_children():
            _start_forkserver()
        self._channel, other = channel()
        try:
            process = context.Process(target=run_worker, args=(other, task), name="env-worker", daemon=True)
            self._process = process
            with contextlib.nullcontext() if self._needs_main else _without_main_script():
                process.start()
            self._channel.watch(process.sentinel)
        finally:
            other.close()

    def finish_start(self) -> tuple[bool, bool]:
        """Waits until the sub-environments are made; returns ``turn_based`` and ``one_at_a_time`` of VectorEnv.

        The limit is 300 s, or ``timeout_s`` if that is more.

        Raises:
            WorkerLost: If the process ends or takes longer.
            EnvError: If a sub-environment cannot be made.
        """
        limit = None if self._timeout_s is None else max(self._timeout_s, _START_TIMEOUT_S)
        return self._receive(limit, " while it started")

    def send_step(self, actions: list[Any]) -> None:
        """Tells the worker to step its sub-environments, with one action for each agent that acts."""
        self.send("step", _compact(actions))

    def read_step(self, reply: Reply) -> StepResult:
        """Returns a step's result. ``sub_env.agents`` must be those that act next."""
        result = StepResult(*reply.result)
        if result.observations is None:
            result.observations = self.columns.read(acting_in(self.sub_envs))
        return result

    def send(self, *message: Any) -> None:
        """Sends any other command with its arguments."""
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # if the process has ended, receive() raises
            self._channel.send(message)

    def receive(self) -> Reply:
        """Returns the answer to the last message.

        Raises:
            WorkerLost: If the process ended or took too long.
            MarlConnectorsError: The error that the worker ended with.
        """
        reply = Reply(*self._receive(self._timeout_s))
        self.env_states = reply.env_states
        return reply

    def _receive(self, timeout_s: float | None, during: str = "") -> Any:
        try:
            message = self._channel.receive(timeout_s)
        except TimeoutError:
            index, _, _, call = self.current_call
            where = f" in {EnvCall(call).name.lower()}()" if call != EnvCall.MAKE and not during else during
            making = f" It was making sub-environment {self._number_of(index)}." if call == EnvCall.MAKE else ""
            self.kill()
            raise WorkerLost(
                f"did not answer for {timeout_s:g} s{where} and was ended.{making} If the environment may take that "
                f"long, set sample_timeout_s above {timeout_s:g}"
            ) from None
        except (EOFError, OSError):
            raise WorkerLost(f"{self._how_it_ended()}{during}") from None
        said = pickle.loads(message)
        if isinstance(said, BaseException):
            raise said
        return said

    def _how_it_ended(self) -> str:
        assert self._process is not None
        self._process.join(_STOP_TIMEOUT_S)
        code = self._process.exitcode
        self.kill()
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
            return f"was ended by {name}{hint}"
        if code is None:
            return f"sent no more messages, did not end for {_STOP_TIMEOUT_S:g} s, and was ended"
        return f"ended with exit code {code}"

    @property
    def stop_timeout_s(self) -> float:
        """Seconds that the worker may take to close its sub-environments and end."""
        return CLOSE_TIMEOUT_S if self._timeout_s is None else min(self._timeout_s, CLOSE_TIMEOUT_S)

    def send_stop(self) -> None:
        """Tells the worker to close its sub-environments and end."""
        if self._process is not None and os.getpid() == self._owner:
            self._send(b"")

    def finish_stop(self, timeout_s: float) -> None:
        """Waits until the worker has ended, and kills it after ``timeout_s``.

        A warning is logged if ``close()`` of a sub-environment did not return or ended the process.
        """
        if self._process is None or os.getpid() != self._owner:
            return
        self._process.join(timeout_s)
        index, _, _, call = self.current_call
        in_close = index >= 0 and call == EnvCall.CLOSE
        number = self._number_of(index)
        others = [sub_env.number for sub_env in self.sub_envs if sub_env.index > index]
        rest = f" Sub-environments {others} of that process were not closed." if in_close and others else ""
        limit = f"within {self.stop_timeout_s:g} s, so its worker process was ended."
        if not self._process.is_alive():
            if in_close:
                _LOG.warning("sub-environment %d: close() ended its worker process.%s", number, rest)
        elif in_close:
            _LOG.warning("sub-environment %d: close() did not return %s%s", number, limit, rest)
        else:
            _LOG.warning(
                "sub-environment %d: processes or threads that it has started did not end %s",
                self.sub_envs[-1].number,
                limit,
            )
        self.kill()

    def kill(self) -> None:
        """Kills the worker, if there is one, and the processes that its environments have started."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return
        self._channel.close()
        if process.pid is not None:
            if process.is_alive():
                started = _started_by(process.pid)
                process.kill()
                for pid in started:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            process.join(_STOP_TIMEOUT_S)


_form_of = attrgetter("dtype", "shape")


def _compact(actions: list[Any]) -> Any:
    """Returns actions as one array if they are arrays that are alike; else the list."""
    first = actions[0] if set(map(type, actions)) == {np.ndarray} else None
    are_alike = first is not None and first.ndim and first.dtype.isnative and len(set(map(_form_of, actions))) == 1
    return np.array(actions) if are_alike else actions
