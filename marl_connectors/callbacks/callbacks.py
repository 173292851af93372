"""What a run can tell a user of, and with which arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Callbacks:
    """Subclass it, override what you want to be told of, and pass the class in ``.callbacks(...)``.

    Everything is passed by keyword; take ``**kwargs`` for what you do not use. What is not overridden costs nothing.

    An episode's life is told in this order: it is created, its sub-environment is reset, it starts, there is a step
    after each env step, it ends, and the next one is created in the same copy. The copy is reset only after that, so
    that ``env.envs[env_index]`` is still at the end in ``on_episode_end``. Exceptions are environments in worker
    processes, whose copies are out of reach (``env.envs`` raises), and environments that reset themselves: these are at
    the next episode already.

    * ``env_runner``: the EnvRunner that plays the episode.
    * ``metrics_logger``: a MetricsLogger. What is logged for environments, episodes and samples is in ``env_runners``
      of the results, what is logged for the algorithm at their top level.
    * ``env``: all copies of the environment; ``env.envs[env_index]`` is the episode's.
    * ``rl_module``: the MultiRLModule; for an environment with a single agent, the RLModule.
    """

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """The algorithm is built."""

    def on_train_result(self, *, algorithm: Any, metrics_logger: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """An iteration is over; what is added to ``result`` is reported."""

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: Any, **kwargs: Any) -> None:
        """An evaluation begins."""

    def on_evaluate_end(
        self, *, algorithm: Any, metrics_logger: Any, evaluation_metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """An evaluation is over; what is added to ``evaluation_metrics`` is reported."""

    def on_env_runners_recreated(
        self,
        *,
        algorithm: Any,
        env_runner_group: Any,
        env_runner_indices: list[int],
        is_evaluation: bool,
        **kwargs: Any,
    ) -> None:
        """Processes with runners were replaced. There are none in this version, so that this does not happen."""

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """The algorithm took over a checkpoint's state."""

    def on_environment_created(
        self,
        *,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        env_context: dict[str, Any],
        env_index: int | None,
        **kwargs: Any,
    ) -> None:
        """A runner made its sub-environments, with ``env_context`` as their config.

        Also called when a copy was replaced after a failure; ``env_index`` is its place then, and else None.
        """

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """An episode is about to begin: it has its id and no data, and the sub-environment is not yet reset."""

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """An episode has begun: it holds the first observations and infos."""

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """An env step (a turn, in a game of turns) was recorded in the episode, the last one included."""

    def on_episode_end(
        self,
        *,
        episode: Any,
        prev_episode_chunks: Sequence[Any],
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        rl_module: Any,
        env_index: int,
        **kwargs: Any,
    ) -> None:
        """An episode is over.

        ``episode`` holds its steps since the last cut, ``prev_episode_chunks`` are the chunks before, the oldest first,
        as far as this runner sampled them. Episodes that are dropped (after a failure, by a forced reset, or beyond the
        number that was asked for) do not end.
        """

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, samples: list[Any], **kwargs: Any) -> None:
        """A sample is complete; what is written to its episodes is what the learner gets."""


RLlibCallback = Callbacks
"""RLlib's name."""
