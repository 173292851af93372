"""Means and variances of streams of numbers, exact under any way of splitting and merging."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Moments(NamedTuple):
    """What is known of ``K`` streams of vectors; all float64.

    Attributes:
        count: ``[K]`` how many vectors each has brought.
        mean: ``[K, F]`` their mean.
        squares: ``[K, F]`` their squared distances from the mean, summed up.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def nothing(cls, streams: int, features: int) -> Moments:
        """Of streams that have brought nothing."""
        return cls(np.zeros(streams), np.zeros((streams, features)), np.zeros((streams, features)))

    @classmethod
    def of(cls, values: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, Moments]:
        """The moments of a batch, in two passes.

        Args:
            values: ``[B, F]`` float64, B > 0.
            index: ``[B]`` the stream of each vector.

        Returns:
            The streams that brought anything, ascending, and their moments.
        """
        grouping = Grouping(index)
        return grouping.streams, grouping.moments(values)

    def merged(self, other: Moments) -> Moments:
        """Of both together: Chan, Golub and LeVeque (1979), equation 2.1."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1.0)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + np.square(apart) * (self.count * share)[:, None]
        return Moments(count, self.mean + apart * share[:, None], squares)

    def at(self, streams: Any) -> Moments:
        """Of some of the streams."""
        return Moments(self.count[streams], self.mean[streams], self.squares[streams])

    def put(self, streams: Any, moments: Moments) -> None:
        """Replaces those of some of the streams, in place."""
        self.count[streams], self.mean[streams], self.squares[streams] = moments

    def grown(self) -> Moments:
        """With one more stream."""
        return Moments(*(np.concatenate([part, np.zeros((1, *part.shape[1:]))]) for part in self))

    def std(self) -> np.ndarray:
        """``[K, F]`` standard deviations (divided by ``count - 1``); 1 of streams with fewer than two vectors."""
        known = self.count > 1
        variance = self.squares / np.where(known, self.count - 1, 1.0)[:, None]
        return np.where(known[:, None], np.sqrt(variance), 1.0)


class Grouping:
    """Which stream each vector of a batch is of, for batches that come again and again.

    Attributes:
        streams: ``[K]`` those that have any, ascending.
    """

    __slots__ = ("_begins", "_counts", "_order", "_place", "streams")

    def __init__(self, index: np.ndarray):
        """``index``: ``[B]`` the stream of each vector, B > 0."""
        self.streams, self._counts = index[:1], np.array([float(len(index))])
        if (index == index[0]).all():
            return
        in_order = (index[1:] >= index[:-1]).all()
        self._order = None if in_order else np.argsort(index, kind="stable")
        ordered = index if in_order else index[self._order]
        self.streams, self._begins, counts = np.unique(ordered, return_index=True, return_counts=True)
        self._counts = counts.astype(np.float64)
        self._place = np.repeat(np.arange(len(counts)), counts)

    def moments(self, values: np.ndarray) -> Moments:
        """The moments of each of ``streams`` in ``[B, F]`` float64 values, in two passes. A hot path."""
        if len(self.streams) == 1:
            mean = values.mean(axis=0)
            return Moments(self._counts.copy(), mean[None], np.square(values - mean).sum(axis=0)[None])
        if self._order is not None:
            values = values.take(self._order, axis=0)
        mean = np.add.reduceat(values, self._begins, axis=0) / self._counts[:, None]
        apart = values - mean.take(self._place, axis=0)
        return Moments(self._counts.copy(), mean, np.add.reduceat(np.square(apart, out=apart), self._begins, axis=0))


class StatsTable:
    """The running statistics of streams that have a key each and vectors of one size.

    They are kept in two parts: ``base``, which all copies of a filter share since they were last merged, and ``own``,
    which only this copy has seen. So merging counts nothing twice.
    """

    def __init__(self, features: int):
        self.keys: dict[Hashable, int] = {}
        self.base = Moments.nothing(0, features)
        self.own = Moments.nothing(0, features)
        self._merged = False

    def stream_of(self, key: Hashable) -> int:
        """The place of a key's stream, a new one if need be."""
        if key not in self.keys:
            self.keys[key] = len(self.keys)
            self.base, self.own = self.base.grown(), self.own.grown()
        return self.keys[key]

    def add(self, streams: np.ndarray, moments: Moments) -> None:
        """Takes what some streams brought, which are named once each in ascending order."""
        if len(streams) == len(self.keys):
            self.own = self.own.merged(moments)
        else:
            self.own.put(streams, self.own.at(streams).merged(moments))

    def total(self, streams: np.ndarray) -> Moments:
        """All that is known of some streams, which are named as in ``add``; not to be changed."""
        whole = len(streams) == len(self.keys)
        own = self.own if whole else self.own.at(streams)
        if not self._merged:
            return own
        return (self.base if whole else self.base.at(streams)).merged(own)

    def restore(self, key: Hashable, base: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Sets one stream's statistics from what ``to_state`` gave."""
        stream = self.stream_of(key)
        for kept, given in ((self.base, base), (self.own, own)):
            kept.put(stream, Moments(given["count"], given["mean"], given["squares"]))
        self._merged |= bool(base["count"])


def to_state(moments: Moments, stream: int) -> dict[str, Any]:
    """One stream's statistics as plain data and arrays of its own."""
    return {
        "count": int(moments.count[stream]),
        "mean": moments.mean[stream].copy(),
        "squares": moments.squares[stream].copy(),
    }


def merge_streams(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One stream's statistics from the ``{"base": ..., "own": ...}`` of all copies: what all have seen is the base."""
    base = max((state["base"] for state in states), key=lambda part: part["count"])
    total = _moments(base)
    for state in states:
        total = total.merged(_moments(state["own"]))
    return {"base": to_state(total, 0), "own": to_state(Moments.nothing(1, total.mean.shape[1]), 0)}


def _moments(state: Mapping[str, Any]) -> Moments:
    return Moments(np.array([float(state["count"])]), state["mean"][None], state["squares"][None])
