"""The clipped surrogate loss, equations 7 and 9 of Schulman et al. (2017), arXiv:1707.06347, with a KL penalty."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from marl_connectors import array_functions
from marl_connectors.array_functions import namespace


class PPOLoss(NamedTuple):
    """The loss and its terms, each averaged over the batch axis: a scalar, or ``[M]`` for ``M`` modules.

    The last one, the fraction of rows whose ratio is outside of the clip range, has no gradient.
    """

    total: Tensor
    policy_loss: Tensor
    vf_loss: Tensor
    vf_loss_unclipped: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor


class PPOCoefficients(NamedTuple):
    """Weights and clips: numbers, or ``[M]`` arrays or tensors with one for each module; see ``ppo_loss``."""

    clip_param: Any
    entropy_coeff: Any
    vf_clip_param: Any = float("inf")
    vf_loss_coeff: Any = 1.0
    kl_coeff: Any = 0.0
    vf_huber_delta: Any = float("inf")


def ppo_loss(
    *,
    logp: Any,
    old_logp: Any,
    advantages: Any,
    entropy: Any,
    clip_param: Any,
    entropy_coeff: Any,
    values: Any = None,
    value_targets: Any = None,
    vf_clip_param: Any = float("inf"),
    vf_loss_coeff: Any = 1.0,
    kl: Any = None,
    kl_coeff: Any = 0.0,
    vf_huber_delta: Any = float("inf"),
    weights: Any = None,
) -> PPOLoss:
    """PPO's loss to be minimised, of arrays or of tensors.

    All of them are ``[B]``, or ``[M, B]`` for ``M`` modules at once; every mean runs over ``B``. Coefficients and
    clips are numbers, or ``[M]`` tensors with one for each module.

    Args:
        logp: Log-probabilities of the taken actions under the current policy.
        old_logp: Their log-probabilities when they were taken.
        advantages: Advantages, standardised or not.
        entropy: Entropy of the current policy, in nats.
        clip_param: How far the probability ratio may move from 1 before its gradient is 0.
        entropy_coeff: Weight of the entropy bonus.
        values: Current value estimates; None for no critic.
        value_targets: The targets of ``values``.
        vf_clip_param: Upper bound of a row's value loss (in squared units of ``values``). Beyond it the row has no
            gradient.
        vf_loss_coeff: Weight of the value loss.
        kl: KL divergence from the policy that acted to the current policy, in nats; None for no penalty.
        kl_coeff: Weight of the penalty.
        vf_huber_delta: The value error (in units of ``values``) up to which a row's value loss is the squared error.
            Beyond it the loss grows linearly, with the slope that it has there: twice the loss of Huber (1964).
        weights: The weight of each row in the means, summing to 1 over ``B``; None if all rows have the same weight.
    """

    def mean(of_rows: Any) -> Any:
        return array_functions.mean(of_rows) if weights is None else (of_rows * weights).sum(-1)

    xp = namespace(logp)
    ratio = xp.exp(logp - old_logp)
    low, high = with_row_axis(1.0 - clip_param), with_row_axis(1.0 + clip_param)
    policy_loss = -mean(xp.minimum(advantages * ratio, advantages * ratio.clip(low, high)))
    mean_entropy = mean(entropy)
    total = policy_loss - entropy_coeff * mean_entropy
    vf_loss = vf_loss_unclipped = mean_kl = xp.zeros_like(policy_loss)
    clip_fraction = mean(((ratio < low) | (ratio > high)) * xp.ones_like(ratio))
    if values is not None and value_targets is not None:
        error = xp.square(values - value_targets)
        vf_loss = vf_loss_unclipped = mean(error)
        if not is_infinite(vf_huber_delta):
            distance = abs(values - value_targets)
            bounded = distance.clip(None, with_row_axis(vf_huber_delta))
            error = bounded * (2.0 * distance - bounded)
            vf_loss = mean(error)
        if not is_infinite(vf_clip_param):
            vf_loss = mean(error.clip(None, with_row_axis(vf_clip_param)))
        total = total + vf_loss_coeff * vf_loss
    if kl is not None:
        mean_kl = mean(kl)
        total = total + kl_coeff * mean_kl
    return PPOLoss(total, policy_loss, vf_loss, vf_loss_unclipped, mean_entropy, mean_kl, clip_fraction)


def is_infinite(bound: Any) -> bool:
    """Whether a setting is no bound, for all modules."""
    return isinstance(bound, float) and bound == float("inf")


def with_row_axis(setting: Any) -> Any:
    """Returns an ``[M]`` setting as ``[M, 1]``, for arithmetic with ``[M, B]``."""
    return setting if isinstance(setting, float | int) else setting[:, None]
