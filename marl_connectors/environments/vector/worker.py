"""Worker processes: each steps some of the sub-environments for the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.environments.rules.env_failures import EnvFailure, EnvRestarts, stop_watching
from marl_connectors.environments.rules.step_result import STEP_PARTS, StepResult
from marl_connectors.environments.vector.channel import Channel
from marl_connectors.environments.vector.kinds import vector_env_of
from marl_connectors.environments.vector.shared_memory import AgentSpaces, Memory, SharedColumns
from marl_connectors.environments.vector.sub_environment import CALL, CALLED_ENV, EnvCall, SubEnvironment
from marl_connectors.errors import ConfigError, EnvError, MarlConnectorsError, describe_error
from marl_connectors.trees import as_list
from marl_connectors.typing import AgentID, Tree

LEFT_TO_PARENT = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that workers leave to their parent process, which ends them with the run. SIGINT is ignored too."""


def packed_maker(make_env: Callable[[], Any], num_workers: int) -> bytes:
    """Pickles a function that makes environments, for other processes.

    Raises:
        ConfigError: If it cannot be pickled. The message names the part that cannot.
    """
    try:
        return pickle.dumps(make_env)
    except Exception as error:
        parts = getattr(make_env, "parts", dict)()
        culprit = next((name for name, part in parts.items() if not _can_be_sent(part)), "the environment's maker")
        raise ConfigError(
            f"num_env_workers={num_workers}: {culprit} cannot be sent to a worker process: {error}. Use an importable "
            f"name, or a class or function at the top of a module (no lambda, nothing that is defined inside a "
            f"function), or set num_env_workers=0."
        ) from error


def needs_main_script(packed: bytes) -> bool:
    """Whether a pickled object refers to a definition in the running script."""
    return b"__main__" in packed


def _can_be_sent(part: Any) -> bool:
    try:
        pickle.dumps(part)
    except Exception:
        return False
    return True


class SubEnvironmentState(NamedTuple):
    """The state of a sub-environment in which something unusual happened, for the parent process."""

    index: int
    agents: list[AgentID]
    t: int
    episode_number: int
    num_failures: int

    @classmethod
    def of(cls, sub_env: SubEnvironment) -> SubEnvironmentState:
        """Returns the current state of a sub-environment."""
        return cls(sub_env.index, sub_env.agents, sub_env.t, sub_env.episode_number, sub_env.num_failures)


class Reply(NamedTuple):
    """A worker's reply to a message.

    Attributes:
        result: The result of the command. For a step, its ``STEP_PARTS``, in which observations are None if they are in
            shared memory.
        states: The states of sub-environments in which agents or episodes changed.
        failures: The failures of sub-environments that continued with another episode.
        env_states: The ``states()`` of the worker's VectorEnv.
    """

    result: Any
    states: list[SubEnvironmentState]
    failures: list[EnvFailure]
    env_states: Tree | None


_NUMBERS = (float, np.floating, np.integer)


def spaces_of(make_env: Callable[..., Any]) -> AgentSpaces:
    """Returns the observation and action spaces of the agents that a factory knows; empty for other functions."""
    return getattr(make_env, "agent_spaces", {})


def acting_in(sub_envs: Iterable[SubEnvironment]) -> list[AgentID]:
    """Returns the agents that act next in some sub-environments, in their order."""
    return [agent for sub_env in sub_envs for agent in sub_env.agents]


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The arguments of a worker process.

    Attributes:
        maker: A pickled function that makes environments.
        first_index: The index of its first sub-environment in the env runner.
        first_number: The number of its first sub-environment in the run.
        num_envs: The number of its sub-environments.
        restarts: How to continue after failures; None to let every failure stop the run.
        state_space: The space of the environments' ``state()`` if states are used; else None.
        memory: The memory of its ``SharedColumns``; None before there is some.
    """

    maker: bytes
    first_index: int
    first_number: int
    num_envs: int
    restarts: EnvRestarts | None
    state_space: Space | None
    memory: Memory | None = None


def run_worker(channel: Channel, task: WorkerTask) -> None:
    """Answers messages from the channel, until the message to stop comes or the other process is gone."""
    _leave_signals_to_parent()
    stop_watching()
    np.random.seed()  # the global state is the same in all forks, and an environment may draw from it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server = None
    try:
        server = EnvServer(task)
        channel.send(pickle.dumps((server.vector_env.turn_based, server.vector_env.one_at_a_time)))
        message = channel.receive()
        _be_killed_with_parent()
        while message != b"":
            channel.send(server.answer(message))
            message = channel.receive()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        named = error if isinstance(error, MarlConnectorsError) else EnvError(describe_error(error))
        channel.send(pickle.dumps(ExceptionWithTraceback(named, error.__traceback__)))
    except BaseException:  # such as a KeyboardInterrupt that the environment raises
        channel.close()  # the parent process need not wait until all is closed
        raise
    finally:
        if server is not None:
            server.vector_env.close()


def _leave_signals_to_parent() -> None:
    """Makes this process disregard SIGINT, SIGTERM and SIGHUP, which are often sent to a whole group or job.

    The parent process handles them and ends its workers. SIGTERM and SIGHUP get a handler that does nothing instead of
    being ignored, because programs that the environment starts would inherit the latter. Processes that the environment
    forks get their default effect back at once: a handler that did it would not run while they sleep.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in LEFT_TO_PARENT:
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_PARENT)
    os.register_at_fork(after_in_child=_take_signals_back)


def _take_signals_back() -> None:
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_DFL)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)  # whatever the environment is doing


def _be_killed_with_parent() -> None:
    """Makes Linux kill this process when its parent ends.

    ``_end_with_parent`` needs a thread, which cannot run while an environment holds Python's global interpreter lock.
    The pipe that closes with the parent is empty once the first message has come, so that only its closing raises a
    signal.
    """
    import fcntl  # not there on every platform

    if hasattr(fcntl, "F_SETSIG"):
        parent = multiprocessing.parent_process()
        assert parent is not None
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)


class EnvServer:
    """The sub-environments of a worker, and the answers to messages about them."""

    def __init__(self, task: WorkerTask):
        """Makes the sub-environments.

        Raises:
            EnvError: If the function that makes them cannot be unpickled or fails.
        """
        try:
            make_env = pickle.loads(task.maker)
        except Exception as error:
            raise EnvError(
                f"num_env_workers: a worker process cannot load the environment's maker: "
                f"{describe_error(error)}. Define it in a module that can be imported, or set num_env_workers=0."
            ) from error
        self._columns = SharedColumns(spaces_of(make_env), task.num_envs, task.memory)
        current_call = self._columns.current_call
        current_call[CALL] = EnvCall.MAKE
        envs = []
        for index in range(task.first_index, task.first_index + task.num_envs):
            current_call[CALLED_ENV] = index
            envs.append(make_env())
        current_call[CALLED_ENV], current_call[CALL] = task.first_index, EnvCall.STEP
        self.vector_env = vector_env_of(
            envs,
            seed=0,
            first_index=task.first_index,
            first_number=task.first_number,
            restarts=task.restarts,
            state_space=task.state_space,
            make_env=make_env,
        )
        self.vector_env.current_call = current_call
        self.vector_env.close_timeout_s = None  # the parent process kills this one if close() hangs
        self._first_index = task.first_index

    def answer(self, message: bytes) -> bytes:
        """Executes the command of a message, and returns the packed reply."""
        command, *arguments = pickle.loads(message)
        known = {"step": self._step, "reset": self._reset, "replay": self._replay}
        result, changed = known[command](*arguments)
        states, failures = list(map(SubEnvironmentState.of, changed)), self.vector_env.take_failures()
        return self._packed(result, states, failures, self.vector_env.states())

    def _step(self, actions: Any) -> tuple[StepResult, Iterable[SubEnvironment]]:
        vector_env, sub_envs = self.vector_env, self.vector_env.sub_envs
        result = vector_env.step(as_list(actions))
        ended = [] if result.ends is None else result.ends.indices
        changed = {*ended, *(event.index for event in result.events)}
        for sub_env in sub_envs:  # the parent process records them
            sub_env.newest_actions.clear()
        if all(issubclass(kind, _NUMBERS) for kind in set(map(type, result.rewards))):
            result.rewards = list(map(float, result.rewards))  # numpy's numbers take long to pickle
        if self._columns.write(acting_in(sub_envs), result.observations):
            result.observations = None
        return result, [each for each in sub_envs if vector_env.turn_based or each.index in changed]

    def _reset(self, seed: int, states: list[tuple[int, int]]) -> tuple[Any, Iterable[SubEnvironment]]:
        self.vector_env.seed = seed
        for sub_env, (episode_number, num_failures) in zip(self.vector_env.sub_envs, states, strict=True):
            sub_env.episode_number, sub_env.num_failures = episode_number, num_failures
        return self.vector_env.reset_all(), self.vector_env.sub_envs

    def _replay(self, seed: int, index: int, *arguments: Any) -> tuple[Any, Iterable[SubEnvironment]]:
        self.vector_env.seed = seed
        sub_env = self.vector_env.sub_envs[index - self._first_index]
        found = self.vector_env.replay(sub_env, *arguments)
        sub_env.newest_actions.clear()
        return found, [sub_env]

    def _packed(self, result: Any, *others: Any) -> bytes:
        try:
            sent = STEP_PARTS(result) if isinstance(result, StepResult) else result
            return pickle.dumps((sent, *others), pickle.HIGHEST_PROTOCOL)  # tuples take less time than Reply
        except Exception as error:
            given: list[tuple[int, Any]] = []
            if isinstance(result, StepResult):
                given = [(event.index, event) for event in result.events] + result.infos
                if result.ends is not None and result.ends.infos:
                    given += zip(result.ends.indices, result.ends.infos, strict=True)
            offset = self.vector_env.sub_envs[0].number - self._first_index
            bad = (index + offset for index, part in given if not _can_be_sent(part))
            who = next((f"sub-environment {number}" for number in bad), "environment")
            raise EnvError(
                f"{who}: its infos or observations cannot be sent from its worker process: {error}. Leave out objects "
                f"that cannot be pickled, or set num_env_workers=0."
            ) from error
