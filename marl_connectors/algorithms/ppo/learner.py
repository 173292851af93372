"""PPO's losses, in closed form if the distribution has one, else by autograd."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.algorithms.actor_critic.learner import ActorCriticLearner, value_moments
from marl_connectors.columns import Columns
from marl_connectors.learner.gradients import ClosedLoss, LossAndGradients
from marl_connectors.learner.learner import LearnerState
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.ppo_loss import PPOCoefficients, PPOLoss, ppo_loss, ppo_loss_and_gradients
from marl_connectors.ops.schedule import value_at
from marl_connectors.rl_module.closed_form import are_plain
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.typing import ModuleID


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

    def advantage_settings(self, config: Any) -> dict[str, Any]:
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

    def stacking_key(self, config: Any) -> Hashable:
        """Returns whether the losses have a critic and a KL penalty. All other settings are numbers that may differ."""
        return config.use_critic, config.use_kl_loss

    def own_coefficients(self, module_id: ModuleID, config: Any) -> PPOCoefficients:
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
        self, config: Any, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
    ) -> PPORows:
        """Selects the rows of a minibatch that count."""
        return PPORows.of(config, inputs, values, batch, rows)

    def loss_of_rows(self, dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
        """Returns the terms of the loss."""
        return loss_of_rows(dist_cls, coefficients, rows)

    def closed_loss(self, module_ids: Sequence[ModuleID]) -> ClosedLoss | None:
        """Returns the same loss in closed form."""
        return _ClosedPPOLoss(self, module_ids)

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

    def get_state(self) -> dict[str, Any]:
        """Returns the learner's state, which includes the KL penalties."""
        return {**super().get_state(), "kl_coeffs": dict(self._kl_coeffs)}

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
        cls, config: Any, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
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


def loss_of_rows(dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
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


class _ClosedPPOLoss:
    """PPO's loss of some modules, with its gradients in closed form."""

    def __init__(self, learner: PPOLearner, module_ids: Sequence[ModuleID]):
        self._learner = learner
        self._module_ids = tuple(module_ids)
        self._stacked = len(module_ids) if len(module_ids) > 1 else 0
        self._config = learner.config.get_config_for_module(module_ids[0])
        self._dist_cls = learner.module[module_ids[0]].get_train_action_dist_cls()
        self.uses_values = learner.has_critic(self._config)

    def __call__(self, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any]) -> LossAndGradients | None:
        learner = self._learner
        rows = learner.rows_of(self._config, inputs, values, batch, CountedRows.of(batch, stacked=self._stacked))
        closed = None
        if rows.inputs is inputs:
            coefficients = learner.coefficients(self._module_ids)
            closed = loss_and_gradients_of_rows(self._dist_cls, coefficients, rows)
        if closed is None:
            return None
        terms = [torch.from_numpy(term) for term in closed.terms]
        learner.log_terms(self._module_ids, dict(zip(learner.TERMS, terms, strict=True)) | value_moments(rows))
        return LossAndGradients(terms[0], closed.by_inputs, closed.by_values)


class TermsAndGradients(NamedTuple):
    """The terms of a loss, and the gradients of the total for the outputs of modules.

    Attributes:
        terms: The terms, the total first: a scalar each, or ``[M]`` for ``M`` modules.
        by_inputs: The gradient for the ``action_dist_inputs``, of their shape.
        by_values: The gradient for the values, of their shape; None without a critic.
    """

    terms: list[np.ndarray]
    by_inputs: Tensor
    by_values: Tensor | None


def loss_and_gradients_of_rows(dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> TermsAndGradients | None:
    """Computes ``loss_of_rows`` and its gradients in numpy; returns None if there is no closed form."""
    if not _may_be_closed(dist_cls, coefficients, rows):
        return None
    lead, numbers = rows.advantages.shape, rows.inputs.shape[-1]
    actions = rows.actions.flatten(0, 1) if len(lead) == 2 else rows.actions
    before = None if rows.before is None else rows.before.detach().reshape(-1, numbers)
    with np.errstate(all="ignore"):
        closed = dist_cls.closed_form(rows.inputs.detach().reshape(-1, numbers), actions, before)
        if closed is None:
            return None
        optional = (rows.values, rows.value_targets, rows.weights)
        values, targets, weights = (None if x is None else x.detach().numpy() for x in optional)
        settings = PPOCoefficients(*(x.numpy() if isinstance(x, Tensor) else x for x in coefficients))
        terms, gradients = ppo_loss_and_gradients(
            settings,
            logp=closed.logp.reshape(lead),
            old_logp=rows.old_logp.numpy(),
            advantages=rows.advantages.numpy(),
            entropy=closed.entropy.reshape(lead),
            values=values,
            value_targets=targets,
            kl=None if closed.kl is None else closed.kl.reshape(lead),
            weights=weights,
        )
        by_kl = None if gradients.by_kl is None else gradients.by_kl.reshape(-1)
        by_inputs = closed.gradient(gradients.by_logp.reshape(-1), gradients.by_entropy.reshape(-1), by_kl)
    by_values = None if gradients.by_values is None else torch.from_numpy(gradients.by_values)
    return TermsAndGradients(terms, torch.from_numpy(by_inputs).view(rows.inputs.shape), by_values)


def _may_be_closed(dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> bool:
    """Whether all shapes fit, and all tensors are on the CPU and have one dtype."""
    if not (isinstance(dist_cls, type) and issubclass(dist_cls, Distribution) and type(rows.actions) is Tensor):
        return False
    inputs, actions, before, lead = rows.inputs, rows.actions, rows.before, rows.advantages.shape
    of_rows = [x for x in rows if x is not None and x is not inputs and x is not actions and x is not before]
    numbers = [x for x in (inputs, before, *of_rows, *coefficients) if isinstance(x, Tensor)]
    return (
        {inputs.shape[:-1], actions.shape[: len(lead)], *[x.shape for x in of_rows]} == {lead}
        and len(lead) < 3
        and lead.numel() > 0
        and (before is None or before.shape == inputs.shape)
        and actions.is_cpu
        and are_plain(numbers)
    )


PPOTorchLearner = PPOLearner
"""RLlib's name."""
