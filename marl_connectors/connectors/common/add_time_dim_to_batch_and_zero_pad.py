"""Adds a time axis to the batches of stateful modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.rl_module.states import are_stateful, max_seq_len, member
from marl_connectors.trees import tree_map


class AddTimeDimToBatchAndZeroPad(InBothPipelines):
    """Adds a second axis, for time, to all columns of stateful modules.

    Before a forward pass, the axis has length 1: ``[B, ...]`` becomes ``[B, 1, ...]``. For a train batch, each chunk of
    an agent's episode is cut into sequences of ``max_seq_len`` steps (from the module's ``model_config``), and the last
    one is padded with zeros at its end: ``[S, max_seq_len, ...]``. ``loss_mask`` is False for the padding, and
    ``seq_lens`` (``[S]``) counts the real steps. The sequences of a replay buffer are not cut; ``loss_mask`` is also
    False for those of their steps that only serve the states and the targets.

    In columns, a train batch keeps one row for each agent-step. ``c.sequences`` holds the sequences, and they are
    padded when a module gets its minibatch.

    Reads and writes all columns of stateful modules in the batch; those of stateless modules stay as they are. Keeps no
    state.
    """

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds an axis, or works out the sequences."""
        if not are_stateful(type(self).__name__, c.rl_module, c.module_ids):
            return
        if not self.learns:
            for name, column in c.items():
                if not isinstance(column, InfoColumn):
                    c[name] = tree_map(lambda leaf: leaf[:, None], column)
            return
        rows = c.rows
        if Columns.LOSS_MASK not in c:
            counted = rows.acted if rows.counted is None else rows.counted
            c[Columns.LOSS_MASK] = np.ones(len(rows), bool) if counted is None else counted.copy()
        lengths = rows.sequence_lengths or tuple(max_seq_len(member(c.rl_module, m), m) for m in c.module_ids)
        c.sequences = Sequences.of_rows(c.rows.counts, c.splits, lengths)
