"""Checks for invalid data: observations outside their space or not finite, and rewards that are not numbers.

Finite values beyond the bounds of a Box cause a warning only, because modules can process them, and an error would end
a long run. All other invalid data cause an error: for example, a one-hot vector has no element for a Discrete value
outside its space.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.env_runners.lane_group import Lane, LaneGroup
from marl_connectors.environments.rules.checks import (
    LARGEST_REWARD,
    no_observation,
    observation_violations,
    reward_violation,
)
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.rules.violations import Violation
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EnvError, EnvWarning, ModuleError
from marl_connectors.rl_module.calls import check_observations
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import episode_seed
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, Tree

Episodes = Callable[[], Iterable[tuple[int, Episode]]]
"""Returns the episodes that have rows in the rollouts, each with its ``env_index``, for error messages."""
_WARNINGS_A_PART = 8
"""The largest number of components of one part that get a warning. Images may have many that are out of bounds."""


class OutOfBounds:
    """Counts observations beyond the bounds of their space, and warns once for each component.

    Attributes:
        count: The number of such observations of single agents since the last call of ``take``.
    """

    def __init__(self, warned: dict[Any, set[int]] | None = None):
        """Starts with a count of 0.

        Args:
            warned: The components that the run was warned of already. The runners of a run share and extend it. None if
                there are none.
        """
        self.count = 0
        self._warned: dict[Any, set[int]] = {} if warned is None else warned

    def take(self) -> int:
        """Returns the count since the last call and resets it."""
        count, self.count = self.count, 0
        return count

    def note(self, space: Space, observations: Tree, new: np.ndarray, where: Callable[[int], str]) -> None:
        """Counts rows out of bounds, and warns of components that have not been reported yet.

        Args:
            space: The space of the observations.
            observations: ``[N, ...]``, all finite.
            new: ``[N]`` bool, which rows contain observations that were not counted before.
            where: Describes the agent, episode and step of a row, for the warning.
        """
        found = np.zeros(len(new), bool)
        for path, part, values in spaces.parts_with_values(space, observations):
            if isinstance(part, Box):
                rows, components = spaces.beyond_bounds(part, values, new)
                found |= rows
                self._warn(part, path, values, components, where)
        self.count += int(found.sum())

    def _warn(
        self,
        box: Box,
        path: tuple[Any, ...],
        values: np.ndarray,
        components: dict[int, int],
        where: Callable[[int], str],
    ) -> None:
        warned = self._warned.setdefault((path, box.shape, hash(box.low.tobytes()), hash(box.high.tobytes())), set())
        for number, row in components.items():
            if len(warned) >= _WARNINGS_A_PART:
                return
            if number in warned:
                continue
            warned.add(number)
            place = tuple(map(int, np.unravel_index(number, box.shape))) if box.shape else ()
            part = f" of part {', '.join(map(repr, path))}" if path else ""
            component = f"component {', '.join(map(str, place))}{part}" if place else part.removeprefix(" of ") or "it"
            last = len(warned) == _WARNINGS_A_PART and box.low.size > _WARNINGS_A_PART
            warnings.warn(
                f"{where(row)}: the observation leaves its space, {spaces.describe(box)}: {component} is "
                f"{values[(row, *place)]!s}, not in [{box.low[place]!s}, {box.high[place]!s}]. The run continues. "
                f"Correct the environment's observation_space, or clip its observations. There are no more warnings of "
                f"this component{', nor of others of this part' if last else ''}; num_observations_out_of_bounds "
                f"counts the observations.",
                EnvWarning,
                stacklevel=2,
            )


def check_columns(
    group: LaneGroup, vector_env: VectorEnv, episodes: Episodes, out_of_bounds: OutOfBounds | None
) -> None:
    """Checks the rewards and observations of a whole fragment, once at the end of the fragment.

    Args:
        group: The lane group whose rollout is checked.
        vector_env: The sub-environments, for the error message.
        episodes: Returns the episodes that have rows in the rollout, for the error message.
        out_of_bounds: Counts finite values beyond the bounds of a Box. None if observations need not be in their
            space.

    Raises:
        EnvError: If a reward or observation is not finite, a reward is beyond float32, or a Discrete, MultiDiscrete or
            MultiBinary value is outside its space. The message names the sub-environment, episode, agent, step and
            seed.
    """
    rollout = group.rollout
    begin = group.lookback * rollout.num_lanes
    used = rollout.columns[Columns.T][begin:] >= 0

    def error(row: int, found: Violation | None) -> EnvError:
        assert found is not None
        where, seed = _where(group, begin + row, vector_env, episodes)
        return EnvError(f"{where}: {found.what}. {found.advice}{seed}")

    failed = []
    rewards = rollout.columns[Columns.REWARDS][begin:]
    if not (fits := np.abs(rewards) <= LARGEST_REWARD).all():
        failed.append((int(np.flatnonzero(~fits)[0]), "reward"))
    space, observations = rollout.observation_space, tree_map(lambda leaf: leaf[begin:], rollout.source(Columns.OBS))
    if not failed and out_of_bounds is not None and spaces.all_within(space, observations):
        return  # the usual case; values within a space are finite, too

    def judged(row: int, kind: str, path: tuple[Any, ...] | None = None) -> Violation | None:
        if kind == "reward":
            return reward_violation(None, rewards[row].item())
        found = observation_violations(None, space, tree_map(lambda leaf: leaf[row], observations))
        return next((each for each in found if each.kind == kind and path in (None, each.part)), None)

    for leaf in leaves(observations):
        if np.issubdtype(leaf.dtype, np.floating) and not (
            np.isfinite(leaf.min(initial=0.0)) and np.isfinite(leaf.max(initial=0.0))
        ):
            failed.append((int(np.argwhere(~np.isfinite(leaf))[0][0]), "observation-not-finite"))
    if failed:  # report the first one, because later ones may result from it, as a reward does from an observation
        row, kind = min(failed, key=lambda each: (each[0] // rollout.num_lanes, each[1]))
        raise error(row, judged(row, kind))
    if out_of_bounds is None:
        return
    for path, part, values in spaces.parts_with_values(space, observations):
        bad = used & spaces.outside(part, values)[0] if not isinstance(part, Box) else ()
        if np.any(bad):
            row = int(np.flatnonzero(bad)[0])
            raise error(row, judged(row, "observation-outside-space", path))
    new = used
    new[: rollout.num_lanes] &= ~group.carried
    out_of_bounds.note(space, observations, new, lambda row: _where(group, begin + row, vector_env, episodes)[0])


def check_forward_batch(batch: ColumnBatch, rl_module: MultiRLModule) -> None:
    """Checks that each module gets observations of the shape that it was built for.

    Args:
        batch: The forward batch.
        rl_module: The modules.

    Raises:
        ModuleError: If the shapes differ, or a stateful module gets no state. The message names the module.
        ConnectorError: If the batch of a module is empty.
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
                    f"module {module_id!r}: it is stateful, but the env-to-module pipeline adds no 'state_in' for it. "
                    f"Put AddTimeDimToBatchAndZeroPad and AddStatesFromEpisodesToBatch after "
                    f"AddObservationsFromEpisodesToBatch."
                )
        check_observations(group, rl_module, train=False)


def check_actions(batch: ColumnBatch) -> None:
    """Checks that the actions of each group are numpy arrays.

    Args:
        batch: The module outputs and actions, after the module-to-env pipeline.

    Raises:
        ConnectorError: If a group has no actions, or its actions are not numpy arrays.
    """
    for group in batch.groups:
        actions = group.get(Columns.ACTIONS)
        if actions is None or not all(isinstance(leaf, np.ndarray) for leaf in leaves(actions)):
            found = "no 'actions'" if actions is None else f"'actions' as {type(leaves(actions)[0]).__name__}"
            raise ConnectorError(
                f"the module-to-env pipeline returned {found} for module {group.module_ids[0]!r}. Let its pieces "
                f"return numpy arrays (GetActions, TensorToNumpy), or leave "
                f"add_default_connectors_to_module_to_env_pipeline on."
            )


def _where(group: LaneGroup, position: int, vector_env: VectorEnv, episodes: Episodes) -> tuple[str, str]:
    """Describes a row of a rollout for error messages.

    Returns:
        The sub-environment, episode, agent and step of the row, and a sentence on the episode's seed.
    """
    t = int(group.rollout.columns[Columns.T][position])
    owner = owner_of(group, position, episodes)
    if owner is None:
        return f"an episode that was dropped, env step {t}", ""
    _, episode, own = owner
    agent_id = DEFAULT_AGENT_ID if own.agent_id is None else own.agent_id
    env_number, episode_number = map(int, str(episode.id_).split("-"))
    where = f"sub-environment {env_number}, episode {episode_number}, agent {agent_id!r}, env step {t}"
    return where, _seed_of(vector_env, env_number, episode_number)


def owner_of(group: LaneGroup, position: int, episodes: Episodes) -> tuple[int, Episode, SingleAgentEpisode] | None:
    """Finds the episode that a row of a rollout belongs to. The agent may have left its lane since.

    Args:
        group: The lane group.
        position: The position of the row in the columns of the rollout.
        episodes: Returns the episodes that have rows in the rollout.

    Returns:
        The ``env_index``, the episode and the agent's episode. None if the episode was dropped.
    """
    row, number = divmod(position, group.rollout.num_lanes)
    for env_index, episode in episodes():
        owns = episode.all_agent_episodes() if isinstance(episode, MultiAgentEpisode) else [episode]
        for own in owns:
            storage = own.storage
            if (
                isinstance(storage, LaneStorage)
                and storage.rollout is group.rollout
                and storage.lane == number
                and storage.start_row <= row <= storage.last_row
            ):
                return env_index, episode, own
    return None


def _seed_of(vector_env: VectorEnv, env_number: int, episode_number: int) -> str:
    """Returns a sentence on the episode's seed. It is ``""`` for batched environments, which have no such seeds."""
    if vector_env.is_batched:
        return ""
    return f" The episode's seed is {episode_seed(vector_env.seed, env_number, episode_number)}."


def bad_rewards(group: LaneGroup, vector_env: VectorEnv, rewards: Sequence[Any], result: StepResult) -> EnvError:
    """Returns the error for rewards of a step that cannot be stored in a column of numbers.

    Args:
        group: The lane group.
        vector_env: The sub-environments.
        rewards: The rewards of the group's lanes that act.
        result: The result of the step.
    """
    for lane, reward in zip(group.acting, rewards, strict=False):
        found = reward_violation(lane.agent_id, reward)
        if found is not None and (np.ndim(reward) or not np.issubdtype(np.asarray(reward).dtype, np.number)):
            return _error_of(lane, vector_env, f"{found.what}. {found.advice}", result)
    return EnvError(f"EnvRunner: the rewards are not one number for each agent: {list(rewards)!r}.")


def bad_observations(group: LaneGroup, vector_env: VectorEnv, observations: Sequence[Any]) -> EnvError:
    """Returns the error for observations that cannot be stored in the columns of their space.

    Args:
        group: The lane group.
        vector_env: The sub-environments.
        observations: The observations of the group's lanes that act.
    """
    space = group.rollout.observation_space
    for lane, observation in zip(group.acting, observations, strict=False):
        if not spaces.fits(space, observation):
            return bad_observation(lane, vector_env, observation)
    return EnvError(f"EnvRunner: the observations do not fit their space, {spaces.describe(space)}.")


def bad_observation(lane: Lane, vector_env: VectorEnv, observation: Any, result: StepResult | None = None) -> EnvError:
    """Returns the error for one agent's observation that cannot be stored in the columns of its space.

    Args:
        lane: The agent's lane.
        vector_env: The sub-environments.
        observation: The observation.
        result: The result of the step, if the observation is from before any reset in this step. Otherwise None.
    """
    space = lane.group.rollout.observation_space
    found = next(observation_violations(lane.agent_id, space, observation), None)
    if observation is None and result is None:
        found = no_observation(lane.agent_id, True)
    what = f"the observation leaves its space, {spaces.describe(space)}: {observation!r}"
    text = (
        f"{what}. Fix the environment, or its observation_space." if found is None else f"{found.what}. {found.advice}"
    )
    return _error_of(lane, vector_env, text, result)


def _error_of(lane: Lane, vector_env: VectorEnv, text: str, result: StepResult | None) -> EnvError:
    """Returns an error that names the sub-environment, episode, step and agent, and the episode's seed.

    If the sub-environment was reset in the step of ``result``, the episode and the step are those before the reset.
    """
    sub_env = vector_env.sub_envs[lane.env_index]
    episode_number, t = sub_env.episode_number, sub_env.t
    over = {} if result is None else result.over
    if result is not None and sub_env.index in over and sub_env.index not in dict(result.late):
        episode_number, t = episode_number - 1, over[sub_env.index]
    where = f"sub-environment {sub_env.number}, episode {episode_number}, step {t}, agent {lane.agent_id!r}"
    return EnvError(f"{where}: {text}{_seed_of(vector_env, sub_env.number, episode_number)}")
