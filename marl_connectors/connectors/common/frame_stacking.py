"""Stacks the newest observations of each agent."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.connectors.space_trees import map_space
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID
from marl_connectors.validators import integer


class FrameStacking(ObservationTransform):
    """Concatenates the newest ``num_frames`` observations of each agent, oldest first.

    They are concatenated along the last axis: ``(w, h, 1)`` becomes ``(w, h, N)``, ``(w, h, c)`` becomes
    ``(w, h, c * N)``, ``(n,)`` becomes ``(n * N,)``, and a number becomes ``(N,)``. Each part of Dict and Tuple
    observations is stacked. Frames before the first observation of an agent's episode are zeros.

    Reads ``obs`` of the episodes; writes it to the batch. The episodes keep single observations, so the learner
    pipeline needs the piece too. Keeps no state.

    Args:
        num_frames: The number of observations. The episodes must keep ``num_frames - 1`` steps from before each
            chunk (``episode_lookback_horizon``).
    """

    puts_observations_in_batch = True
    num_frames: int = argument(integer(min=1), default=1)

    @property
    def lookback(self) -> int:
        """The number of steps that an episode must keep from before each chunk."""
        return self.num_frames - 1

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space of stacked observations."""
        return Plan(space, map_space(self._stacked_space, space))

    def _stacked_space(self, space: Space) -> Space:
        shape = space.shape or (1,)
        shape = (*shape[:-1], shape[-1] * self.num_frames)
        if isinstance(space, spaces.Box):
            newest = space.low.reshape(space.shape or (1,)), space.high.reshape(space.shape or (1,))
            older = np.minimum(newest[0], 0).astype(space.dtype), np.maximum(newest[1], 0).astype(space.dtype)
            low, high = (
                np.concatenate([*[o] * (self.num_frames - 1), n], axis=-1) for o, n in zip(older, newest, strict=True)
            )
            return spaces.Box(low, high, shape, space.dtype.type)  # type: ignore[union-attr]
        if isinstance(space, spaces.MultiBinary):
            return spaces.MultiBinary(shape)
        if self.learns:  # observations may have been changed since the environment gave them
            return space
        raise ConfigError(
            f"FrameStacking: observations of {describe(space)} cannot be stacked, since frames before the episode's "
            f"start are 0, which is a value of its own here. Put FlattenObservations or OneHotObservations before it."
        )

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Stacks the frames of all rows in one gather."""
        if Columns.OBS in c:
            raise ConnectorError(
                "FrameStacking: 'obs' is in the batch already, without the earlier observations to stack. Put "
                "FrameStacking before the piece that adds it (AddObservationsFromEpisodesToBatch, for example)."
            )

        def in_one_axis(frames: Any) -> Any:
            if frames.ndim <= 2:
                return frames
            *lead, last = frames.shape[:1] + frames.shape[2:]
            return xp.moveaxis(frames, 1, -2).reshape(*lead, last * self.num_frames)

        who = f"FrameStacking(num_frames={self.num_frames})"
        frames = c.rows.recent(Columns.OBS, self.num_frames, newest=0, who=who)
        c[Columns.OBS] = tree_map(in_one_axis, frames)


FrameStackingEnvToModule = partial(FrameStacking, as_learner_connector=False)
FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)
"""RLlib's names of the piece in a pipeline of one kind."""
