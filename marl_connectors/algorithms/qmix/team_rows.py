"""The env steps that the loss of a team is computed from, and the rows of its agents there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.learner.minibatches import GroupRows, MiniBatch, ModuleRows
from marl_connectors.ops.q_learning import n_step_targets
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.transfers import all_moved, moved

_LEARNED, _READ = "place_in_learned", "place_in_read"
"""``[B]`` int64, the place of each row in an AgentMatrix."""


class TeamBatch(ColumnBatch):
    """The train batch of a team.

    Attributes:
        sample: The env steps that it was made of.
    """

    __slots__ = ("sample",)

    def __init__(self, batch: ColumnBatch, sample: EnvStepSample):
        super().__init__(batch.groups, batch.phase)
        self.sample = sample


class AgentMatrix(NamedTuple):
    """The rows of ``A`` agents at ``K`` env steps.

    Attributes:
        minibatches: The rows.
        places: The place of each row of each minibatch among the cells of the matrix; the one after the last for rows
            without a place, and for those of padding.
        shape: ``(K, A)``.
        device: Their device.
    """

    minibatches: list[MiniBatch]
    places: list[Tensor]
    shape: tuple[int, int]
    device: torch.device

    @classmethod
    def filled_by(cls, minibatches: list[MiniBatch], column: str, shape: tuple[int, int], device: Any) -> AgentMatrix:
        """Returns the matrix, in which a column of the minibatches has the places."""
        places = []
        for minibatch in minibatches:
            own = minibatch.columns[column]
            if Columns.LOSS_MASK in minibatch.columns:
                own = torch.where(minibatch.columns[Columns.LOSS_MASK].bool(), own, shape[0] * shape[1])
            places.append(own.reshape(-1))
        return cls(minibatches, places, shape, device)

    def of(self, values: Sequence[Tensor]) -> Tensor:
        """Returns ``[K, A]`` values, of which the rows of each minibatch are given; 0 for agents without a row."""
        cells = torch.zeros(self.shape[0] * self.shape[1] + 1, device=self.device)
        for places, own in zip(self.places, values, strict=True):
            cells.index_copy_(0, places, own.reshape(-1))
        return cells[:-1].view(self.shape)

    def split(self, matrix: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
        """Returns what a ``[K, A]`` matrix has for the rows of each minibatch, in the form of its ``values``."""
        cells = F.pad(matrix.reshape(-1), (0, 1))
        return [cells.index_select(0, at).view(own.shape) for at, own in zip(self.places, values, strict=True)]


class TeamRows:
    """The rows from which the values of a team at ``K`` env steps are learned, with what their targets are made of.

    The targets continue from the values of the team at ``U`` env steps.

    Attributes:
        learned: The rows of the agents that act at the ``K`` env steps.
        read: The rows of the agents that are there at the ``U`` env steps.
        sizes: The number of rows of each module in ``learned``.
        weights: ``[K]`` the importance of each env step in the loss; None if all are equally important.
    """

    def __init__(self, batch: TeamBatch, minibatches_of: Callable[[list[GroupRows]], list[MiniBatch]], *, n_step: int):
        """Finds the rows.

        Args:
            batch: All rows of all modules of the team.
            minibatches_of: Returns minibatches of rows.
            n_step: The number of rewards in a target, or fewer at the end of an item.
        """
        sample, self._groups, self._n_step = batch.sample, batch.groups, n_step
        learned = np.flatnonzero(sample.counted)
        items, steps = np.divmod(learned, sample.counted.shape[1])
        read = np.unique(learned + np.minimum(n_step, sample.last[items] - steps))
        device = batch.groups[0][Columns.REWARDS].device
        row_at, begin, sizes = np.full(sample.counted.size, -1), 0, {}
        numbers = [_numbers(at, sample.counted.size) for at in (learned, read)]
        of_learned, of_read = [], []
        for group in batch.groups:
            own: list[Any] = [sample.segments[module_id] for module_id in group.module_ids]
            env_steps, acted = (np.concatenate([getattr(one, name) for one in own]) for name in ("env_steps", "acted"))
            agents = np.concatenate([one.slots + sample.slots[one.module_id] for one in own])
            row_at[env_steps] = begin + np.arange(len(env_steps))
            begin += len(env_steps)
            placed = agents, sample.num_agents
            acting = numbers[0][np.where(acted, env_steps, -1)]
            of_learned.append(_place(group, _LEARNED, acting, *placed, len(learned)))
            of_read.append(_place(group, _READ, numbers[1][env_steps], *placed, len(read)))
            sizes |= {module_id: own.number for module_id, own in of_learned[-1].modules.items()}
        with_states = [GroupRows.of(group) for group in batch.groups if group.sequences is not None]
        plain = [i for i, group in enumerate(batch.groups) if group.sequences is None]
        sequences = minibatches_of(with_states) if with_states else []  # in which a state passes from row to row
        self.learned, self.read = (
            AgentMatrix.filled_by([*sequences, *minibatches_of([rows[i] for i in plain])], name, shape, device)
            for name, rows, shape in (
                (_LEARNED, of_learned, (len(learned), sample.num_agents)),
                (_READ, of_read, (len(read), sample.num_agents)),
            )
        )
        self.sizes = {m: sizes[m] for minibatch in self.learned.minibatches for m in minibatch.module_ids}
        left = np.maximum(sample.last[:, None] - np.arange(sample.counted.shape[1]), 0)
        weights = [] if sample.weights is None else [sample.weights[sample.counted_items]]
        found = all_moved([learned, read, np.maximum(row_at, 0), row_at >= 0, left, *weights], device)
        self._learned_at, self._read_at, self._row_at, self._has_row, self._left, *of_priorities = found
        self.weights = of_priorities[0] if of_priorities else None

    def states(self, name: str) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Returns a column of env steps at the ``K`` learned ones and the ``U`` read ones; None if there is none."""
        if name not in self._groups[0]:
            return None, None
        column, rows = _joined([group[name] for group in self._groups]), self._row_at
        at = (rows.index_select(0, own) for own in (self._learned_at, self._read_at))
        learned, read = (column.index_select(0, own) for own in at)
        return learned, read

    def targets(self, values: Tensor, gamma: float) -> Tensor:
        """Returns ``[K]`` targets, given ``[U]`` values of the team and the discount for each env step."""
        rewards = _joined([group[Columns.REWARDS] for group in self._groups]).index_select(0, self._row_at)
        following = torch.zeros_like(rewards).index_copy_(0, self._read_at, values)
        both = (torch.stack([rewards, following]) * self._has_row).view(2, *self._left.shape)
        found = n_step_targets(both[0], both[1], self._left, n_step=self._n_step, gamma=gamma)
        return found.view(-1).index_select(0, self._learned_at)


def _numbers(at: np.ndarray, num_env_steps: int) -> np.ndarray:
    """Returns the place of each env step among those ``at``; ``len(at)`` for others, and for the env step -1."""
    found = np.full(num_env_steps + 1, len(at))
    found[at] = np.arange(len(at))
    return found


def _place(
    group: ColumnGroup, name: str, numbers: np.ndarray, agents: np.ndarray, num_agents: int, size: int
) -> GroupRows:
    """Adds the column with the places in a matrix, and returns the rows that have one.

    Args:
        group: The rows.
        name: The name of the column.
        numbers: ``[B]`` the number of each row's env step in the matrix; ``size`` for rows that are left out.
        agents: ``[B]`` the number of each row's agent.
        num_agents: The number of all agents.
        size: The number of env steps in the matrix.
    """
    places = np.minimum(numbers * num_agents + agents, size * num_agents)
    group[name] = moved(places, group[Columns.REWARDS].device)
    bounds = itertools.pairwise(group.splits)
    rows = [begin + np.flatnonzero(numbers[begin:end] < size) for begin, end in bounds]
    return GroupRows({m: ModuleRows(own, len(own)) for m, own in zip(group.module_ids, rows, strict=True)}, group)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
