"""RLlib's functions of spaces, and of nested observations and actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.episodes.items import batch as batch
from marl_connectors.spaces import is_leaf, parts_of
from marl_connectors.trees import unstack
from marl_connectors.utils.numpy import map_leaves

unbatch = unstack
"""RLlib's name."""


def flatten_space(space: Space) -> list[Space]:
    """Returns the parts of a space that are neither Dict nor Tuple, in their order; the space itself if it is one."""
    if is_leaf(space):
        return [space]
    return [leaf for _, part in parts_of(space) for leaf in flatten_space(part)]  # type: ignore[arg-type]


def get_base_struct_from_space(space: Any) -> Any:
    """Returns a space as dicts and tuples of spaces that have no parts; anything else unchanged."""
    if isinstance(space, spaces.Dict):
        return {key: get_base_struct_from_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(get_base_struct_from_space, space.spaces))
    return space


def flatten_to_single_ndarray(input_: Any) -> np.ndarray:
    """Returns the numbers of a list or tuple of arrays, one after another, as one array."""
    if isinstance(input_, (list, tuple)):
        return np.concatenate([np.reshape(part, -1) for part in input_])
    return input_


def clip_action(action: Any, action_space: Any) -> Any:
    """Returns an action whose Box parts are clipped to the bounds of the space.

    Args:
        action: An action.
        action_space: Its space, or the dicts and tuples of ``get_base_struct_from_space``.
    """
    return _of_boxes(lambda values, box: np.clip(values, box.low, box.high), action, action_space)


def unsquash_action(action: Any, action_space_struct: Any) -> Any:
    """Returns an action whose Box parts are scaled from [-1, 1] to the bounds of the space.

    Args:
        action: An action. Parts without finite bounds, and those with integers, stay as they are.
        action_space_struct: As for ``clip_action``.
    """

    def scale(values: Any, box: spaces.Box) -> Any:
        if not _is_scaled(box):
            return values
        return np.clip(box.low + (np.asarray(values) + 1.0) * (box.high - box.low) / 2.0, box.low, box.high)

    return _of_boxes(scale, action, action_space_struct)


def normalize_action(action: Any, action_space_struct: Any) -> Any:
    """Returns an action whose Box parts are scaled from the bounds of the space to [-1, 1].

    Args:
        action: As for ``unsquash_action``, whose inverse this is.
        action_space_struct: As for ``clip_action``.
    """

    def scale(values: Any, box: spaces.Box) -> Any:
        return (np.asarray(values) - box.low) * 2.0 / (box.high - box.low) - 1.0 if _is_scaled(box) else values

    return _of_boxes(scale, action, action_space_struct)


def _is_scaled(box: spaces.Box) -> bool:
    return np.issubdtype(box.dtype, np.floating) and box.is_bounded()


def _of_boxes(function: Callable[[Any, spaces.Box], Any], action: Any, space: Any) -> Any:
    def convert(values: Any, part: Any) -> Any:
        return function(values, part) if isinstance(part, spaces.Box) else values

    return map_leaves(convert, action, get_base_struct_from_space(space))
