"""Episodes that have ended, and the choice of those that a sample returns."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError

Episode = SingleAgentEpisode | MultiAgentEpisode


class DoneEpisode(NamedTuple):
    """An episode that has ended.

    Attributes:
        episode: The last chunk of the episode.
        env_index: The sub-environment of the episode.
        summary: The returns and the length of the episode.
    """

    episode: Episode
    env_index: int
    summary: EpisodeSummary


def shares(num_envs: int, num_episodes: int) -> list[int]:
    """Returns the number of episodes that each sub-environment contributes to ``num_episodes``."""
    return [num_episodes // num_envs + (index < num_episodes % num_envs) for index in range(num_envs)]


def missing(done: Sequence[DoneEpisode], num_envs: int, num_episodes: int) -> list[int]:
    """Returns the number of episodes that each sub-environment still has to finish.

    Args:
        done: The episodes that have ended.
        num_envs: The number of sub-environments.
        num_episodes: The number of episodes that a sample returns.
    """
    lacking = shares(num_envs, num_episodes)
    for entry in done:
        lacking[entry.env_index] = max(lacking[entry.env_index] - 1, 0)
    return lacking


def first_of_each_sub_env(done: Sequence[DoneEpisode], num_envs: int, num_episodes: int) -> list[DoneEpisode] | None:
    """Chooses ``num_episodes`` episodes without preferring short ones.

    Each sub-environment contributes its first episodes, as many as any other sub-environment (or one less).

    Args:
        done: The episodes that have ended, in this order.
        num_envs: The number of sub-environments.
        num_episodes: The number of episodes to choose.

    Returns:
        The chosen episodes. None while some are missing.
    """
    quotas = shares(num_envs, num_episodes)
    chosen = []
    for entry in done:
        if quotas[entry.env_index]:
            quotas[entry.env_index] -= 1
            chosen.append(entry)
    return None if any(quotas) else chosen


def first_rounds(done: Sequence[DoneEpisode], num_envs: int) -> list[DoneEpisode]:
    """Returns the first episodes of each sub-environment, the same number from each.

    This number is that of the sub-environment with the fewest episodes, so that short episodes are not preferred.
    """
    ended = [0] * num_envs
    for entry in done:
        ended[entry.env_index] += 1
    return first_of_each_sub_env(done, num_envs, min(ended) * num_envs) or []


def check_sample_size(num_timesteps: Any, num_episodes: Any) -> None:
    """Checks the size of a sample.

    Raises:
        ConfigError: If both numbers are given, or one that is not a whole number of 0 or more.
    """
    if num_timesteps is not None and num_episodes is not None:
        raise ConfigError("EnvRunner.sample: expected num_timesteps or num_episodes, but got both. Leave one out.")
    for name, number in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < 0):
            raise ConfigError(f"EnvRunner.sample: {name} must be a whole number of 0 or more, not {number!r}.")
