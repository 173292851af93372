"""What an environment may give as an action mask, as flat bools: one for each value of each choice."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.typing import Tree


def values_per_choice(space: Space | None) -> list[int] | None:
    """How many values each choice of an action has; None for actions that have no masks.

    >>> values_per_choice(spaces.MultiDiscrete([3, 2]))
    [3, 2]
    """
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.reshape(-1).tolist()
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return None


def wanted_mask(space: Space | None) -> str:
    """What a mask for a space looks like, in words."""
    if isinstance(space, spaces.Discrete):
        return f"{space.n} numbers, one for each action"
    if isinstance(space, spaces.MultiDiscrete):
        lens = values_per_choice(space)
        assert lens is not None
        return f"{sum(lens)} numbers, one for each value of each choice, or a tuple of arrays with {lens} of them"
    if isinstance(space, spaces.MultiBinary):
        return f"an array of shape {space.shape} with 0, 1 or 2 for each bit that must be 0, must be 1, or is free"
    return "a number for each action"


def flat_masks(space: Space | None, masks: Tree) -> np.ndarray | None:
    """Masks of several rows, each as one vector.

    Args:
        space: Of the actions: Discrete, MultiDiscrete or MultiBinary; None for Discrete of any size.
        masks: ``[B, n]`` numbers, 0 or False for what is forbidden; for MultiDiscrete also a tuple of such arrays, one
            for each choice, as in Gymnasium; for MultiBinary ``[B, *shape]`` of 0, 1 and 2, as in Gymnasium, or two
            numbers for each bit.

    Returns:
        ``[B, n]`` bool, a copy; None if the masks do not fit the space.
    """
    lens = values_per_choice(space)
    if isinstance(masks, tuple):
        parts = _arrays(masks)
        if not isinstance(space, spaces.MultiDiscrete) or [part.shape[-1] for part in parts] != lens:
            return None
        masks = np.concatenate(parts, axis=-1)
    if not isinstance(masks, np.ndarray) or masks.dtype.kind not in "biuf" or masks.ndim < 2:
        return None
    if isinstance(space, spaces.MultiBinary) and masks.shape[1:] == space.shape:
        bits = masks.reshape(len(masks), -1)
        return np.stack([bits != 1, bits != 0], axis=-1).reshape(len(masks), -1)
    if masks.ndim != 2 or (lens is not None and masks.shape[1] != sum(lens)):
        return None
    return np.not_equal(masks, 0)


def _arrays(masks: Any) -> list[np.ndarray]:
    if isinstance(masks, tuple):
        return [array for part in masks for array in _arrays(part)]
    return [np.asarray(masks)]


def free_where_nothing_is_left(space: Space | None, masks: np.ndarray) -> np.ndarray:
    """The masks themselves, in which choices that allow no value allow all: nobody is asked to make them.

    Args:
        space: Of the actions.
        masks: ``[B, n]`` bool, changed in place.
    """
    lens = values_per_choice(space) or [masks.shape[1]]
    if len(lens) == 1:
        some = masks.any(axis=1)
        if not some.all():
            masks[~some] = True
        return masks
    some = np.logical_or.reduceat(masks, np.cumsum([0, *lens[:-1]]), axis=1)
    if not some.all():
        masks |= ~np.repeat(some, lens, axis=1)
    return masks


def draw(space: Space, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Actions drawn uniformly from those that ``[B, n]`` masks allow, counted from 0: ``[B]``, or ``[B, choices]``."""
    lens = values_per_choice(space)
    assert lens is not None
    scores = rng.random(masks.shape) + masks
    begins = np.cumsum([0, *lens])
    choices = [scores[:, begin : begin + n].argmax(axis=1) for begin, n in zip(begins, lens, strict=False)]
    return choices[0] if isinstance(space, spaces.Discrete) else np.stack(choices, axis=1)
