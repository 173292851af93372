"""The losses of MARWIL and behaviour cloning, against the same losses row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.algorithms.marwil.learner import MARWILRows, loss_of_rows
from marl_connectors.ops.marwil_loss import MARWILCoefficients, MARWILLoss
from marl_connectors.rl_module.distributions import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchMultiDistribution,
    TorchSquashedGaussian,
    default_distribution,
)

PARTS = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,)), "c": spaces.Box(-1, 1, (1,))})


def by_row(dist_cls, coefficients: MARWILCoefficients, rows: MARWILRows) -> MARWILLoss:
    """Algorithm 1 of Wang et al. (2018), of the distributions' own methods, module by module and row by row."""
    stacked = rows.inputs.dim() == 3
    modules = range(len(rows.inputs)) if stacked else ()
    own = [MARWILRows(*(None if x is None else x[m] for x in rows)) for m in modules] or [rows]
    found = []
    for m, part in enumerate(own):
        beta, norm, largest, vf_coeff, bonus = (x[m] if isinstance(x, torch.Tensor) else x for x in coefficients)
        now, size = dist_cls.from_logits(part.inputs), len(part.inputs)
        sums = dict.fromkeys(("policy", "value", "logp", "entropy", "factor"), 0.0)
        logp, entropy, log_stds = now.logp(part.actions), now.entropy(), now.log_stds()
        for i in range(size):
            weight = 1 / size if part.weights is None else part.weights[i]
            factor, wide = 1.0, 0.0 if log_stds is None else log_stds[i].mean()
            if part.values is not None:
                advantage = part.value_targets[i] - part.values[i]
                factor = min(float(np.exp(float(beta * advantage.detach() / norm))), float(largest))
                sums["value"] += weight * advantage**2 / 2
            sums["policy"] -= weight * factor * (logp[i] + bonus * wide)
            sums["logp"] += weight * logp[i]
            sums["entropy"] += weight * entropy[i]
            sums["factor"] += weight * factor
        policy, value = sums["policy"], torch.as_tensor(sums["value"], dtype=logp.dtype)
        others = [torch.as_tensor(sums[name], dtype=logp.dtype) for name in ("logp", "entropy", "factor")]
        found.append([policy + vf_coeff * value, policy, value, *others])
    terms = zip(*found, strict=True)
    return MARWILLoss(*(torch.stack(list(term)) if stacked else next(iter(term)) for term in terms))


def random_distribution(rng: np.random.Generator, lead: list[int], dtype):
    """A class, its inputs, and actions."""
    kind = rng.integers(4)
    if kind == 0:
        n = int(rng.integers(1, 7))
        cls, size, actions = TorchCategorical, n, torch.from_numpy(rng.integers(0, n, lead))
    elif kind == 1:
        lens = rng.integers(1, 5, rng.integers(1, 4)).tolist()
        cls, size = TorchMultiCategorical.get_partial_dist_cls(input_lens=tuple(lens)), sum(lens)
        actions = torch.from_numpy(np.stack([rng.integers(0, n, lead) for n in lens], -1))
    else:
        k = int(rng.integers(1, 4))
        cls, size = [TorchDiagGaussian, TorchSquashedGaussian][kind - 2], 2 * k
        actions = torch.from_numpy(rng.uniform(-0.9, 0.9, (*lead, k))).to(dtype)
    return cls, torch.from_numpy(rng.standard_normal((*lead, size))).to(dtype), actions


def random_case(rng: np.random.Generator):
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    modules = int(rng.integers(4))
    lead = [*([modules] if modules else []), int(rng.integers(1, 20))]
    cls, inputs, actions = random_distribution(rng, lead, dtype)

    def numbers():
        return torch.from_numpy(2 * rng.standard_normal(lead)).to(dtype)

    def setting(low, high):
        if modules and rng.integers(2):
            return torch.from_numpy(rng.uniform(low, high, modules)).to(dtype)
        return float(rng.uniform(low, high))

    has_critic, weights = rng.integers(2), None
    if rng.integers(2):
        counts = torch.from_numpy(rng.integers(1, 4, lead)).to(dtype)
        weights = counts / counts.sum(-1, keepdim=True)
    values = numbers().requires_grad_() if has_critic else None
    rows = MARWILRows(inputs.requires_grad_(), values, actions, numbers() if has_critic else None, weights)
    bound = float("inf") if rng.integers(2) else setting(0.5, 3.0)
    bonus = setting(0.1, 1.0) if rng.integers(4) == 0 else 0.0
    return cls, MARWILCoefficients(setting(0.0, 1.0), setting(0.5, 2.0), bound, setting(0.1, 2.0), bonus), rows


def gradients_of(loss, rows: MARWILRows):
    wanted = [x for x in (rows.inputs, rows.values) if x is not None]
    return torch.autograd.grad(loss.sum(), wanted, retain_graph=True)


def assert_near(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    assert one.shape == other.shape and one.dtype == other.dtype, name
    digits = 1e-4 if other.dtype is torch.float32 else 1e-10
    one, other = one.detach(), other.detach()
    assert float((one - other).abs().max()) <= digits * max(1.0, float(other.abs().max())), name


def check_case(rng: np.random.Generator) -> None:
    cls, coefficients, rows = random_case(rng)
    expected, loss = by_row(cls, coefficients, rows), loss_of_rows(cls, coefficients, rows)
    wanted = gradients_of(expected.total, rows)
    for name, plain, other in zip(MARWILLoss._fields, loss, expected, strict=True):
        assert_near(plain, other, name)
    for plain, other in zip(gradients_of(loss.total, rows), wanted, strict=True):
        assert_near(plain, other, "gradient")


def test_the_loss_and_its_gradients_are_those_of_the_paper():
    for seed in range(80):
        check_case(np.random.default_rng(seed))


@pytest.mark.slow
def test_the_loss_and_its_gradients_are_those_of_the_paper_in_many_cases():
    first = int(np.random.SeedSequence().generate_state(1)[0])
    for seed in range(first, first + 400):
        print("seed", seed)
        check_case(np.random.default_rng(seed))


def test_the_bonus_is_for_the_standard_deviations_of_all_parts():
    cls = default_distribution(PARTS)
    assert issubclass(cls, TorchMultiDistribution)
    inputs = torch.zeros(2, cls.required_input_dim(PARTS))  # 3 logits; 2 means, 2 log stds; 1 mean, 1 log std
    inputs[:, 5:7], inputs[:, 8] = 1.0, 4.0
    inputs.requires_grad_()
    actions = {"a": torch.tensor([0, 1]), "b": torch.zeros(2, 2), "c": torch.zeros(2, 1)}
    rows = MARWILRows(inputs, None, actions, None, None)
    with_bonus = loss_of_rows(cls, MARWILCoefficients(logstd_coeff=0.5), rows)
    without = loss_of_rows(cls, MARWILCoefficients(), rows)
    assert float((without.total - with_bonus.total).detach()) == pytest.approx(0.5 * (1 + 1 + 4) / 3)


def test_the_bonus_does_nothing_to_other_distributions():
    rows = MARWILRows(torch.randn(4, 3), None, torch.tensor([0, 1, 2, 0]), None, None)
    with_bonus = loss_of_rows(TorchCategorical, MARWILCoefficients(logstd_coeff=0.5), rows)
    assert with_bonus == loss_of_rows(TorchCategorical, MARWILCoefficients(), rows)
