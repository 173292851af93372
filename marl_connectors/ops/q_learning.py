"""The formulas of Q-learning: values of actions, the targets of these values, and the losses of their errors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def taken_values(values: Tensor, actions: Tensor) -> Tensor:
    """Returns ``[...]`` the values of the actions that were taken, of ``[..., n]`` values of all actions."""
    return values.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


def best_values(values: Tensor, judged: Tensor) -> Tensor:
    """Returns ``[...]`` those of ``[..., n]`` values whose actions are judged best.

    In double Q-learning (van Hasselt et al., 2016), ``values`` are those of the target network, and ``judged`` those of
    the network that is trained.
    """
    return values.gather(-1, judged.argmax(-1, keepdim=True)).squeeze(-1)


def td_losses(values: Tensor, targets: Tensor, loss_fn: str) -> Tensor:
    """Returns the losses of values: ``"huber"``, which grows linearly beyond an error of 1, or ``"mse"``."""
    if loss_fn == "huber":
        return F.huber_loss(values, targets, reduction="none")
    return (values - targets).square()


def td_slopes(errors: Tensor, loss_fn: str) -> Tensor:
    """Returns the derivatives of ``td_losses`` with respect to the values, given ``values - targets``."""
    return errors.clamp(-1.0, 1.0) if loss_fn == "huber" else 2.0 * errors


def n_step_targets(
    rewards: Tensor, values: Tensor, steps_left: Tensor, *, n_step: int, gamma: float | Tensor
) -> Tensor:
    """Returns the discounted sums of the next ``n_step`` rewards, and of the value after them.

    >>> rewards, values = torch.tensor([1.0, 2.0, 4.0, 0.0]), torch.tensor([0.0, 0.0, 8.0, 16.0])
    >>> n_step_targets(rewards, values, torch.tensor([3, 2, 1, 0]), n_step=2, gamma=0.5)  # 1 + 2 / 2 + 8 / 4 and so on
    tensor([ 4.,  8., 12., 16.])

    Args:
        rewards: ``[..., T]`` rewards of steps.
        values: ``[..., T]`` values of what was observed before each step; 0 where an episode was terminated.
        steps_left: ``[..., T]`` int64, the number of steps from each one up to the last observation. Where it is less
            than ``n_step``, as many rewards count, and then the value of the last observation.
        n_step: The number of rewards.
        gamma: The discount, a number or a tensor that can be broadcast.

    Returns:
        ``[..., T]`` targets.
    """
    taken = steps_left.clamp(0, n_step)
    total = torch.where(taken > 0, rewards, 0.0)
    for k in range(1, min(n_step, rewards.shape[-1])):
        total = total + torch.where(taken > k, gamma**k * F.pad(rewards[..., k:], (0, k)), 0.0)
    after = torch.arange(rewards.shape[-1], device=rewards.device) + taken
    return total + gamma**taken * values.gather(-1, after.clamp(max=rewards.shape[-1] - 1))
