"""PPO's loss with its gradients in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.accelerate.closed_forward import LossAndGradients, are_plain
from marl_connectors.accelerate.unchanged import is_unchanged
from marl_connectors.algorithms.actor_critic.learner import VALUE_MOMENTS, value_moments
from marl_connectors.algorithms.ppo.learner import PPOLearner, PPORows
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.ppo_loss import PPOCoefficients, is_infinite, ppo_loss, with_row_axis
from marl_connectors.rl_module.distributions import (
    Distribution,
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
)
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID


class ClosedPPOLoss:
    """PPO's loss of some modules, with its gradients in closed form."""

    def __init__(self, learner: PPOLearner, stack: MemberStack, module_ids: Sequence[ModuleID]):
        """Binds the loss of some modules as it is in one update of a learner."""
        del stack
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
        names, logged = list(learner.TERMS), list(closed.terms)
        if rows.values is not None and rows.value_targets is not None:
            estimates, targets = (x.detach().numpy().astype(np.float64) for x in (rows.values, rows.value_targets))
            names += VALUE_MOMENTS
            weights = None if rows.weights is None else rows.weights.numpy()
            logged += value_moments(estimates, targets, weights)
        learner.log_table(self._module_ids, names, torch.from_numpy(np.array(logged, np.float64)))
        return LossAndGradients(torch.from_numpy(closed.terms[0]), closed.by_inputs, closed.by_values)


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
    gradient_of = _gradient_of(dist_cls, rows)
    if gradient_of is None:
        return None
    own: dict[str, Any] = {name: None if x is None else x.detach().numpy() for name, x in rows._asdict().items()}
    given = {name: own[name] for name in ("old_logp", "advantages", "values", "value_targets", "weights")}
    settings = PPOCoefficients(*(x.numpy() if isinstance(x, Tensor) else x for x in coefficients))
    with np.errstate(all="ignore"):
        now = dist_cls.from_logits(own["inputs"])
        before = None if own["before"] is None else dist_cls.from_logits(own["before"])
        logp = now.logp(own["actions"])
        kl = None if before is None else before.kl(now)
        terms = ppo_loss(logp=logp, entropy=now.entropy(), kl=kl, **given, **settings._asdict())
        *of_rows, by_values = ppo_gradients(settings, logp=logp, **given)
        by_inputs = gradient_of(now, before, rows.actions, *(np.asarray(x, logp.dtype)[..., None] for x in of_rows))
    return TermsAndGradients(
        [np.asarray(term, logp.dtype) for term in terms],
        torch.from_numpy(by_inputs),
        None if by_values is None else torch.from_numpy(by_values),
    )


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


def ppo_gradients(
    coefficients: PPOCoefficients,
    *,
    logp: np.ndarray,
    old_logp: np.ndarray,
    advantages: np.ndarray,
    values: np.ndarray | None = None,
    value_targets: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, Any, Any, np.ndarray | None]:
    """Returns the derivatives of ``ppo_loss`` with respect to the log-probability, entropy, KL and value of each row.

    The arguments are those of ``ppo_loss``, as arrays of one shape and dtype. A derivative may be one for all rows.
    """
    clip_param, entropy_coeff, vf_clip_param, vf_loss_coeff, kl_coeff, vf_huber_delta = coefficients
    weight: Any = logp.dtype.type(1.0 / logp.shape[-1]) if weights is None else weights
    ratio = np.exp(logp - old_logp)
    gain = advantages * ratio
    clipped = advantages * ratio.clip(with_row_axis(1.0 - clip_param), with_row_axis(1.0 + clip_param))
    by_logp = (gain <= clipped) * gain * -weight  # 0 where clipping makes the gain smaller
    by_values = None
    if values is not None and value_targets is not None:
        by_values = values - value_targets
        error = by_values * by_values
        if not is_infinite(vf_huber_delta):
            distance, delta = np.abs(by_values), with_row_axis(vf_huber_delta)
            bounded = np.minimum(distance, delta)
            error = bounded * (2.0 * distance - bounded)
            by_values = np.clip(by_values, -delta, delta)
        by_values *= 2 * weight * with_row_axis(vf_loss_coeff)
        if not is_infinite(vf_clip_param):
            by_values *= error <= with_row_axis(vf_clip_param)
    return by_logp, -with_row_axis(entropy_coeff) * weight, with_row_axis(kl_coeff) * weight, by_values


def _gradient_of(dist_cls: Any, rows: PPORows) -> Callable[..., np.ndarray] | None:
    """Returns the function for a loss's gradient with respect to the inputs of distributions; None if there is none.

    It gets the distributions now and before, the actions, and the ``[..., 1]`` derivatives of the loss with respect to
    the log-probabilities, entropies and KL divergences.
    """
    inputs, actions = rows.inputs, rows.actions
    if is_unchanged(dist_cls, TorchCategorical, methods=_COMPUTED) and actions.shape == inputs.shape[:-1]:
        return _of_categorical
    if is_unchanged(dist_cls, TorchMultiCategorical, methods=_COMPUTED):
        return _of_choices if inputs.shape[-1] == sum(dist_cls.input_lens) else None
    if is_unchanged(dist_cls, TorchDiagGaussian, methods=_COMPUTED) and actions.dtype is inputs.dtype:
        return _of_gaussian
    return None


_COMPUTED = frozenset(
    {"__init__", "from_logits", "logp", "entropy", "kl", "log_probs", "finite_log_probs", "probs", "choices"}
)
"""The methods of distributions whose derivatives the following functions are."""


def _of_categorical(now: Any, before: Any, actions: Tensor, of_logp: Any, of_entropy: Any, of_kl: Any) -> np.ndarray:
    found = now.finite_log_probs + now.entropy()[..., None]
    found *= now.probs  # before other products, as it is 0 where they may be huge
    found *= of_entropy
    found += now.probs * (of_logp if before is None else of_logp - of_kl)
    np.negative(found, out=found)
    if before is not None:
        found -= before.probs * of_kl
    index = actions.long().unsqueeze(-1)
    torch.from_numpy(found).scatter_add_(-1, index, torch.from_numpy(of_logp).expand(index.shape))
    return found


def _of_choices(now: Any, before: Any, actions: Tensor, *of_terms: Any) -> np.ndarray:
    chosen = actions.reshape(now.choices.logits.shape[:-1])
    of_terms = tuple(own[..., None] for own in of_terms)
    found = _of_categorical(now.choices, None if before is None else before.choices, chosen, *of_terms)
    return np.concatenate([found[..., i, :size] for i, size in enumerate(now.input_lens)], -1)


def _of_gaussian(now: Any, before: Any, actions: Tensor, of_logp: Any, of_entropy: Any, of_kl: Any) -> np.ndarray:
    inverse = np.exp(-now.log_std)
    error = (actions.numpy().reshape(now.mean.shape) - now.mean) * inverse
    by_mean, by_log_std = error * of_logp, (error * error - 1) * of_logp + of_entropy
    if before is not None:
        moved, ratio = (now.mean - before.mean) * inverse, np.exp(before.log_std - now.log_std)
        by_mean += moved * of_kl
        by_log_std += (1 - ratio * ratio - moved * moved) * of_kl
    by_mean *= inverse
    return np.concatenate([by_mean, by_log_std], -1)
