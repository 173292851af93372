"""The clipped surrogate loss, equations 7 and 9 of Schulman et al. (2017), arXiv:1707.06347, with a KL penalty."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PPOLoss(NamedTuple):
    """The loss and its terms, each averaged over the batch axis: a scalar, or ``[M]`` for stacked modules."""

    total: Tensor
    policy_loss: Tensor
    vf_loss: Tensor
    vf_loss_unclipped: Tensor
    entropy: Tensor
    kl: Tensor


def ppo_loss(
    *,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    clip_param: float,
    entropy_coeff: float | Tensor,
    values: Tensor | None = None,
    value_targets: Tensor | None = None,
    vf_clip_param: float = float("inf"),
    vf_loss_coeff: float = 1.0,
    kl: Tensor | None = None,
    kl_coeff: float | Tensor = 0.0,
) -> PPOLoss:
    """PPO's loss to be minimised.

    All tensors are ``[B]``, or ``[M, B]`` for ``M`` modules at once; every mean runs over ``B``. Coefficients are
    numbers, or ``[M]`` tensors with one for each module.

    Args:
        logp: Log-probabilities of the taken actions under the policy as it is now.
        old_logp: The same when the actions were taken.
        advantages: Standardised or not.
        entropy: Of the policy as it is now, in nats.
        clip_param: How far the probability ratio may move from 1 before its gradient stops.
        entropy_coeff: Weight of the entropy bonus.
        values: Value estimates as they are now; None for no critic.
        value_targets: What ``values`` should be.
        vf_clip_param: Upper bound of a row's squared value error (in squared return units). Beyond it the row has no
            gradient.
        vf_loss_coeff: Weight of the value loss.
        kl: KL divergence from the policy that acted to the policy as it is now, in nats; None for no penalty.
        kl_coeff: Weight of the penalty.
    """
    ratio = torch.exp(logp - old_logp)
    surrogate = torch.minimum(advantages * ratio, advantages * ratio.clamp(1.0 - clip_param, 1.0 + clip_param))
    policy_loss = -surrogate.mean(-1)
    mean_entropy = entropy.mean(-1)
    total = policy_loss - entropy_coeff * mean_entropy
    zero = torch.zeros_like(policy_loss)
    vf_loss = vf_loss_unclipped = mean_kl = zero
    if values is not None and value_targets is not None:
        error = (values - value_targets).square()
        vf_loss_unclipped = error.mean(-1)
        vf_loss = error.clamp(max=vf_clip_param).mean(-1) if vf_clip_param != float("inf") else vf_loss_unclipped
        total = total + vf_loss_coeff * vf_loss
    if kl is not None:
        mean_kl = kl.mean(-1)
        total = total + kl_coeff * mean_kl
    return PPOLoss(total, policy_loss, vf_loss, vf_loss_unclipped, mean_entropy, mean_kl)
