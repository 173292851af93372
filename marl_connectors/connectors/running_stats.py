"""Running means and variances of streams of vectors, which do not depend on how the data is split and merged."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np


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

        Args:
            values: ``[B, F]`` float64, B > 0.
            index: ``[B]`` the stream of each vector.

        Returns:
            The streams that have vectors in the batch, ascending, and their moments.
        """
        grouping = Grouping(index)
        return grouping.streams, grouping.moments(values)

    def merged(self, other: StreamMoments) -> StreamMoments:
        """Returns the moments of both sets of vectors: Chan, Golub and LeVeque (1979), equation 2.1."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + np.square(apart) * (self.count * share)[:, None]
        return StreamMoments(count, self.mean + apart * share[:, None], squares)

    def at(self, streams: Any) -> StreamMoments:
        """Returns the moments of some of the streams."""
        return StreamMoments(self.count[streams], self.mean[streams], self.squares[streams])

    def put(self, streams: Any, moments: StreamMoments) -> None:
        """Replaces the moments of some of the streams, in place."""
        self.count[streams], self.mean[streams], self.squares[streams] = moments

    def grown(self) -> StreamMoments:
        """Returns the moments with one more, empty stream."""
        return StreamMoments(*(np.concatenate([part, np.zeros((1, *part.shape[1:]))]) for part in self))

    def std(self) -> np.ndarray:
        """Returns ``[K, F]`` standard deviations (with ``count - 1``); 1 for streams with fewer than two vectors."""
        known = self.count > 1
        variance = self.squares / np.where(known, self.count - 1, 1.0)[:, None]
        return np.where(known[:, None], np.sqrt(variance), 1.0)


class Grouping:
    """Groups the vectors of a batch by stream. It is made once and used for many batches with the same streams.

    Attributes:
        streams: ``[K]`` the streams that have vectors in the batch, ascending.
    """

    __slots__ = ("_begins", "_counts", "_order", "_place", "streams")

    def __init__(self, index: np.ndarray):
        """Groups by ``index``: ``[B]`` the stream of each vector, B > 0."""
        self.streams, self._counts = index[:1], np.array([float(len(index))])
        if (index == index[0]).all():
            return
        in_order = (index[1:] >= index[:-1]).all()
        self._order = None if in_order else np.argsort(index, kind="stable")
        ordered = index if in_order else index[self._order]
        self.streams, self._begins, counts = np.unique(ordered, return_index=True, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._place = np.repeat(np.arange(len(counts)), counts)

    def moments(self, values: np.ndarray) -> StreamMoments:
        """Returns the moments of each of ``streams`` in ``[B, F]`` float64 values, computed in two passes."""
        if len(self.streams) == 1:
            mean = values.mean(axis=0)
            return StreamMoments(self._counts.copy(), mean[None], np.square(values - mean).sum(axis=0)[None])
        if self._order is not None:
            values = values.take(self._order, axis=0)
        mean = np.add.reduceat(values, self._begins, axis=0) / self._counts[:, None]
        apart = values - mean.take(self._place, axis=0)
        return StreamMoments(
            self._counts.copy(), mean, np.add.reduceat(np.square(apart, out=apart), self._begins, axis=0)
        )


class StatsTable:
    """The running statistics of streams that have a key each and vectors of one size.

    They are split in two: ``base`` holds what all runners' filters shared when they were last merged, ``own`` what only
    this filter has seen since. So merging counts nothing twice.
    """

    def __init__(self, features: int):
        self.keys: dict[Hashable, int] = {}
        self.base = StreamMoments.nothing(0, features)
        self.own = StreamMoments.nothing(0, features)
        self._merged = False

    def stream_of(self, key: Hashable) -> int:
        """Returns the index of a key's stream, which is added if it does not exist."""
        if key not in self.keys:
            self.keys[key] = len(self.keys)
            self.base, self.own = self.base.grown(), self.own.grown()
        return self.keys[key]

    def add(self, streams: np.ndarray, moments: StreamMoments) -> None:
        """Adds the moments of new vectors to some streams, which are given once each, in ascending order."""
        if len(streams) == len(self.keys):
            self.own = self.own.merged(moments)
        else:
            self.own.put(streams, self.own.at(streams).merged(moments))

    def total(self, streams: np.ndarray) -> StreamMoments:
        """Returns the total moments of some streams, given as in ``add``. They must not be changed."""
        whole = len(streams) == len(self.keys)
        own = self.own if whole else self.own.at(streams)
        if not self._merged:
            return own
        return (self.base if whole else self.base.at(streams)).merged(own)

    def restore(self, key: Hashable, base: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Sets one stream's statistics from two results of ``to_state``."""
        stream = self.stream_of(key)
        for kept, given in ((self.base, base), (self.own, own)):
            kept.put(stream, StreamMoments(given["count"], given["mean"], given["squares"]))
        self._merged |= bool(base["count"])


def to_state(moments: StreamMoments, stream: int) -> dict[str, Any]:
    """Returns one stream's statistics as plain data and copies of arrays."""
    return {
        "count": int(moments.count[stream]),
        "mean": moments.mean[stream].copy(),
        "squares": moments.squares[stream].copy(),
    }


def merge_streams(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges one stream's ``{"base": ..., "own": ...}`` of several filters; the total becomes the new base."""
    base = max((state["base"] for state in states), key=lambda part: part["count"])
    total = _moments(base)
    for state in states:
        total = total.merged(_moments(state["own"]))
    return {"base": to_state(total, 0), "own": to_state(StreamMoments.nothing(1, total.mean.shape[1]), 0)}


def _moments(state: Mapping[str, Any]) -> StreamMoments:
    return StreamMoments(np.array([float(state["count"])]), state["mean"][None], state["squares"][None])
