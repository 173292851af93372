"""PPO's losses."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from marl_connectors.algorithms.actor_critic.learner import ActorCriticLearner
from marl_connectors.columns import Columns
from marl_connectors.learner.learner import LearnerState
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.ppo_loss import PPOCoefficients, PPOLoss, ppo_loss
from marl_connectors.ops.schedule import value_at
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.ppo.config import PPOConfig
    from marl_connectors.rl_module.distributions.distribution import Distribution


class PPOLearnerState(LearnerState):
    """The state of a PPOLearner.

    Attributes:
        kl_coeffs: The weight of the KL penalty of each module whose penalty was adapted.
    """

    kl_coeffs: dict[ModuleID, float]


class PPOLearner(ActorCriticLearner):
    """Proximal policy optimisation with a clipped surrogate and an optional KL penalty with an adaptive weight."""

    state_class = PPOLearnerState
    TERMS = (
        "total_loss",
        "policy_loss",
        "vf_loss",
        "vf_loss_unclipped",
        "entropy",
        "mean_kl_loss",
        "clip_fraction",
    )
    ROW_COLUMN = Columns.ADVANTAGES
    NO_CRITIC = "use_critic=False"

    def build(self) -> None:
        """Adds advantage estimation to the pipeline."""
        self._kl_coeffs: dict[ModuleID, float] = {}
        super().build()

    def has_critic(self, config: Any) -> bool:
        """Returns ``use_critic``."""
        return config.use_critic

    def advantage_settings(self, config: PPOConfig) -> dict[str, Any]:
        """Returns a module's settings of advantages. Without GAE or a critic its advantages are whole returns."""
        return {
            "gamma": config.gamma,
            "lambda_": config.lambda_ if config.use_gae and config.use_critic else 1.0,
            "normalize_values": config.normalize_values and config.use_critic,
            "value_norm_beta": config.value_norm_beta,
        }

    def kl_coeff(self, module_id: ModuleID) -> float:
        """Returns the current weight of a module's KL penalty."""
        if module_id in self._kl_coeffs:
            return self._kl_coeffs[module_id]
        return self.config.get_config_for_module(module_id).kl_coeff

    def remove_module(self, module_id: ModuleID) -> None:
        """Removes a module, with its KL penalty, settings and statistics of values."""
        super().remove_module(module_id)
        self._kl_coeffs.pop(module_id, None)

    def stacking_key(self, config: PPOConfig) -> Hashable:
        """Returns whether the losses have a critic and a KL penalty. All other settings are numbers that may differ."""
        return config.use_critic, config.use_kl_loss

    def own_coefficients(self, module_id: ModuleID, config: PPOConfig) -> PPOCoefficients:
        """Returns the weights and clips of a module's loss now."""
        is_huber = config.vf_loss == "huber"
        return PPOCoefficients(
            clip_param=float(config.clip_param),
            entropy_coeff=value_at(config.entropy_coeff, self.timestep),
            vf_clip_param=math.inf if is_huber else float(config.vf_clip_param),
            vf_loss_coeff=float(config.vf_loss_coeff),
            kl_coeff=self.kl_coeff(module_id),
            vf_huber_delta=float(config.vf_huber_delta) if is_huber else math.inf,
        )

    def rows_of(
        self, config: PPOConfig, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
    ) -> PPORows:
        """Selects the rows of a minibatch that count."""
        return PPORows.of(config, inputs, values, batch, rows)

    def loss_of_rows(self, dist_cls: type[Distribution], coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
        """Returns the terms of the loss."""
        return loss_of_rows(dist_cls, coefficients, rows)

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Adapts the KL penalties: multiplies them by 1.5 if the policy moved too far, by 0.5 if it hardly moved."""
        for module_id, kl in self._loss_statistics.last("mean_kl_loss").items():
            config = self.config.get_config_for_module(module_id)
            if not config.use_kl_loss:
                continue
            if kl > 2.0 * config.kl_target:
                self._kl_coeffs[module_id] = self.kl_coeff(module_id) * 1.5
            elif kl < 0.5 * config.kl_target:
                self._kl_coeffs[module_id] = self.kl_coeff(module_id) * 0.5

    def _results(self, trained: Mapping[ModuleID, int], rates: Mapping[ModuleID, float]) -> dict[ModuleID, Any]:
        results = super()._results(trained, rates)
        for module_id, own in results.items():
            config = self.config.get_config_for_module(module_id)
            own["curr_entropy_coeff"] = value_at(config.entropy_coeff, self.timestep)
            if config.use_kl_loss:
                own["curr_kl_coeff"] = self.kl_coeff(module_id)
        return results

    def _get_other_state(self) -> dict[str, Any]:
        """Returns the learner's state, which includes the KL penalties."""
        return {**super()._get_other_state(), "kl_coeffs": dict(self._kl_coeffs)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self._kl_coeffs = dict(state["kl_coeffs"])


class PPORows(NamedTuple):
    """The rows that PPO's loss is computed from: ``[B, ...]`` of one module, or ``[M, B, ...]`` of ``M`` modules.

    Attributes:
        inputs: The current ``action_dist_inputs``.
        values: The current value estimates; None without a critic.
        actions: The actions that were taken; may be a tree of tensors.
        before: The ``action_dist_inputs`` when the actions were taken; None without a KL penalty.
        old_logp: The log-probabilities of the actions when they were taken.
        advantages: The advantages, standardised or not.
        value_targets: The targets of ``values``; None without a critic.
        weights: The weight of each row in the means; None if all rows have the same weight.
    """

    inputs: Tensor
    values: Tensor | None
    actions: Any
    before: Tensor | None
    old_logp: Tensor
    advantages: Tensor
    value_targets: Tensor | None
    weights: Tensor | None

    @classmethod
    def of(
        cls, config: PPOConfig, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
    ) -> PPORows:
        """Selects the rows of a minibatch that count.

        Args:
            config: The module's config.
            inputs: The ``action_dist_inputs`` of all rows.
            values: The value estimates of all rows; None without a critic.
            batch: The columns of the minibatch.
            rows: The rows that count.
        """
        return cls(
            inputs=rows.pick(inputs),
            values=None if values is None else rows.pick(values),
            actions=rows.pick(batch[Columns.ACTIONS]),
            before=rows.pick(batch[Columns.ACTION_DIST_INPUTS]) if config.use_kl_loss else None,
            old_logp=rows.pick(batch[Columns.ACTION_LOGP]),
            advantages=rows.pick(batch[Columns.ADVANTAGES]),
            value_targets=None if values is None else rows.pick(batch[Columns.VALUE_TARGETS]),
            weights=rows.weights,
        )


def loss_of_rows(dist_cls: type[Distribution], coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
    """Computes ``ops.ppo_loss`` from the outputs of modules.

    Args:
        dist_cls: The action distribution.
        coefficients: Weights and clips.
        rows: The rows.
    """
    now = dist_cls.from_logits(rows.inputs)
    return ppo_loss(
        logp=now.logp(rows.actions),
        old_logp=rows.old_logp,
        advantages=rows.advantages,
        entropy=now.entropy(),
        values=rows.values,
        value_targets=rows.value_targets,
        kl=None if rows.before is None else dist_cls.from_logits(rows.before).kl(now),
        weights=rows.weights,
        **coefficients._asdict(),
    )


PPOTorchLearner = PPOLearner
"""RLlib's name."""
