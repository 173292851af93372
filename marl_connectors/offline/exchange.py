"""The steps of agents as plain arrays, for exchange with other formats."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, in_units
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import chunks_of, packed
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ACTIONS, INFOS, OBS, REWARDS, ArrayStorage, T
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.episode_reader import EpisodeReader
from marl_connectors.state import Count, State
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, EpisodeID, Tree


class AgentFacts(State):
    """What is known of an agent's episode beside its steps. What other programs have not written is None.

    Attributes:
        episode: The number of the whole episode in the data.
        eps_id: Its id.
        eps_t_started: The env step at which it begins.
        eps_t: That at which it stops.
        eps_terminated: Whether it is terminated.
        eps_truncated: Whether it is truncated.
        agent_eps_id: The id of the agent's episode.
        agent_t: The number of steps that the agent has taken before.
        module_id: The module that has acted.
    """

    episode: Count
    eps_id: EpisodeID
    eps_t_started: Count
    eps_t: Count | None
    eps_terminated: bool | None
    eps_truncated: bool | None
    agent_eps_id: EpisodeID
    agent_t: Count
    module_id: str | None


OF_WHOLE: Final = ("eps_id", "eps_t_started", "eps_t", "eps_terminated", "eps_truncated")
"""The facts that all agents of an episode have in common."""


# Writing.


class AgentRows(NamedTuple):
    """The steps of an agent's episode, without lookback, as the environment gave them.

    Attributes:
        agent: The agent's episode.
        facts: What else is known of it.
        is_multi_agent: Whether it belongs to a MultiAgentEpisode.
        observations: ``[T + 1, ...]``, as the environment gave them.
        actions: ``[T, ...]``, as the episode holds them.
        action_units: Whose actions these are, of ``action_units.ALL``.
        rewards: ``[T]`` float64.
        t: ``[T + 1]``, the env step of each observation.
        infos: ``T + 1`` dicts.
        outputs: The recorded module outputs, ``[T, ...]`` each.
    """

    agent: SingleAgentEpisode
    facts: AgentFacts
    is_multi_agent: bool
    observations: Tree
    actions: Tree
    action_units: str
    rewards: np.ndarray
    t: np.ndarray
    infos: list[dict[str, Any]]
    outputs: dict[str, Tree]

    def actions_for_env(self) -> Tree:
        """Returns the actions as the environment gets them."""
        space = self.agent.action_space
        return self.actions if space is None else in_units(space, self.actions, self.action_units, ENV)


def samples_of_rows(data: Any, who: str) -> Iterator[list[AgentRows]]:
    """Yields the steps of all agents of each recorded sample. Warns of what they do not hold, at the end.

    Args:
        data: A folder or file of recorded episodes, a list of them, an EpisodeReader, or a list of episodes.
        who: The name of the function, for the warning.
    """
    is_path = isinstance(data, (str, os.PathLike))
    if is_path or (isinstance(data, Sequence) and data and isinstance(data[0], (str, os.PathLike))):
        data = EpisodeReader(data)
    number, lacking = 0, Counter[str]()
    for sample in data.samples() if isinstance(data, EpisodeReader) else [None]:
        found = []
        for episode in list(data) if sample is None else sample.episodes():
            lacking += left_out(episode)
            found += agent_rows(episode, number)
            number += 1
        yield found
    if lacking:
        what = ", ".join(f"{count:,} {name}" for name, count in lacking.items())
        warnings.warn(
            f"{who}: not written, because the format has no place for it: {what}. EpisodeWriter keeps everything.",
            OfflineDataWarning,
            stacklevel=3,
        )


def _agent_episodes(episode: Any) -> list[SingleAgentEpisode]:
    return [chunk if isinstance(chunk, SingleAgentEpisode) else chunk.episode() for chunk in chunks_of([episode])]


def agent_rows(episode: Any, number: int = 0) -> list[AgentRows]:
    """Returns the steps of each agent's episode that has any.

    Args:
        episode: A SingleAgentEpisode or MultiAgentEpisode.
        number: Its number in the data.
    """
    is_multi = isinstance(episode, MultiAgentEpisode)
    begin, end = (episode.env_t_started, episode.env_t) if is_multi else (episode.t_started, episode.t)
    of_whole = (number, str(episode.id_), begin, end, episode.is_terminated, episode.is_truncated)
    found = []
    for agent in packed([own for own in _agent_episodes(episode) if len(own)]):
        assert isinstance(agent, SingleAgentEpisode) and isinstance(agent.storage, LaneStorage)
        storage, first = agent.storage, agent.storage.lookback
        own = {name: storage.part(name, first, None) for name in (ACTIONS, REWARDS, T, INFOS)}
        found.append(
            AgentRows(
                agent,
                AgentFacts(*of_whole, str(agent.id_), agent.t_started, agent.module_id),
                is_multi,
                tree_map(lambda leaf, first=first: leaf[first:], storage.source(OBS)),
                own[ACTIONS],
                storage.action_units,
                np.asarray(own[REWARDS], np.float64),
                np.asarray(own[T], np.int64),
                own[INFOS],
                {name: storage.part(name, first, None) for name in storage.extra_keys()},
            )
        )
    return found


def left_out(episode: Any) -> Counter[str]:
    """Returns what of an episode ``agent_rows`` does not return, beside lookbacks and what pieces have written."""
    found: Counter[str] = Counter()
    for agent in _agent_episodes(episode):
        notes = agent.get_notes()
        found["agents' episodes without a step"] += not len(agent)
        found["actions that have not been answered yet, with their rewards"] += "pending" in notes
        found["rewards after an agent's last step"] += "uncredited_reward" in notes
        found["agents' episodes with custom_data"] += "custom_data" in notes
        found["agents' episodes with states of the environment"] += (
            isinstance(agent.storage, LaneStorage) and Columns.ENV_STATE in agent.storage.rollout.columns
        )
    if isinstance(episode, MultiAgentEpisode):
        notes = episode.get_notes({})
        found["episodes with custom_data"] += "custom_data" in notes
        found["rewards of agents that have not observed yet"] += len(notes.get("unclaimed", ()))
    return +found


def leaf_columns(name: str, column: Tree) -> list[tuple[str, np.ndarray]]:
    """Returns the arrays of a tree with their names: ``obs``, or ``obs.position``, ``obs.cards.0`` for parts.

    Keys with dots can make two names equal.
    """
    if isinstance(column, (dict, tuple)):
        parts = column.items() if isinstance(column, dict) else enumerate(column)
        return [leaf for key, part in parts for leaf in leaf_columns(f"{name}.{key}", part)]
    return [(name, np.asarray(column))]


# Reading.


class AgentPart(NamedTuple):
    """An agent's episode that was read.

    Attributes:
        agent: The agent's episode.
        facts: What else is known of it.
        is_multi_agent: Whether it belongs to a MultiAgentEpisode.
        where: Where it was read.
    """

    agent: SingleAgentEpisode
    facts: AgentFacts
    is_multi_agent: bool
    where: str

    @property
    def t(self) -> tuple[int, int]:
        """The env steps of its first and its last observation."""
        t: Any = self.agent.storage.column(T)
        return int(t[0]), int(t[-1])


def agent_part(
    columns: dict[str, Tree],
    facts: AgentFacts,
    agent_id: AgentID | None,
    *,
    is_multi_agent: bool,
    spaces_of: tuple[Space | None, Space | None],
    ends: tuple[bool, bool],
    action_units: str | None,
    where: str,
) -> AgentPart:
    """Returns an agent's episode of columns of arrays: ``OBS``, ``INFOS`` and ``T`` have one item more than the others.

    Args:
        columns: The columns.
        facts: What else is known of it.
        agent_id: The agent.
        is_multi_agent: Whether it belongs to a MultiAgentEpisode.
        spaces_of: The observation space and the action space, if they are known.
        ends: Whether it is terminated, and truncated.
        action_units: Whose actions these are; None if it follows from the module outputs.
        where: Where it was read.
    """
    episode = SingleAgentEpisode.from_storage(
        ArrayStorage(columns, action_units=action_units),
        id_=facts.agent_eps_id,
        agent_id=agent_id,
        module_id=facts.module_id,
        multi_agent_episode_id=facts.eps_id if is_multi_agent else None,
        t_started=facts.agent_t,
        observation_space=spaces_of[0],
        action_space=spaces_of[1],
    )
    episode.is_terminated, episode.is_truncated = ends
    episode.validate()
    return AgentPart(episode, facts, is_multi_agent, where)


def whole_episodes(who: str, parts: Mapping[Any, Sequence[AgentPart]]) -> list[Any]:
    """Returns the episodes of agents' episodes, in the order of their numbers.

    Args:
        who: The name of the function that reads, for errors.
        parts: The agents' episodes of each episode.

    Raises:
        OfflineDataError: If the agents of an episode say other things about it, or one has two episodes at a time.
    """
    return [_whole_episode(who, own) for own in sorted(parts.values(), key=lambda own: own[0].facts.episode)]


def _whole_episode(who: str, parts: Sequence[AgentPart]) -> Any:
    first, facts, advice = parts[0], parts[0].facts, "Each episode needs an id, and a number, of its own."
    for other in parts[1:]:
        known = [(name, getattr(facts, name), getattr(other.facts, name)) for name in OF_WHOLE]
        differences = ", ".join(f"{name} {one!r} and {another!r}" for name, one, another in known if one != another)
        if differences:
            raise OfflineDataError(
                f"{who}: {other.where} says other things about the episode than {first.where}: {differences}. {advice}"
            )
        if not first.is_multi_agent:
            raise OfflineDataError(
                f"{who}: {other.where} belongs to an episode of a single agent that {first.where} has already. {advice}"
            )
    if not first.is_multi_agent:
        return first.agent
    end = max(part.t[1] for part in parts) if facts.eps_t is None else facts.eps_t
    episode = MultiAgentEpisode.from_agent_episodes(facts.eps_id, {}, env_t_started=facts.eps_t_started, env_t=end)
    newest: dict[AgentID, AgentPart] = {}
    for part in sorted(parts, key=lambda part: part.t[0]):
        agent = part.agent
        former = newest.get(agent.agent_id)
        if former is not None and (not former.agent.is_done or former.t[1] > part.t[0]):
            raise OfflineDataError(
                f"{who}: {part.where} begins another episode of agent {agent.agent_id!r}, but the one from "
                f"{former.where} has not ended by then. {advice}"
            )
        newest[agent.agent_id] = part
        episode.attach(agent.agent_id, agent)
        if agent.module_id is not None:
            episode.know_modules({agent.agent_id: agent.module_id})
    if facts.eps_terminated is not None and facts.eps_truncated is not None:
        episode.is_terminated, episode.is_truncated = facts.eps_terminated, facts.eps_truncated
    elif all(part.agent.is_done for part in parts):
        episode.is_truncated = any(part.agent.is_truncated for part in parts)
        episode.is_terminated = not episode.is_truncated
    return episode
