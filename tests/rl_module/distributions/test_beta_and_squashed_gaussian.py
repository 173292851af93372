"""Distributions over actions in a range: tanh of normal numbers, and Beta."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import (
    TorchBeta,
    TorchClippedGaussian,
    TorchDiagGaussian,
    TorchSquashedGaussian,
)

INPUTS = torch.tensor([[0.3, -1.0, -0.5, 0.4], [-2.0, 0.0, 0.7, -1.5], [1.5, 0.1, 0.0, 0.0]])
OTHERS = torch.tensor([[0.0, -0.5, 0.1, -0.3], [-1.0, 1.0, 0.5, 0.0], [1.0, 1.0, -1.0, 0.2]])
ACTIONS = torch.tensor([[0.1, -0.9], [0.999, 0.0], [-0.7, 0.4]])


def squashed(inputs):
    mean, log_std = inputs.double().chunk(2, -1)
    normal = reference.Normal(mean, log_std.exp())
    return reference.TransformedDistribution(normal, reference.TanhTransform(cache_size=1))


def beta(inputs):
    alpha, second = (1 + torch.nn.functional.softplus(inputs.double())).chunk(2, -1)
    return reference.TransformedDistribution(reference.Beta(alpha, second), reference.AffineTransform(-1.0, 2.0))


BOTH = [(TorchSquashedGaussian, squashed), (TorchBeta, beta)]


def integral(density_of, values_of):
    """The sum over all action numbers of the integral of ``density * values`` over (-1, 1), by the midpoint rule.

    Points are ``tanh`` of an even grid, so that they are dense near the edges.
    """
    x = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    points, width = x.tanh(), (1 - x.tanh() ** 2) * (x[1] - x[0])
    inside = width > 1e-14
    points, width = points[inside], width[inside]
    grid = points[:, None, None].expand(-1, *ACTIONS.shape)
    return (density_of(grid).exp() * values_of(grid) * width[:, None, None]).sum(0).sum(-1)


@pytest.mark.parametrize(("dist_cls", "exact"), BOTH)
def test_log_probabilities_are_those_of_torch_in_float64(dist_cls, exact):
    expected = exact(INPUTS).log_prob(ACTIONS.double()).sum(-1)
    torch.testing.assert_close(dist_cls.from_logits(INPUTS).logp(ACTIONS).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dist_cls", "exact"), BOTH)
def test_entropy_and_kl_are_the_integrals_that_they_stand_for(dist_cls, exact):
    mine, other = exact(INPUTS), exact(OTHERS)
    entropy = integral(mine.log_prob, lambda grid: -mine.log_prob(grid))
    kl = integral(mine.log_prob, lambda grid: mine.log_prob(grid) - other.log_prob(grid))
    ours = dist_cls.from_logits(INPUTS)
    torch.testing.assert_close(ours.entropy().double(), entropy, rtol=0, atol=1e-3)
    torch.testing.assert_close(ours.kl(dist_cls.from_logits(OTHERS)).double(), kl, rtol=0, atol=1e-4)
    assert ours.kl(ours).abs().max() < 1e-6


def test_the_entropy_of_a_beta_distribution_is_torchs_but_for_the_longer_range():
    alpha, second = (1 + torch.nn.functional.softplus(INPUTS.double())).chunk(2, -1)
    expected = (reference.Beta(alpha, second).entropy() + math.log(2)).sum(-1)
    torch.testing.assert_close(TorchBeta.from_logits(INPUTS).entropy().double(), expected, rtol=1e-6, atol=1e-6)


def test_a_beta_distribution_of_large_numbers_keeps_its_precision():
    inputs, others = torch.tensor([[3000.0, 5000.0]]), torch.tensor([[3010.0, 4990.0]])
    action, exact = torch.tensor([[-0.25]]), beta(inputs)
    ours = TorchBeta.from_logits(inputs)
    torch.testing.assert_close(
        ours.logp(action).double(), exact.log_prob(action.double()).sum(-1), rtol=1e-5, atol=1e-5
    )
    expected = reference.kl_divergence(exact.base_dist, beta(others).base_dist).sum(-1)
    torch.testing.assert_close(ours.kl(TorchBeta.from_logits(others)).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inputs", [[0.5, 2.0], [-20.0, -20.0], [-20.0, 3.0], [40.0, 60.0]])
@pytest.mark.parametrize("from_noise", [True, False])
def test_beta_samples_follow_the_density(inputs, from_noise):
    count = 40_000
    ours = TorchBeta.from_logits(torch.tensor([inputs]).expand(count, 2))
    if from_noise:
        samples = ours.sample(torch.from_numpy(TorchBeta.noise(np.random.default_rng(1), (count,), 2)))
    else:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            samples = ours.sample()
    assert samples.shape == (count, 1) and samples.dtype == torch.float32
    alpha, second = (1 + np.logaddexp(0, x) for x in inputs)
    edges = np.linspace(0, 1, 100_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp((alpha - 1) * np.log(middles) + (second - 1) * np.log1p(-middles))
    cdf = np.concatenate([[0], np.cumsum(density)]) / density.sum()
    found = np.interp(np.sort((samples[:, 0].double().numpy() + 1) / 2), edges, cdf)
    # The Kolmogorov-Smirnov distance exceeds 1.95 / sqrt(n) in one of a thousand cases.
    assert np.abs(found - (np.arange(count) + 0.5) / count).max() < 1.95 / np.sqrt(count)


def test_squashed_samples_are_the_squashed_samples_of_a_normal_distribution():
    noise = torch.from_numpy(TorchSquashedGaussian.noise(np.random.default_rng(0), (3,), 4))
    mean, log_std = INPUTS.chunk(2, -1)
    samples = TorchSquashedGaussian.from_logits(INPUTS).sample(noise)
    torch.testing.assert_close(samples, (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(TorchSquashedGaussian.from_logits(INPUTS).to_deterministic(), mean.tanh())


def test_the_deterministic_action_of_a_beta_distribution_is_its_mean():
    torch.testing.assert_close(
        TorchBeta.from_logits(INPUTS).to_deterministic().double(), beta(INPUTS).base_dist.mean * 2 - 1
    )


@pytest.mark.parametrize("dist_cls", [TorchSquashedGaussian, TorchBeta])
@pytest.mark.parametrize("size", [-40.0, 15.0])
def test_all_stays_finite_at_the_edges(dist_cls, size):
    inputs = torch.tensor([[size, -size, 2.0, 2.0], [-size, size, -3.0, -3.0]], requires_grad=True)
    ours = dist_cls.from_logits(inputs)
    noise = torch.from_numpy(dist_cls.noise(np.random.default_rng(0), (2,), 4))
    actions = ours.sample(noise).detach()
    assert (actions.abs() < 1).all()
    total = ours.logp(actions) + ours.logp(torch.ones(2, 2)) + ours.entropy() + ours.kl(dist_cls.from_logits(-inputs))
    total.sum().backward()
    assert torch.isfinite(total).all() and torch.isfinite(inputs.grad).all()


@pytest.mark.parametrize("dist_cls", [TorchSquashedGaussian, TorchBeta])
def test_actions_follow_from_their_own_noise_and_leading_axes_do_not_matter(dist_cls):
    noise = torch.from_numpy(dist_cls.noise(np.random.default_rng(0), (3,), 4))
    ours = dist_cls.from_logits(INPUTS)
    together = ours.sample(noise)
    for i in range(3):
        assert torch.equal(dist_cls.from_logits(INPUTS[i : i + 1]).sample(noise[i : i + 1])[0], together[i])
    stacked = dist_cls.from_logits(torch.stack([INPUTS, OTHERS]))
    torch.testing.assert_close(stacked.logp(torch.stack([ACTIONS, ACTIONS]))[0], ours.logp(ACTIONS))
    torch.testing.assert_close(stacked.entropy()[0], ours.entropy())
    torch.testing.assert_close(ours.logp(ACTIONS.reshape(3, 2, 1)), ours.logp(ACTIONS))


@pytest.mark.parametrize("dist_cls", [TorchSquashedGaussian, TorchBeta])
def test_a_range_is_needed(dist_cls):
    assert dist_cls.required_input_dim(spaces.Box(-2.0, 5.0, (2, 3))) == 12
    with pytest.raises(ModuleError, match=rf"(?s){dist_cls.__name__}.*Box\(2,\).*float32"):
        dist_cls.required_input_dim(spaces.Box(-np.inf, 1.0, (2,)))


@pytest.mark.parametrize("dist_cls", [TorchDiagGaussian, TorchSquashedGaussian])
def test_samples_with_log_probabilities_are_those_of_two_calls_and_have_gradients(dist_cls):
    inputs, noise = INPUTS.clone().requires_grad_(), torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    actions, logp = dist_cls.from_logits(inputs).sample_with_logp(noise)
    plain = dist_cls.from_logits(INPUTS)
    torch.testing.assert_close(actions, plain.sample(noise))
    torch.testing.assert_close(logp, plain.logp(plain.sample(noise)), rtol=1e-3, atol=1e-3)
    found = torch.autograd.grad(actions.sum() + logp.sum(), inputs)[0]
    exact = INPUTS.double().requires_grad_()
    mean, log_std = exact.chunk(2, -1)
    x = mean + log_std.exp() * noise
    density = reference.Normal(mean, log_std.exp()).log_prob(x)
    if dist_cls is TorchSquashedGaussian:
        density, x = density - (1 - x.tanh() ** 2).log(), x.tanh()
    torch.testing.assert_close(found.double(), torch.autograd.grad((x + density).sum(), exact)[0], rtol=1e-4, atol=1e-5)


def test_log_probabilities_of_samples_stay_finite_far_outside():
    inputs = torch.tensor([[40.0, -40.0, 2.0, -20.0]], requires_grad=True)
    actions, logp = TorchSquashedGaussian.from_logits(inputs).sample_with_logp(torch.tensor([[3.0, -3.0]]))
    assert actions.abs().max() < 1 and logp.isfinite().all()
    assert torch.autograd.grad(logp.sum(), inputs)[0].isfinite().all()


def test_clipped_actions_stay_in_their_range():
    dist = TorchClippedGaussian.from_logits(torch.tensor([[0.9, -0.2, 0.0, -1.0]]))
    torch.testing.assert_close(dist.sample(torch.tensor([[0.5, -1.0]])), torch.tensor([[1.0, -0.2 - math.exp(-1)]]))
    torch.testing.assert_close(dist.to_deterministic(), torch.tensor([[0.9, -0.2]]))
