"""Success: a callback that logs how successful an episode was, such as the share of landmarks that are covered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marl_connectors.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from marl_connectors.env_runners.env_runner import EnvRunner
    from marl_connectors.metrics import MetricsLogger

SUCCESS = "success"
"""The name of the metric."""
WINDOW = 100
"""The number of newest episodes whose mean the metric is in training."""


@dataclass(frozen=True, slots=True)
class Success:
    """Logs how successful each episode was. An object is a function for ``on_episode_end``.

    ``config.callbacks(on_episode_end=Success("landmarks covered", covered))`` adds the metric ``success`` to the
    results of env runners: in training, the mean over the newest 100 episodes; in evaluations and random play, over
    all of theirs.

    Nothing is logged if the measure returns None, or if the environment cannot be reached at the end of its episode: if
    it is in a worker process (``num_env_workers``), or if it is natively batched or one of a
    ``gymnasium.vector.VectorEnv``, which reset themselves.

    Attributes:
        name: What is measured, in a few words.
        measure: ``fn(env, episode)`` that returns the success of an episode, from 0 to 1, or None if the episode says
            nothing about it. It gets the sub-environment without its wrappers (``env.unwrapped``), in the state after
            the last step, and the episode of ``on_episode_end``: a MultiAgentEpisode, or a SingleAgentEpisode for a
            single agent. An episode that a sample has cut is only its last chunk. Evaluations do not cut episodes.
    """

    name: str
    measure: Callable[[Any, Any], float | None]

    def __call__(
        self,
        *,
        episode: Any,
        metrics_logger: MetricsLogger,
        env: Any,
        env_runner: EnvRunner,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Logs the success of the episode that has ended.

        Raises:
            ConfigError: If ``measure`` returns anything but a number from 0 to 1 or None.
        """
        if env.is_batched:
            return
        try:
            own = env.envs[env_index]
        except EnvError:  # the environments are in worker processes
            return
        measured = self.measure(getattr(own, "unwrapped", own), episode)
        if measured is None:
            return
        value = float(measured)
        if not 0 <= value <= 1:
            name = getattr(self.measure, "__name__", repr(self.measure))
            raise ConfigError(
                f"Success: expected {name}(env, episode) to return a number from 0 to 1, or None for an episode that "
                f"says nothing about success, but got {value}."
            )
        window = None if env_runner.in_evaluation else WINDOW
        metrics_logger.log_value(SUCCESS, value, reduce="mean", window=window, clear_on_reduce=window is None)
