"""The env steps that the loss of a team is computed from, and the rows of its agents there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.learner.minibatches import GroupRows, MiniBatch, ModuleRows
from marl_connectors.ops.q_learning import n_step_targets
from marl_connectors.replay_buffers.team_replay_sample import TeamReplaySample
from marl_connectors.transfers import all_moved, moved

_LEARNED, _READ = "place_in_learned", "place_in_read"
"""``[B]`` int64, the place of each row among the cells of an AgentMatrix; the one after the last for rows without."""


class TeamBatch(ColumnBatch):
    """The train batch of a team.

    Attributes:
        sample: The env steps that it was made of.
    """

    __slots__ = ("sample",)

    def __init__(self, batch: ColumnBatch, sample: TeamReplaySample):
        super().__init__(batch.groups, batch.phase)
        self.sample = sample


class AgentMatrix(NamedTuple):
    """The rows of ``A`` agents at ``K`` env steps.

    Attributes:
        minibatches: The rows.
        column: The name of their column with their places in the matrix.
        shape: ``(K, A)``.
        device: Their device.
    """

    minibatches: list[MiniBatch]
    column: str
    shape: tuple[int, int]
    device: torch.device

    def of(self, values: Sequence[Tensor]) -> Tensor:
        """Returns ``[K, A]`` values, of which the rows of each minibatch are given; 0 for agents without a row."""
        if not values:
            return torch.zeros(self.shape, device=self.device)
        size = self.shape[0] * self.shape[1]
        places = []
        for minibatch in self.minibatches:
            own = minibatch.columns[self.column]
            if Columns.LOSS_MASK in minibatch.columns:  # there are rows of padding
                own = torch.where(minibatch.columns[Columns.LOSS_MASK].bool(), own, size)
            places.append(own.reshape(-1))
        flat = _joined([own.reshape(-1) for own in values])
        return flat.new_zeros(size + 1).index_copy(0, _joined(places), flat)[:size].view(self.shape)


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
        of_learned, of_read = [], []
        for group in batch.groups:
            own: list[Any] = [sample.segments[module_id] for module_id in group.module_ids]
            env_steps, acted = (np.concatenate([getattr(one, name) for one in own]) for name in ("env_steps", "acted"))
            agents = np.concatenate([one.slots + sample.slots[one.module_id] for one in own])
            row_at[env_steps] = begin + np.arange(len(env_steps))
            begin += len(env_steps)
            of_learned.append(
                _place(group, _LEARNED, learned, np.where(acted, env_steps, -1), agents, sample.num_agents)
            )
            of_read.append(_place(group, _READ, read, env_steps, agents, sample.num_agents))
            sizes |= {module_id: own.number for module_id, own in of_learned[-1].modules.items()}
        with_states = [GroupRows.of(group) for group in batch.groups if group.sequences is not None]
        plain = [i for i, group in enumerate(batch.groups) if group.sequences is None]
        sequences = minibatches_of(with_states) if with_states else []  # in which a state passes from row to row
        self.learned, self.read = (
            AgentMatrix(
                [*sequences, *minibatches_of([rows[i] for i in plain])], name, (size, sample.num_agents), device
            )
            for name, size, rows in ((_LEARNED, len(learned), of_learned), (_READ, len(read), of_read))
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
        column = _joined([group[name] for group in self._groups])
        return column[self._row_at[self._learned_at]], column[self._row_at[self._read_at]]

    def targets(self, values: Tensor, gamma: float) -> Tensor:
        """Returns ``[K]`` targets, given ``[U]`` values of the team and the discount for each env step."""
        rewards = _joined([group[Columns.REWARDS] for group in self._groups])[self._row_at] * self._has_row
        following = torch.zeros_like(rewards).index_copy(0, self._read_at, values * self._has_row[self._read_at])
        shape = self._left.shape
        found = n_step_targets(rewards.view(shape), following.view(shape), self._left, n_step=self._n_step, gamma=gamma)
        return found.view(-1)[self._learned_at]


def _place(
    group: ColumnGroup, name: str, at: np.ndarray, env_steps: np.ndarray, agents: np.ndarray, num_agents: int
) -> GroupRows:
    """Adds the column with the places in a matrix of the env steps ``at``, and returns the rows that have one.

    Args:
        group: The rows.
        name: The name of the column.
        at: ``[K]`` numbers of env steps, in order.
        env_steps: ``[B]`` the number of each row's env step; -1 for rows that are left out.
        agents: ``[B]`` the number of each row's agent.
        num_agents: The number of all agents.
    """
    number = np.minimum(np.searchsorted(at, env_steps), len(at) - 1)
    is_in = at[number] == env_steps
    places = np.where(is_in, number * num_agents + agents, len(at) * num_agents)
    group[name] = moved(places, group[Columns.REWARDS].device)
    rows = [begin + np.flatnonzero(is_in[begin:end]) for begin, end in itertools.pairwise(group.splits)]
    found = {m: ModuleRows(own, len(own)) for m, own in zip(group.module_ids, rows, strict=True)}
    return GroupRows(found, group)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
