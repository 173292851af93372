"""Callbacks: methods of the user's that a run calls at certain points."""

from __future__ import annotations

from typing import Any


class Callbacks:
    """Subclass it, override what you want to be told of, and pass the class in ``.callbacks(...)``.

    Everything is passed by keyword; take ``**kwargs`` for what you do not use.
    """

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """The algorithm is built."""

    def on_environment_created(self, *, env_runner: Any, env: Any, env_context: Any, **kwargs: Any) -> None:
        """An environment copy was made, with ``env_context`` as its config."""

    def on_episode_end(self, *, episode: Any, env_runner: Any, **kwargs: Any) -> None:
        """An episode is over; ``episode`` holds its steps since the last cut."""

    def on_sample_end(self, *, env_runner: Any, samples: list[Any], **kwargs: Any) -> None:
        """A sample is complete."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """An iteration is over; what is added to ``result`` is reported."""

    def on_evaluate_start(self, *, algorithm: Any, **kwargs: Any) -> None:
        """An evaluation begins."""

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        """An evaluation is over."""

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """The algorithm took over a checkpoint's state."""
