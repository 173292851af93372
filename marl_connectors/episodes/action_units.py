"""Whose actions an episode holds, the environment's or a module's, and how the numbers of one become the other's."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from msgspec import Meta

from marl_connectors import spaces as spaces_
from marl_connectors.columns import Columns
from marl_connectors.trees import leaves
from marl_connectors.typing import Tree

ENV: Final = "env"
"""Actions as the environment gets them, in the action space."""
NORMALIZED: Final = "normalized"
"""Actions of modules: whole numbers count from 0, and bounded Boxes are [-1, 1] (``normalize_actions=True``)."""
UNSCALED: Final = "unscaled"
"""Actions of modules: whole numbers count from 0, and Boxes are those of the environment."""
MODULE: Final = "module"
"""Actions of modules, scaled as in the run that learns from them: those of modules used by hand."""
ALL: Final = (ENV, NORMALIZED, UNSCALED, MODULE)
ActionUnits: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(ALL)})\Z")]
"""One of these, in states."""
MODULE_OUTPUTS: Final = frozenset((Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, Columns.ACTIONS_FOR_ENV))
"""Extra model outputs from which it follows that a module has acted."""


class BoxRange(NamedTuple):
    """The range of a Box, in float64: wide bounds would overflow in float32.

    Attributes:
        space: The Box.
        low: The lower bounds.
        high: The upper bounds.
        bounded: True where both bounds are finite.
        all_bounded: Whether all bounds are finite.
        middle: The middle between the bounds; 0 where they are not finite.
        half: The distance from the middle to the bounds; 1 where they are not finite.
    """

    space: spaces.Box
    low: np.ndarray
    high: np.ndarray
    bounded: np.ndarray
    all_bounded: bool
    middle: np.ndarray
    half: np.ndarray

    @classmethod
    def of(cls, space: spaces.Box) -> BoxRange:
        """Returns the range of a space."""
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high)
        below, above = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        return cls(space, low, high, bounded, bool(bounded.all()), (below + above) / 2, (above - below) / 2)


def have_same_numbers(space: Space, one: str, other: str) -> bool:
    """Whether all actions have the same numbers in both units, which are linear: whether those of two actions have."""
    given, wanted = (one, other) if other != ENV else (other, one)  # in that direction, nothing is clipped
    points = spaces_.zeros(space, 2)
    for leaf in leaves(points):
        leaf[1] = 1
    return all(
        np.array_equal(own, leaf)
        for own, leaf in zip(leaves(in_units(space, points, given, wanted)), leaves(points), strict=True)
    )


def in_units(space: Space, actions: Tree, given: str, wanted: str) -> Tree:
    """Returns ``[B, ...]`` actions in other units; as they are, and not copied, if the numbers are the same.

    Args:
        space: The environment's action space.
        actions: An array, or a tree of arrays, of the structure of the space.
        given: Their units.
        wanted: The units to return. Actions for the environment are clipped to the bounds of a Box, as those of
            modules are before it gets them.
    """
    if given == wanted or (MODULE in (given, wanted) and ENV not in (given, wanted)):
        return actions
    if isinstance(space, spaces.Dict):
        return {key: in_units(part, actions[key], given, wanted) for key, part in space.spaces.items()}  # type: ignore[index,call-overload]
    if isinstance(space, spaces.Tuple):
        return tuple([in_units(part, actions[i], given, wanted) for i, part in enumerate(space.spaces)])  # type: ignore[index]
    assert isinstance(actions, np.ndarray)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        shift = space.start * (int(wanted == ENV) - int(given == ENV))
        return (actions + shift).astype(actions.dtype) if np.any(shift) else actions
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return actions
    was_scaled, is_scaled = (units in (NORMALIZED, MODULE) for units in (given, wanted))
    if was_scaled == is_scaled and wanted != ENV:
        return actions
    known, numbers = BoxRange.of(space), actions.astype(np.float64)
    if was_scaled and not is_scaled:
        numbers = numbers * known.half + known.middle
    elif is_scaled and not was_scaled:
        half = np.where(known.half > 0, known.half, 1.0)  # of bounds that leave one number
        numbers = (numbers - known.middle) / half
    if wanted == ENV:
        numbers = np.clip(numbers, known.low, known.high)
    return actions if np.array_equal(numbers, actions) else numbers.astype(actions.dtype)
