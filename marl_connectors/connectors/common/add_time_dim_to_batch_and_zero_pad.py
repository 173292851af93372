"""Gives batches of stateful modules a time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import item_key
from marl_connectors.connectors.in_both_pipelines import InBothPipelines
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.module_states import are_stateful, is_stateful, max_seq_len, member
from marl_connectors.trees import tree_map


class AddTimeDimToBatchAndZeroPad(InBothPipelines):
    """Stateful modules see time: every column gets a second axis for it.

    Before a forward pass the axis has length 1: ``[B, ...]`` becomes ``[B, 1, ...]``. For a train batch each chunk of
    an agent episode is cut into sequences of ``max_seq_len`` steps (from the module's ``model_config``), the last one
    filled up with zeros at its right: ``[S, max_seq_len, ...]``. ``loss_mask`` is False there, and ``seq_lens``
    (``[S]``) counts the real steps.

    In columns a train batch stays as it is, a row for each agent-step; ``columns.sequences`` says how they follow one
    another, and the zeros come in when a module gets its minibatch.

    Reads and writes all columns of stateful modules in the batch; leaves those of stateless ones alone. Keeps no state.
    """

    def __init__(
        self, input_observation_space=None, input_action_space=None, *, as_learner_connector: bool | None = None
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            as_learner_connector: Whether to make sequences, for a train batch, or an axis of length 1; None leaves it
                to the pipeline.
        """
        super().__init__(input_observation_space, input_action_space)
        self.as_learner_connector = as_learner_connector

    def on_columns(self, *, rl_module: Any, columns: ColumnGroup, **kwargs: Any) -> None:
        """Adds an axis, or works out the sequences."""
        if not are_stateful(type(self).__name__, rl_module, columns.module_ids):
            return
        if not self.learns:
            for name, column in columns.items():
                if not isinstance(column, InfoColumn):
                    columns[name] = tree_map(lambda leaf: leaf[:, None], column)
            return
        if Columns.LOSS_MASK not in columns:
            acted = columns.rows.acted
            columns[Columns.LOSS_MASK] = np.ones(len(columns.rows), bool) if acted is None else acted.copy()
        lengths = tuple(max_seq_len(member(rl_module, m), m) for m in columns.module_ids)
        columns.sequences = Sequences.of_rows(columns.rows.counts, columns.splits, lengths)

    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any
    ) -> dict[str, Any]:
        """Works on single items, and on lists of them."""
        if not self.learns:
            for name in batch.keys() - {Columns.INFOS}:
                self.foreach_batch_item_change_in_place(
                    batch,
                    name,
                    lambda item, _eps, _agent, module_id: (
                        spaces.stack([item]) if is_stateful(rl_module, module_id) else item
                    ),
                )
            return batch
        chunks: dict[Any, list[int]] = {}  # the steps of each, by key; chunks of one episode share one
        longest: dict[Any, int] = {}
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = len(episode)
            if not steps or not is_stateful(rl_module, episode.module_id):
                continue
            key = item_key(episode)
            longest[key] = max_seq_len(member(rl_module, episode.module_id), episode.module_id)
            chunks.setdefault(key, []).append(steps)
            if Columns.LOSS_MASK not in batch or len(batch[Columns.LOSS_MASK].get(key, ())) < sum(chunks[key]):
                self.add_n_batch_items(batch, Columns.LOSS_MASK, [True] * steps, steps, episode)
        for name, by_key in batch.items():
            if name != Columns.INFOS and isinstance(by_key, dict):
                for key, counts in chunks.items():
                    if key in by_key:
                        by_key[key] = _sequences_of(name, key, by_key[key], counts, longest[key])
        for key, counts in chunks.items():
            lengths = Sequences.of_rows(counts, (0, sum(counts)), (longest[key],)).lengths
            batch.setdefault(Columns.SEQ_LENS, {})[key] = lengths.tolist()
        return batch


def _sequences_of(name: str, key: Any, items: list, counts: list[int], length: int) -> list:
    """Items of several chunks as ``[length, ...]`` sequences, none of which reaches over the end of a chunk."""
    if len(items) != sum(counts):
        raise ConnectorError(
            f"{len(items)} items of {name!r} for episode {key}, but its chunks have {sum(counts)} steps, so they "
            f"cannot be cut into sequences. Add one item for each step of each chunk."
        )
    found, begin = [], 0
    for count in counts:
        for start in range(begin, begin + count, length):
            found.append(_filled_up(items[start : min(start + length, begin + count)], length))
        begin += count
    return found


def _filled_up(items: list, length: int) -> Any:
    def padded(leaf: np.ndarray) -> np.ndarray:
        rest = np.zeros((length - len(leaf), *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, rest])

    return tree_map(padded, spaces.stack(items))
