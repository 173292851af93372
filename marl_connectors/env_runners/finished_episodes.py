"""FinishedEpisodes: what a runner has returned since its results were last taken, beside the episodes themselves."""

from __future__ import annotations

from collections.abc import Sequence

from marl_connectors.env_runners.done_episodes import DoneEpisode
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.state import Index, State


class FinishedEpisode(State):
    """An episode that has ended.

    Attributes:
        sample: The sample in which it ended, counted from the last ``take_summaries``.
        vector_step: The step of all sub-environments in which it ended, counted from 1 in each sample.
        summary: Its returns and its length.
    """

    sample: Index
    vector_step: Index
    summary: EpisodeSummary


class FinishedEpisodes:
    """The episodes that have ended, and the uncredited rewards, of each sub-environment.

    Attributes:
        by_env: The episodes of each sub-environment.
        uncredited_rewards: The sum of the uncredited rewards of each sub-environment.
        num_samples: The number of samples since the last ``take_summaries``.
    """

    def __init__(self, num_envs: int):
        """Begins without episodes.

        Args:
            num_envs: The number of sub-environments.
        """
        self.by_env: list[list[FinishedEpisode]] = [[] for _ in range(num_envs)]
        self.uncredited_rewards = [0.0] * num_envs
        self.num_samples = 0

    def begin_sample(self) -> None:
        """Counts a sample."""
        self.num_samples += 1

    def add(self, done: Sequence[DoneEpisode]) -> None:
        """Adds the episodes that have ended in this sample, and are returned."""
        for entry in done:
            self.by_env[entry.env_index].append(FinishedEpisode(self.num_samples - 1, entry.vector_step, entry.summary))

    def take_summaries(self) -> list[EpisodeSummary]:
        """Returns the summaries since the last call, sorted by sample, vector step and sub-environment."""
        finished = sorted(
            (own for of_env in self.by_env for own in of_env), key=lambda own: (own.sample, own.vector_step)
        )
        self.by_env, self.num_samples = [[] for _ in self.by_env], 0
        return [own.summary for own in finished]

    def take_uncredited_reward(self) -> float:
        """Returns the sum of the uncredited rewards since the last call."""
        uncredited = self.uncredited_rewards
        self.uncredited_rewards = [0.0] * len(uncredited)
        return sum(uncredited)
