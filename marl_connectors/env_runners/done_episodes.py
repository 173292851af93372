"""Episodes that are over, and which of them to hand out."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError

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
    tally: EpisodeTally


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


def first_rounds(done: Sequence[DoneEpisode], num_copies: int) -> list[DoneEpisode]:
    """The first ones of each copy, as many as the slowest copy has: so short ones are not preferred."""
    ended = [0] * num_copies
    for entry in done:
        ended[entry.env_index] += 1
    return first_of_each_copy(done, num_copies, min(ended) * num_copies) or []


def check_sample_size(num_timesteps: Any, num_episodes: Any) -> None:
    """Raises a ConfigError unless one at most is given, a whole number."""
    if num_timesteps is not None and num_episodes is not None:
        raise ConfigError("EnvRunner.sample: give num_timesteps or num_episodes, not both.")
    for name, number in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < 0):
            raise ConfigError(f"EnvRunner.sample: {name} must be a whole number of 0 or more, not {number!r}.")
