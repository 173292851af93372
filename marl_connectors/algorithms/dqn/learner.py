"""DQN's loss, and the target networks that follow the modules."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import (
    DISCOUNTS,
    NEXT_ACTION_MASK,
    AddNStepReturnsToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.rl_module.apis import TargetNetworkAPI, update_target_networks
from marl_connectors.rl_module.masked_logits import apply_action_mask
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.transfers import all_on_host
from marl_connectors.typing import ModuleID


class DQNLearner(Learner):
    """Q-learning with target networks: double, duelling, n-step, with priorities, each as the config says.

    Attributes:
        td_errors: For each module that the newest update has changed, ``[B]`` errors of its rows, in their order.
        last_target_update: The number of env steps sampled when the target networks were last updated.
    """

    def build(self) -> None:
        """Puts the piece for n-step returns into the pipeline, and sets epsilon."""
        self.td_errors: dict[ModuleID, np.ndarray] = {}
        self._errors: dict[ModuleID, Tensor] = {}
        self.last_target_update = 0
        if self.config.add_default_connectors_to_learner_pipeline:
            self.pipeline.remove(AddOneTsToEpisodesAndTruncate)
            own = {m: self.config.get_config_for_module(m).gamma for m in self.module}
            piece = AddNStepReturnsToTrainBatch(n_step=self.config.n_step, gamma=self.config.gamma, module_settings=own)
            self.pipeline.insert_after(AddColumnsFromEpisodesToTrainBatch, piece)
        super().build()
        self.explore_as_of(0)

    def explore_as_of(self, timestep: int) -> None:
        """Sets the epsilon of all modules.

        Args:
            timestep: The number of env steps sampled so far.
        """
        for module_id, module in self.module.items():
            epsilon = getattr(module.unwrapped(), "epsilon", None)
            if isinstance(epsilon, Tensor):
                config = self.config.get_config_for_module(module_id)
                epsilon.data.fill_(value_at(config.epsilon, timestep))

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the scalar loss of one module."""
        return self._loss((module_id,), config, self.module[module_id], batch, fwd_out)

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: RLModule, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns ``[M]`` losses in one computation."""
        return self._loss(module_ids, self.config.get_config_for_module(module_ids[0]), module, batch, fwd_out)

    def stacking_key(self, config: Any) -> Hashable:
        """Returns the settings of the loss."""
        return config.double_q, config.td_error_loss_fn

    def _loss(
        self, module_ids: Sequence[ModuleID], config: Any, module: Any, batch: Mapping[str, Any], fwd_out: Any
    ) -> Tensor:
        rows = CountedRows.of(batch, stacked=len(module_ids) if len(module_ids) > 1 else 0)
        values = fwd_out[QF_PREDS]
        taken = values.gather(-1, batch[Columns.ACTIONS].long().unsqueeze(-1)).squeeze(-1)
        targets = batch[Columns.REWARDS] + batch[DISCOUNTS] * self._next_values(config, module, batch)
        errors = taken - targets
        each = F.smooth_l1_loss(taken, targets, reduction="none") if config.td_error_loss_fn == "huber" else errors**2
        if WEIGHTS in batch:
            each = each * batch[WEIGHTS]
        loss = rows.mean(rows.pick(each))
        means = {name: rows.mean(rows.pick(column)).detach() for name, column in (
            ("qf_mean", taken), ("td_error_mean", errors), ("td_error_abs_mean", errors.abs()), ("target_mean", targets)
        )}  # fmt: skip
        self.log_terms(module_ids, {"qf_loss": loss.detach(), **means})
        for module_id, own in zip(module_ids, errors if len(module_ids) > 1 else [errors], strict=True):
            self._errors[module_id] = own.detach()
        return loss

    @torch.no_grad()
    def _next_values(self, config: Any, module: Any, batch: Mapping[str, Any]) -> Tensor:
        """Returns the values of the best actions after each step, by the target networks."""
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        mask = batch.get(NEXT_ACTION_MASK)
        values = module.forward_target(following)[QF_PREDS]
        judged = module.compute_q_values(following) if config.double_q else values
        best = (judged if mask is None else apply_action_mask(judged, mask)).argmax(-1, keepdim=True)
        return values.gather(-1, best).squeeze(-1)

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Forgets the errors of the update before."""
        self._errors = {}

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Updates the target networks if it is time."""
        found = all_on_host(list(self._errors.values()))
        self.td_errors = {m: errors.numpy() for m, errors in zip(self._errors, found, strict=True)}
        if self.timestep - self.last_target_update >= self.config.target_network_update_freq:
            self.last_target_update = self.timestep
            for module_id in self.td_errors:
                if isinstance(self.module[module_id].unwrapped(), TargetNetworkAPI):
                    update_target_networks(self.module[module_id], self.config.get_config_for_module(module_id).tau)

    def get_state(self) -> dict[str, Any]:
        """Returns the learner's state, with the time of the last update of the target networks."""
        return {**super().get_state(), "last_target_update": self.last_target_update}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self.last_target_update = state["last_target_update"]


DQNTorchLearner = DQNLearner
"""RLlib's name."""
