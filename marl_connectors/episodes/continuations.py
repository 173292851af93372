"""Chunks of episodes, put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout, spans
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.trees import leaves

Life = list[SingleAgentEpisode]
"""The chunks of an agent's episode, or of the part of it between its coming and its end."""


def put_together(chunks: Iterable[Any]) -> list[Any]:
    """Returns episodes, each of its chunks in ``chunks``, in the order of their first chunks.

    Args:
        chunks: SingleAgentEpisodes or MultiAgentEpisodes, which must not be used any more. Chunks of one episode come
            in their order, without gaps.

    Raises:
        EpisodeError: If a chunk does not continue the one before.
    """
    by_id: dict[Any, list[Any]] = {}
    for chunk in chunks:
        by_id.setdefault(chunk.id_, []).append(chunk)
    return joined(list(by_id.values()))


def joined(episodes: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns episodes of their chunks.

    Chunks whose steps are rows of rollouts, as env runners and files have them, become rows of new rollouts. So they
    keep all of their columns, also the environment's states, and nothing is done step by step.

    Args:
        episodes: The chunks of each episode, in their order, without gaps. They must not be used any more.

    Raises:
        EpisodeError: If a chunk does not continue the one before.
    """
    _put_side_by_side([life for chunks in episodes for life in _lives(chunks)])
    for first, *others in episodes:
        for chunk in others:
            first.take_over(chunk)
    return [chunks[0] for chunks in episodes]


def _lives(chunks: Sequence[Any]) -> Iterator[Life]:
    """Yields the lives in an episode that have several chunks, or of which a later chunk may tell rewards."""
    if len(chunks) < 2:
        return
    if not isinstance(chunks[0], MultiAgentEpisode):
        yield list(chunks)
        return
    by_id: dict[Any, Life] = {}
    for chunk in chunks:
        for own in chunk.all_agent_episodes():
            by_id.setdefault((own.agent_id, own.id_), []).append(own)
    paid = {agent_id for chunk in chunks for agent_id in chunk._unclaimed}
    yield from (life for life in by_id.values() if len(life) > 1 or life[0].agent_id in paid)


def _put_side_by_side(lives: Iterable[Life]) -> None:
    """Copies the rows of lives to new rollouts, in which each chunk begins with the last row of the chunk before.

    Lives that are no rows of rollouts, or whose chunks have unlike columns, stay as they are.
    """
    kinds: list[Any] = []
    kind_of: dict[int, int] = {}
    by_kind: dict[int, list[Life]] = {}
    for life in lives:
        storages: list[Any] = [chunk.storage for chunk in life]
        if any(type(s) is not LaneStorage or s.stop_row is None for s in storages):
            continue
        rollouts = {id(s.rollout): s.rollout for s in storages}
        for number in rollouts.keys() - kind_of.keys():
            kind = rollouts[number].kind
            if kind not in kinds:
                kinds.append(kind)
            kind_of[number] = kinds.index(kind)
        kind, *others = {kind_of[number] for number in rollouts}
        if not others:
            by_kind.setdefault(kind, []).append(life)
    for alike in by_kind.values():
        _join(alike)


def _join(lives: list[Life]) -> None:
    """Does this for lives whose rollouts have like columns."""
    storages: list[Any] = [chunk.storage for life in lives for chunk in life]
    table = np.array([(s.lane, s.first_row, s.start_row, s.stop_row) for s in storages])
    is_first = np.array([i == 0 for life in lives for i in range(len(life))])
    lane, first, start, stop = table.T
    begin = np.where(is_first, first, start)
    rollout, rows = _gathered([s.rollout for s in storages], lane, begin, stop)
    ends = np.cumsum(stop - begin + 1)
    begins = ends - (stop - begin + 1)
    again = begins[~is_first]  # the rows that are the last ones of the chunks before, too
    source = np.argsort(rows, kind="stable")
    if not _are_same(rollout, source[again - 1], source[again]):
        return  # take_over names the chunk
    rollout = rollout.rows(np.delete(source, again - 1))
    shift = np.cumsum(~is_first)
    at = begins - shift
    number = 0
    for life in lives:
        base = int(at[number])
        for chunk in life:
            here = int(at[number]) + int(start[number] - begin[number])
            last = int(ends[number] - 1 - shift[number])
            chunk.storage = LaneStorage(rollout, 0, first_row=base, start_row=here, stop_row=last)
            number += 1


def _gathered(
    rollouts: Sequence[Rollout], lanes: np.ndarray, begins: np.ndarray, stops: np.ndarray
) -> tuple[Rollout, np.ndarray]:
    """Returns a rollout with the rows of all chunks, in any order, and their places in the order of the chunks.

    Args:
        rollouts: The rollout of each chunk.
        lanes: The lane of each chunk.
        begins: The first row of each chunk.
        stops: The last row of each chunk.
    """
    counts = stops - begins + 1
    places = np.cumsum(counts) - counts
    by_rollout: dict[int, list[int]] = {}
    for i, rollout in enumerate(rollouts):
        by_rollout.setdefault(id(rollout), []).append(i)
    parts, order = [], []
    for members in by_rollout.values():
        rollout, stride = rollouts[members[0]], rollouts[members[0]].num_lanes
        parts.append(rollout.rows(spans(begins[members] * stride + lanes[members], counts[members], stride)))
        order.append(spans(places[members], counts[members]))
    return Rollout.joined(parts), np.concatenate(order)


def _are_same(rollout: Rollout, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether rows hold the observations of the same env steps as others."""
    for name in (Columns.T, Columns.OBS):
        pairs = zip(leaves(rollout.read(name, one)), leaves(rollout.read(name, other)), strict=True)
        if not all(bool(np.all((a == b) | ((a != a) & (b != b)))) for a, b in pairs):
            return False
    return True
