"""Puts everything but observations into the train batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.extended_episodes import original

_NOT_OUTPUTS = (
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.T,
    Columns.ACTIONS_FOR_ENV,
    Columns.STATE_OUT,
    Columns.ENV_STATE,
)


class AddColumnsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``actions``, ``rewards``, ``terminateds``, ``truncateds`` and all module outputs that the episodes keep.

    States are left out: they are large, and AddStatesFromEpisodesToBatch adds those that are needed.
    Columns that are in the batch already stay as they are. A chunk that was cut is neither terminated nor truncated.
    Keeps no state.
    """

    belongs_in = (LEARNER,)

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Reads the columns of the rows. In an episode's last row, which was not acted on, they mean nothing."""
        rows = columns.rows
        outputs = [name for name in rows.parts[0].rollout.columns if name not in _NOT_OUTPUTS and rows.has(name)]
        for name in (Columns.ACTIONS, Columns.REWARDS, *outputs):
            if name not in columns:
                values = rows.get(name)
                columns[name] = values.astype(np.float32) if name == Columns.REWARDS else values
        last_steps = np.cumsum(rows.counts) - (2 if rows.acted is not None else 1)
        for name, flags in (
            (Columns.TERMINATEDS, [chunk.is_terminated for chunk in rows.chunks]),
            (Columns.TRUNCATEDS, [chunk.is_truncated for chunk in rows.chunks]),
        ):
            if name not in columns:
                columns[name] = np.zeros(len(rows), bool)
                columns[name][last_steps] = flags

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Reads the columns of the episodes."""
        given = set(batch)
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = len(episode)
            if not steps:
                continue
            real = original(episode)
            last = np.arange(steps) == len(real) - 1
            values = {
                Columns.ACTIONS: episode.get_actions(),
                Columns.REWARDS: list(np.asarray(episode.get_rewards(), np.float32)),
                Columns.TERMINATEDS: list(last & real.is_terminated),
                Columns.TRUNCATEDS: list(last & real.is_truncated),
            }
            for name in episode.storage.extra_keys():
                if name not in _NOT_OUTPUTS:
                    values[name] = episode.get_extra_model_outputs(name)
            for name, items in values.items():
                if name not in given:
                    self.add_n_batch_items(batch, name, items, steps, episode)
        return batch
