"""Agents' episodes as plain arrays, for exchange with other formats."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, in_units
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import chunks_of, packed
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ACTIONS, INFOS, OBS, REWARDS, ArrayStorage, T
from marl_connectors.errors import OfflineDataWarning
from marl_connectors.offline.episode_reader import EpisodeReader
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, EpisodeID, Tree


class AgentRows(NamedTuple):
    """The steps of an agent's episode, without lookback, as the environment gave them.

    Attributes:
        agent: The agent's episode.
        observations: ``[T + 1, ...]``, as the environment gave them.
        actions: ``[T, ...]``, as the episode holds them.
        action_units: Whose actions these are, of ``action_units.ALL``.
        rewards: ``[T]`` float64.
        t: ``[T + 1]``, the env step of each observation.
        infos: ``T + 1`` dicts.
        outputs: The recorded module outputs, ``[T, ...]`` each.
    """

    agent: SingleAgentEpisode
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


def batches_of(data: Any) -> Iterator[list[Any]]:
    """Yields lists of episodes.

    Args:
        data: A folder or file of recorded episodes, a list of them, an EpisodeReader, or a list of episodes.
    """
    if isinstance(data, (str, os.PathLike)) or (
        isinstance(data, Sequence) and data and isinstance(data[0], (str, os.PathLike))
    ):
        data = EpisodeReader(data)
    if isinstance(data, EpisodeReader):
        for block in data.blocks():
            yield block.stored.episodes()
    else:
        yield list(data)


def agent_rows(episode: Any) -> list[AgentRows]:
    """Returns the steps of each agent's episode that has any."""
    chunks = [chunk if isinstance(chunk, SingleAgentEpisode) else chunk.episode() for chunk in chunks_of([episode])]
    found = []
    for chunk in packed([chunk for chunk in chunks if len(chunk)]):
        assert isinstance(chunk, SingleAgentEpisode) and isinstance(chunk.storage, LaneStorage)
        storage, begin = chunk.storage, chunk.storage.lookback
        own = {name: storage.part(name, begin, None) for name in (ACTIONS, REWARDS, T, INFOS)}
        found.append(
            AgentRows(
                chunk,
                tree_map(lambda leaf, b=begin: leaf[b:], storage.source(OBS)),
                own[ACTIONS],
                storage.action_units,
                np.asarray(own[REWARDS], np.float64),
                np.asarray(own[T], np.int64),
                own[INFOS],
                {name: storage.part(name, begin, None) for name in storage.extra_keys()},
            )
        )
    return found


def left_out(episode: Any) -> Counter[str]:
    """Returns what of an episode ``agent_rows`` does not return, beside lookbacks and what pieces have written."""
    chunks = [chunk if isinstance(chunk, SingleAgentEpisode) else chunk.episode() for chunk in chunks_of([episode])]
    found: Counter[str] = Counter()
    for chunk in chunks:
        notes = chunk.get_notes()
        found["agents' episodes without a step"] += not len(chunk)
        found["actions that have not been answered yet, with their rewards"] += "pending" in notes
        found["rewards after an agent's last step"] += "uncredited_reward" in notes
        found["agents' episodes with custom_data"] += "custom_data" in notes
        found["agents' episodes with states of the environment"] += (
            isinstance(chunk.storage, LaneStorage) and Columns.ENV_STATE in chunk.storage.rollout.columns
        )
    if isinstance(episode, MultiAgentEpisode):
        notes = episode.get_notes({})
        found["episodes with custom_data"] += "custom_data" in notes
        found["rewards of agents that have not observed yet"] += len(notes.get("unclaimed", ()))
    return +found


def warn_of_left_out(who: str, found: Counter[str]) -> None:
    """Warns of what a format does not keep, with the numbers of items."""
    if found:
        what = ", ".join(f"{number:,} {name}" for name, number in found.items())
        warnings.warn(
            f"{who}: not written, because the format has no place for it: {what}. EpisodeWriter keeps everything.",
            OfflineDataWarning,
            stacklevel=3,
        )


def agent_episode(
    columns: dict[str, Tree],
    *,
    id_: EpisodeID,
    agent_id: AgentID | None,
    module_id: str | None,
    whole_id: EpisodeID | None,
    t_started: int,
    spaces_of: tuple[Space | None, Space | None],
    ends: tuple[bool, bool],
    action_units: str | None,
) -> SingleAgentEpisode:
    """Returns an agent's episode of columns of arrays: ``OBS``, ``INFOS`` and ``T`` have one item more than the others.

    Args:
        columns: The columns.
        id_: The id of the agent's episode.
        agent_id: The agent.
        module_id: The module that acted.
        whole_id: The id of the MultiAgentEpisode, if there is one.
        t_started: The agent's own steps before these.
        spaces_of: The observation space and the action space, if they are known.
        ends: Whether it is terminated, and truncated.
        action_units: Whose actions these are; None if it follows from the module outputs.
    """
    episode = SingleAgentEpisode.from_storage(
        ArrayStorage(columns, action_units=action_units),
        id_=id_,
        agent_id=agent_id,
        module_id=module_id,
        multi_agent_episode_id=whole_id,
        t_started=t_started,
        observation_space=spaces_of[0],
        action_space=spaces_of[1],
    )
    episode.is_terminated, episode.is_truncated = ends
    episode.validate()
    return episode


def whole_episode(
    id_: EpisodeID, agents: Iterable[SingleAgentEpisode], env_t_started: int, env_t: int, ends: tuple[bool, bool]
) -> MultiAgentEpisode:
    """Returns the episode of several agents' episodes, in the order of their beginnings.

    Args:
        id_: The id.
        agents: The agents' episodes.
        env_t_started: The env step at which the episode, or chunk, begins.
        env_t: The env step at which it stops.
        ends: Whether it is terminated, and truncated.
    """
    episode = MultiAgentEpisode.from_agent_episodes(id_, {}, env_t_started=env_t_started, env_t=env_t)
    for agent in agents:
        episode.attach(agent.agent_id, agent)
        if agent.module_id is not None:
            episode.know_modules({agent.agent_id: agent.module_id})
    episode.is_terminated, episode.is_truncated = ends
    return episode


def leaf_columns(name: str, column: Tree) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree by name: ``obs``, or ``obs.position``, ``obs.cards.0`` for parts."""
    if isinstance(column, dict):
        return {k: v for key, part in column.items() for k, v in leaf_columns(f"{name}.{key}", part).items()}
    if isinstance(column, tuple):
        return {k: v for i, part in enumerate(column) for k, v in leaf_columns(f"{name}.{i}", part).items()}
    return {name: np.asarray(column)}


def leaf_names(name: str, column: Tree) -> list[str]:
    """Returns the names of ``leaf_columns``. Keys with dots can make two of them equal."""
    if isinstance(column, dict):
        return [found for key, part in column.items() for found in leaf_names(f"{name}.{key}", part)]
    if isinstance(column, tuple):
        return [found for i, part in enumerate(column) for found in leaf_names(f"{name}.{i}", part)]
    return [name]


def tree_shape(column: Tree) -> Any:
    """Returns the structure of a tree as JSON data: pairs for dicts, a list for tuples, None for an array."""
    if isinstance(column, dict):
        return {"dict": [[key, tree_shape(part)] for key, part in column.items()]}
    if isinstance(column, tuple):
        return {"tuple": [tree_shape(part) for part in column]}
    return None


def tree_of(name: str, shape: Any, arrays: dict[str, np.ndarray]) -> Tree:
    """Returns the tree that ``leaf_columns`` and ``tree_shape`` described."""
    if shape is None:
        return arrays[name]
    if "dict" in shape:
        return {key: tree_of(f"{name}.{key}", part, arrays) for key, part in shape["dict"]}
    return tuple(tree_of(f"{name}.{i}", part, arrays) for i, part in enumerate(shape["tuple"]))
