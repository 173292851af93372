"""The sections of a config that say how modules learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from marl_connectors.algorithms.section import UNSET, section, section_of
from marl_connectors.algorithms.settings import Settings
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.learner.learner import Learner


class TrainingSettings(TypedDict, total=False):
    """What ``training`` takes, whatever the algorithm.

    Attributes:
        gamma: Discount per agent step.
        lr: Learning rate, a number or a schedule ``[[t, value], ...]`` over sampled env steps.
        grad_clip: Bound for gradients; None for none.
        grad_clip_by: ``"global_norm"`` (of a module), ``"norm"`` (of each tensor) or ``"value"``.
        train_batch_size_per_learner: Steps of one update, counted by ``count_steps_by``.
        num_epochs: How often an update goes through its batch.
        minibatch_size: Rows of one module in one gradient step; None for all.
        shuffle_batch_per_epoch: Whether each epoch has an order of its own.
        learner_class: Instead of the algorithm's own, as in ``learners``.
        learner_connector: As in ``learners``.
    """

    gamma: float
    lr: Schedule
    grad_clip: float | None
    grad_clip_by: str
    train_batch_size_per_learner: int
    num_epochs: int
    minibatch_size: int | None
    shuffle_batch_per_epoch: bool
    learner_class: type[Learner]
    learner_connector: Callable[..., Any] | None


class LearningSections(Settings):
    """``framework``, ``learners`` and ``training``, as AlgorithmConfig has them."""

    @section
    def framework(self, framework: str = UNSET) -> dict[str, Any]:
        """Which library computes; there is nothing to set.

        Args:
            framework: ``"torch"``; there is no other.
        """
        if framework is not UNSET and framework != "torch":
            raise ConfigError(f"{type(self).__name__}.framework: there is 'torch' only, not {framework!r}.")
        return {"framework": UNSET}

    @section
    def learners(
        self,
        *,
        num_learners: int = UNSET,
        num_gpus_per_learner: float | str = UNSET,
        learner_class: type[Learner] = UNSET,
        learner_connector: Callable[..., Any] | None = UNSET,
        add_default_connectors_to_learner_pipeline: bool = UNSET,
        stack_modules: bool = UNSET,
        autocast_dtype: str | None = UNSET,
    ) -> None:
        """How modules are updated.

        Args:
            num_learners: 0: in this process.
            num_gpus_per_learner: 1 to put modules and batches on the GPU, 0 for the CPU; ``"auto"`` for the GPU if
                torch sees one (CUDA), else the CPU.
            learner_class: Instead of the algorithm's own.
            learner_connector: ``fn(observation_space, action_space)``, one-argument or ``fn()``, that gives a
                connector piece or a list of them, to stand before the default pieces.
            add_default_connectors_to_learner_pipeline: False to use your own pieces only.
            stack_modules: Update modules of one architecture as one computation; False for one after another.
            autocast_dtype: ``"bfloat16"`` to run forward passes of the update in half precision; None for full.
        """

    @section_of(TrainingSettings)
    def training(self, **settings: Unpack[TrainingSettings]) -> None:
        """How the modules learn: ``TrainingSettings`` says what there is."""
