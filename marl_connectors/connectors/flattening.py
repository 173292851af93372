"""Converts batches of any space's values to flat vectors of numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

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
        only = self._segments[0]
        self._plain = len(self._segments) == 1 and only.levels is None and only.scale is None and not only.path

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

    def __call__(self, values: Tree) -> np.ndarray:
        """Flattens a batch.

        Args:
            values: ``[B, ...]`` array or tree of arrays.

        Returns:
            ``[B, size]`` float32; ``values`` itself if it has this shape and dtype already.
        """
        if self._plain:
            flat = values.reshape(len(values), self.size)
            return flat if flat.dtype == np.float32 else flat.astype(np.float32)
        out = None
        for path, begin, end, sizes, levels, scale in self._segments:
            part = values
            for key in path:
                part = part[key]
            if out is None:
                out = np.empty((len(part), self.size), np.float32)
            own = out[:, begin:end]
            if sizes is not None and levels is not None:
                np.equal(_spread(part, sizes), levels, out=own)
            else:
                own[...] = part if part.shape == own.shape else part.reshape(own.shape)
                if scale is not None:
                    own *= scale
        assert out is not None
        return out

    def on_tensors(self, values: Tree) -> Tensor:
        """Flattens a batch of tensors, ``[B, size]`` float32, as a call does with arrays."""
        flat: list[Tensor] = []
        for path, begin, end, sizes, levels, scale in self._segments:
            part = values
            for key in path:
                part = part[key]
            if sizes is None:
                numbers = part.reshape(part.shape[0], end - begin).float()
                flat.append(numbers if scale is None else numbers * scale)
            else:
                assert levels is not None
                flat.append(_one_hot_tensors(part, sizes, levels))
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def one_hot(space: spaces.Discrete | spaces.MultiDiscrete, values: np.ndarray) -> np.ndarray:
    """Returns ``[B, n]`` float32 one-hot vectors of ``[B, ...]`` values; several components are concatenated."""
    sizes, levels = _levels(space, False)
    return (_spread(values, sizes) == levels).astype(np.float32)


def one_hot_tensors(space: spaces.Discrete | spaces.MultiDiscrete, values: Tensor) -> Tensor:
    """Returns what ``one_hot`` does, of a tensor."""
    return _one_hot_tensors(values, *_levels(space, False))


def _one_hot_tensors(values: Tensor, sizes: np.ndarray, levels: np.ndarray) -> Tensor:
    component = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    spread = values.reshape(-1, len(sizes)).long()[:, component]
    return (spread == torch.from_numpy(levels.astype(np.int64))).float()


def one_hot_size(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """Returns the length of a space's one-hot vectors."""
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else int(space.n)


def _spread(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Repeats each component as often as it has values: ``[B, n]``, or ``[B, 1]``, which broadcasts to it."""
    flat = values.reshape(len(values), len(sizes))
    return flat if len(sizes) == 1 else np.repeat(flat, sizes, axis=1)


def _levels(space: spaces.Discrete | spaces.MultiDiscrete, count_from_0: bool) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, spaces.Discrete):
        return np.array([space.n]), np.arange(space.n) + (0 if count_from_0 else space.start)
    sizes, starts = space.nvec.ravel(), space.start.ravel() * (not count_from_0)
    return sizes, np.concatenate([np.arange(n) + start for n, start in zip(sizes, starts, strict=True)])
