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
        if (index == index[0]).all():
            mean = values.mean(axis=0)
            squares = np.square(values - mean).sum(axis=0)
            return index[:1], cls(np.array([float(len(values))]), mean[None], squares[None])
        order = np.argsort(index, kind="stable")
        streams, begins, counts = np.unique(index[order], return_index=True, return_counts=True)
        values = values[order]
        mean = np.add.reduceat(values, begins, axis=0) / counts[:, None]
        squares = np.add.reduceat(np.square(values - np.repeat(mean, counts, axis=0)), begins, axis=0)
        return streams, cls(counts.astype(np.float64), mean, squares)

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
        """Takes what some streams brought."""
        self.own.put(streams, self.own.at(streams).merged(moments))

    def total(self, streams: np.ndarray) -> Moments:
        """All that is known of some streams."""
        own = self.own.at(streams)
        return self.base.at(streams).merged(own) if self._merged else own

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
