"""Whether modules give a row the same numbers, bit for bit, whatever other rows they get with it.

A matrix product may take another path for other numbers of rows, and then differ in its last bits. Which numbers those
are depends on the layers, the machine and the libraries: so it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.episodes.rows import Rows
from marl_connectors.rl_module.array_layers import tile_rows
from marl_connectors.trees import leaves, tree_map

_FIRST, _OTHERS = 16, 32  # numbers of rows that are tried: the lowest ones, and among the higher ones
Forward = Callable[[ColumnBatch], ColumnBatch]


@dataclass(slots=True)
class TriedCounts:
    """For which numbers of rows a module was tried, all in one.

    Attributes:
        module: Which.
        least: From so many rows on, and
        most: up to so many, rows come out the same.
        too_few: From so many rows on they do not.
    """

    module: Any
    least: int = 0
    most: int = -1
    too_few: int = 0

    def verdict(self, counts: Collection[int]) -> bool | None:
        """Whether rows come out the same in batches of any of these numbers of rows; None if that is not known."""
        if min(counts) <= self.too_few:
            return False
        return True if self.least <= min(counts) and max(counts) <= self.most else None

    def try_out(self, forward: Forward, columns: ColumnGroup, counts: Collection[int]) -> bool:
        """Tries it if it is not known.

        Args:
            forward: A forward pass.
            columns: What the module gets, as tensors: as many rows as the highest of the numbers.
            counts: Numbers of rows.
        """
        verdict = self.verdict(counts)
        if verdict is None:
            least, most = min(counts), 2 * max(counts)
            verdict = rows_stand_alone(forward, columns, least)
            if verdict and least <= self.most + 1 and self.least <= most + 1:
                self.least, self.most = min(least, self.least), max(most, self.most)
            elif verdict:
                self.least, self.most = least, most
            else:
                self.too_few = least
        return verdict


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees of arrays or tensors hold the same."""
    own, other = leaves(a), leaves(b)
    return len(own) == len(other) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(map(_array, own), map(_array, other), strict=True)
    )


def at_place(columns: ColumnGroup, place: int) -> ColumnGroup:
    """The columns with some rows more before them, so that the first one stands at a place."""

    def placed(leaf: Any) -> Any:
        return torch.cat([leaf[:1]] * place + [leaf])

    return _group(columns, {n: tree_map(placed, c) for n, c in columns.items()}, place + len(columns.rows))


def rows_stand_alone(forward: Forward, columns: ColumnGroup, least: int) -> bool:
    """Tries whether rows come out the same in batches of ``least`` rows up to twice as many as there are.

    Args:
        forward: A forward pass.
        columns: What a module gets, as tensors.
        least: The lowest number of rows.
    """
    most, tile = 2 * len(columns.rows), tile_rows()
    for tried in (columns, _random_like(columns)):
        twice = _group(columns, {name: _twice(column) for name, column in tried.items()}, most)
        whole = {
            name: tree_map(torch.clone, column) for name, column in forward(ColumnBatch([twice])).groups[0].items()
        }
        for count in _numbers_to_try(least, most):
            for begin in {0, most - count}:
                place = begin % tile
                part = _group(columns, {name: slice_tree(c, begin, begin + count) for name, c in twice.items()}, count)
                found = forward(ColumnBatch([at_place(part, place)])).groups[0]
                own = {name: slice_tree(c, place, place + count) for name, c in found.items()}
                if not same_bits(own, {name: slice_tree(c, begin, begin + count) for name, c in whole.items()}):
                    return False
    return True


def _numbers_to_try(least: int, most: int) -> Iterable[int]:
    low = range(least, min(least + _FIRST, most + 1))
    return sorted({*low, *range(most, least, -max(1, (most - least) // _OTHERS))})


def _group(like: ColumnGroup, columns: dict[str, Any], num_rows: int) -> ColumnGroup:
    group = ColumnGroup(Rows((), module_ids=like.module_ids, splits=(0, num_rows), episodes=[], counts=[]))
    group.update(columns)
    return group


def _random_like(columns: ColumnGroup) -> dict[str, Any]:
    """Observations and states whose every number matters: at the beginning many are zero."""
    generator = torch.Generator().manual_seed(0)

    def random(leaf: Any) -> Any:
        if leaf.is_floating_point():
            return leaf + torch.randn(leaf.shape, generator=generator).abs().to(leaf)
        is_image = leaf.dtype == torch.uint8 and leaf.ndim > 3
        return torch.randint(0, 256, leaf.shape, generator=generator).to(leaf) if is_image else leaf

    known = (Columns.OBS, Columns.STATE_IN)
    return {name: tree_map(random, column) if name in known else column for name, column in columns.items()}


def _twice(column: Any) -> Any:
    return tree_map(lambda leaf: torch.cat([leaf, leaf]), column)


def _array(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf
