"""DQN's loss with gradients in closed form, which only saves time: without it, autograd computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS, q_values
from marl_connectors.algorithms.off_policy.learner import ReplayedRows
from marl_connectors.columns import Columns
from marl_connectors.learner.gradients import LossAndGradients
from marl_connectors.ops.q_learning import td_slopes
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.rl_module.closed_form import ClosedForward, Outputs
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID


class ClosedValues:
    """Computes the values of all actions as default modules do, without gradients, and without layers if it can."""

    def __init__(self, stack: MemberStack, module: Any):
        """Binds the networks that are trained, and the target networks."""
        closed = (bind(with_values=module.is_dueling) for bind in (stack.closed_forward, stack.closed_targets))
        self._own, self._targets = closed
        self._module = module

    def compute_q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns what the method of the module does."""
        return _closed_or(self._own, self._module.compute_q_values, batch)

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the method of the module does."""
        return {QF_PREDS: _closed_or(self._targets, lambda own: self._module.forward_target(own)[QF_PREDS], batch)}


def _closed_or(
    forward: ClosedForward | None, called: Callable[[Mapping[str, Any]], Tensor], batch: Mapping[str, Any]
) -> Tensor:
    outputs = None if forward is None else forward.of_heads(batch)
    return called(batch) if outputs is None else _values_of(outputs)


def _values_of(outputs: Outputs) -> Tensor:
    """Returns the values of actions, given the outputs of the heads."""
    return q_values(outputs.inputs, None if outputs.values is None else outputs.values.unsqueeze(-1))


class ClosedDQNLoss:
    """DQN's loss of some default modules, with its gradients in closed form.

    Attributes:
        config: The settings of the loss.
        values: What computes the values of actions in targets.
        uses_values: Whether the modules have a value head.
    """

    def __init__(self, learner: Any, module_ids: Sequence[ModuleID], stack: MemberStack):
        """Binds the loss of a DQNLearner to modules, which are the members of a stack."""
        module: Any = stack.load()
        self.config = learner.config.get_config_for_module(module_ids[0])
        self.uses_values = module.is_dueling
        self.values = ClosedValues(stack, module)
        self._learner = learner
        self._module_ids = module_ids

    def __call__(self, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any]) -> LossAndGradients | None:
        learner, ids = self._learner, self._module_ids
        if Columns.LOSS_MASK in batch:  # rows of padding do not count
            return None
        of_actions = _values_of(Outputs(inputs, values))
        rows = ReplayedRows(learner, ids, self.values, self.config, batch, {QF_PREDS: of_actions})
        found = learner.loss(rows, learner.targets(rows))
        losses = learner.mean_loss(rows, found)
        slopes = td_slopes(found.errors, self.config.td_error_loss_fn)
        if WEIGHTS in batch:
            slopes = slopes * batch[WEIGHTS]
        slopes = (slopes / slopes.shape[-1]).unsqueeze(-1)
        by_inputs = torch.zeros_like(of_actions).scatter_(-1, batch[Columns.ACTIONS].long().unsqueeze(-1), slopes)
        if values is None:
            return LossAndGradients(losses, by_inputs, None)
        return LossAndGradients(losses, by_inputs.sub_(slopes / of_actions.shape[-1]), slopes.squeeze(-1))
