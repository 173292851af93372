"""What a piece has worked out for rows that stay the same objects from step to step."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from marl_connectors.episodes.rows import Rows


class RowMemory(WeakKeyDictionary[Rows, Any]):
    """Maps rows to what a piece has worked out for them, such as their agents. It is forgotten with the rows.

    A runner's rows are the same object whenever the same lanes act. Copies of a memory are empty, because a copy of a
    piece works on other rows.
    """

    def __deepcopy__(self, memo: Any) -> RowMemory:
        return RowMemory()

    def __reduce__(self) -> Any:
        return RowMemory, ()
