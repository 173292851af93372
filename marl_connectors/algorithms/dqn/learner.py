"""DQN: its targets and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from marl_connectors.algorithms.dqn.config import DQNConfig
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner, ReplayedRows, RowLosses
from marl_connectors.algorithms.off_policy.replay_algorithm import ReplayAlgorithm
from marl_connectors.columns import Columns
from marl_connectors.ops.q_learning import best_values, taken_values, td_losses
from marl_connectors.ops.schedule import value_at
from marl_connectors.rl_module.distributions import apply_action_mask


class DQNLearner(OffPolicyLearner):
    """Q-learning with target networks: double, duelling, n-step, with priorities, each as the config says."""

    expected = ("compute_q_values", "forward_target")
    loss_settings = ("double_q", "td_error_loss_fn")

    def explore(self, module: Any, config: Any, timestep: float) -> None:
        """Sets the module's epsilon, if it has one."""
        if isinstance(getattr(module, "epsilon", None), Tensor):
            module.epsilon.data.fill_(value_at(config.epsilon, timestep))

    def targets(self, rows: ReplayedRows) -> Tensor:
        """Returns ``[...]``, the rewards and the value of the best action after them."""
        known = rows.outputs[QF_PREDS] if rows.are_sequences else None
        return rows.bootstrapped(self.values_of_best(rows.config, rows.module, rows.following, known))

    def values_of_best(
        self, config: Any, module: Any, columns: Mapping[str, Any], known: Tensor | None = None
    ) -> Tensor:
        """Returns ``[...]`` the target network's values of the best allowed actions.

        Args:
            config: Says which network judges the actions: the target network, or the module if ``double_q``.
            module: The module, or the one that computes several.
            columns: The observations, and their action masks if there are any.
            known: The module's values of all actions, where they have been computed.
        """
        values = judged = module.forward_target(columns)[QF_PREDS]
        if config.double_q:
            judged = module.compute_q_values(columns) if known is None else known
        if Columns.ACTION_MASK in columns:
            judged = apply_action_mask(judged, columns[Columns.ACTION_MASK])
        return best_values(values, judged)

    def loss(self, rows: ReplayedRows, targets: Tensor) -> RowLosses:
        """Returns the losses of the values of the actions that were taken."""
        taken = taken_values(rows.outputs[QF_PREDS], rows[Columns.ACTIONS])
        return losses_of_values(taken, targets, rows.config.td_error_loss_fn)


def losses_of_values(values: Tensor, targets: Tensor, loss_fn: str) -> RowLosses:
    """Returns the losses of values, with their statistics."""
    errors = (values - targets).detach()
    statistics = {"qf_mean": values, "td_error_mean": errors, "td_error_abs_mean": errors.abs(), "target_mean": targets}
    return RowLosses({"qf_loss": td_losses(values, targets, loss_fn)}, errors, statistics=statistics)


class DQN(ReplayAlgorithm):
    """Deep Q-learning. ``DQNConfig().build_algo()`` makes an object of this class."""

    config_class = DQNConfig
    learner_class = DQNLearner
    module_class = DefaultDQNRLModule

    config: DQNConfig
    learner: DQNLearner


DQNTorchLearner = DQNLearner
QF_LOSS_KEY: Final = "qf_loss"
QF_MEAN_KEY: Final = "qf_mean"
TD_ERROR_MEAN_KEY: Final = "td_error_mean"
"""RLlib's names of the class and of loss statistics."""
