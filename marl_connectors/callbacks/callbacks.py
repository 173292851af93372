"""The base class of callbacks, which are called during sampling, training and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_connectors.never_called import RefusesIgnoredMethods

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.env_runners.env_runner import EnvRunner
    from marl_connectors.metrics import MetricsLogger


class Callbacks(RefusesIgnoredMethods):
    """Base class of callbacks. Override methods in a subclass, and pass the class to ``.callbacks(...)``.

    All arguments are passed by keyword. A method needs ``**kwargs`` for those that it does not use. Methods that are
    not overridden are not called.

    The callbacks of an episode come in this order: it is created, its sub-environment is reset, it starts, there is a
    step after each env step, it ends, and the next episode of the sub-environment is created. The sub-environment is
    reset only after that, so that ``env.envs[env_index]`` is still in the last state in ``on_episode_end``. There are
    two exceptions. Environments in worker processes cannot be reached (``env.envs`` raises an error), and environments
    that reset themselves are already in the next episode.

    * ``env_runner``: the EnvRunner that plays the episode.
    * ``metrics_logger``: a MetricsLogger. Values that are logged in callbacks of environments, episodes and samples are
      in ``env_runners`` of the results, and values that are logged in callbacks of the algorithm at their top level.
    * ``env``: all sub-environments; ``env.envs[env_index]`` is the episode's environment.
    * ``rl_module``: the MultiRLModule; for an environment with a single agent, the RLModule.
    """

    def on_algorithm_init(self, *, algorithm: Algorithm, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Called when the algorithm has been built."""

    def on_train_result(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called at the end of an iteration. Values that are added to ``result`` are reported."""

    def close(self) -> None:
        """Called for the algorithm's object when the algorithm is stopped."""

    def on_evaluate_start(self, *, algorithm: Algorithm, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Called when an evaluation begins."""

    def on_evaluate_end(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger, evaluation_metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """Called at the end of an evaluation, with what ``evaluate`` returns. Values that are added are reported."""

    def on_env_runners_recreated(
        self,
        *,
        algorithm: Algorithm,
        env_runner_group: Any,
        env_runner_indices: list[int],
        is_evaluation: bool,
        **kwargs: Any,
    ) -> None:
        """Called after a sample or an evaluation, if remote env runners have been replaced since the last one.

        Args:
            algorithm: The Algorithm.
            env_runner_group: The EnvRunnerGroup whose env runners were replaced.
            env_runner_indices: The indices of the replaced env runners.
            is_evaluation: Whether they are env runners for evaluations.
            **kwargs: Nothing else in this version.
        """

    def on_checkpoint_loaded(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Called when the algorithm has restored the state of a checkpoint."""

    def on_environment_created(
        self,
        *,
        env_runner: EnvRunner,
        metrics_logger: MetricsLogger,
        env: Any,
        env_context: dict[str, Any],
        env_index: int | None,
        **kwargs: Any,
    ) -> None:
        """Called when a runner has made its sub-environments, with ``env_context`` as their config.

        It is also called when a sub-environment was replaced after a failure. Then ``env_index`` is the index of this
        sub-environment; otherwise it is None.
        """

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: EnvRunner,
        metrics_logger: MetricsLogger,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called before an episode begins. It has its id and no data, and the sub-environment was not reset yet."""

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: EnvRunner,
        metrics_logger: MetricsLogger,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called when an episode has begun. It contains the first observations and infos."""

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: EnvRunner,
        metrics_logger: MetricsLogger,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called when an env step (a turn, in turn-based environments) was recorded, also for the last one."""

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: Sequence[Any],
        env_runner: EnvRunner,
        metrics_logger: MetricsLogger,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """Called at the end of an episode.

        ``episode`` contains its steps since the last cut. ``prev_episode_chunks`` are the chunks before, the oldest
        first, as far as this runner sampled them. It is not called for episodes that are dropped: after a failure, by a
        forced reset, or because enough episodes were sampled.
        """

    def on_sample_end(
        self, *, env_runner: EnvRunner, metrics_logger: MetricsLogger, samples: list[Any], **kwargs: Any
    ) -> None:
        """Called when a sample is complete. Data that are written to its episodes are passed to the learner."""


RLlibCallback = Callbacks
"""RLlib's name of the class."""
