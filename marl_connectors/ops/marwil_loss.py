"""The loss of imitation weighted by advantages, Wang et al. (2018), "Exponentially weighted imitation learning"."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_connectors.ops.ppo_loss import with_row_axis


class MARWILLoss(NamedTuple):
    """The loss and its terms, each averaged over the batch axis: a scalar, or ``[M]`` for ``M`` modules.

    The last three are statistics without a gradient: the log-probability of the recorded actions, the entropy, and the
    weight of a row.
    """

    total: Tensor
    policy_loss: Tensor
    vf_loss: Tensor
    mean_logp: Tensor
    entropy: Tensor
    mean_weight: Tensor


class MARWILCoefficients(NamedTuple):
    """Weights and clips: numbers, or ``[M]`` arrays or tensors with one for each module; see ``marwil_loss``."""

    beta: Any = 0.0
    advantage_norm: Any = 1.0
    max_weight: Any = float("inf")
    vf_coeff: Any = 1.0
    logstd_coeff: Any = 0.0


def marwil_loss(
    *,
    logp: Tensor,
    entropy: Tensor,
    values: Tensor | None = None,
    value_targets: Tensor | None = None,
    log_std: Tensor | None = None,
    beta: float | Tensor = 0.0,
    advantage_norm: float | Tensor = 1.0,
    max_weight: float | Tensor = float("inf"),
    vf_coeff: float | Tensor = 1.0,
    logstd_coeff: float | Tensor = 0.0,
    weights: Tensor | None = None,
) -> MARWILLoss:
    """The loss of MARWIL to be minimised; without values, that of behaviour cloning.

    A row's negative log-probability counts ``exp(beta * advantage / advantage_norm)`` times, where the advantage is the
    target less the value. These factors have no gradient. The value loss is half the mean squared advantage.

    All tensors are ``[B]``, or ``[M, B]`` for ``M`` modules at once; every mean runs over ``B``. Coefficients and clips
    are numbers, or ``[M]`` tensors with one for each module.

    Args:
        logp: Log-probabilities of the recorded actions under the current policy.
        entropy: Entropy of the current policy, in nats.
        values: Current value estimates; None for behaviour cloning.
        value_targets: The targets of ``values``, such as the discounted sum of the rewards that follow.
        log_std: The mean log standard deviation of the current policy; None for a policy without.
        beta: How much better actions are preferred; 0 for behaviour cloning.
        advantage_norm: The typical size of an advantage.
        max_weight: The largest factor of a row, as in Peng et al. (2019), arXiv:1910.00177.
        vf_coeff: Weight of the value loss.
        logstd_coeff: Weight of ``log_std``, which keeps policies wide.
        weights: The weight of each row in the means, summing to 1 over ``B``; None if all rows have the same weight.
    """

    def mean(of_rows: Tensor) -> Tensor:
        return of_rows.mean(-1) if weights is None else (of_rows * weights).sum(-1)

    factors = torch.ones_like(logp)
    vf_loss = torch.zeros_like(mean(logp.detach()))
    if values is not None and value_targets is not None:
        advantages = value_targets - values
        vf_loss = 0.5 * mean(advantages.square())
        scaled = advantages.detach() * with_row_axis(beta / advantage_norm)
        factors = scaled.exp().clamp(max=with_row_axis(max_weight))
    gain = logp if log_std is None else logp + with_row_axis(logstd_coeff) * log_std
    policy_loss = -mean(factors * gain)
    total = policy_loss + vf_coeff * vf_loss
    statistics = (mean(x.detach()) for x in (logp, entropy, factors))
    return MARWILLoss(total, policy_loss, vf_loss, *statistics)
