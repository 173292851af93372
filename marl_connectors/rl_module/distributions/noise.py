"""The random numbers from which distributions sample, by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.seeding import StreamGenerator

Generator = StreamGenerator | np.random.Generator


def _gumbel(rng: Any, size: tuple[int, ...]) -> np.ndarray:
    noise = rng.standard_exponential(size, dtype=np.float32)
    np.maximum(noise, np.finfo(np.float32).tiny, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


_IN_NUMPY: dict[str, Callable[[Any, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, size: rng.standard_normal(size, dtype=np.float32),
    "exponential": lambda rng, size: rng.standard_exponential(size, dtype=np.float32),
    "uniform": lambda rng, size: rng.random(size, dtype=np.float32),
    "gumbel": _gumbel,
    "logistic": lambda rng, size: rng.logistic(size=size).astype(np.float32),
}
_IN_TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda empty: empty.normal_(),
    "exponential": lambda empty: empty.exponential_(),
    "uniform": lambda empty: empty.uniform_(),
    "gumbel": lambda empty: -empty.exponential_().log(),
    "logistic": lambda empty: empty.exponential_().log() - torch.empty_like(empty).exponential_().log(),
}


def draw(parts: Sequence[tuple[str, int]], rng: Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Returns ``[*shape, k]`` float32 numbers of some kinds, one after another; see ``Distribution.noise_parts``."""
    drawn = [_IN_NUMPY[kind](rng, (*shape, number)) for kind, number in parts]
    return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, -1)


def draw_like(inputs: Tensor, parts: Sequence[tuple[str, int]], sample_shape: Sequence[int]) -> Tensor:
    """Returns ``[*sample_shape, ..., k]`` such numbers for ``[..., n]`` inputs, of torch's global generator."""
    lead = (*sample_shape, *inputs.shape[:-1])
    return torch.cat([_IN_TORCH[kind](inputs.new_empty((*lead, number))) for kind, number in parts], -1)
