"""Episodes with the actions of modules, from which learners learn, in place of the environment's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.episodes.action_units import ENV, NORMALIZED, in_units
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ACTIONS, known_items
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, Tree

SpaceOf = Callable[[SingleAgentEpisode], Space | None]


def with_module_actions(episodes: Iterable[Any], units: str = NORMALIZED, *, modules: Any = None) -> list[Any]:
    """Returns episodes whose actions are those of modules. Copies stand for those that hold others; none is changed.

    Sampled episodes are returned as they are, and so are episodes in which the numbers of both are the same.

    Args:
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        units: What actions of modules are: ``NORMALIZED`` or ``UNSCALED``.
        modules: A MultiRLModule, whose action spaces are those of episodes that know none.

    Raises:
        EpisodeError: If an episode holds actions of the environment that are not in their space.
    """
    made: dict[int, tuple[Rollout, Rollout]] = {}

    def space_of(agent: SingleAgentEpisode) -> Space | None:
        module_id = agent.module_id or DEFAULT_MODULE_ID
        is_known = agent.action_space is not None or modules is None or module_id not in modules
        return agent.action_space if is_known else modules[module_id].action_space  # type: ignore[index]

    return [_episode(episode, units, space_of, made) for episode in episodes]


def _episode(episode: Any, units: str, space_of: SpaceOf, made: dict[int, tuple[Rollout, Rollout]]) -> Any:
    if isinstance(episode, SingleAgentEpisode):
        return _agent_episode(episode, units, space_of, made)
    if not isinstance(episode, MultiAgentEpisode) or episode.agent_views is not None:  # a runner's own
        return episode
    living = {a: _agent_episode(own, units, space_of, made) for a, own in episode.agent_episodes.items()}
    past = [_agent_episode(own, units, space_of, made) for own in episode.past_agent_episodes]
    before = [*episode.agent_episodes.values(), *episode.past_agent_episodes]
    if all(new is old for new, old in zip([*living.values(), *past], before, strict=True)):
        return episode
    new = copy.copy(episode)
    new.agent_episodes, new.past_agent_episodes = living, past
    return new


def _agent_episode(
    agent: SingleAgentEpisode, units: str, space_of: SpaceOf, made: dict[int, tuple[Rollout, Rollout]]
) -> SingleAgentEpisode:
    storage = agent.storage
    given = storage.action_units
    if given == units or not (len(storage) or storage.lookback or storage.pending()):
        return agent
    space = space_of(agent)
    if space is None:
        return agent
    if given == ENV:
        _check(agent, space)
    if isinstance(storage, LaneStorage):
        rollout = storage.rollout
        if id(rollout) not in made:
            made[id(rollout)] = rollout, rollout.with_actions_in(units, space)  # the first one stays alive with its id
        other = made[id(rollout)][1]
        if other is rollout:
            return agent
        new = copy.copy(agent)
        new.storage = LaneStorage(
            other, storage.lane, first_row=storage.first_row, start_row=storage.start_row, stop_row=storage.stop_row
        )
        return new
    arrays: Any = copy.copy(agent.as_arrays())
    column, pending = arrays.columns[ACTIONS], arrays.open_row
    actions = in_units(space, column, given, units)
    if pending is not None:
        waiting = spaces.stack([pending[ACTIONS]], space)
        item = tree_map(lambda leaf: leaf[0], in_units(space, waiting, given, units))
    if all(one is other for one, other in zip(leaves(actions), leaves(column), strict=True)) and pending is None:
        return agent
    new = copy.copy(agent)
    new.storage = arrays
    arrays.columns, arrays.given_units = {**arrays.columns, ACTIONS: actions}, units
    if pending is not None:
        arrays.open_row = {**pending, ACTIONS: item}
    return new


def _check(agent: SingleAgentEpisode, space: Space) -> None:
    """Checks that an agent's episode has actions of the environment.

    Raises:
        EpisodeError: For the first one that is not in its space.
    """
    actions: Any = known_items(agent.storage, ACTIONS)
    try:
        column: Tree = spaces.stack(actions, space) if isinstance(actions, list) else actions
        bad, why = spaces.outside(space, column)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        bad, why = np.ones(1, bool), f"the actions cannot be in one column of their space ({error})"
    if bad.any():
        step = int(np.flatnonzero(bad)[0]) - agent.storage.lookback + agent.t_started
        raise EpisodeError(
            f"Episode {agent.multi_agent_episode_id or agent.id_!r}, agent {agent.agent_id!r}, step {step}: the action "
            f"is not in its space, {spaces.describe(space)}: {why}. An episode made by hand holds the environment's "
            f"actions. Add those of a module with its extra model outputs, such as 'action_logp' or "
            f"'actions_for_env'."
        )
