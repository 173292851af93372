"""Adds n-step returns, and the observations that their targets continue from, to the train batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.reward_transform import REWARD_CHANGES
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import ModuleID

DISCOUNTS = "discounts"
"""``[B]`` float32, the factor of the value of ``new_obs`` in a step's target: 0 if the episode was terminated."""
NEXT_ACTION_MASK = "new_action_mask"
"""``[B, n]`` bool, the action mask that came with ``new_obs``; a row without any True is free."""


class AddNStepReturnsToTrainBatch(ConnectorV2):
    """Adds what temporal-difference targets of steps from a replay buffer need.

    A target is ``rewards + discounts * value(new_obs)``. ``rewards`` is the discounted sum of the next ``n_step``
    rewards of the agent, or of those up to its episode's end, each as the pieces before have changed it. ``new_obs`` is
    the observation after them.

    Reads ``obs``, ``rewards``, ``terminateds`` and ``action_mask`` of the trajectories, and ``rewards`` of the batch if
    it has them; writes ``rewards`` (``[B]`` float32), ``new_obs``, ``discounts`` and, with action masks,
    ``new_action_mask`` to the batch. Unless ``keep_action_masks`` is True, it removes ``action_mask`` then. Rows of
    sequences for stateful modules stay as they are, as the targets of their steps need the states at later steps of the
    sequence. Keeps no state.

    Args:
        n_step: The number of rewards.
        gamma: The discount per agent step; or a function that returns that of a module, called for each batch.
        keep_action_masks: Whether the masks of the steps stay in the batch, for losses that read them.
        check_observations: Whether to check that ``obs`` of the batch are those of the trajectories, as ``new_obs``
            are. It takes time, and is not needed if no piece before changes them.
    """

    belongs_in = (LEARNER,)
    n_step: int = argument(default=1)
    gamma: float | Callable[[ModuleID], float] = argument(default=0.99)
    keep_action_masks: bool = argument(default=False)
    check_observations: bool = argument(default=True)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the columns.

        Raises:
            ConnectorError: If the rows are not of a replay buffer, if a piece has changed the observations of the
                batch, or if one has changed the rewards of the batch, and the same change of later ones is not known.
        """
        rows = c.rows
        if rows.sequence_lengths is not None:
            return
        if not rows.has(Columns.TERMINATEDS):
            raise ConnectorError("expected steps that were drawn from a replay buffer, but these come from episodes.")
        if self.check_observations and Columns.OBS in c:
            _check_unchanged(c)
        gammas = np.empty(len(rows))
        for module_id, begin, end in zip(c.module_ids, c.splits, c.splits[1:], strict=False):
            gammas[begin:end] = self.gamma(module_id) if callable(self.gamma) else self.gamma
        changes = c.shared_data.get(REWARD_CHANGES, {}).values()
        total = self._first_rewards(c, changes).astype(np.float64)
        terminated = np.array(rows.get(Columns.TERMINATEDS), bool)
        new_obs = rows.reach(Columns.OBS, 1)[0]  # every step that was drawn has one
        masks = rows.reach(Columns.ACTION_MASK, 1)[0] if rows.has(Columns.ACTION_MASK) else None
        discounts = gammas.copy()
        for k in range(1, self.n_step):
            is_taken = rows.reached(k + 1)
            if not is_taken.any():
                break
            total += np.where(is_taken, discounts * _changed_rewards(rows, k, changes), 0.0)
            terminated |= is_taken & (rows.get(Columns.TERMINATEDS, offset=k, fill=0) > 0)
            discounts = np.where(is_taken, discounts * gammas, discounts)
            new_obs = _where(is_taken, rows.reach(Columns.OBS, k + 1)[0], new_obs)
            if masks is not None:
                masks = _where(is_taken, rows.reach(Columns.ACTION_MASK, k + 1)[0], masks)
        c[Columns.REWARDS] = total.astype(np.float32)
        c[Columns.NEXT_OBS] = new_obs
        c[DISCOUNTS] = np.where(terminated, 0.0, discounts).astype(np.float32)
        if masks is not None:
            c[NEXT_ACTION_MASK] = masks
            if not self.keep_action_masks:
                c.pop(Columns.ACTION_MASK, None)

    def _first_rewards(self, columns: ColumnGroup, changes: Collection[Callable[[Any], Any]]) -> np.ndarray:
        """Returns the reward of each step itself, which pieces may have changed in any way if it is the only one."""
        given = columns.get(Columns.REWARDS)
        if given is not None and self.n_step == 1:
            return given
        own = _changed_rewards(columns.rows, 0, changes)
        if given is not None and not np.array_equal(given, own.astype(np.float32), equal_nan=True):
            raise ConnectorError(
                f"a piece has changed the rewards of the batch, but with n_step={self.n_step} the targets need the "
                f"same change of later rewards, which are not in the batch. Make the piece a subclass of "
                f"RewardTransform, set n_step=1, or change rewards in a wrapper of the environment."
            )
        return own


def _check_unchanged(columns: ColumnGroup) -> None:
    """Checks that the observations of the batch are those of the trajectories."""
    kept = leaves(columns.rows.source(Columns.OBS))
    given = [np.asarray(leaf) for leaf in leaves(columns[Columns.OBS])]
    if len(kept) != len(given) or not all(
        np.array_equal(one, other.astype(one.dtype), equal_nan=one.dtype.kind == "f")
        for one, other in zip(given, kept, strict=True)
    ):
        raise ConnectorError(
            "a piece has changed the observations of the batch, but targets continue from later observations, which "
            "are as the replay buffer holds them. Change observations before they are kept: by a piece in "
            "env_to_module_connector that writes them to the episodes, such as an ObservationTransform, or in a "
            "wrapper of the environment."
        )


def _changed_rewards(rows: Any, offset: int, changes: Collection[Callable[[Any], Any]]) -> np.ndarray:
    """Returns ``[B]`` rewards, some steps after the rows, as the pieces of a pipeline change them."""
    rewards = rows.get(Columns.REWARDS, offset=offset, fill=0)
    if changes:
        rewards = rewards.astype(np.float32)  # as those of the batch
    for change in changes:
        rewards = change(rewards)
    return rewards


def _where(chosen: np.ndarray, values: Any, others: Any) -> Any:
    return tree_map(
        lambda value, other: np.where(chosen.reshape(-1, *[1] * (value.ndim - 1)), value, other), values, others
    )
