"""What environments must not give: observations outside their space or not finite, rewards that are no numbers.

Finite values of a Box beyond its bounds are a warning: modules can deal with them, and a run that has come so far is
worth more. All else is an error: a Discrete value outside its space has no place in a one-hot vector.
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
from marl_connectors.environments.validation.checks import no_observation, observation_violations, reward_violation
from marl_connectors.environments.validation.rules import Violation
from marl_connectors.environments.vector.step_result import StepResult
from marl_connectors.environments.vector.sync import VectorEnv
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EnvError, EnvWarning, ModuleError
from marl_connectors.rl_module.calls import check_observations
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import derived_seed
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, Tree

Episodes = Callable[[], Iterable[tuple[int, Episode]]]
"""Gives the episodes that have rows in the columns, with their sub-environments, for messages."""
_WARNINGS_A_PART = 8
"""Components of one part that have a warning of their own, at most. An image may have many that are out of bounds."""


class OutOfBounds:
    """Observations beyond the bounds of their space, which are counted, and told of once for each component.

    Attributes:
        count: Observations of single agents since they were last taken from here.
    """

    def __init__(self, told: dict[Any, set[int]] | None = None):
        """Takes the components that the run was told of already, which several of its runners have in common."""
        self.count = 0
        self._told: dict[Any, set[int]] = {} if told is None else told

    def take(self) -> int:
        """The count since the last call."""
        count, self.count = self.count, 0
        return count

    def note(self, space: Space, observations: Tree, new: np.ndarray, where: Callable[[int], str]) -> None:
        """Counts rows, and warns of components that nobody was told of yet.

        Args:
            space: Of the observations.
            observations: ``[N, ...]``, all finite.
            new: ``[N]`` bool, which rows hold observations that were not counted before.
            where: Says whose observation is in a row.
        """
        found = np.zeros(len(new), bool)
        for path, part, values in spaces.parts_with_values(space, observations):
            if isinstance(part, Box):
                rows, components = spaces.beyond_bounds(part, values, new)
                found |= rows
                self._tell(part, path, values, components, where)
        self.count += int(found.sum())

    def _tell(
        self,
        box: Box,
        path: tuple[Any, ...],
        values: np.ndarray,
        components: dict[int, int],
        where: Callable[[int], str],
    ) -> None:
        told = self._told.setdefault((path, box.shape, hash(box.low.tobytes()), hash(box.high.tobytes())), set())
        for number, row in components.items():
            if len(told) >= _WARNINGS_A_PART:
                return
            if number in told:
                continue
            told.add(number)
            place = tuple(map(int, np.unravel_index(number, box.shape))) if box.shape else ()
            part = f" of part {', '.join(map(repr, path))}" if path else ""
            component = f"component {', '.join(map(str, place))}{part}" if place else part.removeprefix(" of ") or "it"
            last = len(told) == _WARNINGS_A_PART and box.low.size > _WARNINGS_A_PART
            warnings.warn(
                f"{where(row)}: the observation leaves its space, {spaces.describe(box)}: {component} is "
                f"{values[(row, *place)]!s}, not in [{box.low[place]!s}, {box.high[place]!s}]. The run goes on. "
                f"Correct the environment's observation_space, or clip what it gives. This component is not mentioned "
                f"again{', nor are further ones of this part' if last else ''}; num_observations_out_of_bounds counts.",
                EnvWarning,
                stacklevel=2,
            )


def check_columns(
    group: LaneGroup, vector_env: VectorEnv, episodes: Episodes, out_of_bounds: OutOfBounds | None
) -> None:
    """Checks a whole fragment at once, at its end.

    Args:
        group: Whose rollout.
        vector_env: For the message.
        episodes: Likewise.
        out_of_bounds: Takes note of finite values beyond the bounds of a Box; None where observations need not be in
            their space.

    Raises:
        EnvError: For a reward or observation that is not finite, or a Discrete, MultiDiscrete or MultiBinary value
            outside its space; names sub-environment, episode, agent, step and seed.
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
    if not np.isfinite(rewards).all():
        failed.append((int(np.flatnonzero(~np.isfinite(rewards))[0]), "reward"))
    space, observations = rollout.observation_space, tree_map(lambda leaf: leaf[begin:], rollout.source(Columns.OBS))
    if not failed and out_of_bounds is not None and spaces.all_within(space, observations):
        return  # the usual case: finite too

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
    if failed:  # the first one, as others may follow from it: a reward from the observation that was acted on
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


def _where(group: LaneGroup, position: int, vector_env: VectorEnv, episodes: Episodes) -> tuple[str, str]:
    """Of a row of a rollout: the agent whose episode it is, who may have left its lane; and a sentence on the seed."""
    t = int(group.rollout.columns[Columns.T][position])
    owner = owner_of(group, position, episodes)
    if owner is None:
        return f"an episode that was dropped, env step {t}", ""
    env_index, episode, own = owner
    agent_id = DEFAULT_AGENT_ID if own.agent_id is None else own.agent_id
    episode_number = int(str(episode.id_).split("-")[1])
    where = f"sub-environment {env_index}, episode {episode_number}, agent {agent_id!r}, env step {t}"
    return where, _seed_of(vector_env, env_index, episode_number)


def owner_of(group: LaneGroup, position: int, episodes: Episodes) -> tuple[int, Episode, SingleAgentEpisode] | None:
    """The sub-environment, episode and agent episode that a row of a rollout is in; None if that was dropped."""
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


def _seed_of(vector_env: VectorEnv, env_index: int, episode_number: int) -> str:
    """A sentence about how to begin the episode again, where that is possible without the other sub-environments."""
    if vector_env.is_batched:
        return ""
    return f" The episode's seed is {derived_seed(vector_env.seed, 'env', env_index, episode_number)}."


def bad_rewards(group: LaneGroup, vector_env: VectorEnv, rewards: Sequence[Any], result: StepResult) -> EnvError:
    """The error for rewards of a step that do not fit into a column of numbers."""
    for lane, reward in zip(group.acting, rewards, strict=False):
        found = reward_violation(lane.agent_id, reward)
        if found is not None and (np.ndim(reward) or not np.issubdtype(np.asarray(reward).dtype, np.number)):
            return _error_of(lane, vector_env, f"{found.what}. {found.advice}", result)
    return EnvError(f"EnvRunner: rewards that do not fit: {list(rewards)!r}.")


def bad_observations(group: LaneGroup, vector_env: VectorEnv, observations: Sequence[Any]) -> EnvError:
    """The error for observations that do not fit into their space's columns."""
    space = group.rollout.observation_space
    for lane, observation in zip(group.acting, observations, strict=False):
        if not spaces.fits(space, observation):
            return bad_observation(lane, vector_env, observation)
    return EnvError(f"EnvRunner: observations that do not fit {spaces.describe(space)}.")


def bad_observation(lane: Lane, vector_env: VectorEnv, observation: Any, result: StepResult | None = None) -> EnvError:
    """The error for one agent's observation that does not fit into its space's columns.

    Args:
        lane: Whose.
        vector_env: Where.
        observation: What it got.
        result: Of the step, if it is an observation of before any reset in it.
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
    """Names the sub-environment's episode and step; those before the reset if it was reset in the same step."""
    sub_env = vector_env.sub_envs[lane.env_index]
    episode_number, t = sub_env.episode_number, sub_env.t
    over = {} if result is None else result.over
    if result is not None and sub_env.index in over and sub_env.index not in dict(result.late):
        episode_number, t = episode_number - 1, over[sub_env.index]
    where = f"sub-environment {sub_env.index}, episode {episode_number}, step {t}, agent {lane.agent_id!r}"
    return EnvError(f"{where}: {text}{_seed_of(vector_env, sub_env.index, episode_number)}")
