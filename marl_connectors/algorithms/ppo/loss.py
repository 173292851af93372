"""PPO's loss of what modules put out: in closed form where the distribution knows one, else by autograd."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.ops.ppo_loss import PPOCoefficients, PPOLoss, ppo_loss, ppo_loss_and_slopes
from marl_connectors.rl_module.closed_form import differentiable_gradients, is_allowed
from marl_connectors.rl_module.distributions import Distribution


class PPORows(NamedTuple):
    """What PPO's loss is made of: ``[B, ...]`` of one module, or ``[M, B, ...]`` of ``M``.

    Attributes:
        inputs: ``action_dist_inputs`` as they are now.
        values: Value estimates as they are now; None without a critic.
        actions: That were taken; may be a tree of tensors.
        before: ``action_dist_inputs`` when they were taken; None where moving away from them costs nothing.
        old_logp: Log-probabilities when they were taken.
        advantages: Standardised or not.
        value_targets: What ``values`` should be; None without a critic.
        weights: What each row counts for in the means; None where all count alike.
    """

    inputs: Tensor
    values: Tensor | None
    actions: Any
    before: Tensor | None
    old_logp: Tensor
    advantages: Tensor
    value_targets: Tensor | None
    weights: Tensor | None


def loss_of_rows(dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
    """``ops.ppo_loss`` of the distributions that modules put out. A hot path.

    Args:
        dist_cls: Of the actions.
        coefficients: Weights and clips.
        rows: The rest.
    """
    if _may_be_closed(dist_cls, coefficients, rows):
        actions, before = rows.actions, rows.before
        shape = rows.inputs.shape[-1:]
        flat_actions = actions.flatten(0, 1) if rows.advantages.dim() == 2 else actions
        flat = None if before is None else before.detach().reshape(-1, *shape)
        with np.errstate(all="ignore"):
            closed = dist_cls.closed_form(rows.inputs.detach().reshape(-1, *shape), flat_actions, flat)
            if closed is not None:
                return PPOLoss(*_ClosedForm.apply(dist_cls, coefficients, closed, *rows))  # type: ignore[misc]
    return PPOLoss(*_by_autograd(dist_cls, coefficients, None, *rows))


def _may_be_closed(dist_cls: Any, coefficients: PPOCoefficients, rows: PPORows) -> bool:
    """Whether everything is on the CPU and in one precision, and gradients are wanted of the modules' outputs alone."""
    if not (isinstance(dist_cls, type) and issubclass(dist_cls, Distribution) and type(rows.actions) is Tensor):
        return False
    inputs, values, actions, before, *others = rows
    lead = rows.advantages.shape
    of_rows = [x for x in others if x is not None]
    fixed = [x for x in (before, *of_rows, *coefficients) if isinstance(x, Tensor)]
    if values is not None:
        of_rows.append(values)
    return (
        {inputs.shape[:-1], actions.shape[: len(lead)], *[x.shape for x in of_rows]} == {lead}
        and len(lead) < 3
        and lead.numel() > 0
        and (before is None or before.shape == inputs.shape)
        and actions.is_cpu
        and is_allowed([inputs, *of_rows, *fixed])
        and not any(x.requires_grad for x in fixed)
    )


def _by_autograd(dist_cls: Any, coefficients: PPOCoefficients, closed: Any, *given: Any) -> PPOLoss:
    rows = PPORows(*given)
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


class _ClosedForm(torch.autograd.Function):
    """The loss as one operation, whose gradients are worked out in the forward pass."""

    @staticmethod
    def forward(ctx: Any, dist_cls: Any, coefficients: PPOCoefficients, closed: Any, *given: Any) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        rows = PPORows(*given)
        lead = rows.advantages.shape
        optional = (rows.values, rows.value_targets, rows.weights)
        values, targets, weights = (None if x is None else x.detach().numpy() for x in optional)
        settings = PPOCoefficients(*(x.numpy() if isinstance(x, Tensor) else x for x in coefficients))
        terms, slopes = ppo_loss_and_slopes(
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
        by_kl = None if slopes.by_kl is None else slopes.by_kl.reshape(-1)
        of_inputs = closed.gradient(slopes.by_logp.reshape(-1), slopes.by_entropy.reshape(-1), by_kl)
        ctx.of_inputs = torch.from_numpy(of_inputs).view(rows.inputs.shape)
        ctx.of_values = None if slopes.by_values is None else torch.from_numpy(slopes.by_values)
        ctx.dist_cls, ctx.coefficients, ctx.actions = dist_cls, coefficients, rows.actions
        ctx.save_for_backward(*rows._replace(actions=None))
        return tuple(map(torch.from_numpy, terms))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        total, *others = gradients
        if torch.is_grad_enabled() or total is None or any(gradient is not None for gradient in others):
            rows = PPORows(*ctx.saved_tensors)._replace(actions=ctx.actions)
            inputs = (ctx.dist_cls, ctx.coefficients, None, *rows)
            return differentiable_gradients(_by_autograd, inputs, ctx.needs_input_grad, gradients)
        found: list[Any] = [None] * (3 + len(PPORows._fields))
        total = total.unsqueeze(-1)
        if ctx.needs_input_grad[3]:
            found[3] = ctx.of_inputs * total.unsqueeze(-1)
        if ctx.needs_input_grad[4]:
            found[4] = ctx.of_values * total
        return tuple(found)
