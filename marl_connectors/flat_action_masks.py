"""Converts the action masks of environments to flat bools, one for each value of each choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.seeding import StreamGenerator
from marl_connectors.spaces import parts_of, stack, values_per_choice
from marl_connectors.trees import leaves
from marl_connectors.typing import Tree

ACTION_MASK = "action_mask"
"""The key of masks in the observations or infos of PettingZoo's environments."""


def wanted_mask(space: Space | None) -> str:
    """Describes a mask for a space, for messages."""
    if isinstance(space, spaces.Discrete):
        return f"{space.n} numbers, one for each action"
    if isinstance(space, spaces.MultiDiscrete):
        lens = values_per_choice(space)
        assert lens is not None
        return f"{sum(lens)} numbers, one for each value of each choice, or a tuple of arrays with {lens} of them"
    if isinstance(space, spaces.MultiBinary):
        return f"an array of shape {space.shape} with 0, 1 or 2 for each bit that must be 0, must be 1, or is free"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        wanted = ", ".join(f"for part {key!r} {wanted_mask(part)}" for key, part in parts_of(space) if _is_masked(part))
        kind = "dict" if isinstance(space, spaces.Dict) else "tuple"
        return f"a {kind} like the action's, with {wanted}, None for all other parts and for parts that are free"
    return "a number for each action"


def _is_masked(space: Space) -> bool:
    return values_per_choice(space) is not None


def flat_masks(space: Space | None, masks: Tree, xp: Any = ARRAYS) -> Any:
    """Converts the masks of several rows to one vector a row.

    Args:
        space: The action space: Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple with such parts. None stands
            for a Discrete space of any size.
        masks: ``[B, n]`` numbers, 0 or False for forbidden values. For MultiDiscrete, it may also be a tuple of such
            arrays, one for each choice, as in Gymnasium. For MultiBinary, it is ``[B, *shape]`` of 0, 1 and 2, as in
            Gymnasium, or two numbers for each bit. For a Dict or Tuple, it is a dict or tuple of masks of the parts.
            Parts that are missing in a dict, are None or are empty arrays allow everything.
        xp: The namespace of the arrays.

    Returns:
        ``[B, n]`` bool, a new array; the masks of parts are concatenated in the space's order. None if the masks do not
        fit the space.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _flat_masks_of_parts(space, masks, xp)
    lens = values_per_choice(space)
    if isinstance(masks, tuple):
        parts = _arrays(masks, xp)
        if not isinstance(space, spaces.MultiDiscrete) or [part.shape[-1] for part in parts] != lens:
            return None
        masks = xp.concat(parts, axis=-1)
    if xp is ARRAYS and (not isinstance(masks, np.ndarray) or masks.dtype.kind not in "biuf"):
        return None
    if masks.ndim < 2:
        return None
    if isinstance(space, spaces.MultiBinary) and masks.shape[1:] == space.shape:
        bits = masks.reshape(masks.shape[0], -1)
        return xp.stack([bits != 1, bits != 0], axis=-1).reshape(masks.shape[0], -1)
    if masks.ndim != 2 or (lens is not None and masks.shape[1] != sum(lens)):
        return None
    return masks != 0


def is_binary(space: Space, action_space: Space | None) -> bool:
    """Whether all values of a mask's space are 0 or 1, or also 2 (a free bit) for MultiBinary actions."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        of_actions: dict[Any, Space] = {}
        if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
            of_actions = dict(parts_of(action_space))
        return all(is_binary(part, of_actions.get(key, action_space)) for key, part in parts_of(space))
    high = 2 if isinstance(action_space, spaces.MultiBinary) else 1
    if isinstance(space, spaces.Box):
        return bool(np.all(space.low >= 0) and np.all(space.high <= high))
    if isinstance(space, spaces.MultiDiscrete):
        return bool(np.all(space.start >= 0) and np.all(space.start + space.nvec <= high + 1))
    return isinstance(space, spaces.MultiBinary)


def mask_of(observation: Any, info: Mapping[str, Any] | None, key: Any = ACTION_MASK) -> Any:
    """Returns the mask in an observation or else in an info dict, or None if neither has one.

    The mask is ``[n]``; for a MultiDiscrete space it may be a tuple of arrays, and for a Dict or Tuple space it is a
    dict or tuple.
    """
    for holder in (observation, info):
        if isinstance(holder, Mapping) and key in holder:
            mask = holder[key]
            return mask if isinstance(mask, (dict, tuple)) else np.asarray(mask)
    return None


def mask_of_one_row(mask: Any) -> Any:
    """Adds a batch axis of length 1 to a single mask, of lists or arrays, for ``flat_masks``."""
    if isinstance(mask, dict):
        return {key: mask_of_one_row(part) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(map(mask_of_one_row, mask))
    return None if mask is None else np.asarray(mask)[None]


def _flat_masks_of_parts(space: spaces.Dict | spaces.Tuple, masks: Tree, xp: Any) -> Any:
    keys = [key for key, _ in parts_of(space)]
    if isinstance(space, spaces.Dict):
        if not isinstance(masks, dict) or not set(masks) <= set(keys):
            return None
        own = [masks.get(key) for key in keys]
    elif not isinstance(masks, tuple) or len(masks) != len(keys):
        return None
    else:
        own = list(masks)
    count = next((leaf.shape[0] for leaf in leaves(masks) if np.ndim(leaf)), 1)
    found: list[Any] = []
    for (_, part), mask in zip(parts_of(space), own, strict=True):
        lens = values_per_choice(part)
        if _is_empty(mask):
            found.append(xp.ones((count, sum(lens or ())), dtype=xp.bool))
        else:
            found.append(None if lens is None else flat_masks(part, mask, xp))
    if any(flat is None for flat in found):
        return None
    return xp.concat(found, axis=1)


def _is_empty(mask: Any) -> bool:
    """Whether masks are None, or consist of None and empty arrays only."""
    if mask is None:
        return True
    if isinstance(mask, (dict, tuple)):
        return all(map(_is_empty, mask.values() if isinstance(mask, dict) else mask))
    array = mask if hasattr(mask, "shape") else np.asarray(mask)
    return 0 in array.shape or (array.dtype == object and all(item is None for item in array.ravel()))


def _arrays(masks: Any, xp: Any) -> list[Any]:
    if isinstance(masks, tuple):
        return [array for part in masks for array in _arrays(part, xp)]
    return [xp.asarray(masks)]


def leaves_a_choice(space: Space | None, masks: np.ndarray) -> np.ndarray:
    """Returns ``[B]`` bool: whether a mask leaves more than one action.

    Args:
        space: The action space. None stands for a Discrete space of any size.
        masks: ``[B, n]`` bool, in which every choice has a value.
    """
    return (
        masks.sum(1) > len(values_per_choice(space) or [1]) if _has_only_choices(space) else np.ones(len(masks), bool)
    )


def _has_only_choices(space: Space | None) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return all(_has_only_choices(part) for _, part in parts_of(space))
    return space is None or values_per_choice(space) is not None


def free_where_nothing_is_left(space: Space | None, masks: Any, xp: Any = ARRAYS) -> Any:
    """Allows all values of choices that allow none, since an agent with such a mask does not act.

    Args:
        space: The action space.
        masks: ``[B, n]`` bool. An array is changed in place.
        xp: The namespace of the masks.

    Returns:
        ``[B, n]`` bool; ``masks`` itself if they are an array.
    """
    lens = values_per_choice(space) or [masks.shape[1]]
    if xp is not ARRAYS:
        return xp.concat([part | ~part.any(1, keepdim=True) for part in masks.split(lens, 1)], axis=1)
    if len(lens) == 1:
        some = np.logical_or.reduce(masks, 1)  # `any` calls it through Python
        if False in some.tolist():
            masks[~some] = True
        return masks
    some = np.logical_or.reduceat(masks, np.cumsum([0, *lens[:-1]]), axis=1)
    if not some.all():
        masks |= ~np.repeat(some, lens, axis=1)
    return masks


def draw(space: Space, masks: np.ndarray, rng: np.random.Generator | StreamGenerator) -> Tree:
    """Draws actions uniformly from those that masks allow.

    Args:
        space: The space of one action.
        masks: ``[B, n]``, a number for each value of each choice; ``n`` is 0 for actions without choices.
        rng: The generator. It draws ``n`` numbers a row for the choices, and one for each part without choices.

    Returns:
        ``[B, ...]`` actions, which count from 0.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts, end = {}, 0
        for key, part in parts_of(space):
            begin, end = end, end + sum(values_per_choice(part) or ())
            parts[key] = draw(part, masks[:, begin:end], rng)
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    lens = values_per_choice(space)
    if lens is None:
        return stack([_sample(space, seed) for seed in (rng.random((len(masks), 1)) * 2**31).astype(int).flat], space)
    scores = rng.random(masks.shape) + masks
    begins = np.cumsum([0, *lens])
    choices = [scores[:, begin : begin + n].argmax(axis=1) for begin, n in zip(begins, lens, strict=False)]
    return np.stack(choices, axis=1).reshape(len(masks), *(space.shape or ())).astype(space.dtype)


def _sample(space: Space, seed: Any) -> Any:
    space.seed(int(seed))
    return space.sample()
