"""SAC: the targets of the critics, and the losses of critics, policy and temperature, in one computation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner, ReplayedRows, RowLosses
from marl_connectors.algorithms.off_policy.replay_algorithm import ReplayAlgorithm
from marl_connectors.algorithms.sac.config import SACConfig
from marl_connectors.algorithms.sac.rl_module import CRITICS, DefaultSACRLModule, by_critic, frozen, smaller
from marl_connectors.algorithms.sac.rl_module import QF_TWIN_PREDS as QF_TWIN_PREDS
from marl_connectors.columns import Columns
from marl_connectors.learner.optimizers import OTHERS
from marl_connectors.ops.q_learning import taken_values

_PREDS = QF_PREDS, QF_TWIN_PREDS
_AUTO_SHARE = 0.98
"""The share of the greatest entropy of Discrete actions at which the temperature aims (Christodoulou, 2019)."""


class Judged(NamedTuple):
    """What a policy's next action is worth: ``values + alpha * entropy``.

    Attributes:
        values: ``[...]``, the smaller one of both critics' values of the action: of one that was drawn, or their
            expectation over all actions of a Discrete space.
        entropy: ``[...]`` in nats, of the policy; for a Box its estimate, the negative log-probability of the action.
    """

    values: Tensor
    entropy: Tensor


class SACLearner(OffPolicyLearner):
    """Soft actor-critic with a temperature that is learned, for Box and Discrete actions.

    The three losses have gradients for different parameters, so their sum is computed and differentiated at once.
    """

    expected = ("critics", "compute_q_values", "forward_target", "log_alpha")
    reads_action_masks = True
    loss_settings = ("target_entropy",)
    rates = {OTHERS: "actor_lr", **dict.fromkeys(CRITICS, "critic_lr"), "log_alpha": "alpha_lr"}

    def targets(self, rows: ReplayedRows) -> Tensor:
        """Returns ``[...]``, the rewards and the soft value after them, by the target networks of the critics."""
        module, following = rows.module, rows.following
        inputs = module.forward_inference(following)[Columns.ACTION_DIST_INPUTS]

        def values_of(actions: Tensor | None) -> Mapping[str, Tensor]:
            return module.forward_target(following if actions is None else {**following, Columns.ACTIONS: actions})

        judged = _judged(module, inputs, values_of, _noise(rows, 1))
        return rows.bootstrapped(judged.values + module.log_alpha.exp() * judged.entropy)

    def loss(self, rows: ReplayedRows, targets: Tensor) -> RowLosses:
        """Returns the losses of the critics, of the policy by the critics, and of the temperature by the policy."""
        module, alpha = rows.module, rows.module.log_alpha.exp().detach()
        taken = _values_of_taken(rows)
        errors = [values - targets for values in taken]
        inputs = rows.outputs[Columns.ACTION_DIST_INPUTS]

        def values_of(actions: Tensor | None) -> Mapping[str, Tensor]:
            if actions is None:
                return {name: rows.outputs[name].detach() for name in _PREDS if name in rows.outputs}
            with frozen(module.critics()):
                return module.compute_q_values({Columns.OBS: rows[Columns.OBS], Columns.ACTIONS: actions})

        judged = _judged(module, inputs, values_of, _noise(rows, 0))
        self.log_terms(rows.module_ids, {"alpha_value": alpha.squeeze(-1)})
        return RowLosses(
            by_critic("loss", [0.5 * own.square() for own in errors]),
            torch.stack(errors).detach().abs().mean(0),
            others={
                "policy_loss": -(judged.values + alpha * judged.entropy),
                "alpha_loss": module.log_alpha * (judged.entropy.detach() - _target_entropy(rows)),
            },
            statistics={
                "entropy": judged.entropy,
                "target_mean": targets,
                "td_error_abs_mean": errors[0].abs(),
                **by_critic("mean", taken),
            },
        )


def _noise(rows: ReplayedRows, number: int) -> Tensor | None:
    """Returns ``[..., n]`` normally distributed numbers, others for each number; None if actions are Discrete."""
    if not isinstance(rows.module.action_space, spaces.Box):
        return None
    inputs = rows.outputs[Columns.ACTION_DIST_INPUTS]
    return rows.noise(rows.module.get_train_action_dist_cls(), inputs.shape[-1], draws=2)[number]


def _judged(
    module: Any, inputs: Tensor, values_of: Callable[[Tensor | None], Mapping[str, Tensor]], noise: Tensor | None
) -> Judged:
    """Judges the actions of a policy: those that are drawn, or without ``noise`` all of a Discrete space."""
    dist = module.get_train_action_dist_cls().from_logits(inputs)
    if noise is None:
        return Judged((dist.log_probs.exp() * smaller(values_of(None))).sum(-1), dist.entropy())
    actions, logp = dist.sample_with_logp(noise)
    return Judged(smaller(values_of(actions)), -logp)


def _values_of_taken(rows: ReplayedRows) -> list[Tensor]:
    """Returns each critic's ``[...]`` values of the actions that were taken."""
    found = [rows.outputs[name] for name in _PREDS if name in rows.outputs]
    if isinstance(rows.module.action_space, spaces.Box):
        return found
    return [taken_values(values, rows[Columns.ACTIONS]) for values in found]


def _target_entropy(rows: ReplayedRows) -> Any:
    """Returns the entropy at which the temperature aims, for all rows or ``[...]`` for each."""
    if rows.config.target_entropy != "auto":
        return float(rows.config.target_entropy)
    space = rows.module.action_space
    if isinstance(space, spaces.Box):
        return -float(np.prod(space.shape or (1,)))
    if Columns.ACTION_MASK not in rows.columns:
        return _AUTO_SHARE * math.log(space.n)
    allowed = rows[Columns.ACTION_MASK].bool().sum(-1)
    return _AUTO_SHARE * torch.where(allowed > 0, allowed, int(space.n)).to(torch.float32).log()


class SAC(ReplayAlgorithm):
    """Soft actor-critic. ``SACConfig().build_algo()`` makes an object of this class."""

    config_class = SACConfig
    learner_class = SACLearner
    module_class = DefaultSACRLModule

    config: SACConfig
    learner: SACLearner


SACTorchLearner = SACLearner
QF_TWIN_LOSS_KEY: Final = "qf_twin_loss"
"""RLlib's names of the class and of a loss statistic."""
