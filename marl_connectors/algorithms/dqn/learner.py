"""DQN's loss, and the target networks that follow the modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import (
    DISCOUNTS,
    NEXT_ACTION_MASK,
)
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.n_step_targets import n_step_targets
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.rl_module.distributions import apply_action_mask
from marl_connectors.typing import ModuleID

TERMS = ("total_loss", "qf_loss", "qf_mean", "td_error_mean", "td_error_abs_mean", "target_mean")
"""The loss statistics of Q-learning, in the order of ``TDErrors.terms``."""


class TDErrors(NamedTuple):
    """The temporal-difference errors of a minibatch, ``[B]`` of one module or ``[M, B]`` of ``M`` modules.

    Attributes:
        taken: The values of the actions that were taken.
        targets: The targets of these values.
        errors: ``taken - targets``.
        losses: The loss of each row.
        slopes: The derivative of each row's loss with respect to ``taken``.
    """

    taken: Tensor
    targets: Tensor
    errors: Tensor
    losses: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, taken: Tensor, targets: Tensor, weights: Tensor | None = None, *, loss_fn: str) -> TDErrors:
        """Returns the errors, with the losses that ``td_error_loss_fn`` names, times weights if there are any."""
        errors = taken - targets
        if loss_fn == "huber":
            slopes = errors.clamp(-1.0, 1.0)
            losses = slopes * (errors - 0.5 * slopes)
        else:
            slopes, losses = 2.0 * errors, errors.square()
        if weights is not None:
            slopes, losses = slopes * weights, losses * weights
        return cls(taken, targets, errors, losses, slopes)

    def terms(self) -> tuple[Tensor, ...]:
        """Returns what the loss statistics are means of."""
        return self.losses, self.losses, self.taken, self.errors, self.errors.abs(), self.targets


class QFunctions(NamedTuple):
    """What computes ``[..., n]`` values of all actions for the ``obs`` of a batch, if no gradients are wanted.

    Attributes:
        values: Computes them with the networks that are trained.
        targets: Computes them with the target networks.
    """

    values: Callable[[Mapping[str, Any]], Tensor]
    targets: Callable[[Mapping[str, Any]], Tensor]

    @classmethod
    def of_module(cls, module: Any) -> QFunctions:
        """Returns those of a module."""
        return cls(module.compute_q_values, lambda batch: module.forward_target(batch)[QF_PREDS])


class DQNLearner(OffPolicyLearner):
    """Q-learning with target networks: double, duelling, n-step, with priorities, each as the config says."""

    expected = ("compute_q_values", "forward_target")
    expected_class = "DefaultDQNRLModule"

    def explore_as_of(self, timestep: int) -> None:
        """Sets the epsilon of all modules to that of ``timestep`` sampled steps; of those not trained, to the last."""
        for module_id, module in self.module.items():
            epsilon = getattr(module.unwrapped(), "epsilon", None)
            if isinstance(epsilon, Tensor):
                config = self.config.get_config_for_module(module_id)
                epsilon.data.fill_(value_at(config.epsilon, self.time_to_explore(module_id, timestep)))

    def stacking_key(self, config: Any) -> Hashable:
        """Returns the settings of the loss."""
        return config.double_q, config.td_error_loss_fn

    def _loss(
        self, module_ids: Sequence[ModuleID], config: Any, module: Any, batch: Mapping[str, Any], fwd_out: Any
    ) -> Tensor:
        functions = QFunctions.of_module(module)
        found = self._errors_of(config, functions, batch, fwd_out[QF_PREDS], taken_actions(batch), module_ids)
        rows = CountedRows.of(batch, stacked=len(module_ids) if len(module_ids) > 1 else 0)
        loss = rows.mean(rows.pick(found.losses))
        self._log(module_ids, rows, found, batch[Columns.LOSS_MASK] if Columns.SEQ_LENS in batch else None)
        return loss

    def _errors_of(
        self,
        config: Any,
        functions: QFunctions,
        batch: Mapping[str, Any],
        values: Tensor,
        actions: Tensor,
        module_ids: Sequence[ModuleID],
    ) -> TDErrors:
        """Returns the errors of the values of the actions that were taken, and the losses of all rows."""
        taken = values.gather(-1, actions).squeeze(-1)
        if Columns.SEQ_LENS in batch:
            targets = self._targets_in_sequences(config, functions, batch, values, module_ids)
        else:
            targets = batch[Columns.REWARDS] + batch[DISCOUNTS] * self._next_values(config, functions, batch)
        weights = batch.get(WEIGHTS)
        return TDErrors.of(taken, targets, weights, loss_fn=config.td_error_loss_fn)

    def _log(
        self, module_ids: Sequence[ModuleID], rows: CountedRows, found: TDErrors, counted: Tensor | None = None
    ) -> None:
        """Logs the loss statistics, and keeps the errors of all rows, or of all sequences."""
        columns = torch.stack([rows.pick(column.detach()) for column in found.terms()])
        self.log_table(module_ids, TERMS, rows.mean(columns))
        errors = found.errors.detach()
        if counted is not None:  # of a sequence, the mean size of its steps' errors
            errors = (errors.abs() * counted).sum(-1) / counted.sum(-1)
        self.log_td_errors(module_ids, errors)

    @torch.no_grad()
    def _next_values(self, config: Any, functions: QFunctions, batch: Mapping[str, Any]) -> Tensor:
        """Returns the values of the best actions after each step, by the target networks."""
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        values = functions.targets(following)
        judged = functions.values(following) if config.double_q else values
        return best_values(values, judged, batch.get(NEXT_ACTION_MASK))

    @torch.no_grad()
    def _targets_in_sequences(
        self,
        config: Any,
        functions: QFunctions,
        batch: Mapping[str, Any],
        values: Tensor,
        module_ids: Sequence[ModuleID],
    ) -> Tensor:
        """Returns ``[..., S, T]`` targets of all steps of sequences, whose values are ``values``."""
        by_target = functions.targets(batch)
        judged = values.detach() if config.double_q else by_target
        best = best_values(by_target, judged, batch.get(Columns.ACTION_MASK))
        ended = F.pad(batch[Columns.TERMINATEDS][..., :-1].float(), (1, 0))
        last = batch[Columns.SEQ_LENS].unsqueeze(-1) - 1
        left = (last - torch.arange(best.shape[-1], device=best.device)).clamp(min=0)
        gammas: Any = [self.config.get_config_for_module(m).gamma for m in module_ids]
        gamma = best.new_tensor(gammas).view(-1, 1, 1) if len(gammas) > 1 else gammas[0]
        return n_step_targets(
            batch[Columns.REWARDS], best * (1.0 - ended), left, n_step=self.config.n_step, gamma=gamma
        )


def taken_actions(batch: Mapping[str, Any]) -> Tensor:
    """Returns ``[..., 1]`` int64, the actions that were taken, by which values can be gathered."""
    return batch[Columns.ACTIONS].long().unsqueeze(-1)


def best_values(values: Tensor, judged: Tensor, mask: Tensor | None) -> Tensor:
    """Returns ``[...]`` those of ``[..., n]`` values whose actions are judged best among the allowed ones."""
    best = (judged if mask is None else apply_action_mask(judged, mask)).argmax(-1, keepdim=True)
    return values.gather(-1, best).squeeze(-1)


DQNTorchLearner = DQNLearner
QF_LOSS_KEY: Final = "qf_loss"
QF_MEAN_KEY: Final = "qf_mean"
TD_ERROR_MEAN_KEY: Final = "td_error_mean"
"""RLlib's names of the class and of loss statistics."""
