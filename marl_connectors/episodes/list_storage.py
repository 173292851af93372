"""Steps in Python lists: an episode that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.episodes.batching import head, owned, unbatch
from marl_connectors.episodes.storage import (
    ACTIONS,
    INFOS,
    OBS,
    REWARDS,
    STEP,
    WITH_LAST,
    ColumnStorage,
    EpisodeStorage,
    T,
)
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import Tree

_NUMBERS = frozenset((int, float, np.float32, np.float64, np.int64))


class ListStorage(ColumnStorage):
    """Python lists, one item a row. The only storage that grows."""

    __slots__ = ("actions_from_0", "heads")

    def __init__(
        self,
        columns: dict[str, list] | None = None,
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        heads: dict[str, Tree] | None = None,
        actions_from_0: bool = False,
    ):
        """``heads`` are empty arrays whose dtypes a column of arrays had before it became a list.

        ``actions_from_0`` says whether actions of a Discrete space are without its ``start``, as a runner records them.
        """
        super().__init__(
            {name: [] for name in STEP} if columns is None else columns, lookback=lookback, open_row=open_row
        )
        self.heads = {} if heads is None else heads
        self.actions_from_0 = actions_from_0

    @classmethod
    def from_storage(
        cls, storage: EpisodeStorage, start: int = 0, stop: int | None = None, lookback: int | None = None
    ) -> ListStorage:
        """A copy of the rows ``[start, stop)`` of any storage, which can grow on its own.

        The open row comes along if ``stop`` is None.
        """
        end = storage.lookback + len(storage) if stop is None else stop
        columns: dict[str, list] = {}
        heads: dict[str, Tree] = dict(storage.heads) if isinstance(storage, ListStorage) else {}
        for name in (*STEP, *storage.extra_keys()):
            column = storage.part(name, start, end + 1 if name in WITH_LAST else end)
            if type(column) is list:
                columns[name] = column
            elif name in (T, REWARDS):
                columns[name] = column.tolist()  # type: ignore[union-attr]
            else:
                if name not in storage.untyped:
                    heads[name] = head(column)
                columns[name] = unbatch(column)
        return cls(
            columns,
            lookback=storage.lookback if lookback is None else lookback,
            open_row=storage.pending() if stop is None else None,
            heads=heads,
            actions_from_0=storage.actions_from_0,
        )

    def append(
        self,
        observation: Any,
        action: Any,
        reward: float,
        infos: dict[str, Any],
        extra_model_outputs: Mapping[str, Any] | None,
        t: int | None = None,
    ) -> None:
        """A whole step: what the agent does about its newest observation, and the next one. A hot path.

        No row may be open, and the extra model outputs must be the expected ones. Without ``t``, it is the next env
        step. Of these, only the extra model outputs are copied.
        """
        columns = self.columns
        if extra_model_outputs:
            for name, value in extra_model_outputs.items():
                columns[name].append(value if type(value) in _NUMBERS else owned(value))
        columns[OBS].append(observation)
        columns[INFOS].append(infos)
        times = columns[T]
        times.append(times[-1] + 1 if t is None else t)
        columns[ACTIONS].append(action)
        columns[REWARDS].append(reward)

    def observe(self, observation: Any, infos: dict[str, Any], t: int) -> None:
        """Closes the row that is open, and opens the next one. An observation not yet acted on is replaced."""
        columns = self.columns
        newest = (observation, infos, int(t))
        if self.open_row is None and columns[T]:
            columns[OBS][-1], columns[INFOS][-1], columns[T][-1] = newest
            return
        for name, value in zip((OBS, INFOS, T), newest, strict=True):
            columns[name].append(value)
        if self.open_row is not None:
            for name, value in self.open_row.items():
                columns[name].append(value)
            self.open_row = None

    def act(self, action: Any, extra_model_outputs: Mapping[str, Any]) -> None:
        """Writes what the agent does to the row that is open. The extra model outputs must be the expected ones."""
        outputs = {name: owned(value) for name, value in extra_model_outputs.items()}
        self.open_row = {ACTIONS: action, REWARDS: 0.0, **outputs}

    def expect(self, extra_model_outputs: Mapping[str, Any], whose: Any) -> None:
        """Checks that these are the extra model outputs of the rows before; the first action says which there are.

        Raises:
            EpisodeError: If not; ``whose.who`` stands in the message.
        """
        known = self.extras
        if set(extra_model_outputs) == set(known):
            return
        taken = sorted(name for name in extra_model_outputs if name in STEP)
        if taken:
            raise EpisodeError(
                f"{whose.who}: {taken} are names of other columns. Give extra model outputs other names."
            )
        if self.columns[REWARDS]:
            raise EpisodeError(
                f"{whose.who}: the steps so far have the extra model outputs {sorted(known)}, but "
                f"{sorted(extra_model_outputs)} came. Give every action of an episode the same ones."
            )
        self._set_extras(tuple(extra_model_outputs))

    def _set_extras(self, names: tuple[str, ...]) -> None:
        """The first rows say which extra model outputs there are."""
        for name in self.extras:
            if name not in names:
                del self.columns[name]
        for name in names:
            self.columns.setdefault(name, [])
        self.extras = names

    def extend(self, other: EpisodeStorage) -> None:
        """Appends another storage's own rows, and the open one. Its first observation is this one's newest.

        Both must have the same extra model outputs, if both have steps.
        """
        extras = other.extra_keys()
        if set(self.extras) != set(extras) and (len(other) or other.pending()):
            self._set_extras(extras)
        if isinstance(other, ListStorage):
            self.heads = other.heads | self.heads
        if not self.columns[ACTIONS] and self.open_row is None:
            self.actions_from_0 = other.actions_from_0
        start, stop = other.lookback, other.lookback + len(other)
        for name in (*STEP, *extras) if len(other) else WITH_LAST:
            column = self.columns[name]
            if name in WITH_LAST:
                del column[-1:]
            part = other.part(name, start, stop + (name in WITH_LAST))
            if isinstance(part, list) or name in (T, REWARDS):
                column.extend(part if isinstance(part, list) else part.tolist())  # type: ignore[union-attr]
                continue
            if name not in other.untyped:
                self.heads.setdefault(name, head(part))
            column.extend(unbatch(part))
        self.open_row = other.pending()

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        column = self.columns[name]
        if name == REWARDS and set(map(type, items)) != {float}:
            items = [float(item) for item in items]
        if isinstance(positions, range) and positions.step == 1:
            column[positions.start : positions.stop] = items
            return
        for position, item in zip(positions, items, strict=True):
            column[position] = item

    def set_column(self, name: str, values: list | Tree) -> None:
        self._accept(name, values)
        self.heads.pop(name, None)
        items = unbatch(values)
        self.columns.setdefault(name, [])[:] = [float(item) for item in items] if name == REWARDS else items
