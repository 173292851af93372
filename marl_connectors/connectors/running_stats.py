"""Running means and variances of streams of vectors, exact whatever the number of env runners that collect them.

The vectors that a piece sees in a fragment are *new* until they are merged. They are kept apart by the sub-environment
that they come from, and merged in the order of the sub-environments' numbers, because a sum of floats depends on the
order of its terms. So the merged statistics do not depend on which sub-environments an env runner has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from marl_connectors.episodes.rows import Rows, env_number_of
from marl_connectors.errors import ConnectorError
from marl_connectors.state import Count, Floats, Ints, State

FRAGMENT = "fragment"
"""Key in ``shared_data``: the Fragment that an env runner samples. Pipelines that are called by hand have none."""

BY_HAND = -1
"""Stands for the number of a sub-environment in the moments of vectors that come from no env runner."""

_TINY = 1e-8
_PER_STREAM = 2**32
_BLOCK_BYTES = 2**22
"""The vectors of one lane that are kept until their moments are computed have about this size, at most."""


class Fragment:
    """The fragment that an env runner samples.

    Attributes:
        step: The number of vector steps of the fragment so far.
        finished: The numbers of the sub-environments whose further steps are in no episode that the sample returns.
    """

    __slots__ = ("finished", "step")

    def __init__(self) -> None:
        self.step = 0
        self.finished: frozenset[int] = frozenset()


class StreamMoments(NamedTuple):
    """Count, mean and squared deviations of ``K`` streams of vectors, all in float64.

    Attributes:
        count: ``[K]`` the number of vectors of each stream.
        mean: ``[K, F]`` the mean of each stream.
        squares: ``[K, F]`` the sum of squared distances from the mean.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def nothing(cls, streams: int, features: int) -> StreamMoments:
        """Returns the moments of streams without vectors."""
        return cls(np.zeros(streams), np.zeros((streams, features)), np.zeros((streams, features)))

    @classmethod
    def of(cls, values: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, StreamMoments]:
        """Returns the moments of a batch, computed in two passes.

        The moments of a stream depend on its own vectors and their order only, bit for bit.

        Args:
            values: ``[B, F]`` float64, B > 0.
            index: ``[B]`` the stream of each vector.

        Returns:
            The streams that have vectors in the batch, ascending, and their moments.
        """
        values, streams, begins, counts = _grouped(values, index)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = np.add.reduceat(values, begins, axis=0) / counts[:, None]
            apart = values - mean.repeat(counts, axis=0)
            squares = np.add.reduceat(np.square(apart, out=apart), begins, axis=0)
        return streams, cls(counts.astype(np.float64), mean, squares)

    def merged(self, other: StreamMoments) -> StreamMoments:
        """Returns the moments of both sets of vectors: Chan, Golub and LeVeque (1979), equation 2.1."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + np.square(apart) * (self.count * share)[:, None]
        return StreamMoments(count, self.mean + apart * share[:, None], squares)

    def united(self, index: np.ndarray) -> tuple[np.ndarray, StreamMoments]:
        """Unites streams, in the order in which they stand here.

        Args:
            index: ``[K]`` the united stream that each stream belongs to, ascending.

        Returns:
            The united streams, ascending, and the moments of all their vectors.
        """
        united, begins, parts = np.unique(index, return_index=True, return_counts=True)
        own, first = self.count[:, None], self.mean[begins]
        count = np.add.reduceat(self.count, begins)
        apart = self.mean - first.repeat(parts, axis=0)
        mean = first + np.add.reduceat(apart * own, begins, axis=0) / np.maximum(count, 1.0)[:, None]
        apart = self.mean - mean.repeat(parts, axis=0)
        squares = np.add.reduceat(self.squares + np.square(apart) * own, begins, axis=0)
        return united, StreamMoments(count, mean, squares)

    def at(self, streams: Any) -> StreamMoments:
        """Returns the moments of some of the streams."""
        return StreamMoments(self.count[streams], self.mean[streams], self.squares[streams])

    def put(self, streams: Any, moments: StreamMoments) -> None:
        """Replaces the moments of some of the streams, in place."""
        self.count[streams], self.mean[streams], self.squares[streams] = moments

    def followed_by(self, other: StreamMoments) -> StreamMoments:
        """Returns these streams and then those of ``other``."""
        return StreamMoments(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def std(self) -> np.ndarray:
        """Returns ``[K, F]`` standard deviations (with ``count - 1``); 1 for streams with fewer than two vectors."""
        known = self.count > 1
        variance = self.squares / np.where(known, self.count - 1, 1.0)[:, None]
        return np.where(known[:, None], np.sqrt(variance), 1.0)


def _grouped(values: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sorts vectors by stream. Returns them, the streams, the first vector of each, and their numbers of vectors."""
    if (index[1:] < index[:-1]).any():
        order = np.argsort(index, kind="stable")
        values, index = values.take(order, axis=0), index[order]
    return values, *np.unique(index, return_index=True, return_counts=True)


class NewMoments(NamedTuple):
    """The moments of new vectors, apart by stream and sub-environment.

    Attributes:
        slots: ``[n]`` int64, ascending. ``slot_of`` computes them from streams and numbers of sub-environments.
        moments: The moments of the vectors of each slot.
    """

    slots: np.ndarray
    moments: StreamMoments

    @classmethod
    def nothing(cls, features: int) -> NewMoments:
        """Returns the moments of no vectors."""
        return cls(np.zeros(0, np.int64), StreamMoments.nothing(0, features))

    def merged(self, other: NewMoments) -> NewMoments:
        """Returns the moments of both sets of vectors, by slot."""
        if not len(self.slots):
            return other
        slots = np.union1d(self.slots, other.slots)
        both = []
        for part in (self, other):
            moments = StreamMoments.nothing(len(slots), part.moments.mean.shape[1])
            moments.put(np.searchsorted(slots, part.slots), part.moments)
            both.append(moments)
        return NewMoments(slots, both[0].merged(both[1]))

    def of(self, slots: np.ndarray) -> StreamMoments:
        """Returns the moments of some slots, with the count 0 where there are no vectors."""
        found = StreamMoments.nothing(len(slots), self.moments.mean.shape[1])
        place = np.searchsorted(self.slots, slots)
        here = np.flatnonzero(np.isin(slots, self.slots))
        found.put(here, self.moments.at(place[here]))
        return found


def slot_of(streams: np.ndarray, env_numbers: Any) -> np.ndarray:
    """Returns one number for each pair of a stream and a sub-environment, which increases in this order.

    Args:
        streams: ``[B]`` the indices of streams.
        env_numbers: ``[B]`` the numbers of the sub-environments; BY_HAND for none.
    """
    return streams * _PER_STREAM + (np.asarray(env_numbers, np.int64) + 1)


class Sources(NamedTuple):
    """The sources of ``B`` vectors, which are often the same in many steps.

    Attributes:
        slots: ``[B]`` the slot of each vector.
        env_numbers: ``[B]`` the number of the sub-environment that each vector comes from.
        agent_ids: The agents that the vectors come from.
        agents: ``[B]`` the index in ``agent_ids`` of each vector's agent.
    """

    slots: np.ndarray
    env_numbers: np.ndarray
    agent_ids: tuple[Any, ...]
    agents: np.ndarray

    @classmethod
    def of(cls, streams: np.ndarray, rows: Rows) -> Sources:
        """Returns the sources of the observations of rows.

        Args:
            streams: ``[B]`` the index of each row's stream.
            rows: The rows.
        """
        numbers = [BY_HAND if (n := env_number_of(episode)) is None else n for episode in rows.episodes]
        by_row = np.repeat(np.array(numbers, np.int64), rows.counts)
        return cls(slot_of(streams, by_row), by_row, *rows.agents)

    def at(self, index: np.ndarray) -> Sources:
        """Returns the sources of some of the vectors."""
        return Sources(self.slots[index], self.env_numbers[index], self.agent_ids, self.agents[index])


class _Vectors(NamedTuple):
    """Vectors whose moments have not been computed yet: ``[B, F]`` float64 values of one vector step."""

    step: int
    values: np.ndarray
    sources: Sources


_Matrix: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.floating[Any]]]


class StreamState(State):
    """The statistics of one stream.

    Attributes:
        count: The number of merged vectors.
        mean: ``[F]`` their mean.
        squares: ``[F]`` the sum of their squared distances from the mean.
        new_from: ``[n]`` the numbers of the sub-environments that new vectors come from, ascending.
        new_counts: ``[n]`` the number of new vectors of each of them.
        new_means: ``[n, F]`` their means.
        new_squares: ``[n, F]`` the sums of their squared distances from the means.
    """

    count: Count
    mean: Floats
    squares: Floats
    new_from: Ints
    new_counts: Ints
    new_means: _Matrix
    new_squares: _Matrix

    def __post_init__(self) -> None:
        new = len(self.new_from), len(self.mean)
        shapes = self.squares.shape, self.new_counts.shape, self.new_means.shape, self.new_squares.shape
        if shapes != (self.mean.shape, new[:1], new, new):
            raise ValueError(f"Expected statistics of {new[1]} numbers and {new[0]} sources, got the shapes {shapes}")


class StatsTable:
    """The running statistics of streams that have a key each and vectors of one size.

    The statistics that are applied are those of the vectors that have been merged. New vectors of env runners are
    collected, by sub-environment, until ``merge`` is called. New vectors that are added by hand apply at once, but
    they are kept apart, too, so that merging the tables of several runners counts nothing twice.

    Attributes:
        keys: Maps the keys to the indices of their streams.
        base: The moments of the merged vectors.
        version: A number that changes with the statistics that are applied.
    """

    def __init__(self, features: int):
        self.keys: dict[Hashable, int] = {}
        self.base = StreamMoments.nothing(0, features)
        self.version = 0
        self._features = features
        self._applied = self.base.mean, self.base.mean
        self._applied_version = -1
        self._new = NewMoments.nothing(features)
        self._has_by_hand = False
        self._vectors: list[_Vectors] = []
        self._fragment: Fragment | None = None
        self._block = max(1, _BLOCK_BYTES // (8 * features))

    def stream_of(self, key: Hashable) -> int:
        """Returns the index of a key's stream, which is added if it does not exist."""
        if key not in self.keys:
            self.keys[key] = len(self.keys)
            self.base = self.base.followed_by(StreamMoments.nothing(1, self._features))
            self.version += 1
        return self.keys[key]

    def applied(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the means and standard deviations to apply, ``[K, F]`` each. No deviation is 0."""
        if self._applied_version != self.version:
            moments = self._applied_moments()
            self._applied, self._applied_version = (moments.mean.copy(), moments.std() + _TINY), self.version
        return self._applied

    def _applied_moments(self) -> StreamMoments:
        if not self._has_by_hand:
            return self.base
        return self.base.merged(self._new.of(slot_of(np.arange(len(self.keys)), BY_HAND)))

    def copy_stream(self, like: Hashable, key: Hashable) -> None:
        """Gives a key the statistics that apply to another one."""
        stream = self.stream_of(key)
        self.base.put(stream, self._applied_moments().at(self.keys[like]))
        self.version += 1

    # New vectors.

    def add_by_hand(self, values: np.ndarray, index: np.ndarray) -> None:
        """Adds vectors that come from no env runner. They apply at once.

        Args:
            values: ``[B, F]`` float64, B > 0.
            index: ``[B]`` the stream of each vector.
        """
        streams, moments = StreamMoments.of(values, index)
        self._new = self._new.merged(NewMoments(slot_of(streams, BY_HAND), moments))
        self._has_by_hand = True
        self.version += 1

    def collect(self, values: np.ndarray, sources: Sources, fragment: Fragment) -> None:
        """Adds the vectors of a vector step of an env runner. They apply after the next ``merge``.

        Args:
            values: ``[B, F]`` float64, which must not be changed afterwards.
            sources: The sources of the vectors.
            fragment: The fragment that the env runner samples.
        """
        if fragment is not self._fragment:
            self._settle()
            self._fragment = fragment
        elif self._vectors and fragment.step // self._block != self._vectors[-1].step // self._block:
            self._settle()  # in the same step for every number of env runners
        if fragment.finished:
            kept = np.flatnonzero(~np.isin(sources.env_numbers, list(fragment.finished)))
            values, sources = values[kept], sources.at(kept)
        if len(values):
            self._vectors.append(_Vectors(fragment.step, values, sources))

    def _settle(self) -> None:
        """Computes the moments of the collected vectors, so that these need not be kept."""
        self._new, self._vectors = self._all_new(), []

    def _all_new(self) -> NewMoments:
        """Returns the moments of all new vectors."""
        if not self._vectors:
            return self._new
        values = np.concatenate([own.values for own in self._vectors])
        slots = np.concatenate([own.sources.slots for own in self._vectors])
        order = self._order_by_agent(slots)
        if order is not None:
            values, slots = values.take(order, axis=0), slots[order]
        return self._new.merged(NewMoments(*StreamMoments.of(values, slots)))

    def _order_by_agent(self, slots: np.ndarray) -> np.ndarray | None:
        """Returns the collected vectors' order by slot, step and agent; None if all agents have their own streams.

        Which agents are next to each other in a step may depend on the sub-environments of the env runner.
        """
        agent_ids = {agent_id for own in self._vectors for agent_id in own.sources.agent_ids}
        if len(agent_ids) <= len(np.unique(slots // _PER_STREAM)):
            return None
        rank = {agent_id: i for i, agent_id in enumerate(sorted(agent_ids, key=repr))}
        known: dict[tuple[Any, ...], np.ndarray] = {}
        ranks = []
        for own in self._vectors:
            ids = own.sources.agent_ids
            if ids not in known:
                known[ids] = np.array([rank[agent_id] for agent_id in ids])
            ranks.append(known[ids][own.sources.agents])
        steps = np.repeat([own.step for own in self._vectors], [len(own.values) for own in self._vectors])
        return np.lexsort((np.concatenate(ranks), steps, slots))

    def merge(self) -> None:
        """Merges all new vectors into those that are applied, in the order of their sub-environments' numbers."""
        new = self._all_new()
        if len(new.slots):
            streams, moments = new.moments.united(new.slots // _PER_STREAM)
            self.base.put(streams, self.base.at(streams).merged(moments))
        self._forget_new()

    def _forget_new(self) -> None:
        self._new, self._vectors, self._fragment = NewMoments.nothing(self._features), [], None
        self._has_by_hand = False
        self.version += 1

    # State.

    def get_state(self) -> dict[Hashable, StreamState]:
        """Returns the statistics of each key."""
        new = self._all_new()
        found: dict[Hashable, StreamState] = {}
        for key, stream in self.keys.items():
            begin, end = np.searchsorted(new.slots, [stream * _PER_STREAM, (stream + 1) * _PER_STREAM])
            own = new.moments.at(slice(begin, end))
            found[key] = StreamState(
                count=int(self.base.count[stream]),
                mean=self.base.mean[stream].copy(),
                squares=self.base.squares[stream].copy(),
                new_from=new.slots[begin:end] - stream * _PER_STREAM - 1,
                new_counts=own.count.astype(np.int64),
                new_means=own.mean.copy(),
                new_squares=own.squares.copy(),
            )
        return found

    def restore(self, key: Hashable, states: Sequence[StreamState]) -> None:
        """Sets the statistics of one key from the states that it has in one table or in several.

        Args:
            key: A key that the table does not have yet.
            states: The states. Of several, the newest merged vectors count, because the others are earlier versions.

        Raises:
            ConnectorError: If states have different new vectors of one sub-environment.
        """
        stream = self.stream_of(key)
        newest = max(states, key=lambda state: state.count)
        self.base.put(stream, StreamMoments(newest.count, newest.mean, newest.squares))  # type: ignore[arg-type]
        numbers = np.concatenate([state.new_from for state in states])
        order = np.argsort(numbers, kind="stable")
        moments = StreamMoments.nothing(0, self._features)
        for state in states:
            moments = moments.followed_by(StreamMoments(state.new_counts, state.new_means, state.new_squares))
        numbers, moments = _without_repeats(key, numbers[order], moments.at(order))
        slots = slot_of(np.full(len(numbers), stream), numbers)  # they follow those of the streams before
        self._new = NewMoments(np.concatenate([self._new.slots, slots]), self._new.moments.followed_by(moments))
        self._has_by_hand |= bool((numbers == BY_HAND).any())


def _without_repeats(key: Hashable, numbers: np.ndarray, moments: StreamMoments) -> tuple[np.ndarray, StreamMoments]:
    """Drops the moments that a sub-environment has a second time, because the same state was given twice."""
    again = np.flatnonzero((numbers[1:] == numbers[:-1]) & (numbers[1:] != BY_HAND)) + 1
    if not len(again):
        return numbers, moments
    for one, other in zip(moments.at(again), moments.at(again - 1), strict=True):
        if not np.array_equal(one, other):
            raise ConnectorError(
                f"running statistics: expected new observations of each sub-environment from one env runner, but two "
                f"states have different ones of {key!r} in sub-environment {numbers[again[0]]}. Merge one state of "
                f"each env runner, all of them taken after the same sample."
            )
    kept = np.delete(np.arange(len(numbers)), again)
    return numbers[kept], moments.at(kept)
