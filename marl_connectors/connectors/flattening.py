"""Values of any space as flat vectors of numbers, a whole batch at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.errors import ConfigError
from marl_connectors.spaces import byte_scale, describe, in_key_order
from marl_connectors.typing import Tree


class _Part(NamedTuple):
    path: tuple[Any, ...]
    begin: int
    end: int
    sizes: np.ndarray | None
    """Of a one-hot part: how many numbers each component gets."""
    levels: np.ndarray | None
    """Of a one-hot part: the value that each of those numbers stands for."""
    scale: float | None
    """What numbers are multiplied with, if with anything."""


class Flattener:
    """Makes ``[B, size]`` float32 of a batch of a space's values.

    Parts stand in the order of ``gymnasium.spaces.flatten``: numbers as they are, Discrete and MultiDiscrete values as
    one-hot vectors. A value outside of its Discrete space gives all zeros.

    Attributes:
        size: How many numbers an item has.
        space: The float32 Box of flat items, with the bounds of the parts.
    """

    def __init__(
        self, space: Space, *, leave_out: Collection[Any] = (), count_from_0: bool = False, scale_bytes: bool = False
    ):
        """Works out where each part goes.

        Args:
            space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of such.
            leave_out: Keys of a Dict space whose parts are left out.
            count_from_0: Whether values of a Discrete space are without its ``start``, as the modules' actions are.
            scale_bytes: Whether whole numbers of 8 bits are scaled to [0, 1], as default modules do it.

        Raises:
            ConfigError: If a part has no fixed size, or nothing is left.
        """
        self._parts: list[_Part] = []
        self._bounds: list[tuple[np.ndarray, np.ndarray]] = []
        self._count_from_0 = count_from_0
        self._scale_bytes = scale_bytes
        self.size = 0
        if isinstance(space, spaces.Dict) and leave_out:
            space = in_key_order((key, part) for key, part in space.spaces.items() if key not in leave_out)
        self._add(space, ())
        if not self.size:
            raise ConfigError(f"Flattener: there is nothing in {describe(space)} that could be made flat.")
        lows, highs = zip(*self._bounds, strict=True)
        self.space = spaces.Box(np.concatenate(lows), np.concatenate(highs), dtype=np.float32)
        only = self._parts[0]
        self._plain = len(self._parts) == 1 and only.levels is None and only.scale is None and not only.path

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
                f"Flattener: values of {space} have no fixed number of numbers, so they cannot be made flat vectors. "
                f"Use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
            )
        self._parts.append(_Part(path, self.size, self.size + len(low), sizes, levels, scale))
        self._bounds.append((low, high))
        self.size += len(low)

    def __call__(self, values: Tree) -> np.ndarray:
        """A hot path.

        Args:
            values: ``[B, ...]`` array or tree of arrays.

        Returns:
            ``[B, size]`` float32; the very same array if it is that already.
        """
        if self._plain:
            flat = values.reshape(len(values), self.size)
            return flat if flat.dtype == np.float32 else flat.astype(np.float32)
        out = None
        for path, begin, end, sizes, levels, scale in self._parts:
            part = values
            for key in path:
                part = part[key]
            if out is None:
                out = np.empty((len(part), self.size), np.float32)
            if sizes is None:
                out[:, begin:end] = part.reshape(len(part), end - begin)
                if scale is not None:
                    out[:, begin:end] *= scale
            else:
                out[:, begin:end] = _spread(part, sizes) == levels
        assert out is not None
        return out


def one_hot(space: spaces.Discrete | spaces.MultiDiscrete, values: np.ndarray) -> np.ndarray:
    """``[B, n]`` float32 one-hot vectors of ``[B, ...]`` values; those of a MultiDiscrete one after another."""
    sizes, levels = _levels(space, False)
    return (_spread(values, sizes) == levels).astype(np.float32)


def one_hot_size(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """How long the one-hot vectors of a space are."""
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(space.n)


def _spread(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """``[B, n]``, each component as often as it has values (or ``[B, 1]``, which is as good)."""
    flat = values.reshape(len(values), len(sizes))
    return flat if len(sizes) == 1 else np.repeat(flat, sizes, axis=1)


def _levels(space: spaces.Discrete | spaces.MultiDiscrete, count_from_0: bool) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.arange(space.n) + (0 if count_from_0 else space.start)
    sizes, starts = space.nvec.ravel(), space.start.ravel() * (not count_from_0)
    return sizes, np.concatenate([np.arange(n) + start for n, start in zip(sizes, starts, strict=True)])
