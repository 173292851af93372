"""Converts actions from the module's range to the environment's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.action_units import NORMALIZED, UNSCALED, BoxRange
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.spaces import describe, zeros
from marl_connectors.trees import in_parts_of, tree_map

_REMEMBERED = 100
"""The largest number of spaces whose ranges are cached."""


def units_of_modules(module_to_env: Iterable[ConnectorV2]) -> str:
    """Returns what the actions of modules are before a pipeline: normalized if a piece of it scales them."""
    pieces = [piece for piece in module_to_env if isinstance(piece, NormalizeAndClipActions)]
    return NORMALIZED if any(piece.normalize_actions for piece in pieces) else UNSCALED


class NormalizeAndClipActions(ConnectorV2):
    """Adds ``actions_for_env`` if the environment needs other numbers than ``actions``, which stay as they are.

    * Box actions get the space's shape and dtype. With ``normalize_actions``, [-1, 1] is scaled to the space's range
      where that is finite, and values beyond it are clipped. With ``clip_actions``, actions are clipped only.
    * MultiDiscrete and MultiBinary actions get the space's shape and dtype.
    * The space's ``start`` is added to Discrete and MultiDiscrete actions.
    * Each part of Dict and Tuple actions is converted according to its own space.

    Reads ``actions``; writes ``actions_for_env`` to the batch, ``[B, ...]``. Keeps no state.

    Args:
        normalize_actions: Whether [-1, 1] is scaled to the range of Box spaces.
        clip_actions: Whether Box actions are clipped to their space, if they are not normalised.
    """

    belongs_in = (MODULE_TO_ENV,)
    normalize_actions: bool = argument(default=True)
    clip_actions: bool = argument(default=False)

    def begin(self) -> None:
        super().begin()
        self._ranges: dict[int, BoxRange] = {}

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Converts the actions of all rows of a group at once."""
        given = c.get(Columns.ACTIONS_FOR_ENV)
        if given is not None and Columns.ACTIONS_FOR_ENV not in c.holders:
            return
        if c.program is None:
            c[Columns.ACTIONS] = _in_parts(c.rows.action_space, c[Columns.ACTIONS])
        actions = self._for_env(c[Columns.ACTIONS], c.rows.action_space, xp)
        if given is not None:  # some of the modules have output actions_for_env themselves
            held = c.held_rows(Columns.ACTIONS_FOR_ENV)
            others = c[Columns.ACTIONS] if actions is None else actions
            actions = tree_map(lambda own, other: np.where(_broadcast(held, own), own, other), given, others)
            c.holders = {n: own for n, own in c.holders.items() if n != Columns.ACTIONS_FOR_ENV}
        if actions is not None:
            c[Columns.ACTIONS_FOR_ENV] = actions

    def __call__(self, *, batch: dict[str, Any], **common: Any) -> dict[str, Any]:
        """Works on items. ``actions_for_env`` gets an item for each action if any action needs one."""
        batch = super().__call__(batch=batch, **common)
        if Columns.ACTIONS_FOR_ENV in batch:
            batch[Columns.ACTIONS_FOR_ENV] = {**batch[Columns.ACTIONS], **batch[Columns.ACTIONS_FOR_ENV]}
        return batch

    def _for_env(self, actions: Any, space: Space, xp: Any) -> Any:
        """Returns ``[B, ...]`` actions for the environment, or None if ``actions`` need no change."""
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            is_dict = isinstance(space, spaces.Dict)
            parts = dict(space.spaces) if is_dict else dict(enumerate(space.spaces))
            own = {key: self._for_env(actions[key], part, xp) for key, part in parts.items()}
            if all(part is None for part in own.values()):
                return None
            values = {key: actions[key] if part is None else part for key, part in own.items()}
            return values if is_dict else tuple(values.values())
        if isinstance(space, spaces.Discrete):
            return actions + int(space.start) if space.start else None
        if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            shaped = actions
            if actions.shape[1:] != space.shape:
                shaped = actions.reshape(actions.shape[0], *space.shape)
            if isinstance(space, spaces.MultiDiscrete) and space.start.any():
                shaped = shaped + xp.asarray(space.start)
            for_env = xp.astype(shaped, space.dtype, copy=False)
            return None if for_env is actions else for_env
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return None
        actions = actions.reshape(actions.shape[0], *space.shape)
        if not (self.normalize_actions or self.clip_actions):
            return xp.astype(actions, space.dtype)
        known = self._ranges.get(id(space))
        if known is None or known.space is not space:
            if len(self._ranges) >= _REMEMBERED:
                self._ranges.clear()
            known = self._ranges[id(space)] = BoxRange.of(space)
        if self.normalize_actions:
            inside = xp.minimum(xp.maximum(actions, -1.0), 1.0)
            if not known.all_bounded:
                inside = xp.where(xp.asarray(known.bounded), inside, actions)
            actions = inside * xp.asarray(known.half) + xp.asarray(known.middle)
        bounded = xp.minimum(xp.maximum(actions, xp.asarray(known.low)), xp.asarray(known.high))
        return xp.astype(bounded, space.dtype)


def _broadcast(held: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Reshapes ``[B]`` to ``[B, 1, ...]``, with as many axes as a column."""
    return held.reshape(-1, *[1] * (column.ndim - 1))


def _in_parts(space: Space | None, actions: Any) -> Any:
    """Returns a batch of actions as a tree with the structure of the space, if the space is known.

    Raises:
        ConnectorError: If the actions have other parts than the space.
    """
    if space is None or (type(actions) is np.ndarray and space.shape is not None):
        return actions
    try:
        return in_parts_of(zeros(space, 0), actions)
    except ValueError as error:
        raise ConnectorError(
            f"NormalizeAndClipActions: the actions do not have the parts of their space, {describe(space)}: {error} "
            f"Modules and pieces must return one array for each part."
        ) from error
