"""Those rows of a minibatch that a team's loss needs from a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.learner.minibatches import MiniBatch
from marl_connectors.replay_buffers.team_replay_sample import TeamReplaySample, TeamSegments
from marl_connectors.rl_module.stacking import each_leaf
from marl_connectors.transfers import all_moved


class PickedColumns(Mapping[str, Any]):
    """Some rows of the columns of a minibatch: ``[R, ...]``, or ``[M, R, ...]`` of stacked modules."""

    def __init__(self, columns: Mapping[str, Any], index: Tensor, num_modules: int):
        """Selects the rows.

        Args:
            columns: The columns, ``[B, ...]`` or ``[M, B, ...]``.
            index: ``[M * R]`` positions among all rows, module by module.
            num_modules: The number ``M`` of modules.
        """
        self._columns = columns
        self._index = index
        self._num_modules = num_modules

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if isinstance(column, InfoColumn):
            return column.index_select(0, self._index)
        if self._num_modules == 1:
            return each_leaf(column, lambda leaf: leaf.index_select(0, self._index))
        if isinstance(column, list):  # the info dicts of several modules
            infos = InfoColumn(info for own in column for info in own).index_select(0, self._index)
            return infos.unflatten(0, (self._num_modules, -1))
        return each_leaf(column, self._of_each_module)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the rows of a column; ``default`` if there is none."""
        return self[name] if name in self else default  # noqa: SIM401

    def _of_each_module(self, leaf: Tensor) -> Tensor:
        return leaf.flatten(0, 1).index_select(0, self._index).unflatten(0, (self._num_modules, -1))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class PickedRows(NamedTuple):
    """The rows of a minibatch whose env steps are needed.

    Attributes:
        columns: What the module reads: these rows and padding, or all sequences of a stateful module.
        index: ``[n]`` the position of each of these rows among all that ``columns`` has.
        cells: ``[n]`` its place among ``N * W * A`` places: item, row of the item, agent.
    """

    columns: Mapping[str, Any]
    index: Tensor
    cells: Tensor

    @classmethod
    def of(
        cls, minibatch: MiniBatch, sample: TeamReplaySample, env_steps: np.ndarray, *, only_acted: bool = False
    ) -> PickedRows:
        """Finds the rows of some env steps.

        Args:
            minibatch: All rows of some modules in the sample.
            sample: The sample.
            env_steps: ``[N, W]`` bool, the env steps.
            only_acted: Leave out observations that no action has followed.
        """
        columns, device = minibatch.columns, minibatch.columns[Columns.REWARDS].device
        segments = [sample.segments[m] for m in minibatch.module_ids]
        wanted = env_steps.reshape(-1)
        kept = [wanted[own.env_steps] & (own.acted | (not only_acted)) for own in segments]
        cells = [_cells(sample, own)[is_kept] for own, is_kept in zip(segments, kept, strict=True)]
        places = [own[is_kept] for own, is_kept in zip(places_of(minibatch, segments), kept, strict=True)]
        if Columns.SEQ_LENS in columns:  # a state passes from row to row
            return cls(columns, *all_moved([np.concatenate(places), np.concatenate(cells)], device))
        longest = max(1, *map(len, places))
        begins = np.arange(len(places)) * _rows_of_a_module(minibatch)
        index = np.repeat(begins[:, None], longest, 1)
        for row, own in zip(index, places, strict=True):
            row[: len(own)] = own
        at = np.concatenate([i * longest + np.arange(len(own)) for i, own in enumerate(places)])
        picked, at, found = all_moved([index.reshape(-1), at, np.concatenate(cells)], device)
        return cls(PickedColumns(columns, picked, len(places)), at, found)

    def pick(self, column: Tensor) -> Tensor:
        """Returns these rows of ``[R]``, ``[M, R]`` or, of sequences, ``[..., S, T]`` outputs."""
        return column.reshape(-1).index_select(0, self.index)


def _rows_of_a_module(minibatch: MiniBatch) -> int:
    """Returns the number of rows that each module has in the columns, with padding."""
    return minibatch.columns[Columns.REWARDS].numel() // len(minibatch.module_ids)


def places_of(minibatch: MiniBatch, segments: Sequence[TeamSegments]) -> list[np.ndarray]:
    """Returns the position of each row of a minibatch's modules among the flattened rows of its columns."""
    columns, size = minibatch.columns, _rows_of_a_module(minibatch)
    width = columns[Columns.REWARDS].shape[-1] if Columns.SEQ_LENS in columns else 1
    found = []
    for i, own in enumerate(segments):
        places = np.arange(len(own.rows)) + i * size
        if width > 1:
            begins = np.cumsum(own.counts) - own.counts
            places += np.repeat(np.arange(len(own.counts)) * width - begins, own.counts)
        found.append(places)
    return found


def _cells(sample: TeamReplaySample, segments: TeamSegments) -> np.ndarray:
    return segments.env_steps * sample.num_agents + sample.slots[segments.module_id] + segments.slots


class TeamColumns(NamedTuple):
    """What all rows of a minibatch say about their env steps, ``[B]`` each.

    Attributes:
        env_steps: The number of each row's env step: that of its item times ``W``, and its row in the item.
        rewards: The rewards of the team.
        states: ``[B, size]`` what the mixer knows; None for VDN.
    """

    env_steps: Tensor
    rewards: Tensor
    states: Tensor | None

    @classmethod
    def of(cls, minibatch: MiniBatch, sample: TeamReplaySample, state: str) -> TeamColumns:
        """Returns them without padding.

        Args:
            minibatch: All rows of some modules in the sample.
            sample: The sample.
            state: The name of the column with what the mixer knows.
        """
        columns = minibatch.columns
        segments = [sample.segments[m] for m in minibatch.module_ids]
        places, env_steps = np.concatenate(places_of(minibatch, segments)), [own.env_steps for own in segments]
        rewards = columns[Columns.REWARDS]
        at, steps = all_moved([places, np.concatenate(env_steps)], rewards.device)
        states = None
        if state in columns:
            states = columns[state].reshape(-1, columns[state].shape[-1]).index_select(0, at)
        return cls(steps, rewards.reshape(-1).index_select(0, at), states)


def target_steps(sample: TeamReplaySample, n_step: int) -> np.ndarray:
    """Returns ``[N, W]`` bool, the env steps whose best values are in the targets of those that count.

    Args:
        sample: The sample.
        n_step: The number of rewards before the value in a target, or fewer at the end of an item.
    """
    found = np.zeros_like(sample.counted)
    items, steps = np.nonzero(sample.counted)
    found[items, np.minimum(steps + n_step, sample.last[items])] = True
    return found


def filled(values: Tensor, places: Tensor, number: int) -> Tensor:
    """Returns ``[number, ...]`` zeros with ``[n, ...]`` values at ``[n]`` places."""
    return values.new_zeros(number, *values.shape[1:]).index_copy(0, places, values)


def everywhere(number: int, places: Tensor) -> Tensor:
    """Returns ``[number]`` numbers, 1 at some places and else 0."""
    return torch.zeros(number, device=places.device).index_fill(0, places, 1.0)
