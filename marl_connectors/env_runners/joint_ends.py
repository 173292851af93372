"""Episodes whose agents all end in the same step, in arrays for all copies to which that happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from marl_connectors import spaces
from marl_connectors.env_runners.lanes import Lane
from marl_connectors.env_runners.lanes_by_copy import SomeLanes
from marl_connectors.environments.batched_ends import BatchedEnds
from marl_connectors.environments.env_copy import Transition
from marl_connectors.environments.env_states import joined_states
from marl_connectors.episodes.rollout import take
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


class JointEnds(NamedTuple):
    """What ``N`` agents of some copies got in the last step of their episodes, by copy.

    Attributes:
        indices: The copies.
        t: Env steps of each copy's episode.
        observations: ``[N, ...]`` arrays, or a list of items.
        terminated: ``[N]`` bool.
        truncated: ``[N]`` bool, False where ``terminated``.
        infos: By agent, of each copy; empty if there are none at all.
        first_infos: By agent, of each copy's next episode; empty if there are none at all.
        states: ``[num_copies, ...]`` the environments' last states, where they are kept.
    """

    indices: list[int]
    t: list[int]
    observations: Tree | list[Any]
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[dict[AgentID, Any]]
    first_infos: list[dict[AgentID, Any]]
    states: Tree | None = None

    @classmethod
    def of_batch(cls, ends: BatchedEnds) -> JointEnds:
        """Those that a natively batched environment reported."""
        terminated = ends.terminations.ravel()
        return cls(
            ends.indices.tolist(),
            ends.t.tolist(),
            ends.flat_observations(),
            terminated,
            ends.truncations.ravel() & ~terminated,
            [ends.infos_of(place) for place in range(len(ends))] if ends.infos else [],
            [],
        )

    @classmethod
    def of_transitions(
        cls, transitions: Sequence[Transition], by_copy: Sequence[Mapping[AgentID, Lane]]
    ) -> JointEnds | None:
        """Those of some copies; None if some agents have not ended, or not observed. Per agent: three look-ups."""
        observations: list[Any] = []
        terminated: list[Any] = []
        truncated: list[Any] = []
        for transition in transitions:
            agents = by_copy[transition.index]
            observations += map(transition.observations.get, agents)
            terminated += map(transition.terminations.get, agents)
            truncated += map(transition.truncations.get, agents)
        ended = np.array(terminated, bool), np.array(truncated, bool)
        if not (ended[0] | ended[1]).all() or any(item is None for item in observations):
            return None
        infos = [transition.infos for transition in transitions]
        first_infos = [transition.first_infos for transition in transitions]
        return cls(
            [transition.index for transition in transitions],
            [transition.t for transition in transitions],
            observations,
            ended[0],
            ended[1] & ~ended[0],
            infos if any(infos) else [],
            first_infos if any(first_infos) else [],
            joined_states([transition.state for transition in transitions]),
        )

    def record(self, lanes: SomeLanes) -> bool:
        """Writes the observations to the newest rows of the agents' lanes; False if they do not fit."""
        copy_of = np.repeat(np.arange(len(self.t)), np.diff([*lanes.begins.tolist(), len(lanes.number)]))
        t = np.array(self.t)[copy_of]
        for group, places, numbers in lanes.by_group():
            rollout = group.rollout
            states = None if self.states is None else take(self.states, copy_of[places])
            try:
                observations = self._stacked(places, rollout.observation_space)
                rollout.observe(rollout.cursor[numbers], observations, t[places], states)
            except (TypeError, ValueError):
                return False  # whoever writes them one by one will find out which it is
        return True

    def _stacked(self, places: slice | np.ndarray, space: Any) -> Tree:
        given = self.observations
        if not isinstance(given, list):
            return tree_map(lambda leaf: leaf[places], given)
        return spaces.stack(given[places] if isinstance(places, slice) else [given[i] for i in places.tolist()], space)
