"""What a loss needs of a batch of distributions, with the gradients, in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch


class ClosedForm(Protocol):
    """Of ``N`` rows of ``action_dist_inputs`` and of the actions that were taken.

    Attributes:
        logp: ``[N]`` log-probabilities of the actions.
        entropy: ``[N]`` in nats.
        kl: ``[N]`` KL divergence from the distributions that acted, in nats; None where these were not given.
    """

    logp: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray | None

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        """``[N, n]`` how a number changes with the inputs, of how it changes with the three: ``[N]`` each."""
        ...


class CategoricalRows:
    """Of one choice among ``n`` actions: ``[N, n]`` logits, -inf for impossible ones.

    Works with one row of memory for each action, as small axes are fast when they stand first.
    """

    def __init__(self, logits: np.ndarray, actions: torch.Tensor, before: np.ndarray | None = None):
        """Takes ``[N, n]`` logits, ``[N]`` actions, and the logits of the distributions that acted, if wanted."""
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
        found *= self._probs  # first, as it is 0 where the other may be huge
        found *= of_entropy
        found += self._probs * (of_logp if of_kl is None else of_logp - of_kl)
        np.negative(found, out=found)
        if of_kl is not None and self._before is not None:
            found -= self._before * of_kl
        torch.from_numpy(found).scatter_add_(0, self._actions, torch.from_numpy(of_logp)[None])
        return found.T


def _normalized(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[n, N]`` log-probabilities and probabilities."""
    log_probs = np.array(logits.T, order="C")
    log_probs -= np.maximum.reduce(log_probs, 0)
    probs = np.exp(log_probs)
    total = np.add.reduce(probs, 0)
    probs /= total
    log_probs -= np.log(total, out=total)
    return log_probs, probs


def _make_finite(log_probs: np.ndarray) -> None:
    """Lets an impossible action count 0 as ``p * log(p)``, not nan."""
    np.maximum(log_probs, np.finfo(log_probs.dtype).min, out=log_probs)


class MultiCategoricalRows:
    """Of several independent choices, whose logits stand side by side."""

    def __init__(self, logits: np.ndarray, actions: torch.Tensor, before: np.ndarray | None, input_lens: Sequence[int]):
        """Takes ``[N, sum(input_lens)]`` logits and ``[N, len(input_lens)]`` actions; else as ``CategoricalRows``."""
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
    """Of independent normal distributions: ``[N, 2 * k]``, means and then logarithms of standard deviations."""

    def __init__(self, inputs: np.ndarray, actions: np.ndarray, before: np.ndarray | None = None):
        """Takes the inputs, ``[N, k]`` actions, and the inputs of the distributions that acted, if wanted."""
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
