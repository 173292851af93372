"""The rows of a train batch from a list of episodes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.bootstrap_view import originals
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves, tree_map, tree_structure
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID, Tree


def chunks_of(episodes: Iterable[Any]) -> Iterator[SingleAgentEpisode | AgentChunk]:
    """Yields all agent episodes of SingleAgentEpisodes and MultiAgentEpisodes, without making any of them.

    The former lives of a MultiAgentEpisode's agents come first.
    """
    for episode in episodes:
        if not isinstance(episode, MultiAgentEpisode):
            yield episode
        elif episode.agent_views is None:
            yield from episode.all_agent_episodes()
        else:
            yield from episode.past_agent_episodes
            yield from episode.agent_views.chunks(episode)


def num_steps_of(chunk: SingleAgentEpisode | AgentChunk) -> int:
    """Returns the number of steps of an agent's episode, or of a chunk of it, without the lookback."""
    return chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)


def late_reward(chunk: Any) -> float:
    """Returns what arrived in a chunk for the agent's last step in the chunk before. Views of rollouts have none."""
    return getattr(chunk, "uncredited_reward", 0.0)


def lives_on(chunk: SingleAgentEpisode | AgentChunk, whole: Any) -> bool:
    """Whether an agent is there at its last observation: it acts on it, could act, or was stopped with all others.

    An agent that was terminated, or stopped before the whole episode was, is not there. Vectors of all agents' data ask
    this of every agent but the one that they are made for.

    Args:
        chunk: The agent's episode, or a chunk of it.
        whole: The MultiAgentEpisode, or the chunk of it, that it belongs to; itself if it belongs to none.
    """
    if not chunk.is_done:
        return True
    if chunk.is_terminated or not whole.is_done:
        return False
    last: Any = (
        chunk.rollout.columns[Columns.T][chunk.last_row * chunk.rollout.num_lanes + chunk.lane]  # type: ignore[index]
        if isinstance(chunk, AgentChunk)
        else chunk.storage.newest_t
    )
    return not isinstance(whole, MultiAgentEpisode) or last == whole.env_t


def rows_of_episodes(
    episodes: Sequence[SingleAgentEpisode | AgentChunk],
    module_ids: Sequence[ModuleID],
    *,
    last_only: bool = False,
    with_lookback: bool = False,
) -> Rows:
    """Returns the rows of all steps of agent episodes, and of each one's last observation, sorted by module.

    Episodes that are views of a rollout stay in it. Others are copied into a rollout, and become views of it, so that
    they get the items that connector pieces write back. An episode with an artificial step contributes its real steps.

    Args:
        episodes: Episodes with at least one step each, of the modules ``module_ids`` only, or ``AgentChunk``s of
            episodes that were not created yet, and are not created here.
        module_ids: The modules, in the order wanted.
        last_only: Whether to leave out the steps.
        with_lookback: Whether to include the lookback. The episodes need no steps then.
    """
    order = {module_id: i for i, module_id in enumerate(module_ids)}
    episodes = sorted(episodes, key=lambda e: order[e.module_id or DEFAULT_MODULE_ID])
    made = [e for e in episodes if not isinstance(e, AgentChunk)]
    if any(type(e.storage) is not LaneStorage for e in made):
        found = iter(originals(made))
        episodes = [e if isinstance(e, AgentChunk) else next(found) for e in episodes]
        _pack([e for e in episodes if not isinstance(e, AgentChunk) and type(e.storage) is not LaneStorage])
    storages: list[Any] = [e if isinstance(e, AgentChunk) else e.storage for e in episodes]
    runs = [list(run) for _, run in groupby(storages, key=lambda storage: id(storage.rollout))]
    parts, lengths = zip(*[_part(run, last_only, with_lookback) for run in runs], strict=True)
    counts = np.concatenate(lengths)
    ends = counts.cumsum()
    acted = np.ones(int(ends[-1]), bool)
    acted[ends - 1] = False
    module_of = [order[e.module_id or DEFAULT_MODULE_ID] for e in episodes]
    bounds = np.searchsorted(module_of, np.arange(len(order) + 1))
    splits = np.concatenate([[0], ends])[bounds]
    present = [i for i in range(len(order)) if splits[i + 1] > splits[i]]
    return Rows(
        parts,
        module_ids=tuple(module_ids[i] for i in present),
        splits=(0, *(int(splits[i + 1]) for i in present)),
        episodes=episodes,
        counts=counts.tolist(),
        acted=acted,
    )


def packed(chunks: Sequence[SingleAgentEpisode | AgentChunk]) -> list[SingleAgentEpisode | AgentChunk]:
    """Returns agent episodes that are all views of rollouts. Copies stand for those that are not; none is changed.

    Raises:
        EpisodeError: If the items of a column differ in shape.
    """
    found = [e if isinstance(e, AgentChunk) or type(e.storage) is LaneStorage else copy.copy(e) for e in chunks]
    made = [new for new, old in zip(found, chunks, strict=True) if new is not old]
    for episode in made:
        if not isinstance(episode, AgentChunk) and not len(episode):  # the dtypes of empty columns may be unknown
            episode.storage = episode.as_arrays()
            _pack([episode])
    by_kind: dict[Any, list[SingleAgentEpisode]] = {}
    for episode in made:
        if not isinstance(episode, AgentChunk) and type(episode.storage) is not LaneStorage:
            by_kind.setdefault(_kinds_of(episode), []).append(episode)
    for alike in by_kind.values():
        _pack(alike)
    return found


def _kinds_of(episode: SingleAgentEpisode) -> Any:
    """Returns the dtypes and shapes of an episode's columns, so that joining those of several changes none."""
    kinds = []
    for name in (Columns.OBS, Columns.ACTIONS, *episode.storage.extra_keys()):
        try:
            column = _stacked(episode, name)
        except (TypeError, ValueError) as error:
            raise EpisodeError(
                f"{episode.who}: the {name!r} cannot be one column ({error}). Use items of one shape for all steps."
            ) from error
        kinds.append((name, tree_structure(column), *[(leaf.dtype.str, leaf.shape[1:]) for leaf in leaves(column)]))
    return tuple(kinds)


def _part(storages: list[LaneStorage | AgentChunk], last_only: bool, with_lookback: bool) -> tuple[RowPart, np.ndarray]:
    """Returns the rows of episodes of one rollout, and the number of rows of each; arrays only, no loop over rows."""
    rollout = storages[0].rollout
    lanes = rollout.num_lanes
    table = np.array([(s.lane, s.first_row, s.start_row, s.last_row) for s in storages])
    lane, first, start, last = table.T
    if last_only:
        part = RowPart(rollout, last * lanes + lane, first * lanes + lane, last * lanes + lane)
        return part, np.ones(len(storages), np.int64)
    if with_lookback:
        start = first
    counts = last - start + 1
    ends = counts.cumsum()
    number = np.arange(ends[-1])  # of each row, in the order of the batch
    part = RowPart(
        rollout,
        positions=((start - ends + counts) * lanes + lane).repeat(counts) + number * lanes,
        first=(first * lanes + lane).repeat(counts),
        last=(last * lanes + lane).repeat(counts),
    )
    return part, counts


def _pack(episodes: list[SingleAgentEpisode]) -> None:
    """Copies episodes with like spaces and columns into one rollout of one lane, and makes the episodes its views."""
    rest = episodes
    while rest:
        kind = _columns_of(rest[0])
        alike = [e for e in rest if _columns_of(e) == kind]
        rest = [e for e in rest if _columns_of(e) != kind]
        counts = [e.storage.lookback + len(e.storage) + 1 for e in alike]
        names = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T, *alike[0].storage.extra_keys())
        columns = {name: _joined(alike, name, counts) for name in names}
        rollout = Rollout.of_columns(columns, *kind[:2], num_rows=sum(counts), action_units=kind[2])
        row = 0
        for episode, count in zip(alike, counts, strict=True):
            for i, info in enumerate(episode.storage.column(Columns.INFOS)):
                if info:
                    rollout.infos[row + i] = info
            first, start = row, row + episode.storage.lookback
            row += count
            episode.storage = LaneStorage(rollout, 0, first_row=first, start_row=start, stop_row=row - 1)


def _columns_of(episode: SingleAgentEpisode) -> tuple[Space | None, Space | None, str, frozenset[str]]:
    storage = episode.storage
    return episode.observation_space, episode.action_space, storage.action_units, frozenset(storage.extra_keys())


def _joined(episodes: list[SingleAgentEpisode], name: str, counts: list[int]) -> np.ndarray:
    parts = []
    for episode, count in zip(episodes, counts, strict=True):
        parts.append(tree_map(lambda leaf, n=count: _padded(leaf, n), _stacked(episode, name)))
    return tree_map(lambda *leaves: np.concatenate(leaves), *parts)


def _stacked(episode: SingleAgentEpisode, name: str) -> Tree:
    values = episode.storage.column(name)
    return spaces.stack(values) if isinstance(values, list) else values


def _padded(leaf: np.ndarray, count: int) -> np.ndarray:
    missing = count - len(leaf)
    return np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf
