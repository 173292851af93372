"""Converts actions from the module's range to the environment's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.action_units import NORMALIZED, UNSCALED, BoxRange
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.spaces import describe, from_start, zeros
from marl_connectors.trees import in_parts_of, tree_map

if TYPE_CHECKING:
    from marl_connectors.connectors.tensor_step import TensorStep

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
    """

    belongs_in = (MODULE_TO_ENV,)

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            normalize_actions: Whether [-1, 1] is scaled to the range of Box spaces.
            clip_actions: Whether Box actions are clipped to their space, if they are not normalised.
        """
        super().__init__(input_observation_space, input_action_space)
        self.normalize_actions = normalize_actions
        self.clip_actions = clip_actions
        self._ranges: dict[int, BoxRange] = {}

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Converts the actions of all rows of a group at once."""
        given = columns.get(Columns.ACTIONS_FOR_ENV)
        if given is not None and Columns.ACTIONS_FOR_ENV not in columns.holders:
            return
        columns[Columns.ACTIONS] = _in_parts(columns.rows.action_space, columns[Columns.ACTIONS])
        actions = self._for_env(columns[Columns.ACTIONS], columns.rows.action_space)
        if given is not None:  # some of the modules have output actions_for_env themselves
            held = columns.held_rows(Columns.ACTIONS_FOR_ENV)
            others = columns[Columns.ACTIONS] if actions is None else actions
            actions = tree_map(lambda own, other: np.where(_broadcast(held, own), own, other), given, others)
            columns.holders = {n: own for n, own in columns.holders.items() if n != Columns.ACTIONS_FOR_ENV}
        if actions is not None:
            columns[Columns.ACTIONS_FOR_ENV] = actions

    def __call__(self, *, batch: dict[str, Any], **common: Any) -> dict[str, Any]:
        """Works on items. ``actions_for_env`` gets an item for each action if any action needs one."""
        batch = super().__call__(batch=batch, **common)
        if Columns.ACTIONS_FOR_ENV in batch:
            batch[Columns.ACTIONS_FOR_ENV] = {**batch[Columns.ACTIONS], **batch[Columns.ACTIONS_FOR_ENV]}
        return batch

    def _for_env(self, actions: Any, space: Space) -> Any:
        """Returns ``[B, ...]`` actions for the environment, or None if ``actions`` need no change."""
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            is_dict = isinstance(space, spaces.Dict)
            parts = dict(space.spaces) if is_dict else dict(enumerate(space.spaces))
            own = {key: self._for_env(actions[key], part) for key, part in parts.items()}
            if all(part is None for part in own.values()):
                return None
            values = {key: actions[key] if part is None else part for key, part in own.items()}
            return values if is_dict else tuple(values.values())
        if isinstance(space, spaces.Discrete):
            return actions + space.start if space.start else None
        if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            shaped = actions
            if actions.shape[1:] != space.shape:
                shaped = actions.reshape(len(actions), *space.shape)
            for_env = from_start(space, shaped).astype(space.dtype, copy=False)
            return None if for_env is actions else for_env
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return None
        actions = actions.reshape(len(actions), *space.shape)
        if not (self.normalize_actions or self.clip_actions):
            return actions.astype(space.dtype)
        known = self._ranges.get(id(space))
        if known is None or known.space is not space:
            if len(self._ranges) >= _REMEMBERED:
                self._ranges.clear()
            known = self._ranges[id(space)] = BoxRange.of(space)
        if self.normalize_actions:
            inside = np.minimum(np.maximum(actions, -1.0), 1.0)
            if not known.all_bounded:
                inside = np.where(known.bounded, inside, actions)
            actions = inside * known.half
            actions += known.middle
        return np.minimum(np.maximum(actions, known.low), known.high).astype(space.dtype)

    def on_tensors(self, *, columns: dict[str, Any], step: TensorStep) -> None:
        """Converts the actions of all rows."""
        if Columns.ACTIONS_FOR_ENV not in columns:
            columns[Columns.ACTIONS_FOR_ENV] = self._tensors_for_env(columns[Columns.ACTIONS], step.action_space)

    def _tensors_for_env(self, actions: Any, space: Space) -> Any:
        """Returns ``[B, ...]`` actions for the environment."""
        if isinstance(space, spaces.Dict):
            return {key: self._tensors_for_env(actions[key], part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple([self._tensors_for_env(actions[i], part) for i, part in enumerate(space.spaces)])
        if isinstance(space, spaces.Discrete):
            return actions + int(space.start) if space.start else actions
        dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
            shaped = actions.reshape(-1, *space.shape)
            if isinstance(space, spaces.MultiDiscrete) and space.start.any():
                shaped = shaped + torch.from_numpy(space.start)
            return shaped.to(dtype)
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return actions
        actions = actions.reshape(-1, *space.shape)
        if not (self.normalize_actions or self.clip_actions):
            return actions.to(dtype)
        known, actions = BoxRange.of(space), actions.double()
        if self.normalize_actions:
            inside = torch.where(torch.from_numpy(known.bounded), actions.clamp(-1.0, 1.0), actions)
            actions = inside * torch.from_numpy(known.half) + torch.from_numpy(known.middle)
        low, high = torch.from_numpy(known.low), torch.from_numpy(known.high)
        return torch.minimum(torch.maximum(actions, low), high).to(dtype)


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
