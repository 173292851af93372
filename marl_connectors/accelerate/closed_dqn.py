"""DQN's loss with its gradients in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from marl_connectors.accelerate.closed_forward import (
    ClosedForward,
    LossAndGradients,
    Outputs,
    closed_forward,
    closed_targets,
)
from marl_connectors.algorithms.dqn.learner import DQNLearner
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS, DefaultDQNRLModule, q_values
from marl_connectors.algorithms.off_policy.learner import ReplayedRows
from marl_connectors.columns import Columns
from marl_connectors.ops.q_learning import td_slopes
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID


class ClosedValues:
    """Computes the values of all actions as default modules do, without gradients, and without layers if it can."""

    def __init__(self, stack: MemberStack, module: Any):
        """Binds the networks that are trained, and the target networks."""
        self._own, self._targets = (
            bind(stack, with_values=module.is_dueling) for bind in (closed_forward, closed_targets)
        )
        self._module = module

    def compute_q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns what the method of the module does."""
        return _closed_or(self._own, self._module.compute_q_values, batch)

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the method of the module does."""
        return {QF_PREDS: _closed_or(self._targets, lambda own: self._module.forward_target(own)[QF_PREDS], batch)}


class ClosedDQNLoss:
    """DQN's loss of some default modules, with its gradients in closed form.

    Attributes:
        learner: The learner.
        config: The settings of the loss.
        values: What computes the values of actions in targets.
        uses_values: Whether the modules have a value head.
    """

    def __init__(self, learner: DQNLearner, stack: MemberStack, module_ids: tuple[ModuleID, ...], config: Any):
        self.learner = learner
        self.config = config
        module: Any = stack.load()
        self.uses_values = module.is_dueling
        self.values = ClosedValues(stack, module)
        self._module_ids = module_ids

    def __call__(self, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any]) -> LossAndGradients | None:
        learner = self.learner
        if Columns.LOSS_MASK in batch:  # rows of padding do not count
            return None
        of_actions = _q_values_of(Outputs(inputs, values))
        rows = ReplayedRows(learner, self._module_ids, self.values, self.config, batch, {QF_PREDS: of_actions})
        found = learner.loss(rows, learner.targets(rows))
        losses = learner.mean_loss(rows, found)
        slopes = td_slopes(found.errors, self.config.td_error_loss_fn)
        if WEIGHTS in batch:
            slopes = slopes * batch[WEIGHTS]
        slopes = (slopes / slopes.shape[-1]).unsqueeze(-1)
        by_inputs = torch.zeros_like(of_actions).scatter_(-1, batch[Columns.ACTIONS].long().unsqueeze(-1), slopes)
        if values is None:
            return LossAndGradients(losses, by_inputs, None)
        # The mean advantage is subtracted.
        return LossAndGradients(losses, by_inputs.sub_(slopes / of_actions.shape[-1]), slopes.squeeze(-1))


def closed_dqn_loss(learner: DQNLearner, stack: MemberStack, module_ids: tuple[ModuleID, ...]) -> ClosedDQNLoss | None:
    """Returns the loss of default modules in closed form. It is bound once, unless their settings change."""
    config, known = learner.config.get_config_for_module(module_ids[0]), stack.bound.get("dqn loss")
    if known is None or known.config is not config or known.learner is not learner:
        if not all(isinstance(learner.module[m], DefaultDQNRLModule) for m in module_ids):
            return None
        known = stack.bound["dqn loss"] = ClosedDQNLoss(learner, stack, module_ids, config)
    return known


def _closed_or(
    forward: ClosedForward | None, called: Callable[[Mapping[str, Any]], Tensor], batch: Mapping[str, Any]
) -> Tensor:
    outputs = None if forward is None else forward.of_heads(batch)
    return called(batch) if outputs is None else _q_values_of(outputs)


def _q_values_of(outputs: Outputs) -> Tensor:
    """Returns the values of actions, given the outputs of the heads."""
    return q_values(outputs.inputs, None if outputs.values is None else outputs.values.unsqueeze(-1))
