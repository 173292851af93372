"""The Ray actor that hosts an env runner or a learner."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from marl_connectors.cluster.pickling import pickled_in_actor, unpickled
from marl_connectors.errors import MarlConnectorsError, describe_error

HEALTH = "health"
"""The concurrency group of those methods of ``Host`` that answer while another method runs."""


class Outcome(NamedTuple):
    """What a call of a hosted object returned or raised.

    Attributes:
        value: What it returned.
        error: The pickled exception that it raised; None if it returned.
        where: The traceback of the exception, as text.
    """

    value: Any = None
    error: bytes | None = None
    where: str = ""

    def result(self, who: str) -> Any:
        """Returns the value, or raises the exception, with a note that says where it was raised."""
        if self.error is None:
            return self.value
        try:
            error = unpickled(self.error)
        except Exception:  # its class cannot be imported in this process
            raise MarlConnectorsError(f"{who}: an error was raised there.\n{self.where}") from None
        add_note: Any = getattr(error, "add_note", None)  # from Python 3.11 on
        if add_note is not None:
            add_note(f"Raised in {who}:\n{self.where}")
        raise error


class Process(NamedTuple):
    """Where an actor runs.

    Attributes:
        node: The id of the node in the cluster.
        pid: The number of the process on this node.
    """

    node: str
    pid: int


def this_process() -> Process:
    """Returns where this process runs."""
    import ray

    return Process(ray.get_runtime_context().get_node_id() if ray.is_initialized() else "", os.getpid())


def fetched(ref: Any) -> Any:
    """Returns the object of a reference, in an actor."""
    import ray

    return ray.get(ref)


class Stored(NamedTuple):
    """A version of an object in Ray's store, as it is sent to actors.

    Attributes:
        version: The number of the version.
        refs: The reference of the object, in a list, so that Ray does not fetch it before a method begins. The list is
            empty for an actor that has this version.
    """

    version: int = -1
    refs: Sequence[Any] = ()

    def fetched(self) -> Any:
        """Returns the object, in an actor."""
        return fetched(self.refs[0])


class Host:
    """Makes an object in a process of its own, and calls its methods one after another.

    Methods return ``(value, payload)``. The payload is an object of its own in Ray's store, so that the caller can pass
    it on without fetching it.
    """

    def __init__(self, label: str, num_threads: int, paths: Sequence[str]):
        """Makes the process import modules from where the user's process does.

        Args:
            label: The name of the actor. Ray prints it before each line that the process prints.
            num_threads: The number of threads that torch may use.
            paths: ``sys.path`` of the user's process.
        """
        torch.set_num_threads(num_threads)
        self._label = label
        sys.path += [path for path in paths if path not in sys.path]
        self._object: Any = None

    def __repr__(self) -> str:
        return self._label

    def begin(self, make: bytes, arguments: tuple[Any, ...]) -> Outcome:
        """Makes the object, in the thread in which its methods are called: ``make`` is a pickled function."""

        def made() -> tuple[Any, Any]:
            self._object = unpickled(make)(*arguments)
            return None, None

        return self._outcome(made)[0]

    def call(self, method: str, *arguments: Any) -> tuple[Outcome, Any]:
        """Calls a method of the object."""
        return self._outcome(lambda: getattr(self._object, method)(*arguments))

    def _outcome(self, call: Callable[[], tuple[Any, Any]]) -> tuple[Outcome, Any]:
        try:
            value, payload = call()
            return Outcome(value), payload
        except Exception as error:
            return Outcome(error=_pickled(error), where=traceback.format_exc()), None
        except SystemExit as stop:
            if hasattr(stop, "ray_terminate_msg"):  # Ray ends the actor
                raise
            error = MarlConnectorsError(
                f"{self._label}: sys.exit({'' if stop.code is None else repr(stop.code)}) was called there, which "
                f"would end this process only and not the run. Raise an error instead."
            )
            return Outcome(error=_pickled(error), where=traceback.format_exc()), None

    def process(self) -> Process:
        """Returns where the actor runs. It answers as soon as there is a process."""
        return this_process()

    def progress(self) -> Any:
        """Returns ``progress`` of the object, which changes while a method makes progress."""
        return getattr(self._object, "progress", None)

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a short method of the object while another one runs. It does nothing before there is an object."""
        if self._object is not None:
            getattr(self._object, method)(*arguments)


for _method in (Host.process, Host.progress, Host.tell):
    _method.__ray_concurrency_group__ = HEALTH  # type: ignore[attr-defined]


def _pickled(error: Exception) -> bytes:
    try:
        found = pickled_in_actor(error)
        unpickled(found)
        return found
    except Exception:
        return pickled_in_actor(MarlConnectorsError(describe_error(error)))
