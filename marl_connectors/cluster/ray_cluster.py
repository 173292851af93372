"""The connection to Ray, which is imported only when a run has remote env runners or learners."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from marl_connectors.cluster.host import HEALTH, Host, this_process
from marl_connectors.errors import ConfigError, MarlConnectorsError
from marl_connectors.packages import how_to_install, import_package
from marl_connectors.seeding import global_generators_kept

_ANSWER_S = 10.0
"""The seconds in which the machine at an address has to answer."""
_END_S = 5.0
"""The seconds in which the process of an actor must end by itself."""
_RECONNECT_S = 30.0
"""The seconds in which the head of a cluster may restart. Ray itself ends the process after 60 s."""


class ClusterLost(MarlConnectorsError, RuntimeError):
    """The Ray cluster of a run has ended."""


@dataclass(frozen=True)
class Resources:
    """What Ray reserves for one actor.

    Attributes:
        cpus: The number of CPUs.
        gpus: The number of GPUs; a fraction shares a GPU.
        custom: Custom resources of the cluster, ``{name: quantity}``.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)

    def as_options(self) -> dict[str, Any]:
        """Returns the arguments of ``ray.remote``."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": dict(self.custom)}

    def as_totals(self, number: int) -> dict[str, float]:
        """Returns the quantities for a number of actors, under Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.custom}
        return {name: quantity * number for name, quantity in wanted.items() if quantity}


def import_ray(who: str) -> Any:
    """Imports Ray.

    Args:
        who: The setting that needs it, for the message.

    Raises:
        ConfigError: If Ray is not installed.
    """
    try:
        ray = import_package("ray")
    except ImportError as error:
        raise ConfigError(
            f"{who}: it needs the package ray, which cannot be imported here ({error}). Set it to 0 to work in "
            f"this process, or install the package. {how_to_install('ray')}"
        ) from None
    return ray


class RayCluster:
    """A connection to Ray, which all remote parts of an algorithm share.

    A process has at most one connection. Without an address, a new cluster is started on this machine, which ends with
    the last RayCluster of the process. It is never one that an environment variable names or that happens to run here.
    If the process is connected already (by ``ray.init``, or because it is a Ray actor itself, as in Ray Tune), that
    connection is used and stays open.

    Attributes:
        ray: The package.
        is_own: Whether the cluster was started by this library.
        paths: ``sys.path`` of this process, for actors that import the user's modules.
    """

    _num_users = 0
    _started_here = False

    def __init__(
        self,
        address: str | None,
        needed: Mapping[str, float],
        who: str,
        settings: Mapping[str, str] | None = None,
    ):
        """Connects to a cluster.

        Args:
            address: The address of a running cluster; None for a new one.
            needed: The quantities of resources that the actors reserve, under Ray's names.
            who: The settings that need the cluster, for messages.
            settings: The settings by which the actors reserve each resource, for messages.

        Raises:
            ConfigError: If Ray is not installed, there is no cluster at the address, or the cluster has too little.
        """
        self.ray = import_ray(who)
        if not self.ray.is_initialized():
            try:
                self._connect(address, who)
            except BaseException:
                if self.ray.is_initialized():
                    self.ray.shutdown()
                raise
            RayCluster._started_here = True
        elif address is not None and RayCluster._started_here and address != RayCluster._address:
            raise ConfigError(
                f"ray_address={address!r}: this process is connected to {_named(RayCluster._address)} by an algorithm "
                f"that has not been stopped. Call its stop() first, or use the same address."
            )
        elif address not in (None, "auto") and not RayCluster._started_here:
            known = self.ray.get_runtime_context().gcs_address
            if known.rpartition(":")[2] != str(address).rpartition(":")[2]:  # a host can have several names
                raise ConfigError(
                    f"ray_address={address!r}: this process is connected to the Ray cluster at {known!r} already. "
                    f"Leave ray_address out to use that one, or call ray.shutdown() before the algorithm is built."
                )
        self.is_own = RayCluster._started_here and RayCluster._address is None
        self._node = this_process().node
        self._gcs_address = getattr(self.ray.get_runtime_context(), "gcs_address", None)
        self.paths = [os.path.abspath(path) for path in sys.path]
        RayCluster._num_users += 1
        self._is_open = True
        try:
            self._check(needed, who, settings or {})
        except BaseException:
            self.close()
            raise

    _address: str | None = None
    _gcs_address: str | None = None

    def _connect(self, address: str | None, who: str) -> None:
        settings: dict[str, Any] = {"address": address}
        if address is None:
            settings = {"address": "local", "include_dashboard": False}
        with warnings.catch_warnings(), global_generators_kept(), _signals_kept():
            warnings.simplefilter("ignore")
            try:
                _check_that_it_answers(address)
                self.ray.init(namespace=f"marl-connectors-{secrets.token_hex(8)}", logging_level="ERROR", **settings)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"{who}: {_named(address)} cannot be reached ({str(error).strip().splitlines()[0]}). Start one "
                    f"with 'ray start --head', check ray_address, or leave it out for a cluster of this run alone."
                ) from error
        RayCluster._address = address

    def check_alive(self) -> None:
        """Checks that the head of the cluster can be reached.

        Without it, Ray would wait for a minute, and then end this process.

        Raises:
            ClusterLost: If it cannot be reached any more.
        """
        address = self._gcs_address
        if address is None:
            return
        end = time.monotonic() + (0.0 if self.is_own else _RECONNECT_S)
        while True:
            try:
                _check_that_it_answers(address)
                return
            except OSError as error:
                if time.monotonic() >= end:
                    raise ClusterLost(
                        f"Algorithm: {_named(RayCluster._address)} has ended ({error}), and with it all env runners "
                        f"and learners. Look at Ray's log files on its head node, and continue from the latest "
                        f"checkpoint."
                    ) from error
            time.sleep(1.0)

    def _check(self, needed: Mapping[str, float], who: str, settings: Mapping[str, str]) -> None:
        """Checks that the cluster has the resources at all. Others may be using them now."""
        for name, quantity in needed.items():
            there = self.total(name)
            if (name != "CPU" or not self.is_own) and there < quantity:
                by = f" ({settings[name]})" if settings.get(name) else ""
                raise ConfigError(
                    f"{who}: the actors need {quantity:g} {name}{by}, but {_named(RayCluster._address)} has "
                    f"{there:g}. Use fewer actors, reserve less for each, or a larger cluster."
                )

    def _check_open(self) -> None:
        """Checks that the connection is open. Otherwise Ray would connect by itself, possibly to another cluster."""
        if not (self._is_open and self.ray.is_initialized()):
            raise ConfigError(
                "Algorithm: its env runners and learners were ended by stop(), or by ray.shutdown(). Build it anew, "
                "with from_checkpoint if it is to continue."
            )

    def put(self, value: Any) -> Any:
        """Puts an object into Ray's store, and returns its reference.

        Raises:
            ConfigError: If the connection was closed.
        """
        self._check_open()
        return self.ray.put(value)

    def start(self, label: str, resources: Resources) -> Any:
        """Starts a ``Host`` that is never restarted by Ray itself, and returns its handle at once.

        Raises:
            ConfigError: If the connection was closed.
            ClusterLost: If the cluster has ended.
        """
        self._check_open()
        self.check_alive()
        options = {
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {HEALTH: 1},
            **resources.as_options(),
        }
        if self.is_own:
            options["num_cpus"] = 0  # nobody else shares the machine, which may have fewer cores than actors
        named = type(label.partition(" (")[0].title().replace(" ", ""), (Host,), {})  # the process has this name
        return self.ray.remote(**options)(named).remote(label, max(1, int(resources.cpus)), self.paths)

    def total(self, resource: str) -> float:
        """Returns how much of a resource all nodes have together."""
        return self.ray.cluster_resources().get(resource, 0.0)

    def free_resources(self) -> str:
        """Describes what is free now, for messages."""
        free = self.ray.available_resources()
        return ", ".join(f"{free.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))

    def is_ready(self, ref: Any) -> bool:
        """Whether a reference has its value, or an error."""
        return bool(self.ray.wait([ref], num_returns=1, timeout=0)[0])

    def is_loss(self, error: Exception) -> bool:
        """Whether an error of Ray says that an actor, a node or an object was lost."""
        known = self.ray.exceptions
        return isinstance(
            error,
            (
                known.RayActorError,
                known.WorkerCrashedError,
                known.OutOfMemoryError,
                known.NodeDiedError,
                known.LocalRayletDiedError,
                known.ObjectLostError,
            ),
        ) and not isinstance(error, known.RayTaskError)

    def is_lost_object(self, error: Exception) -> bool:
        """Whether an error of Ray says that an object was lost with the node that had it."""
        return isinstance(error, self.ray.exceptions.ObjectLostError)

    def received(self, ref: Any, who: str) -> Any:
        """Fetches what a call of an actor has returned.

        Args:
            ref: The reference.
            who: The name of the actor, for messages.

        Raises:
            MarlConnectorsError: If it cannot be unpickled in this process.
            Exception: An error of Ray.
        """
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RaySystemError as error:
            lines = str(error).strip().splitlines()
            raise MarlConnectorsError(
                f"{who}: what it has returned cannot be received in this process ({lines[-1].strip()}). What "
                f"environments, callbacks and connector pieces store or log must be data that any process of the run "
                f"can unpickle."
            ) from error

    def end(self, actors: Sequence[tuple[Any, Any]]) -> None:
        """Ends actors, and waits until their processes on this node have ended. Those that do not end are killed.

        Ray prints a warning for each process that a signal has ended, so none is sent to a process that ends by itself.

        Args:
            actors: Each actor, and the reference of what ``Host.process`` has returned; None if it was not called yet.
        """
        if not self.ray.is_initialized():
            return
        pids = [self._own_pid(process) for _, process in actors]
        try:
            for actor, _ in actors:
                self.ray.kill(actor, no_restart=True)
            end = time.monotonic() + _END_S
            while any(map(_is_of_ray, pids)) and time.monotonic() < end:
                time.sleep(0.02)
        finally:  # also after an interrupt
            for pid in pids:
                _kill_process(pid)

    def kill(self, actor: Any, process: Any) -> None:
        """Kills an actor, even one that does not answer.

        An actor on the node of this process is killed at once: Ray waits for some seconds, and would leave a process
        that is stopped behind if the cluster ends before.

        Args:
            actor: The actor.
            process: The reference of what ``Host.process`` has returned; None if it was not called yet.
        """
        if not self.ray.is_initialized():
            return
        pid = self._own_pid(process)
        self.ray.kill(actor, no_restart=True)
        _kill_process(pid)

    def _own_pid(self, process: Any) -> int | None:
        """Returns the number of an actor's process if it is on the node of this process and known."""
        known = None
        if process is not None and self.is_ready(process):
            with contextlib.suppress(self.ray.exceptions.RayError):
                known = self.ray.get(process)
        return known.pid if known is not None and known.node and known.node == self._node else None

    def close(self) -> None:
        """Ends the use of the cluster. The last user in the process stops a cluster that was started here."""
        if not self._is_open:
            return
        self._is_open = False
        RayCluster._num_users -= 1
        if RayCluster._num_users == 0 and RayCluster._started_here:
            RayCluster._started_here, RayCluster._address = False, None
            with global_generators_kept():
                self.ray.shutdown()


def _named(address: str | None) -> str:
    return "the cluster on this machine" if address is None else f"the Ray cluster at {address!r}"


def _check_that_it_answers(address: str | None) -> None:
    """Raises OSError if nothing listens at ``host:port``. Ray itself would try to connect for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Starts Ray in its block, and leaves the handlers of signals in this process as they were.

    A process in which ``ray.init`` was interrupted crashes when it ends, so the first signal that has a handler waits
    for the end of the block. Ray's processes do not react to SIGHUP, which a closed terminal sends to all processes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = [number for number, handler in former.items() if handler not in (None, signal.SIG_DFL, signal.SIG_IGN)]

    def wait(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, wait)
    with _blocked(getattr(signal, "SIGHUP", None)):
        try:
            yield
        except SystemExit as stop:  # of the handler that Ray sets
            if stop.code != signal.SIGTERM or signal.SIGTERM not in handled:
                raise
            came.append(signal.SIGTERM)
        finally:
            for number, handler in former.items():
                if handler is not None:  # it was set from Python
                    signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _blocked(number: int | None) -> Iterator[None]:
    """Blocks a signal in this thread, and in the processes that it starts meanwhile."""
    if number is None or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _is_of_ray(pid: int | None) -> bool:
    """Whether a number is that of a process of Ray on this machine. It may belong to another process by now."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(5) == b"ray::"
    except OSError:  # it has ended, or this system has no /proc
        return False


def _kill_process(pid: int | None) -> None:
    """Kills a process of Ray on this machine, and no other."""
    if pid is not None and _is_of_ray(pid):
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGKILL)
