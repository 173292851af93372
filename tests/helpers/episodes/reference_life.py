"""One agent's part of the reference model of episodes, and what indices, fill and one-hot vectors mean."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

OBS, INFOS, ACTIONS, REWARDS = "obs", "infos", "actions", "rewards"
NOTHING = object()
"""Stands where an agent has done nothing, and where an index reaches nothing."""


class AnyShape(NamedTuple):
    """An item whose shape nothing tells: no space is known, and no item."""

    fill: Any


@dataclass
class Row:
    """An observation, the action that answered it, and all that the agent earned until its next observation."""

    t: int
    observation: Any
    info: dict
    action: Any = NOTHING
    extras: dict = field(default_factory=dict)
    reward: float = 0.0

    @property
    def acted(self):
        return self.action is not NOTHING

    def item(self, column):
        """NOTHING if the row has no such item."""
        if column in (OBS, INFOS):
            return self.observation if column == OBS else self.info
        if not self.acted:
            return NOTHING
        return {ACTIONS: self.action, REWARDS: self.reward, **self.extras}.get(column, NOTHING)


@dataclass
class Life:
    """One agent between its first observation and its end, as one chunk of its episode has it."""

    agent_id: Any
    spaces: dict
    rows: list[Row] = field(default_factory=list)
    first: int = 0  # the oldest row that is kept
    start: int = 0  # the oldest row that is the chunk's own
    keys: tuple = ()
    uncredited_reward: float = 0.0
    is_terminated: bool = False
    is_truncated: bool = False

    @property
    def is_done(self):
        return self.is_terminated or self.is_truncated

    @property
    def closed(self):
        """Rows that an observation follows."""
        return len(self.rows) - 1

    @property
    def waits(self):
        return self.rows[-1].acted

    @property
    def t_started(self):
        return self.start

    @property
    def lookback(self):
        return self.start - self.first

    def __len__(self):
        return self.closed - self.start

    def observe(self, t, observation, info):
        if self.rows and not self.waits:
            self.rows.pop()
        self.rows.append(Row(t, observation, info))

    def act(self, action, extras):
        self.rows[-1].action, self.rows[-1].extras = action, extras
        self.keys = tuple(extras)

    def earn(self, reward):
        acted = [i for i, row in enumerate(self.rows) if row.acted]
        if acted:
            self.rows[acted[-1]].reward += reward
        if not acted or acted[-1] < self.start:
            self.uncredited_reward += reward

    def end(self, t, terminated, truncated):
        if self.waits or self.rows[-1].t < t:
            self.observe(t, self.rows[-1].observation, self.rows[-1].info)
        self.is_terminated, self.is_truncated = terminated, truncated

    def cut(self, lookback):
        self.start = self.closed
        self.first = max(self.first, self.start - lookback)
        self.uncredited_reward = 0.0

    def get_return(self):
        return sum(self.get(REWARDS))

    def items(self, column, with_waiting=False):
        last = self.closed + (column in (OBS, INFOS) or (with_waiting and self.waits))
        return [row.item(column) for row in self.rows[self.first : last]]

    def get(self, column, indices=None, *, with_waiting=False, neg_index_as_lookback=False, fill=None, one_hot=False):
        """The answer of ``get_observations`` and so on: an item for an int, otherwise a list."""
        if column not in (OBS, INFOS, ACTIONS, REWARDS, *self.keys):
            raise KeyError(column)
        items = self.items(column, with_waiting)
        length = len(items) - self.lookback
        at = reached(indices, length, self.lookback, neg_index_as_lookback, fill is not None)
        found = [NOTHING if i is NOTHING else items[i + self.lookback] for i in at]
        shown = [self.show(column, item, fill, one_hot, items) for item in found]
        return shown[0] if isinstance(indices, int) else shown

    def set(self, column, new_data, indices=None, *, with_waiting=False, neg_index_as_lookback=False):
        length = len(self.items(column, with_waiting)) - self.lookback
        at = reached(indices, length, self.lookback, neg_index_as_lookback, False)
        for i, item in zip(at, [new_data] if isinstance(indices, int) else new_data, strict=True):
            row = self.rows[self.start + i]
            if column == OBS:
                row.observation = item
            elif column == ACTIONS:
                row.action = item
            elif column == REWARDS:
                row.reward = item
            else:
                row.extras = row.extras | {column: item}

    def show(self, column, item, fill, one_hot, others):
        """An item as a getter gives it; ``others`` tell the shape where there is no space."""
        if column == INFOS:
            return fill if item is NOTHING else item
        space = self.spaces.get(column)
        if item is NOTHING:
            like = 0.0 if column == REWARDS else others[0] if others else NOTHING
            return filler(fill, space, like, one_hot)
        return one_hot_item(item, space) if one_hot else item

    def part(self, begin, end, last_t, first_t, lookback):
        """What a slice of the env steps ``begin`` to ``end`` has of it, or None."""
        own = self.rows[self.start :]
        if own[0].t > end or (self.is_done and own[-1].t <= begin and begin > first_t):
            return None
        part = copy.copy(self)
        start = self.start + max([i for i, row in enumerate(own) if row.t <= begin], default=0)
        stop = max(self.start + max(i for i, row in enumerate(own) if row.t <= end), start)
        part.start, part.rows = start, [copy.copy(row) for row in self.rows[: stop + 1]]
        part.first = max(self.first, start - (self.lookback if lookback is None else lookback))
        if stop < self.closed:
            part.is_terminated = part.is_truncated = False
        if self.rows[stop].t == end < last_t:
            part.rows[-1] = Row(self.rows[stop].t, self.rows[stop].observation, self.rows[stop].info)
        if own[0].t <= begin and not holds_the_start(begin, end, first_t, last_t):
            part.forget_late_rewards(shown=begin == first_t)
        return part

    def part_of_steps(self, begin, end, lookback):
        """What a slice of the agent's own steps has."""
        part = copy.copy(self)
        part.start, part.rows = self.start + begin, [copy.copy(row) for row in self.rows[: self.start + end + 1]]
        part.first = max(self.first, part.start - (self.lookback if lookback is None else lookback))
        if end < len(self):
            last = part.rows[-1]
            part.rows[-1] = Row(last.t, last.observation, last.info)
            part.is_terminated = part.is_truncated = False
        if not holds_the_start(begin, end, 0, len(self)):
            part.forget_late_rewards(shown=begin == 0)
        return part

    def forget_late_rewards(self, shown):
        """Those for the action before the chunk, which may be shown in its lookback."""
        if shown and self.start:
            self.rows[self.start - 1].reward -= self.uncredited_reward
        self.uncredited_reward = 0.0


def holds_the_start(begin, end, first_t, last_t):
    """Whether a slice has what came before a chunk's first steps; an empty one only if there are no steps at all."""
    return begin == first_t and (end > begin or first_t == last_t)


def reached(indices, length, lookback, neg_index_as_lookback, fill):
    """The indices from t=0 on (negative ones are lookback) that are asked for; NOTHING outside of the data.

    Raises:
        IndexError: If one is outside and there is no fill.
    """

    def from_zero(index):
        return index if index >= 0 or neg_index_as_lookback else length + index

    kept = range(-lookback, length)
    if indices is None:
        return list(range(length))
    if not isinstance(indices, slice):
        wanted = [from_zero(i) for i in ([indices] if isinstance(indices, int) else indices)]
        if not fill and any(i not in kept for i in wanted):
            raise IndexError(indices)
        return [i if i in kept else NOTHING for i in wanted]
    step = indices.step or 1
    begin, end = (0, length) if step > 0 else (length - 1, -1)
    begin = begin if indices.start is None else from_zero(indices.start)
    end = end if indices.stop is None else from_zero(indices.stop)
    if fill:
        return [i if i in kept else NOTHING for i in range(begin, end, step)]
    begin, end = begin + lookback, end + lookback  # now as Python counts in ``kept``, but for what is left of it
    if step > 0:
        return list(kept)[max(begin, 0) : max(end, 0) : step]
    return list(kept)[begin : end if end >= 0 else None : step] if begin >= 0 else []


def filler(fill, space, like, one_hot):
    """What stands where there is nothing: ``fill`` in the shape of the space, or of another item."""
    if isinstance(space, spaces.Dict) or (space is None and isinstance(like, dict)):
        return {k: filler(fill, None if space is None else space[k], _part(like, k), one_hot) for k in space or like}
    if isinstance(space, spaces.Tuple) or (space is None and isinstance(like, tuple)):
        parts = space.spaces if space is not None else [None] * len(like)
        return tuple(filler(fill, part, _part(like, i), one_hot) for i, part in enumerate(parts))
    if one_hot and isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.zeros(int(space.n if isinstance(space, spaces.Discrete) else space.nvec.sum()))
    if space is None and like is NOTHING:
        return AnyShape(fill)
    return np.full(np.shape(like) if space is None else space.shape, fill)


def _part(like, key):
    return NOTHING if like is NOTHING else like[key]


def one_hot_item(item, space):
    """The item with its discrete parts as one-hot vectors."""
    if isinstance(space, spaces.Dict):
        return {key: one_hot_item(item[key], part) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(one_hot_item(item[i], part) for i, part in enumerate(space))
    if isinstance(space, spaces.Discrete):
        return np.array([float(space.start + i == item) for i in range(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        numbers = zip(np.ravel(item), space.nvec.ravel(), space.start.ravel(), strict=True)
        return np.array([float(start + i == number) for number, n, start in numbers for i in range(n)])
    return item
