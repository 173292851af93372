"""Actions drawn from the action space, without a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.connectors.action_masks import draw
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.seeding import StreamGenerator
from marl_connectors.spaces import counted_from_0, from_start, values_per_choice
from marl_connectors.trees import tree_map


def random_actions(
    space: Space, num: int, rng: np.random.Generator | StreamGenerator, mask: np.ndarray | None = None
) -> dict[str, Any]:
    """``num`` actions, uniform where the space is bounded: ``actions`` and, where it differs, ``actions_for_env``.

    ``actions`` count from 0 for Discrete and MultiDiscrete, and are the environment's own numbers otherwise.

    Args:
        space: The action space.
        num: How many.
        rng: Where they come from.
        mask: ``[num, n]`` bool, what to choose from, as ActionMasking puts it into the batch.
    """
    choices = values_per_choice(space) or ()
    if mask is None or not choices:
        mask = np.ones((num, sum(choices)), bool)
    actions = draw(counted_from_0(space), mask, rng)
    for_env = from_start(space, actions)
    columns = {Columns.ACTIONS: actions}
    return columns if for_env is actions else {**columns, Columns.ACTIONS_FOR_ENV: for_env}


def random_columns(noise: ActionNoise, given: ColumnGroup) -> ColumnGroup:
    """What the modules would have put out, drawn at random. A stateful module that is not asked keeps its state.

    Args:
        noise: Has a stream for each row.
        given: The part of the forward batch that the modules do not get.
    """
    columns, rows = given.like(), given.rows
    group = rows.group  # type: ignore[attr-defined]
    rng = noise.generator("random actions", rows)
    mask = given.get(Columns.ACTION_MASK)
    if mask is not None:
        mask = columns[Columns.ACTION_MASK] = _array(mask).reshape(len(rows), -1)
    drawn = random_actions(group.env_action_space, len(rows), rng, mask)
    if group.rollout.action_space != group.env_action_space:  # modules have another one, and a piece translates
        for_env = drawn.get(Columns.ACTIONS_FOR_ENV, drawn[Columns.ACTIONS])
        own = random_actions(group.rollout.action_space, len(rows), rng)
        drawn = {Columns.ACTIONS: own[Columns.ACTIONS], Columns.ACTIONS_FOR_ENV: for_env}
    columns.update(drawn)
    if Columns.STATE_IN in given:
        columns[Columns.STATE_OUT] = tree_map(_array, given[Columns.STATE_IN])
    return columns


def _array(leaf: Any) -> np.ndarray:
    return leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf
