"""PPO's loss with its gradients in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from marl_connectors.accelerate.closed_forward import LossAndGradients, are_plain
from marl_connectors.accelerate.unchanged import is_unchanged
from marl_connectors.algorithms.actor_critic.learner import value_moments
from marl_connectors.algorithms.ppo.learner import PPOLearner, PPORows
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.ops.ppo_loss import PPOCoefficients, is_infinite, with_row_axis
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

    def __init__(self, learner: PPOLearner, stack: MemberStack, module_ids: tuple[ModuleID, ...]):
        """Binds the loss of some modules as it is in one update of a learner."""
        del stack
        self._learner = learner
        self._module_ids = module_ids
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
        terms = [torch.from_numpy(term) for term in closed.terms]
        learner.log_terms(self._module_ids, dict(zip(learner.TERMS, terms, strict=True)) | value_moments(rows))
        return LossAndGradients(terms[0], closed.by_inputs, closed.by_values)


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
    lead, numbers = rows.advantages.shape, rows.inputs.shape[-1]
    actions = rows.actions.flatten(0, 1) if len(lead) == 2 else rows.actions
    before = None if rows.before is None else rows.before.detach().reshape(-1, numbers)
    with np.errstate(all="ignore"):
        closed = closed_rows(dist_cls, rows.inputs.detach().reshape(-1, numbers), actions, before)
        if closed is None:
            return None
        optional = (rows.values, rows.value_targets, rows.weights)
        values, targets, weights = (None if x is None else x.detach().numpy() for x in optional)
        settings = PPOCoefficients(*(x.numpy() if isinstance(x, Tensor) else x for x in coefficients))
        terms, gradients = ppo_loss_and_gradients(
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
        by_kl = None if gradients.by_kl is None else gradients.by_kl.reshape(-1)
        by_inputs = closed.gradient(gradients.by_logp.reshape(-1), gradients.by_entropy.reshape(-1), by_kl)
    by_values = None if gradients.by_values is None else torch.from_numpy(gradients.by_values)
    return TermsAndGradients(terms, torch.from_numpy(by_inputs).view(rows.inputs.shape), by_values)


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


def _of_each_row(value: Any, rows: np.ndarray) -> np.ndarray:
    found = np.empty_like(rows)
    found[...] = value
    return found


class PPOGradients(NamedTuple):
    """The derivatives of the loss for each row, ``[B]`` or ``[M, B]``; None for absent terms."""

    by_logp: np.ndarray
    by_entropy: np.ndarray
    by_kl: np.ndarray | None
    by_values: np.ndarray | None


def ppo_loss_and_gradients(
    coefficients: PPOCoefficients,
    *,
    logp: np.ndarray,
    old_logp: np.ndarray,
    advantages: np.ndarray,
    entropy: np.ndarray,
    values: np.ndarray | None = None,
    value_targets: np.ndarray | None = None,
    kl: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> tuple[list[np.ndarray], PPOGradients]:
    """Computes ``ppo_loss`` and its gradients in numpy.

    The arguments are those of ``ppo_loss``, as arrays of one shape and dtype.

    Returns:
        The terms of a ``PPOLoss``, in order, and the derivatives of the total.
    """
    clip_param, entropy_coeff, vf_clip_param, vf_loss_coeff, kl_coeff, vf_huber_delta = coefficients
    weight: Any = logp.dtype.type(1.0 / logp.shape[-1]) if weights is None else weights

    def mean(of_rows: np.ndarray) -> Any:
        if weights is None:
            return np.add.reduce(of_rows, -1) * weight
        return np.add.reduce(of_rows * weights, -1)

    ratio = np.exp(logp - old_logp)
    low, high = with_row_axis(1.0 - clip_param), with_row_axis(1.0 + clip_param)
    clip_fraction = mean(((ratio < low) | (ratio > high)).astype(ratio.dtype))
    gain = advantages * ratio
    np.maximum(ratio, low, out=ratio)
    np.minimum(ratio, high, out=ratio)
    ratio *= advantages
    by_logp = (gain <= ratio) * gain  # the gradient is 0 where clipping makes the gain smaller
    by_logp *= -weight
    np.minimum(gain, ratio, out=gain)
    policy_loss = -mean(gain)
    mean_entropy = mean(entropy)
    total = policy_loss - entropy_coeff * mean_entropy
    vf_loss = vf_loss_unclipped = mean_kl = np.zeros_like(policy_loss)
    by_values = by_kl = None
    if values is not None and value_targets is not None:
        by_values = values - value_targets
        error = by_values * by_values
        vf_loss_unclipped = vf_loss = mean(error)
        if not is_infinite(vf_huber_delta):
            distance, delta = np.abs(by_values), with_row_axis(vf_huber_delta)
            bounded = np.minimum(distance, delta)
            error = bounded * (2.0 * distance - bounded)
            vf_loss = mean(error)
            by_values = np.clip(by_values, -delta, delta)
        by_values *= 2 * weight * with_row_axis(vf_loss_coeff)
        if not is_infinite(vf_clip_param):
            bound = with_row_axis(vf_clip_param)
            by_values *= error <= bound
            vf_loss = mean(np.minimum(error, bound))
        total = total + vf_loss_coeff * vf_loss
    if kl is not None:
        mean_kl = mean(kl)
        total = total + kl_coeff * mean_kl
        by_kl = _of_each_row(with_row_axis(kl_coeff) * weight, kl)
    by_entropy = _of_each_row(-with_row_axis(entropy_coeff) * weight, entropy)
    terms = [total, policy_loss, vf_loss, vf_loss_unclipped, mean_entropy, mean_kl, clip_fraction]
    return [np.array(term, logp.dtype) for term in terms], PPOGradients(by_logp, by_entropy, by_kl, by_values)


class ClosedForm(Protocol):
    """The quantities of a batch of distributions that a loss needs, with their gradients, in numpy.

    The batch has ``N`` rows of ``action_dist_inputs`` and of actions that were taken.

    Attributes:
        logp: ``[N]`` log-probabilities of the actions.
        entropy: ``[N]`` in nats.
        kl: ``[N]`` KL divergence from the distributions that acted, in nats; None if these were not passed.
    """

    logp: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray | None

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        """Returns a loss's ``[N, n]`` gradient for the inputs, from its ``[N]`` gradients for the three quantities."""
        ...


class CategoricalRows:
    """The closed form of one choice among ``n`` actions: ``[N, n]`` logits, -inf for impossible actions.

    It computes with one row of memory for each action, as small axes are faster when they stand first.
    """

    def __init__(self, logits: np.ndarray, actions: Tensor, before: np.ndarray | None = None):
        """Computes the quantities of ``[N, n]`` logits and ``[N]`` actions.

        Args:
            logits: The logits.
            actions: The actions that were taken.
            before: The logits of the distributions that acted; None if the KL divergence is not wanted.
        """
        self._actions = actions.reshape(1, -1).long()
        self._log_probs, self._probs = _normalized(logits)
        self.logp = torch.from_numpy(self._log_probs).gather(0, self._actions)[0].numpy()
        _make_finite(self._log_probs)
        entropy = np.add.reduce(self._probs * self._log_probs, 0)
        self.entropy = np.negative(entropy, out=entropy)
        self.kl = self._before = None
        if before is not None:
            log_probs, self._before = _normalized(before)
            _make_finite(log_probs)
            log_probs -= self._log_probs
            log_probs *= self._before
            self.kl = np.add.reduce(log_probs, 0)

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        found = self._log_probs + self.entropy
        found *= self._probs  # before other products, as it is 0 where they may be huge
        found *= of_entropy
        found += self._probs * (of_logp if of_kl is None else of_logp - of_kl)
        np.negative(found, out=found)
        if of_kl is not None and self._before is not None:
            found -= self._before * of_kl
        torch.from_numpy(found).scatter_add_(0, self._actions, torch.from_numpy(of_logp)[None])
        return found.T


def _normalized(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``[n, N]`` log-probabilities and probabilities."""
    log_probs = np.array(logits.T, order="C")
    log_probs -= np.maximum.reduce(log_probs, 0)
    probs = np.exp(log_probs)
    total = np.add.reduce(probs, 0)
    probs /= total
    log_probs -= np.log(total, out=total)
    return log_probs, probs


def _make_finite(log_probs: np.ndarray) -> None:
    """Makes log-probabilities finite, so that ``p * log(p)`` of an impossible action is 0, not nan."""
    np.maximum(log_probs, np.finfo(log_probs.dtype).min, out=log_probs)


class MultiCategoricalRows:
    """The closed form of several independent choices, whose logits stand side by side."""

    def __init__(self, logits: np.ndarray, actions: Tensor, before: np.ndarray | None, input_lens: Sequence[int]):
        """Computes the quantities of ``[N, sum(input_lens)]`` logits and ``[N, len(input_lens)]`` actions."""
        ends = np.cumsum(input_lens)
        bounds = list(zip((ends - input_lens).tolist(), ends.tolist(), strict=True))
        chosen = actions.reshape(len(logits), -1)
        self._choices = [
            CategoricalRows(logits[:, a:b], chosen[:, i], None if before is None else before[:, a:b])
            for i, (a, b) in enumerate(bounds)
        ]
        self.logp = _total([choice.logp for choice in self._choices])
        self.entropy = _total([choice.entropy for choice in self._choices])
        self.kl = None if before is None else _total([c.kl for c in self._choices if c.kl is not None])

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        return np.concatenate([choice.gradient(of_logp, of_entropy, of_kl) for choice in self._choices], 1)


def _total(parts: list[np.ndarray]) -> np.ndarray:
    return np.add.reduce(parts)


class GaussianRows:
    """The closed form of independent normal distributions: ``[N, 2 * k]`` means, then log standard deviations."""

    def __init__(self, inputs: np.ndarray, actions: np.ndarray, before: np.ndarray | None = None):
        """Computes the quantities of inputs and ``[N, k]`` actions.

        Args:
            inputs: The inputs.
            actions: The actions that were taken.
            before: The inputs of the distributions that acted; None if the KL divergence is not wanted.
        """
        k = inputs.shape[1] // 2
        means, log_stds = inputs[:, :k], inputs[:, k:]
        self._inverse = np.exp(-log_stds)
        self._error = (actions.reshape(means.shape) - means) * self._inverse
        self.logp = (-0.5 * self._error * self._error - log_stds - 0.5 * math.log(2 * math.pi)).sum(-1)
        self.entropy = (log_stds + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        self.kl = None
        if before is not None:
            self._moved = (means - before[:, :k]) * self._inverse
            ratio = np.exp(before[:, k:] - log_stds)
            self._spread = ratio * ratio + self._moved * self._moved
            self.kl = (log_stds - before[:, k:] + 0.5 * self._spread - 0.5).sum(-1)

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        column = of_logp[:, None]
        by_mean = self._error * column
        by_log_std = (self._error * self._error - 1) * column + of_entropy[:, None]
        if of_kl is not None:
            by_mean += self._moved * of_kl[:, None]
            by_log_std += (1 - self._spread) * of_kl[:, None]
        by_mean *= self._inverse
        return np.concatenate([by_mean, by_log_std], 1)


_COMPUTED = frozenset({"__init__", "from_logits", "logp", "entropy", "kl"})
"""The methods of distributions that the classes above take the place of."""
_OF_CATEGORICAL = _COMPUTED | {"log_probs", "_finite_log_probs"}


def closed_rows(dist_cls: Any, inputs: Tensor, actions: Tensor, before: Tensor | None) -> ClosedForm | None:
    """Returns ``logp``, ``entropy`` and ``kl`` of rows with their gradients; None if they have no closed form.

    Args:
        dist_cls: The distribution.
        inputs: ``[N, n]`` float, on the CPU.
        actions: ``[N, ...]``.
        before: ``[N, n]`` inputs of the distributions that acted; None if the KL divergence is not wanted.
    """
    rows, given = inputs.numpy(), None if before is None else before.numpy()
    if is_unchanged(dist_cls, TorchCategorical, methods=_OF_CATEGORICAL) and actions.shape == inputs.shape[:-1]:
        return CategoricalRows(rows, actions, given)
    if is_unchanged(dist_cls, TorchMultiCategorical, methods=_COMPUTED) and rows.shape[-1] == sum(dist_cls.input_lens):
        return MultiCategoricalRows(rows, actions, given, dist_cls.input_lens)
    if is_unchanged(dist_cls, TorchDiagGaussian, methods=_COMPUTED) and actions.dtype is inputs.dtype:
        return GaussianRows(rows, actions.numpy(), given)
    return None
