"""RemoteLearners: learners in Ray actors that update the same modules together."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.cluster.actor_pool import MOST_TRIES, ActorLost, ActorPool, Call, PeerLost, Reply, RestartPolicy
from marl_connectors.cluster.host import Stored
from marl_connectors.cluster.hosted_learner import HostedLearner, LearnerBlueprint, LearnerState
from marl_connectors.cluster.pickling import pickled, pickled_function, received_result
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.episodes.references import EpisodeReference, divided
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.learner_group import LearnerGroup
from marl_connectors.learner.ranks import check_can_be_divided
from marl_connectors.typing import ModuleID

_LOG = logging.getLogger(__name__)


class RemoteLearners(LearnerGroup):
    """Learners in Ray actors, of which each updates the modules from its share of the episodes.

    The learner in this process takes over their state after each update. If its modules, settings, parameters or
    optimizer states are changed between updates, the remote learners get the change with the next call.

    They depend on one another in each gradient step. So if one is lost, all are replaced, get the state before the
    update, and repeat it.

    Attributes:
        number: The number of learners.
        pool: The actors.
    """

    def __init__(
        self,
        learner: Learner,
        make_blueprint: Callable[[], LearnerBlueprint],
        *,
        cluster: RayCluster,
        number: int,
        resources: Resources,
        policy: RestartPolicy,
        device: str = "cpu",
    ):
        """Starts the actors, and does not wait for them.

        Args:
            learner: The learner in this process.
            make_blueprint: Returns a blueprint of the run as it is now, from which remote learners are made.
            cluster: The connection to Ray.
            number: The number of learners.
            resources: What each actor reserves.
            policy: What happens if a learner is lost. ``ignores`` has no effect.
            device: The device of the modules, ``"cpu"`` or ``"cuda"``.
        """
        super().__init__(learner)
        self._make_blueprint = make_blueprint
        self._cluster = cluster
        self.number = number
        self._device = device
        self._blueprint = Stored()
        self._structure: Any = None  # of the learner that the blueprint makes
        self._version = 0  # of the state
        self._known_state: Any = None  # the state of the remote learners; None if it is not certain
        self._known_to = -1  # the generation of actors that has it
        self._connected = -1  # the generation of actors that are connected with one another
        self.pool = ActorPool(
            cluster,
            number,
            resources,
            policy,
            who=lambda rank: f"learner {rank}",
            begin=lambda rank: (pickled(HostedLearner), (rank, number)),
            together=True,
        )

    def __repr__(self) -> str:
        return f"<LearnerGroup of {self.number} remote learners, and {self.learner!r}>"

    @property
    def num_remote_learners(self) -> int:
        return self.number

    @property
    def num_remote_learner_restarts(self) -> int:
        return self.pool.num_restarts

    def update(
        self, *, episodes: Sequence[Any], timesteps: dict[str, int] | None = None
    ) -> dict[ModuleID, dict[str, float]]:
        return self.update_from(self._put(episodes), timesteps or {}, self.number)

    def update_from(
        self, references: Sequence[EpisodeReference], timesteps: dict[str, int], num_envs: int
    ) -> dict[ModuleID, dict[str, float]]:
        """Updates the modules from episodes in Ray's store.

        Args:
            references: The episodes, in the order in which one learner would get them.
            timesteps: As for ``Learner.update``.
            num_envs: The number of sub-environments of the episodes.

        Raises:
            ActorLost: If a learner is lost and the policy does not replace it.
            Exception: What a learner raised, such as a LearnerError.
        """
        shares = divided(references, self.number, num_envs)
        try:
            replies, _ = self._call("update", [(share, timesteps) for share in shares], "update")
        except Exception:
            self.pool.restart_later()  # they have left one another
            raise
        after = pickle.loads(replies[0].payload)
        self._version += 1
        self.learner.set_state(after)
        self.learner.pipeline_seconds = max(reply.value.pipeline_seconds for reply in replies)
        self._known_state = {name: value for name, value in after.items() if name != "metrics"}
        return replies[0].value.results

    def foreach_learner(self, func: Callable[[Learner], Any]) -> list[Any]:
        sent = pickled_function(func, "foreach_learner")
        replies, state = self._call("apply", [(sent,)] * self.number, "call")
        self._known_state = copy.deepcopy(state)  # it shares tensors with the learner, which change
        return [received_result(reply.value, "foreach_learner") for reply in replies]

    # Calls, and what happens if a learner is lost.

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], what: str) -> tuple[list[Reply], dict[str, Any]]:
        """Calls a method of all learners, which get the state of the learner in this process unless they have it.

        Args:
            method: The method of HostedLearner. Its first argument is the LearnerState.
            arguments: Its other arguments for each learner.
            what: The name of the call in messages.

        Returns:
            The replies, and the state without the metrics.
        """
        learner, structure = self.learner, _structure(self.learner)
        if not _are_alike(structure, self._structure):
            check_can_be_divided(learner.config, learner.pipeline)
            blueprint = pickled(self._make_blueprint())
            self._blueprint = Stored(self._blueprint.version + 1, [self._cluster.put(blueprint)])
            self._structure, self._known_state = structure, None
        state = learner.get_state()
        metrics = state.pop("metrics")
        is_known, self._known_state = _are_alike(state, self._known_state), None
        refs: list[Any] = []

        def calls() -> dict[int, list[Call]]:
            if not refs and not (is_known and self._known_to == self.pool.generation):
                refs.append(self._cluster.put(pickled(state)))
            before = LearnerState(self._blueprint, Stored(self._version, refs), metrics)
            return {rank: [Call(method, (before, *own))] for rank, own in enumerate(arguments)}

        replies = self._repeated(calls, what)
        self._known_to = self.pool.generation
        return replies, state

    def wait_until_begun(self) -> None:
        """Waits until all learners are connected with one another.

        Raises:
            ActorLost: If one is lost and the policy does not replace it.
        """
        self._repeated(dict, "start")

    def _repeated(self, calls: Callable[[], Mapping[int, Sequence[Call]]], what: str) -> list[Reply]:
        """Calls all learners, again with new ones until none is lost meanwhile."""
        for number in range(1, MOST_TRIES + 1):
            try:
                self._connect()
                return [own[0] for _, own in sorted(self.pool.run(calls()).items())]
            except PeerLost as lost:
                self.pool.replace_all(str(lost))
                if number == MOST_TRIES:
                    raise ActorLost(
                        f"{lost}, {number} times in a row in the same {what}. Look at what its process printed last; "
                        f"run with num_learners=0 to see the cause in this process."
                    ) from None
                _LOG.warning("%s. New learners take the place of all %d, and repeat the %s.", lost, self.number, what)
        raise AssertionError

    def _connect(self) -> None:
        self.pool.wait_until_begun()
        if self._connected == self.pool.generation:
            return
        timeout_s = self.pool.policy.timeout_s
        try:
            host, port = self.pool.run({0: [Call("listen")]})[0][0].value
            call = Call("connect", (host, port, self._device, 3600.0 if timeout_s is None else 4 * timeout_s))
            self.pool.run({rank: [call] for rank in range(self.number)})
        except Exception:
            self.pool.restart_later()
            raise
        self._connected = self.pool.generation

    def _put(self, episodes: Sequence[Any]) -> list[EpisodeReference]:
        """Puts episodes into Ray's store: a list for each remote learner, with about as many agent steps in each.

        Chunks of one episode are in one list.
        """
        steps: dict[Any, int] = {}
        for episode in episodes:
            steps[episode.id_] = steps.get(episode.id_, 0) + episode.agent_steps()
        ends = np.cumsum(list(steps.values()))
        middles = ends - np.array(list(steps.values())) / 2
        lists = np.minimum(middles * self.number // max(ends[-1] if len(ends) else 0, 1), self.number - 1).astype(int)
        list_of = dict(zip(steps, lists.tolist(), strict=True))
        members: list[list[Any]] = [[] for _ in range(self.number)]
        places = []
        for episode in episodes:
            own = members[list_of[episode.id_]]
            places.append(len(own))
            own.append(episode)
        payloads = [self._cluster.put(pickled(own)) if own else None for own in members]
        return [
            EpisodeReference(payloads[list_of[episode.id_]], place, list_of[episode.id_], episode.agent_steps())
            for episode, place in zip(episodes, places, strict=True)
        ]

    def stop(self) -> None:
        self.pool.close()


def _structure(learner: Learner) -> list[Any]:
    """Returns what remote learners are made from: the modules and the settings."""
    modules = [(m, type(module), module.observation_space, module.action_space) for m, module in learner.module.items()]
    parameters = [(name, tuple(p.shape), p.dtype) for name, p in learner.module.named_parameters()]
    return [modules, parameters, learner.pipeline.names(), list(learner.config.to_dict().items())]


def _are_alike(one: Any, other: Any) -> bool:
    """Whether two trees of plain data, arrays, tensors and other objects are equal."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping) and list(one) == list(other) and all(_are_alike(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_are_alike, one, other))
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # objects of a user's class whose comparison is not defined
        return False
