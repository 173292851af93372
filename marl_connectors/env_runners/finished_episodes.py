"""FinishedEpisodes: what a runner has returned since its results were last taken, beside the episodes themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_connectors.env_runners.done_episodes import DoneEpisode
from marl_connectors.env_runners.run_metrics import EpisodeSummary


class FinishedEpisodes:
    """The summaries of the episodes that have ended, their places, and the uncredited rewards of sub-environments."""

    def __init__(self, num_envs: int):
        """Begins without episodes.

        Args:
            num_envs: The number of sub-environments.
        """
        self._summaries: list[EpisodeSummary] = []
        # Of each episode: the sample (counted from the last take_summaries), the vector step, the env_index.
        self._places: list[tuple[int, int, int]] = []
        self._num_samples = 0
        self._uncredited_rewards = [0.0] * num_envs

    def begin_sample(self) -> None:
        """Counts a sample."""
        self._num_samples += 1

    def add(self, done: Sequence[DoneEpisode]) -> None:
        """Adds the episodes that have ended in this sample, and are returned."""
        self._summaries += [entry.summary for entry in done]
        self._places += [(self._num_samples - 1, entry.vector_step, entry.env_index) for entry in done]

    def add_uncredited_reward(self, env_index: int, reward: float) -> None:
        """Adds a reward in the returned episodes of a sub-environment that belongs to none of their actions."""
        self._uncredited_rewards[env_index] += reward

    def take_summaries(self) -> list[EpisodeSummary]:
        """Returns the summaries since the last call."""
        summaries, self._summaries = self._summaries, []
        self._places, self._num_samples = [], 0
        return summaries

    def take_uncredited_reward(self) -> float:
        """Returns the sum of the uncredited rewards since the last call."""
        uncredited = self._uncredited_rewards
        self._uncredited_rewards = [0.0] * len(uncredited)
        return sum(uncredited)

    def get_state(self) -> dict[str, Any]:
        """Returns the state as entries of the runner's state, which ``state_shares`` merges and divides."""
        return {
            "finished": [summary.get_state() for summary in self._summaries],
            "finished_at": [list(place) for place in self._places],
            "num_samples": self._num_samples,
            "uncredited_reward": list(self._uncredited_rewards),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores these entries of a runner's state."""
        self._summaries = [EpisodeSummary.from_state(summary) for summary in state["finished"]]
        self._places = [(sample, step, env_index) for sample, step, env_index in state["finished_at"]]
        self._num_samples = state["num_samples"]
        self._uncredited_rewards = list(state["uncredited_reward"])
