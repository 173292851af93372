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
        vector_step: The step of all sub-environments in which it ended, counted from 1 in each sample.
    """

    episode: Episode
    env_index: int
    summary: EpisodeSummary
    vector_step: int = 0


class SamplePlace(NamedTuple):
    """The sub-environment of an episode that a sample returned, and the time of its end.

    Attributes:
        env_number: The number of the sub-environment in the run.
        vector_step: The step of all sub-environments in which the episode ended, counted from 1 in each sample. None
            for a chunk of an episode that continues.
    """

    env_number: int
    vector_step: int | None


def merged_order(places: Sequence[Sequence[SamplePlace]]) -> list[tuple[int, int]]:
    """Returns the order in which one env runner with all sub-environments would return the episodes of several.

    These are the episodes that ended, sorted by vector step and by the number of the sub-environment, and then the
    chunks, sorted by this number.

    Args:
        places: For each runner, the places of the episodes that it returned (``EnvRunner.places``).

    Returns:
        For each episode, the index of its runner and its index among the runner's episodes.

    >>> merged_order([[SamplePlace(0, 7), SamplePlace(1, None)], [SamplePlace(2, 3), SamplePlace(2, None)]])
    [(1, 0), (0, 0), (0, 1), (1, 1)]
    """
    found = [(runner, index) for runner, own in enumerate(places) for index in range(len(own))]

    def key(at: tuple[int, int]) -> tuple[bool, int, int]:
        env_number, vector_step = places[at[0]][at[1]]
        return vector_step is None, vector_step or 0, env_number

    return sorted(found, key=key)


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
