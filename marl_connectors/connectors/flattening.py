"""Converts batches of any space's values to flat vectors of numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.errors import ConfigError
from marl_connectors.spaces import byte_scale, describe, in_key_order
from marl_connectors.typing import Tree


class _Segment(NamedTuple):
    """The place of one subspace in the flat vector.

    Attributes:
        path: The keys that lead to the subspace.
        begin: Its first number in the vector.
        end: One past its last number.
        sizes: The number of values of each component; None if the segment is not one-hot.
        levels: The value that each number stands for; None if the segment is not one-hot.
        scale: The factor of the numbers; None for 1.
    """

    path: tuple[Any, ...]
    begin: int
    end: int
    sizes: np.ndarray | None
    levels: np.ndarray | None
    scale: float | None


class Flattener:
    """Converts a batch of a space's values to ``[B, size]`` float32.

    The order is that of ``gymnasium.spaces.flatten``. Numbers stay as they are; Discrete and MultiDiscrete values
    become one-hot vectors. A value outside of its Discrete space becomes all zeros.

    Attributes:
        size: The number of numbers in a flat vector.
        space: The float32 Box of flat vectors, with the bounds of the subspaces.
    """

    def __init__(
        self, space: Space, *, leave_out: Collection[Any] = (), count_from_0: bool = False, scale_bytes: bool = False
    ):
        """Works out the place of each subspace.

        Args:
            space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them.
            leave_out: Keys of a Dict space that are left out.
            count_from_0: Whether values of a Discrete space count from 0, as the modules' actions do, and not from its
                ``start``.
            scale_bytes: Whether integers of 8 bits are scaled to [0, 1], as default modules do.

        Raises:
            ConfigError: If a subspace has no fixed size, or nothing is left.
        """
        self._segments: list[_Segment] = []
        self._bounds: list[tuple[np.ndarray, np.ndarray]] = []
        self._count_from_0 = count_from_0
        self._scale_bytes = scale_bytes
        self.size = 0
        if isinstance(space, spaces.Dict) and leave_out:
            space = in_key_order((key, part) for key, part in space.spaces.items() if key not in leave_out)
        self._add(space, ())
        if not self.size:
            raise ConfigError(f"Flattener: expected a space with at least one number, got {describe(space)}.")
        lows, highs = zip(*self._bounds, strict=True)
        self.space = spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float32)

    def _add(self, space: Space, path: tuple[Any, ...]) -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, part in parts:
                self._add(part, (*path, key))
            return
        sizes = levels = scale = None
        if isinstance(space, spaces.Box):
            scale = byte_scale(space) if self._scale_bytes else None
            with np.errstate(over="ignore"):
                low, high = (bound.ravel().astype(np.float32) * (scale or 1.0) for bound in (space.low, space.high))
        elif isinstance(space, spaces.MultiBinary):
            count = int(np.prod(space.shape))
            low, high = np.zeros(count, np.float32), np.ones(count, np.float32)
        elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            sizes, levels = _levels(space, self._count_from_0)
            low, high = np.zeros(len(levels), np.float32), np.ones(len(levels), np.float32)
        else:
            raise ConfigError(
                f"Flattener: values of {space} have no fixed size, so they cannot be converted to flat vectors. "
                f"Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
            )
        self._segments.append(_Segment(path, self.size, self.size + len(low), sizes, levels, scale))
        self._bounds.append((low, high))
        self.size += len(low)

    def __call__(self, values: Tree, xp: Any = ARRAYS) -> Any:
        """Flattens a batch.

        Args:
            values: ``[B, ...]`` array or tree of arrays.
            xp: The namespace of the arrays.

        Returns:
            ``[B, size]`` float32; ``values`` itself if it has this shape and dtype already.
        """
        flat = []
        for path, begin, end, sizes, levels, scale in self._segments:
            part = values
            for key in path:
                part = part[key]
            if sizes is not None and levels is not None:
                flat.append(_one_hot(part, sizes, levels, xp))
            else:
                numbers = xp.astype(part.reshape(part.shape[0], end - begin), xp.float32, copy=False)
                flat.append(numbers if scale is None else numbers * scale)
        return flat[0] if len(flat) == 1 else xp.concat(flat, axis=1)


def one_hot(space: spaces.Discrete | spaces.MultiDiscrete, values: Any, xp: Any = ARRAYS) -> Any:
    """Returns ``[B, n]`` float32 one-hot vectors of ``[B, ...]`` values; several components are concatenated."""
    return _one_hot(values, *_levels(space, False), xp)


def _one_hot(values: Any, sizes: np.ndarray, levels: np.ndarray, xp: Any) -> Any:
    components = values.reshape(values.shape[0], len(sizes))
    if len(sizes) > 1:  # repeat each component as often as it has values; one alone broadcasts
        components = components[:, xp.asarray(np.repeat(np.arange(len(sizes)), sizes))]
    return xp.astype(xp.astype(components, xp.int64, copy=False) == xp.asarray(levels), xp.float32)


def one_hot_size(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """Returns the length of a space's one-hot vectors."""
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(space.n)


def _levels(space: spaces.Discrete | spaces.MultiDiscrete, count_from_0: bool) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.arange(space.n) + (0 if count_from_0 else space.start)
    sizes, starts = space.nvec.ravel(), space.start.ravel() * (not count_from_0)
    return sizes, np.concatenate([np.arange(n) + start for n, start in zip(sizes, starts, strict=True)])
