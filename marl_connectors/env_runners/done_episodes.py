"""Episodes that are over, and which of them to hand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marl_connectors.env_runners.episode_metrics import Tally
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

Episode = SingleAgentEpisode | MultiAgentEpisode


class DoneEpisode(NamedTuple):
    """An episode that is over.

    Attributes:
        episode: Its last chunk.
        env_index: The environment copy that it was played in.
        tally: Its returns and length.
    """

    episode: Episode
    env_index: int
    tally: Tally


def shares(num_copies: int, num_episodes: int) -> list[int]:
    """How many of the episodes each copy contributes."""
    return [num_episodes // num_copies + (index < num_episodes % num_copies) for index in range(num_copies)]


def missing(done: Sequence[DoneEpisode], num_copies: int, num_episodes: int) -> list[int]:
    """How many of their shares the copies lack."""
    lacking = shares(num_copies, num_episodes)
    for entry in done:
        lacking[entry.env_index] = max(lacking[entry.env_index] - 1, 0)
    return lacking


def first_of_each_copy(done: Sequence[DoneEpisode], num_copies: int, num_episodes: int) -> list[DoneEpisode] | None:
    """Those that make up ``num_episodes`` without preferring short ones.

    Each copy contributes its first ones, as many as any other copy (or one less). None while some are missing.
    """
    quotas = shares(num_copies, num_episodes)
    chosen = []
    for entry in done:
        if quotas[entry.env_index]:
            quotas[entry.env_index] -= 1
            chosen.append(entry)
    return None if any(quotas) else chosen
