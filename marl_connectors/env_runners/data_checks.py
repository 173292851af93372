"""What environments must not give: observations outside their space, NaN, rewards that are not numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.environments.vector_env import VectorEnv
from marl_connectors.episodes.column_batch import ColumnBatch
from marl_connectors.errors import ConnectorError, EnvError, ModuleError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.observation_check import check_observations
from marl_connectors.trees import leaves, tree_map


def check_columns(group: LaneGroup, vector_env: VectorEnv, *, spaces_too: bool) -> None:
    """Checks a whole fragment at once, at its end.

    Args:
        group: Whose rollout.
        vector_env: For the message.
        spaces_too: Whether observations must be in their space.

    Raises:
        EnvError: For a NaN reward or observation, or an observation outside its space; names copy, agent and step.
    """
    rollout = group.rollout
    begin = group.lookback * rollout.num_lanes
    used = rollout.columns[Columns.T][begin:] >= 0
    rewards = rollout.columns[Columns.REWARDS][begin:]
    if not np.isfinite(rewards).all():
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise EnvError(f"{_who(group, begin + row)}: the reward is {rewards[row]}. Rewards must be finite numbers.")
    observations = tree_map(lambda leaf: leaf[begin:], rollout.source(Columns.OBS))
    if spaces_too and spaces.all_within(rollout.observation_space, observations):
        return  # the usual case; nothing that is NaN is within bounds
    for leaf in leaves(observations):
        if np.issubdtype(leaf.dtype, np.floating) and np.isnan(leaf.min(initial=0.0)):
            row = int(np.argwhere(np.isnan(leaf))[0][0])
            raise EnvError(f"{_who(group, begin + row)}: the observation contains NaN. Fix the environment.")
    if spaces_too:
        bad, _ = spaces.outside(rollout.observation_space, observations)
        bad &= used
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            _, why = spaces.outside(rollout.observation_space, tree_map(lambda leaf: leaf[row : row + 1], observations))
            raise EnvError(
                f"{_who(group, begin + row)}: the observation leaves its space, "
                f"{spaces.describe(rollout.observation_space)}: {why}. Fix the environment's observation_space, or set "
                f"disable_env_checking=True (--no-env-check on the command line)."
            )


def check_forward_batch(batch: ColumnBatch, rl_module: MultiRLModule) -> None:
    """Checks that each module gets observations of the shape that it was built for.

    Raises:
        ModuleError: If not; names the module and both shapes.
        ConnectorError: If there is nothing in the batch.
    """
    for group in batch.groups:
        if not group:
            raise ConnectorError(
                f"the env-to-module pipeline put nothing into the batch of module {group.module_ids[0]!r}. Let one of "
                f"its pieces add 'obs', or leave add_default_connectors_to_env_to_module_pipeline on."
            )
        for module_id in group.module_ids:
            if rl_module[module_id].is_stateful() and Columns.STATE_IN not in group:
                raise ModuleError(
                    f"module {module_id!r}: it is stateful, but the env-to-module pipeline gives it no 'state_in'. Put "
                    f"AddTimeDimToBatchAndZeroPad and AddStatesFromEpisodesToBatch behind "
                    f"AddObservationsFromEpisodesToBatch."
                )
        check_observations(group, rl_module, train=False)


def check_actions(batch: ColumnBatch) -> None:
    """Checks that there is an action for each row, in an array.

    Raises:
        ConnectorError: If not.
    """
    for group in batch.groups:
        actions = group.get(Columns.ACTIONS)
        if actions is None or not all(isinstance(leaf, np.ndarray) for leaf in leaves(actions)):
            found = "no 'actions'" if actions is None else f"'actions' as {type(leaves(actions)[0]).__name__}"
            raise ConnectorError(
                f"the module-to-env pipeline gave {found} for module {group.module_ids[0]!r}. Let its pieces make "
                f"numpy arrays (GetActions, TensorToNumpy), or leave "
                f"add_default_connectors_to_module_to_env_pipeline on."
            )


def _who(group: LaneGroup, position: int) -> str:
    row, number = divmod(position, group.rollout.num_lanes)
    t = int(group.rollout.columns[Columns.T][position])
    for lane in group.lanes:
        if lane.number == number:
            return f"environment copy {lane.env_index}, agent {lane.agent_id!r}, env step {t}"
    return f"lane {number}, row {row}, env step {t}"


def bad_rewards(group: LaneGroup, vector_env: VectorEnv, rewards: Sequence[Any]) -> EnvError:
    """The error for rewards that do not fit into a column of numbers."""
    for lane, reward in zip(group.acting, rewards, strict=False):
        if np.ndim(reward) != 0 or not np.issubdtype(np.asarray(reward).dtype, np.number):
            return EnvError(f"{_place(lane, vector_env)}: the reward is {reward!r}, not a number. Return one float.")
    return EnvError(f"EnvRunner: rewards that do not fit: {list(rewards)!r}.")


def bad_observations(group: LaneGroup, vector_env: VectorEnv, observations: Sequence[Any]) -> EnvError:
    """The error for observations that do not fit into their space's columns."""
    space = group.rollout.observation_space
    for lane, observation in zip(group.acting, observations, strict=False):
        if not _fits(space, observation):
            return bad_observation(lane, vector_env, observation)
    return EnvError(f"EnvRunner: observations that do not fit {spaces.describe(space)}.")


def bad_observation(lane: Lane, vector_env: VectorEnv, observation: Any) -> EnvError:
    """The error for one agent's observation that does not fit into its space's columns."""
    shape = getattr(observation, "shape", None)
    came = f"shape {shape}" if shape is not None else repr(observation)
    space = spaces.describe(lane.group.rollout.observation_space)
    return EnvError(
        f"{_place(lane, vector_env)}: the observation does not fit its space, {space}: {came}. Fix the environment, or "
        f"its observation_space."
    )


def _fits(space: Any, observation: Any) -> bool:
    try:
        return tree_map(np.shape, spaces.zeros(space)) == tree_map(np.shape, observation)
    except ValueError:
        return False


def _place(lane: Lane, vector_env: VectorEnv) -> str:
    return f"{vector_env.copies[lane.env_index]}, agent {lane.agent_id!r}"
