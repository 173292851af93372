"""Columns of an episode as objects: ``episode.observations[-1]``, as in RLlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from marl_connectors.episodes.items import count
from marl_connectors.episodes.storage import EpisodeStorage


class ColumnView:
    """One column of an episode. Reading and writing it are calls of the episode's getter and setter.

    Indices are those of the getters: negative ones count from the end, and the lookback is only reached by ``get`` with
    ``neg_index_as_lookback=True``.

    >>> from marl_connectors import SingleAgentEpisode
    >>> episode = SingleAgentEpisode(observations=[7, 8, 9], actions=[1, 0], rewards=[0.5, 1.0], len_lookback_buffer=1)
    >>> list(episode.observations), episode.observations[-1], len(episode.rewards), episode.rewards.lookback
    ([8, 9], 9, 1, 1)
    """

    __slots__ = ("_column", "_get", "_set", "_storage")

    def __init__(
        self, storage: EpisodeStorage, column: str, get: Callable[..., Any], set_: Callable[..., None] | None = None
    ):
        """Creates a view.

        Args:
            storage: The storage of the episode.
            column: The name of the column in the storage.
            get: The episode's getter of this column.
            set_: The episode's setter of this column; None if it cannot be written to.
        """
        self._storage = storage
        self._column = column
        self._get = get
        self._set = set_

    @property
    def data(self) -> Any:
        """All items, with the lookback."""
        return self._storage.column(self._column)

    @property
    def lookback(self) -> int:
        """The number of items before the episode's first step."""
        return self._storage.lookback

    @property
    def finalized(self) -> bool:
        """Whether the items are arrays."""
        return self._storage.is_numpy

    def get(self, indices: Any = None, **options: Any) -> Any:
        """Returns items, as the episode's getter with the same arguments does."""
        return self._get(indices, **options)

    def set(self, new_data: Any, *, at_indices: Any = None, neg_index_as_lookback: bool = False) -> None:
        """Replaces items, as the episode's setter with the same arguments does.

        Raises:
            TypeError: If the episode has no setter for the column, which is so for infos.
        """
        if self._set is None:
            raise TypeError(f"ColumnView: {self._column!r} of an episode cannot be replaced. Change the dicts in it.")
        self._set(new_data=new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def __getitem__(self, index: Any) -> Any:
        return self._get(index)

    def __setitem__(self, index: Any, new_data: Any) -> None:
        self.set(new_data, at_indices=index)

    def __len__(self) -> int:
        return self.len_incl_lookback() - self.lookback

    def len_incl_lookback(self) -> int:
        """Returns the number of items, with the lookback."""
        return count(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (self._get(i) for i in range(len(self)))

    def __repr__(self) -> str:
        return f"ColumnView({self._column}, {self._get()!r}, lookback={self.lookback})"
