"""Where the loss of a team finds its terms: rows of minibatches, and the env steps and agents that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.learner.minibatches import MiniBatch
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.rl_module.stacking import each_leaf
from marl_connectors.transfers import all_moved


class PickedColumns(Mapping[str, Any]):
    """Some rows of the columns of a minibatch: ``[R, ...]``, or ``[M, R, ...]`` of stacked modules.

    A column's rows are selected when it is first read.
    """

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
        self._picked: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._picked:
            self._picked[name] = self._pick(self._columns[name])
        return self._picked[name]

    def _pick(self, column: Any) -> Any:
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
    """The rows of a minibatch whose values a loss needs.

    Attributes:
        columns: What the module reads: these rows and padding, or all sequences of a stateful module.
        index: ``[n]`` the position of each of these rows among all that ``columns`` has; None if they are all rows.
    """

    columns: Mapping[str, Any]
    index: Tensor | None

    @classmethod
    def of(cls, minibatch: MiniBatch, rows: Sequence[np.ndarray], device: torch.device) -> PickedRows:
        """Selects rows.

        Args:
            minibatch: All rows of some modules.
            rows: The position of each row that is selected among the flattened rows of the columns, for each module.
            device: The device of the columns.
        """
        columns = minibatch.columns
        if Columns.SEQ_LENS in columns:  # a state passes from row to row
            return cls(columns, *all_moved([np.concatenate(rows)], device))
        lengths = [len(own) for own in rows]
        longest = max(1, *lengths)
        if min(lengths) == longest:
            (picked,) = all_moved([rows[0] if len(rows) == 1 else np.concatenate(rows)], device)
            return cls(PickedColumns(columns, picked, len(rows)), None)
        size = columns[Columns.REWARDS].numel() // len(rows)
        padded = np.repeat(np.arange(len(rows))[:, None] * size, longest, 1)
        for row, own in zip(padded, rows, strict=True):
            row[: len(own)] = own
        at = np.concatenate([i * longest + np.arange(number) for i, number in enumerate(lengths)])
        picked, index = all_moved([padded.reshape(-1), at], device)
        return cls(PickedColumns(columns, picked, len(rows)), index)

    def pick(self, column: Tensor) -> Tensor:
        """Returns these rows of ``[R]``, ``[M, R]`` or, of sequences, ``[..., S, T]`` outputs."""
        flat = column.reshape(-1)
        return flat if self.index is None else flat.index_select(0, self.index)


class JointRows(NamedTuple):
    """The rows of all minibatches that belong to ``K`` env steps of a team of ``A`` agents.

    Attributes:
        of_minibatches: Those of each minibatch.
        cells: ``[n]`` the place of each row in a ``[K, A]`` matrix; None if the rows fill it in order.
        shape: ``(K, A)``.
    """

    of_minibatches: list[PickedRows]
    cells: Tensor | None
    shape: tuple[int, int]

    def matrix(self, values: Sequence[Tensor]) -> Tensor:
        """Returns ``[K, A]`` values, of which the rows of each minibatch are given; 0 for agents without a row."""
        joined = _joined(values)
        if self.cells is not None:
            joined = joined.new_zeros(self.shape[0] * self.shape[1]).index_copy_(0, self.cells, joined)
        return joined.view(self.shape)

    def split(self, matrix: Tensor, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the rows of each minibatch in a ``[K, A]`` matrix, as many as there are ``values``."""
        flat = matrix.reshape(-1)
        joined = flat if self.cells is None else flat.index_select(0, self.cells)
        return [joined] if len(values) == 1 else joined.split([len(own) for own in values])


class TeamRows:
    """The rows that the loss of a team is computed from, and what its targets are made of besides values.

    Of ``K`` env steps the values are learned. Their targets read the values at ``U`` env steps.

    Attributes:
        learned: The rows of the agents that act at the ``K`` env steps.
        read: The rows of the agents that are there at the ``U`` env steps.
        read_by: ``[K]`` the number of the env step that each target reads; None if it is that of the target.
        rewards: ``[K]`` the discounted sums of the rewards in the targets.
        discounts: ``[K]`` float32, the factor of the value that a target reads; 0 where no agent is there.
    """

    def __init__(self, minibatches: Sequence[MiniBatch], sample: EnvStepSample, *, n_step: int, gamma: float):
        """Finds the rows.

        Args:
            minibatches: All rows of all modules of the team.
            sample: The sample that they were drawn in.
            n_step: The number of rewards in a target, or fewer at the end of an item.
            gamma: The discount for each env step.
        """
        self._columns = [minibatch.columns for minibatch in minibatches]
        rewards = [columns[Columns.REWARDS] for columns in self._columns]
        self._device = rewards[0].device
        learned = np.flatnonzero(sample.counted)
        items, steps = np.divmod(learned, sample.counted.shape[1])
        taken = np.minimum(n_step, sample.last[items] - steps)
        after = read = learned + taken
        by = []
        if not (after[1:] > after[:-1]).all():
            read, read_by = np.unique(after, return_inverse=True)
            by = [read_by]
        places, acts = _places(minibatches, rewards, sample)
        self.learned = self._joint(minibatches, sample, np.where(acts[learned], places[learned], -1))
        self.read = self._joint(minibatches, sample, places[read])
        row_at = places.max(1)  # of a column that all agents have in common
        ahead = learned[:, None] + np.arange(n_step)  # some of these are behind an item's end, and so not taken
        rows = row_at[np.minimum(ahead, len(row_at) - 1)]
        counts = (rows >= 0) & (np.arange(n_step) < taken[:, None])
        found = all_moved(
            [
                np.maximum(rows, 0),
                (gamma ** np.arange(n_step) * counts).astype(np.float32),
                (gamma**taken * (row_at[after] >= 0)).astype(np.float32),
                rows[:, 0],
                np.maximum(row_at[read], 0),
                *by,
            ],
            self._device,
        )
        reward_rows, factors, self.discounts, self._learned_at, self._read_at, *by = found
        self.read_by = by[0] if by else None
        self.rewards = (_joined([own.reshape(-1) for own in rewards])[reward_rows] * factors).sum(-1)

    def _joint(self, minibatches: Sequence[MiniBatch], sample: EnvStepSample, places: np.ndarray) -> JointRows:
        """Returns the rows at ``[K, A]`` places among the rows of all minibatches; -1 stands for no row."""
        is_there = places >= 0
        if len(sample.segments) == 1 and is_there.all():
            return JointRows([PickedRows.of(minibatches[0], [places.reshape(-1)], self._device)], None, places.shape)
        found, cells, begin = [], [], 0
        for minibatch, columns in zip(minibatches, self._columns, strict=True):
            rows = []
            for module_id in minibatch.module_ids:
                own = slice(sample.slots[module_id], sample.slots[module_id] + sample.sizes[module_id])
                steps, agents = np.nonzero(is_there[:, own])
                rows.append(places[:, own][steps, agents] - begin)
                cells.append(steps * places.shape[1] + own.start + agents)
            found.append(PickedRows.of(minibatch, rows, self._device))
            begin += columns[Columns.REWARDS].numel()
        (joined,) = all_moved([np.concatenate(cells)], self._device)
        return JointRows(found, joined, places.shape)

    def states(self, name: str) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Returns a column of env steps at the ``K`` learned ones and the ``U`` read ones; None if there is none."""
        if name not in self._columns[0]:
            return None, None
        column = _joined([columns[name].flatten(0, columns[Columns.REWARDS].dim() - 1) for columns in self._columns])
        return column.index_select(0, self._learned_at), column.index_select(0, self._read_at)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _places(
    minibatches: Sequence[MiniBatch], rewards: Sequence[Tensor], sample: EnvStepSample
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the agents' rows at all env steps are, and whether the agents act there.

    Returns:
        ``[N * W, A]`` positions among the flattened rows of all minibatches, -1 for agents without a row, and bool.
    """
    found = np.full((sample.counted.size, sample.num_agents), -1)
    acts, begin = np.zeros(found.shape, bool), 0
    for minibatch, own_rewards in zip(minibatches, rewards, strict=True):
        for module_id in minibatch.module_ids:
            own = sample.segments[module_id]
            places = np.arange(begin, begin + len(own.rows))
            if Columns.SEQ_LENS in minibatch.columns:  # whose ends are padded
                begins = np.cumsum(own.counts) - own.counts
                places += np.repeat(np.arange(len(own.counts)) * own_rewards.shape[-1] - begins, own.counts)
            at = own.env_steps, own.slots + sample.slots[module_id]
            found[at], acts[at] = places, own.acted
            begin += own_rewards.numel() // len(minibatch.module_ids)
    return found, acts
