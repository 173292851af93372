"""HostedLearner: a learner in a process of its own, which updates the modules together with others."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from marl_connectors.cluster.actor_pool import PeerGone
from marl_connectors.cluster.host import Stored, fetched
from marl_connectors.cluster.pickling import pickled_result
from marl_connectors.connectors.connector_pipeline_v2 import cause_of
from marl_connectors.episodes.references import EpisodeShare
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.ranks import LostRankError, Ranks
from marl_connectors.metrics import Metric

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the request for the address of a network interface."""


class LearnerBlueprint(Protocol):
    """Makes learners in any process. It can be pickled."""

    def build(self) -> Learner:
        """Makes a learner with the modules that the run has now. Its state is set afterwards."""
        ...


@dataclass(frozen=True)
class LearnerState:
    """The learner that a call needs.

    Attributes:
        blueprint: The blueprint, pickled.
        state: The learners' state before the call, pickled.
        metrics: The state of the metrics before the call.
    """

    blueprint: Stored
    state: Stored
    metrics: list[Metric]


@dataclass(frozen=True)
class UpdateReply:
    """The result of one learner's part of an update.

    Attributes:
        results: What ``Learner.update`` returned.
        pipeline_seconds: As in Learner.
    """

    results: dict[str, Any]
    pipeline_seconds: float


class HostedLearner:
    """One of several learners that update the same modules together. It is the object in a ``Host``."""

    def __init__(self, rank: int, size: int):
        """Makes no learner yet.

        Args:
            rank: The number of this learner.
            size: The number of learners.
        """
        self._rank = rank
        self._size = size
        self._learner: Learner | None = None
        self._ranks: Ranks | None = None
        self._store: Any = None
        self._blueprint_version = -1
        self._state_version = -1
        self._stage = "before its first update"

    @property
    def progress(self) -> str:
        """How far the current call is, in words."""
        learner = self._learner
        steps = "" if learner is None else f" of update {learner.num_updates + 1}, step {learner.num_gradient_steps}"
        return f"{self._stage}{steps}"

    def listen(self) -> tuple[tuple[str, int], None]:
        """Opens a port for the other learners, and returns the address of this node and the port."""
        host = _own_address()
        self._store = _store(host, 0, self._size, is_master=True)
        return (host, self._store.port), None

    def connect(self, host: str, port: int, device: str, timeout_s: float) -> tuple[PeerGone | None, None]:
        """Connects to all learners.

        Args:
            host: The address of the node of rank 0.
            port: Its port.
            device: The device of the modules, ``"cpu"`` or ``"cuda"``.
            timeout_s: The time after which a learner that does not answer counts as lost.
        """
        if self._store is None:
            self._store = _store(host, port, self._size, is_master=False)
        if dist.is_initialized():
            dist.destroy_process_group()
        interface = _interface_of(_own_address())
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # else gloo takes the one that the host name means
        try:
            self._ranks = Ranks(self._store, self._rank, self._size, device=torch.device(device), timeout_s=timeout_s)
        except LostRankError as error:
            return PeerGone(str(error)), None
        return None, None

    def update(
        self, before: LearnerState, share: EpisodeShare, timesteps: dict[str, int]
    ) -> tuple[UpdateReply | PeerGone, bytes | None]:
        """Updates the modules together with the other learners. Rank 0 returns the pickled new state as the payload.

        Args:
            before: The learner before the update.
            share: The episodes of this learner.
            timesteps: As for ``Learner.update``.
        """
        learner, ranks = self._following(before), self._ranks
        assert ranks is not None
        self._stage = "fetching the episodes"
        episodes, positions = share.fetch(fetched)
        self._stage = "in the middle"
        self._state_version = -1  # until the update is done
        try:
            results = ranks.update(learner, episodes=episodes, timesteps=timesteps, positions=positions)
        except Exception as error:
            if not isinstance(cause_of(error), LostRankError):
                raise
            return PeerGone(str(error)), None
        self._state_version = before.state.version + 1
        self._stage = "after the end"
        payload = pickle.dumps(learner.get_state(), protocol=5) if self._rank == 0 else None
        return UpdateReply(results, learner.pipeline_seconds), payload

    def _following(self, wanted: LearnerState) -> Learner:
        """Returns the learner with the modules and the state that a call needs."""
        blueprint, state, learner = wanted.blueprint, wanted.state, self._learner
        if learner is None or blueprint.version != self._blueprint_version:
            self._stage = "making the modules"
            learner = self._learner = pickle.loads(blueprint.fetched()).build()
            learner.ranks = self._ranks
            self._blueprint_version, self._state_version = blueprint.version, -1
        if state.refs:
            self._stage, self._state_version = "loading the state", -1
            learner.set_state(pickle.loads(state.fetched()))
            self._state_version = state.version
        elif state.version != self._state_version:
            raise RuntimeError(
                f"HostedLearner: rank {self._rank} has version {self._state_version} of the state, not {state.version}."
            )
        learner.metrics.set_state(wanted.metrics)
        return learner

    def apply(self, before: LearnerState, function: bytes) -> tuple[bytes, None]:
        """Returns what a pickled function of the learner returns, pickled."""
        learner = self._following(before)
        self._stage = "in a function of foreach_learner"
        return pickled_result(function, learner, "foreach_learner"), None

    def close(self) -> tuple[None, None]:
        """Disconnects from the other learners."""
        if self._ranks is not None:
            self._ranks.leave()
        return None, None


def _own_address() -> str:
    """Returns the address by which other nodes of the cluster reach this one."""
    import ray

    return ray.util.get_node_ip_address()


def _interface_of(address: str) -> str | None:
    """Returns the name of the network interface with an IPv4 address; None if it cannot be found on this system."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def _store(host: str, port: int, size: int, *, is_master: bool) -> Any:
    """Returns the store by which learners find one another. Rank 0 is its master; port 0 stands for any free port."""
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host, port, size, is_master=is_master, wait_for_workers=False
    )
