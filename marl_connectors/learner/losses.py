"""Which loss of a module is minimised, and whether what the methods of a learner's subclass gave is of use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.apis import SelfSupervisedLossAPI
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


def has_own_loss(learner: Learner, module_id: ModuleID) -> bool:
    """Whether a module brings its loss."""
    return isinstance(learner.module[module_id].unwrapped(), SelfSupervisedLossAPI)


def loss_function(learner: Learner, module_id: ModuleID) -> Any:
    """What takes the arguments of ``Learner.compute_loss_for_module`` for a module."""
    if not has_own_loss(learner, module_id):
        return learner.compute_loss_for_module
    module: Any = learner.module[module_id].unwrapped()
    return partial(module.compute_self_supervised_loss, learner=learner)


def who_computes(learner: Learner, module_id: ModuleID) -> str:
    """The class and the method, for messages."""
    if not has_own_loss(learner, module_id):
        return f"{type(learner).__name__}: its compute_loss_for_module"
    return f"{type(learner.module[module_id].unwrapped()).__name__}: its compute_self_supervised_loss"


def checked_losses(losses: Any, module_ids: Sequence[ModuleID], learner: Any) -> Tensor:
    """A scalar of one module, ``[M]`` losses of several. A hot path.

    Raises:
        LearnerError: If it is something else.
    """
    wanted = () if len(module_ids) == 1 else (len(module_ids),)
    if isinstance(losses, Tensor) and losses.shape == wanted:
        return losses
    if isinstance(losses, Tensor) and not wanted and losses.numel() == 1:
        return losses.reshape(())
    came = f"a tensor of the shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else _described(losses)
    if wanted:
        raise LearnerError(
            f"{type(learner).__name__}: its compute_loss_for_stacked_modules gave {came} for modules "
            f"{', '.join(map(repr, module_ids))}, expected a tensor of the shape {wanted}: a loss for each. Reduce "
            f"the axes behind the first one only."
        )
    fix = "Take its mean." if isinstance(losses, Tensor) else "Return the loss; log_terms takes figures beside it."
    raise LearnerError(
        f"{who_computes(learner, module_ids[0])} gave {came} for module {module_ids[0]!r}, expected a scalar "
        f"tensor. {fix}"
    )


def set_gradients(gradients: Sequence[Tensor], given: Any, module_id: ModuleID, learner: Any) -> None:
    """Writes what ``postprocess_gradients_for_module`` returned into a module's gradients.

    Raises:
        LearnerError: If there are not as many, or not of the same shapes.
    """
    shapes = [tuple(gradient.shape) for gradient in gradients]
    is_list = isinstance(given, Sequence) and all(isinstance(one, Tensor) for one in given)
    came = [tuple(one.shape) for one in given] if is_list else type(given).__name__
    if came != shapes:
        raise LearnerError(
            f"{type(learner).__name__}: its postprocess_gradients_for_module gave {came} for module {module_id!r}, "
            f"expected gradients of the shapes {shapes}. Return them in the order of module_gradients, or change these "
            f"in place and return nothing."
        )
    for gradient, value in zip(gradients, given, strict=True):
        if value is not gradient:
            gradient.copy_(value)


def _described(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
