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
from marl_connectors.algorithms.dqn.learner import DQNLearner, QFunctions, taken_actions
from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule, q_values
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID


class ClosedDQNLoss:
    """DQN's loss of some default modules, with its gradients in closed form.

    Attributes:
        learner: The learner.
        config: The settings of the loss.
        functions: What computes the values of actions in targets. It does not call layers where that is possible.
        uses_values: Whether the modules have a value head.
    """

    def __init__(self, learner: DQNLearner, stack: MemberStack, module_ids: tuple[ModuleID, ...], config: Any):
        self.learner = learner
        self.config = config
        module: Any = stack.load()
        self.uses_values = module.is_dueling
        bound = (bind(stack, with_values=self.uses_values) for bind in (closed_forward, closed_targets))
        called = QFunctions.of_module(module)
        self.functions = QFunctions(*(_values_by(*both) for both in zip(bound, called, strict=True)))
        self._module_ids = module_ids

    def __call__(self, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any]) -> LossAndGradients | None:
        stacked = len(self._module_ids) if len(self._module_ids) > 1 else 0
        rows = CountedRows.of(batch, stacked=stacked)
        if rows.weights is not None:
            return None
        of_actions = _q_values_of(Outputs(inputs, values))
        actions = taken_actions(batch)
        found = self.learner._errors_of(self.config, self.functions, batch, of_actions, actions, self._module_ids)
        self.learner._log(self._module_ids, rows, found)
        slopes = found.slopes / found.errors.shape[-1]
        by_inputs, by_values = _head_gradients(of_actions, actions, slopes, is_dueling=values is not None)
        return LossAndGradients(found.losses.mean(-1), by_inputs, by_values)


def closed_dqn_loss(learner: DQNLearner, stack: MemberStack, module_ids: tuple[ModuleID, ...]) -> ClosedDQNLoss | None:
    """Returns the loss of default modules in closed form. It is bound once, unless their settings change."""
    config, known = learner.config.get_config_for_module(module_ids[0]), stack.bound.get("dqn loss")
    if known is None or known.config is not config or known.learner is not learner:
        if not all(isinstance(learner.module[m], DefaultDQNRLModule) for m in module_ids):
            return None
        known = stack.bound["dqn loss"] = ClosedDQNLoss(learner, stack, module_ids, config)
    return known


def _values_by(
    forward: ClosedForward | None, called: Callable[[Mapping[str, Any]], Tensor]
) -> Callable[[Mapping[str, Any]], Tensor]:
    def values(batch: Mapping[str, Any]) -> Tensor:
        outputs = None if forward is None else forward.of_heads(batch)
        return called(batch) if outputs is None else _q_values_of(outputs)

    return values


def _q_values_of(outputs: Outputs) -> Tensor:
    """Returns the values of actions, given the outputs of the heads."""
    return q_values(outputs.inputs, None if outputs.values is None else outputs.values.unsqueeze(-1))


def _head_gradients(
    of_actions: Tensor, actions: Tensor, slopes: Tensor, *, is_dueling: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns the gradients of the outputs of a module's heads: of the advantages, and of the value if ``is_dueling``.

    Args:
        of_actions: ``[..., n]`` values of all actions.
        actions: ``[..., 1]`` the actions that were taken.
        slopes: ``[...]`` the gradient of the values of these.
        is_dueling: Whether there are two heads.
    """
    slopes_of_each = slopes.unsqueeze(-1)
    by_inputs = torch.zeros_like(of_actions).scatter_(-1, actions, slopes_of_each)
    if not is_dueling:
        return by_inputs, None
    return by_inputs.sub_(slopes_of_each / of_actions.shape[-1]), slopes  # the mean advantage is subtracted
