"""Updates with gradients in closed form, which do without autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marl_connectors.accelerate.closed_dqn import closed_dqn_loss
from marl_connectors.accelerate.closed_forward import ClosedForward, ClosedLoss, closed_forward
from marl_connectors.accelerate.closed_ppo import ClosedPPOLoss
from marl_connectors.accelerate.unchanged import is_unchanged
from marl_connectors.algorithms.dqn.learner import DQNLearner
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.learner.updates import has_self_supervised_loss
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID

_LOSSES: dict[type, Any] = {PPOLearner: ClosedPPOLoss, DQNLearner: closed_dqn_loss}
"""Functions that return the loss of some modules in closed form, for the learners that have it."""
_OF_LOSSES = frozenset({"compute_loss_for_module", "compute_loss_for_stacked_modules", "loss_of_rows", "loss"})
"""The methods of learners that such a loss takes the place of."""


class ClosedUpdate:
    """The gradients of some members of a bucket, for one update."""

    def __init__(self, stack: MemberStack, forward: ClosedForward, loss: ClosedLoss):
        """Binds the members.

        Args:
            stack: The members.
            forward: What ``closed_forward`` returned for them.
            loss: Their loss.
        """
        self._stack = stack
        self._forward = forward
        self._loss = loss

    @torch.no_grad()
    def compute_gradients(self, columns: Mapping[str, Any], weights: Sequence[float] | None = None) -> Tensor | None:
        """Computes the losses of a minibatch, and writes their gradients into the bucket; see ``BoundUpdate``."""
        self._stack.load()
        outputs = self._forward(columns)
        found = None if outputs is None else self._loss(outputs.inputs, outputs.values, columns)
        if found is None:
            return None
        if weights is not None:
            found = found.weighted(weights)
        self._forward.backward(found.by_inputs, found.by_values)
        self._stack.store()
        return found.losses


def bind_update(learner: Any, module_ids: Sequence[ModuleID]) -> ClosedUpdate | None:
    """Returns the update of modules with the learner's loss; None if autograd must compute it.

    Args:
        learner: The learner.
        module_ids: One module, or several that are computed together.
    """
    stack = learner.optimizers.stack_of(module_ids)
    if stack is None or learner.config.autocast_dtype is not None:
        return None
    if has_self_supervised_loss(learner.module[module_ids[0]]):
        return None
    known = (own for base, own in _LOSSES.items() if is_unchanged(learner, base, methods=_OF_LOSSES))
    closed_loss = next(known, None)
    loss = None if closed_loss is None else closed_loss(learner, stack, tuple(module_ids))
    forward = None if loss is None else closed_forward(stack, with_values=loss.uses_values)
    return None if loss is None or forward is None else ClosedUpdate(stack, forward, loss)
