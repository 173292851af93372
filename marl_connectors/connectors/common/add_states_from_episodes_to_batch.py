"""Adds the states of stateful modules to the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows, check_beginning
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.states import (
    are_stateful,
    check_state_out,
    initial_state,
    member,
)
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree


class AddStatesFromEpisodesToBatch(InBothPipelines):
    """Adds ``state_in`` for stateful modules: the ``state_out`` of the agent's previous step.

    At the first step of an agent's episode, the state is the module's ``get_initial_state()``. A state is carried over
    from one chunk of an episode to the next chunk, but never from one episode of an agent to its next episode.

    Before a forward pass, there is one state for each row, without a time axis. For a train batch, there is one for the
    first step of each sequence; in columns it is in ``c.sequences.state_in``. In episodes without ``state_out``
    (another module played them), every sequence gets the initial state. So does a sequence of a replay buffer that
    begins with the oldest step that is kept.

    Reads ``state_out`` of the trajectories; writes ``state_in`` to the batch. Keeps no state of its own.
    """

    lookback = 1

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the states of all rows, or of the first rows of all sequences, in one gather.

        Raises:
            ConnectorError: If a train batch has no sequences, or the state before a chunk was not kept.
        """
        if Columns.STATE_IN in c or not are_stateful(type(self).__name__, c.rl_module, c.module_ids):
            return
        if not self.learns:
            c[Columns.STATE_IN] = self._states(c.rl_module, c, c.rows, c.splits, None)
            return
        sequences = c.sequences
        if sequences is None:
            raise _no_sequences()
        if sequences.state_in is None:
            rows = c.rows.at(sequences.starts)
            sequences.state_in = self._states(c.rl_module, c, rows, sequences.splits, sequences.counts)

    def _states(
        self, rl_module: Any, columns: ColumnGroup, rows: Rows, splits: Sequence[int], counts: np.ndarray | None
    ) -> Tree:
        """Returns ``[N, ...]`` states before ``rows``, of which ``counts`` (None: 1) belong to each agent episode."""
        states, reached, kept = _recorded(rows)
        if states is not None and reached.all():
            return states
        self._check_beginnings(columns, kept & ~reached, counts)
        for i, module_id in enumerate(columns.module_ids):
            begin, end = splits[i : i + 2]
            module = member(rl_module, module_id)
            first = initial_state(module)
            if states is None:
                number = splits[-1]
                states = tree_map(lambda leaf, n=number: np.zeros((n, *leaf.shape), leaf.dtype), first)
            check_state_out(module, module_id, states, splits[-1])
            fresh = begin + np.flatnonzero(~reached[begin:end])
            tree_map(lambda leaf, value, where=fresh: leaf.__setitem__(where, value), states, first)
        return states

    def _check_beginnings(self, columns: ColumnGroup, missing: np.ndarray, counts: np.ndarray | None) -> None:
        """Checks that a chunk that continues an episode keeps the state at its beginning."""
        if not missing.any() or columns.rows.sequence_lengths is not None:  # a replay buffer forgets the oldest rows
            return
        rows, number = columns.rows, len(columns.rows.counts)
        owners = np.arange(number) if counts is None else np.repeat(np.arange(number), counts)
        chunks = rows.chunks or rows.episodes
        for i in np.unique(owners[missing]).tolist():
            chunk = chunks[i]
            if isinstance(chunk, AgentChunk):
                if chunk.begins_in_lookback:
                    continue
                chunk = chunk.episode()
            check_beginning(chunk, Columns.STATE_OUT, 1, -1, type(self).__name__)


def _recorded(rows: Rows) -> tuple[Tree | None, np.ndarray, np.ndarray]:
    """Returns the states that modules output one row before, and which of them exist.

    Episodes without states, made by hand, may be in one batch with those of a runner.

    Returns:
        The states ``[N, ...]``, or None; ``[N]`` bool, True where there is one; ``[N]`` bool, True for rows of episodes
        that have states.
    """
    if rows.has(Columns.STATE_OUT):
        states, reached = rows.reach(Columns.STATE_OUT, -1)
        return states, reached, np.ones_like(reached)
    states, reached, kept, begin = None, np.zeros(len(rows), bool), np.zeros(len(rows), bool), 0
    for part in rows.parts:
        end = begin + len(part.first)
        own = rows.at(np.arange(begin, end))
        if own.has(Columns.STATE_OUT):
            values, reached[begin:end] = own.reach(Columns.STATE_OUT, -1)
            kept[begin:end] = True
            if states is None:
                states = tree_map(lambda leaf: np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype), values)
            tree_map(lambda leaf, value, b=begin, e=end: leaf.__setitem__(slice(b, e), value), states, values)
        begin = end
    return states, reached, kept


def _no_sequences() -> ConnectorError:
    return ConnectorError(
        "there are no sequences yet. Put AddTimeDimToBatchAndZeroPad(as_learner_connector=True) before this piece."
    )
