"""LearnerGroup: one learner in this process, or several in Ray actors, which look the same to an algorithm."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.cluster.hosted_learner import LearnerBlueprint
from marl_connectors.cluster.pickling import pickled
from marl_connectors.cluster.remote_learners import LearnerBefore, RemoteLearners
from marl_connectors.episodes.references import EpisodeReference, divided
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.ranks import check_can_be_divided
from marl_connectors.typing import ModuleID


class LearnerGroup:
    """The learners of an algorithm.

    There is always a learner in this process. Without remote learners it makes the updates. With remote learners, it
    takes over their state after each update. So checkpoints, ``add_module`` and evaluations use this learner alone. If
    its modules, settings, parameters or optimizer states are changed between updates, the remote learners get the
    change with the next call.

    Attributes:
        learner: The learner in this process.
        remote: The learners in Ray actors; None if there are none.
    """

    def __init__(
        self,
        learner: Learner,
        remote: RemoteLearners | None = None,
        make_blueprint: Callable[[], LearnerBlueprint] | None = None,
    ):
        """Makes the group.

        Args:
            learner: The learner in this process.
            remote: The learners in Ray actors, or None.
            make_blueprint: Returns a blueprint of the run as it is now, from which remote learners are made.

        Raises:
            LearnerError: If several learners cannot update the modules as one would.
        """
        self.learner = learner
        self.remote = remote
        self._make_blueprint = make_blueprint
        self._version = 0
        self._known_state: Any = None
        self._known_structure: Any = None
        self.check()

    def __repr__(self) -> str:
        remote = "" if self.remote is None else f"{self.num_remote_learners} remote learners, and "
        return f"<{type(self).__name__} of {remote}{self.learner!r}>"

    @property
    def is_local(self) -> bool:
        """Whether the learner in this process makes the updates."""
        return self.remote is None

    @property
    def num_remote_learners(self) -> int:
        """The number of learners in Ray actors."""
        return 0 if self.remote is None else self.remote.number

    @property
    def num_remote_learner_restarts(self) -> int:
        """How often the remote learners were replaced so far."""
        return 0 if self.remote is None else self.remote.num_restarts

    def check(self) -> None:
        """Checks that the learners can update the modules with the settings as they are now.

        Raises:
            LearnerError: If they cannot.
        """
        if self.remote is not None:
            check_can_be_divided(self.learner.config, self.learner.pipeline)

    def update(
        self,
        *,
        episodes: Sequence[Any] | None = None,
        references: Sequence[EpisodeReference] | None = None,
        timesteps: dict[str, int] | None = None,
        num_envs: int = 1,
    ) -> dict[ModuleID, dict[str, float]]:
        """Updates the modules.

        Args:
            episodes: Episodes in this process.
            references: Episodes in Ray's store, instead of ``episodes``, in the order in which one learner gets them.
                Only remote learners can fetch them.
            timesteps: As for ``Learner.update``.
            num_envs: The number of sub-environments that ``references`` are of.

        Returns:
            The result of ``Learner.update``.

        Raises:
            LearnerError: As for ``Learner.update``.
            ActorLost: If a remote learner is lost and must not be replaced.
        """
        if self.remote is None:
            assert episodes is not None
            return self.learner.update(episodes=episodes, timesteps=timesteps)
        if references is None:
            assert episodes is not None
            references = self._put(episodes)
            num_envs = self.remote.number
        return self._update_remote(self.remote, references, timesteps or {}, num_envs)

    def _update_remote(
        self,
        remote: RemoteLearners,
        references: Sequence[EpisodeReference],
        timesteps: dict[str, int],
        num_envs: int,
    ) -> dict[ModuleID, dict[str, float]]:
        learner, before = self.learner, self._before(remote)
        self._known_state = None
        replies, after = remote.update(divided(references, remote.number, num_envs), before, timesteps)
        self._version += 1
        learner.set_state(after)
        learner.pipeline_seconds = max(reply.pipeline_seconds for reply in replies)
        self._known_state = {name: value for name, value in after.items() if name != "metrics"}
        return replies[0].results

    def _before(self, remote: RemoteLearners) -> LearnerBefore:
        """Returns the learner in this process as it is now, and whether the remote learners have its state."""
        learner = self.learner
        structure = _structure(learner)
        if not _are_alike(structure, self._known_structure):
            assert self._make_blueprint is not None
            self.check()
            remote.set_blueprint(self._make_blueprint())
            self._known_structure, self._known_state = structure, None
        state = learner.get_state()
        metrics = state.pop("metrics")
        return LearnerBefore(self._version, state, metrics, _are_alike(state, self._known_state))

    def _put(self, episodes: Sequence[Any]) -> list[EpisodeReference]:
        """Puts episodes into Ray's store: a list for each remote learner, with about as many agent steps in each.

        Chunks of one episode are in one list.
        """
        remote = self.remote
        assert remote is not None
        steps: dict[Any, int] = {}
        for episode in episodes:
            steps[episode.id_] = steps.get(episode.id_, 0) + episode.agent_steps()
        ends = np.cumsum(list(steps.values()))
        middles = ends - np.array(list(steps.values())) / 2
        lists = np.minimum(middles * remote.number // max(ends[-1] if len(ends) else 0, 1), remote.number - 1).astype(
            int
        )
        list_of = dict(zip(steps, lists.tolist(), strict=True))
        members: list[list[Any]] = [[] for _ in range(remote.number)]
        places = []
        for episode in episodes:
            own = members[list_of[episode.id_]]
            places.append(len(own))
            own.append(episode)
        payloads = [remote.put(pickled(own)) if own else None for own in members]
        return [
            EpisodeReference(payloads[list_of[episode.id_]], place, list_of[episode.id_], episode.agent_steps())
            for episode, place in zip(episodes, places, strict=True)
        ]

    def foreach_learner(self, func: Callable[[Learner], Any]) -> list[Any]:
        """Calls ``func(learner)`` in the process of each learner that makes updates, and returns a list of the results.

        Remote learners that were not made yet, or are lost meanwhile, are made with the state of the learner in this
        process.

        Raises:
            ActorLost: If a remote learner is lost and must not be replaced.
            ConfigError: If the function or its result cannot be sent from one process to another.
            Exception: What the function raises. The learners stay as they are.
        """
        if self.remote is None:
            return [func(learner) for learner in self.learner.by_name.values()]
        before = self._before(self.remote)
        if not before.is_known:
            self._known_state = None
        found = self.remote.foreach(func, before)
        if not before.is_known:
            self._known_state = copy.deepcopy(before.state)  # it shares tensors with the learner, which change
        return found

    def stop(self) -> None:
        """Ends the remote learners."""
        if self.remote is not None:
            self.remote.close()


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
