"""What the pieces that read or change the rewards of a train batch have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2, item_key
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError


class ChangesRewards(ConnectorV2):
    """Base of pieces that change ``rewards`` in the train batch, one by one.

    Reads the batch's rewards or, where no piece has added them yet, those of the episodes. The episodes, and so the
    reported returns, keep the environment's rewards.
    """

    belongs_in = (LEARNER,)

    def changed(self, rewards: Any) -> Any:
        """The new rewards for ``[B]`` old ones, or for one."""
        raise NotImplementedError(f"{type(self).__name__}: override changed(rewards).")

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Works on all rows of a group at once."""
        columns[Columns.REWARDS] = self.changed(rewards_of_columns(columns))

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Works on single items."""
        if not _has_rewards(batch):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                if len(episode):
                    self.add_n_batch_items(batch, Columns.REWARDS, list(_of(episode)), len(episode), episode)
        if _has_rewards(batch):
            self.foreach_batch_item_change_in_place(batch, Columns.REWARDS, lambda reward, *ids: self.changed(reward))
        return batch


def rewards_of_columns(columns: ColumnGroup) -> Any:
    """``[B]`` the batch's rewards or, without any, the trajectories' as float32."""
    if Columns.REWARDS in columns:
        return columns[Columns.REWARDS]
    return columns.rows.get(Columns.REWARDS).astype(np.float32)


def rewards_of_items(
    piece: ConnectorV2, batch: dict[str, Any], episodes: Sequence[Any]
) -> list[tuple[SingleAgentEpisode, np.ndarray]]:
    """Agent episodes with steps, and the float32 rewards of each: the batch's or, without any, the episodes' own.

    Raises:
        ConnectorError: If the batch is already sorted by module, or has other numbers of rewards.
    """
    name = type(piece).__name__
    given = batch.get(Columns.REWARDS)
    if given is None and _has_rewards(batch):
        raise ConnectorError(
            f"{name}: needs each episode's own rewards, but the batch is sorted by module. Put it before "
            f"AgentToModuleMapping, BatchIndividualItems and NumpyToTensor; a custom piece is, by default."
        )
    found, taken = [], {}
    for episode in piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
        steps = len(episode)
        if not steps:
            continue
        rewards = _of(episode)
        if given is not None:
            key = item_key(episode)
            begin = taken.get(key, 0)
            taken[key] = begin + steps
            rewards = np.array(given.get(key, [])[begin : begin + steps], np.float32)
            if len(rewards) != steps:
                raise ConnectorError(
                    f"{name}: the batch has {len(given.get(key, []))} items of 'rewards' for episode {key}, which is "
                    f"longer. Add one for each i in range(len(episode))."
                )
        found.append((episode, rewards))
    return found


def _of(episode: SingleAgentEpisode) -> np.ndarray:
    return np.asarray(episode.get_rewards(), np.float32)


def _has_rewards(batch: dict[str, Any]) -> bool:
    """Whether the batch has rewards, by episode or by module."""
    return Columns.REWARDS in batch or any(Columns.REWARDS in c for c in batch.values() if isinstance(c, dict))
