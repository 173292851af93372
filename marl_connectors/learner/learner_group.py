"""LearnerGroup: the learners of an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marl_connectors.learner.learner import Learner
from marl_connectors.typing import ModuleID


class LearnerGroup:
    """The learners of an algorithm: the one in this process. ``RemoteLearners`` are several in Ray actors.

    Attributes:
        learner: The learner in this process. Checkpoints, ``add_module`` and evaluations use it alone.
    """

    def __init__(self, learner: Learner):
        """Makes the group of the learner in this process."""
        self.learner = learner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.learner!r}>"

    @property
    def is_local(self) -> bool:
        """Whether the learner in this process makes the updates."""
        return self.num_remote_learners == 0

    @property
    def num_remote_learners(self) -> int:
        """The number of learners in Ray actors."""
        return 0

    @property
    def num_remote_learner_restarts(self) -> int:
        """How often the remote learners were replaced so far."""
        return 0

    def update(
        self, *, episodes: Sequence[Any], timesteps: dict[str, int] | None = None
    ) -> dict[ModuleID, dict[str, float]]:
        """Updates the modules from episodes, as ``Learner.update`` does."""
        return self.learner.update(episodes=episodes, timesteps=timesteps)

    def foreach_learner(self, func: Callable[[Learner], Any]) -> list[Any]:
        """Calls ``func(learner)`` in the process of each learner that makes updates, and returns a list of the results.

        Remote learners that were not made yet, or are lost meanwhile, are made with the state of the learner in this
        process.

        Raises:
            ActorLost: If a remote learner is lost and must not be replaced.
            ConfigError: If the function or its result cannot be sent from one process to another.
            Exception: What the function raises. The learners stay as they are.
        """
        return [func(learner) for learner in self.learner.by_name.values()]

    def stop(self) -> None:
        """Ends the remote learners."""
