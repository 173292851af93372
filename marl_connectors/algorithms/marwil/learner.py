"""The losses of MARWIL and of behaviour cloning."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from marl_connectors.algorithms.actor_critic.learner import ActorCriticLearner
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.errors import ConfigError
from marl_connectors.learner.learner import LearnerState
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.marwil_loss import MARWILCoefficients, MARWILLoss, marwil_loss
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.marwil.config import MARWILConfig
    from marl_connectors.rl_module.distributions.distribution import Distribution

_TINY = 1e-8


class MARWILLearnerState(LearnerState):
    """The state of a MARWILLearner.

    Attributes:
        sqd_adv_norms: The moving average of the squared advantages of each module that was updated.
    """

    sqd_adv_norms: dict[ModuleID, float]


class MARWILLearner(ActorCriticLearner):
    """Imitation of recorded actions, weighted by their advantages. Modules with ``beta=0`` clone all actions alike."""

    state_class = MARWILLearnerState
    TERMS = ("total_loss", "policy_loss", "vf_loss", "mean_logp", "entropy", "mean_adv_weight")
    NO_CRITIC = "beta=0"

    def build(self) -> None:
        """Adds the estimation of value targets to the pipeline, if a module has a critic."""
        self._sqd_adv_norms: dict[ModuleID, float] = {}
        super().build()

    def has_critic(self, config: Any) -> bool:
        """Returns whether ``beta`` is above 0."""
        return config.beta > 0

    def advantage_settings(self, config: MARWILConfig) -> dict[str, Any]:
        """Returns a module's settings of value targets. Without GAE these are whole returns."""
        return {"gamma": config.gamma, "lambda_": config.lambda_ if config.use_gae else 1.0}

    def advantage_piece(self, *, standardize: bool = False) -> GeneralAdvantageEstimation | None:
        """Returns the piece that adds value targets; None if no module has a critic."""
        ids = [*self.module.keys(), *self.config.algorithm_config_overrides_per_module]
        if not any(self.has_critic(config) for config in (self.config, *map(self.config.get_config_for_module, ids))):
            return None
        return super().advantage_piece(standardize=standardize)

    def sqd_adv_norm(self, module_id: ModuleID) -> float:
        """Returns the moving average of a module's squared advantages."""
        if module_id in self._sqd_adv_norms:
            return self._sqd_adv_norms[module_id]
        return self.config.get_config_for_module(module_id).moving_average_sqd_adv_norm_start

    def stacking_key(self, config: MARWILConfig) -> Hashable:
        """Returns whether the losses have a critic and a bonus. All other settings are numbers that may differ."""
        return self.has_critic(config), config.bc_logstd_coeff > 0

    def own_coefficients(self, module_id: ModuleID, config: MARWILConfig) -> MARWILCoefficients:
        """Returns the weights and clips of a module's loss now."""
        return MARWILCoefficients(
            beta=float(config.beta),
            advantage_norm=math.sqrt(self.sqd_adv_norm(module_id)) + _TINY,
            max_weight=float(config.max_adv_weight),
            vf_coeff=float(config.vf_coeff),
            logstd_coeff=float(config.bc_logstd_coeff),
        )

    def rows_of(
        self, config: MARWILConfig, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
    ) -> MARWILRows:
        """Selects the rows of a minibatch that count."""
        return MARWILRows(
            inputs=rows.pick(inputs),
            values=None if values is None else rows.pick(values),
            actions=rows.pick(batch[Columns.ACTIONS]),
            value_targets=None if values is None else rows.pick(batch[Columns.VALUE_TARGETS]),
            weights=rows.weights,
        )

    def loss_of_rows(
        self, dist_cls: type[Distribution], coefficients: MARWILCoefficients, rows: MARWILRows
    ) -> MARWILLoss:
        """Returns the terms of the loss."""
        return loss_of_rows(dist_cls, coefficients, rows)

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Moves the averages of squared advantages towards those of the update."""
        for module_id, own in self._loss_statistics.means().items():
            config = self.config.get_config_for_module(module_id)
            if self.has_critic(config):
                before = self.sqd_adv_norm(module_id)
                rate = config.moving_average_sqd_adv_norm_update_rate
                self._sqd_adv_norms[module_id] = before + rate * (2.0 * own["vf_loss"] - before)

    def _results(self, trained: Mapping[ModuleID, int], rates: Mapping[ModuleID, float]) -> dict[ModuleID, Any]:
        results = super()._results(trained, rates)
        for module_id, own in results.items():
            if self.has_critic(self.config.get_config_for_module(module_id)):
                own["moving_average_sqd_adv_norm"] = self.sqd_adv_norm(module_id)
        return results

    def add_module(self, module_id: ModuleID, module: RLModule, *, is_updated: bool = True) -> None:
        """Adds a module.

        Raises:
            ConfigError: If it has a critic, but no module of the run has value targets; or the other way round.
        """
        has_targets = any(isinstance(piece, GeneralAdvantageEstimation) for piece in self.pipeline)
        has_critic = self.has_critic(self.config.get_config_for_module(module_id))
        if has_critic and not has_targets and self.config.add_default_connectors_to_learner_pipeline:
            raise ConfigError(
                f"add_module: beta is above 0 for module {module_id!r}, but no module of the run has a critic. Set the "
                f"override from the start: .rl_module(algorithm_config_overrides_per_module=...)."
            )
        super().add_module(module_id, module, is_updated=is_updated)

    def remove_module(self, module_id: ModuleID) -> None:
        """Removes a module, with its moving average and settings."""
        super().remove_module(module_id)
        self._sqd_adv_norms.pop(module_id, None)

    def _get_other_state(self) -> dict[str, Any]:
        """Returns the learner's state, which includes the moving averages of squared advantages."""
        return {**super()._get_other_state(), "sqd_adv_norms": dict(self._sqd_adv_norms)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self._sqd_adv_norms = dict(state["sqd_adv_norms"])


class MARWILRows(NamedTuple):
    """The rows that the loss is computed from: ``[B, ...]`` of one module, or ``[M, B, ...]`` of ``M`` modules.

    Attributes:
        inputs: The current ``action_dist_inputs``.
        values: The current value estimates; None without a critic.
        actions: The recorded actions; may be a tree of tensors.
        value_targets: The targets of ``values``; None without a critic.
        weights: The weight of each row in the means; None if all rows have the same weight.
    """

    inputs: Tensor
    values: Tensor | None
    actions: Any
    value_targets: Tensor | None
    weights: Tensor | None


def loss_of_rows(dist_cls: type[Distribution], coefficients: MARWILCoefficients, rows: MARWILRows) -> MARWILLoss:
    """Computes ``ops.marwil_loss`` from the outputs of modules.

    Args:
        dist_cls: The action distribution.
        coefficients: Weights and clips.
        rows: The rows.
    """
    now = dist_cls.from_logits(rows.inputs)
    log_stds = now.log_stds() if _has_bonus(coefficients) else None
    return marwil_loss(
        logp=now.logp(rows.actions),
        entropy=now.entropy(),
        values=rows.values,
        value_targets=rows.value_targets,
        log_std=None if log_stds is None else log_stds.mean(-1),
        weights=rows.weights,
        **coefficients._asdict(),
    )


def _has_bonus(coefficients: MARWILCoefficients) -> bool:
    """Whether the loss has a bonus for log standard deviations."""
    return isinstance(coefficients.logstd_coeff, Tensor) or coefficients.logstd_coeff > 0


MARWILTorchLearner = MARWILLearner
"""RLlib's name."""
