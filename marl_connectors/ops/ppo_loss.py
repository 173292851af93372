"""The clipped surrogate loss, equations 7 and 9 of Schulman et al. (2017), arXiv:1707.06347, with a KL penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


def _mean(values: Tensor) -> Tensor:
    return values.mean(-1)


def ppo_loss(
    *,
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    clip_param: float | Tensor,
    entropy_coeff: float | Tensor,
    values: Tensor | None = None,
    value_targets: Tensor | None = None,
    vf_clip_param: float | Tensor = float("inf"),
    vf_loss_coeff: float | Tensor = 1.0,
    kl: Tensor | None = None,
    kl_coeff: float | Tensor = 0.0,
    mean: Callable[[Tensor], Tensor] = _mean,
) -> PPOLoss:
    """PPO's loss to be minimised.

    All tensors are ``[B]``, or ``[M, B]`` for ``M`` modules at once; every mean runs over ``B``. Coefficients and
    clips are numbers, or ``[M]`` tensors with one for each module.

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
        mean: Of the values of all rows; one that leaves some out, where not all of them count.
    """
    ratio = torch.exp(logp - old_logp)
    low, high = _beside_rows(1.0 - clip_param), _beside_rows(1.0 + clip_param)
    surrogate = torch.minimum(advantages * ratio, advantages * ratio.clamp(low, high))
    policy_loss = -mean(surrogate)
    mean_entropy = mean(entropy)
    total = policy_loss - entropy_coeff * mean_entropy
    zero = torch.zeros_like(policy_loss)
    vf_loss = vf_loss_unclipped = mean_kl = zero
    if values is not None and value_targets is not None:
        error = (values - value_targets).square()
        vf_loss_unclipped = mean(error)
        unbounded = isinstance(vf_clip_param, float) and vf_clip_param == float("inf")
        vf_loss = vf_loss_unclipped if unbounded else mean(error.clamp(max=_beside_rows(vf_clip_param)))
        total = total + vf_loss_coeff * vf_loss
    if kl is not None:
        mean_kl = mean(kl)
        total = total + kl_coeff * mean_kl
    return PPOLoss(total, policy_loss, vf_loss, vf_loss_unclipped, mean_entropy, mean_kl)


def _beside_rows(setting: float | Tensor) -> Any:
    """``[M]`` as ``[M, 1]``, to stand beside ``[M, B]``."""
    return setting.unsqueeze(-1) if isinstance(setting, Tensor) else setting
