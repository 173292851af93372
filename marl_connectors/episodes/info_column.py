"""A column of info dicts."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload


class InfoColumn(list[dict[str, Any]]):
    """A list of info dicts, one a row, from which rows are picked as from a tensor.

    It is of no type that tree functions know as a container, so none of them looks into the dicts.
    """

    __slots__ = ()
    device = "cpu"

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> InfoColumn: ...

    def __getitem__(self, index: Any) -> Any:
        picked = super().__getitem__(index)
        return InfoColumn(picked) if isinstance(index, slice) else picked

    def index_select(self, dim: int, index: Any) -> InfoColumn:
        """The rows that a ``[B]`` tensor of row numbers names."""
        return InfoColumn([self[i] for i in index.tolist()])

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> list[InfoColumn]:
        """As many columns of equal length as ``sizes`` begins with, one after another."""
        each = len(self) // sizes[0]
        return [self[i * each : (i + 1) * each] for i in range(sizes[0])]
