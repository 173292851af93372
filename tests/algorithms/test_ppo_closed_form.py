"""PPO's loss in closed form, against the same loss by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_connectors.algorithms.ppo import learner as ppo
from marl_connectors.algorithms.ppo.learner import PPORows, loss_of_rows
from marl_connectors.ops.ppo_loss import PPOCoefficients, PPOLoss
from marl_connectors.rl_module.distributions import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)


@pytest.fixture
def closed(monkeypatch):
    """How often the closed form was taken."""
    taken, apply = [], ppo._ClosedForm.apply

    def noted(*args):
        taken.append(args)
        return apply(*args)

    monkeypatch.setattr(ppo._ClosedForm, "apply", noted)
    return taken


def by_autograd(dist_cls, coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
    """The formulas as they stand in the papers, of the distributions' own methods."""
    clip, entropy_coeff, vf_clip, vf_coeff, kl_coeff = (
        x[:, None] if isinstance(x, torch.Tensor) else x for x in coefficients
    )
    size = rows.advantages.shape[-1]
    weights = torch.full_like(rows.advantages, 1 / size) if rows.weights is None else rows.weights
    now = dist_cls.from_logits(rows.inputs)
    ratio = (now.logp(rows.actions) - rows.old_logp).exp()
    clipped = torch.max(torch.min(ratio, 1 + clip + 0 * ratio), 1 - clip + 0 * ratio)
    policy = -(weights * torch.min(ratio * rows.advantages, clipped * rows.advantages))
    entropy = weights * now.entropy()
    total, zero = policy - entropy_coeff * entropy, 0 * policy
    vf = vf_unclipped = kl = zero
    if rows.values is not None and rows.value_targets is not None:
        error = (rows.values - rows.value_targets) ** 2
        vf_unclipped = weights * error
        vf = weights * torch.where(error <= vf_clip, error, vf_clip + torch.zeros_like(error).detach())
        total = total + vf_coeff * vf
    if rows.before is not None:
        kl = weights * dist_cls.from_logits(rows.before).kl(now)
        total = total + kl_coeff * kl
    return PPOLoss(*(term.sum(-1) for term in (total, policy, vf, vf_unclipped, entropy, kl)))


def random_distribution(rng: np.random.Generator, lead: list[int], dtype):
    """A class, its inputs now and before, and actions."""
    kind = rng.integers(3)
    if kind == 0:
        n = int(rng.integers(1, 7))
        cls, size = TorchCategorical, n
        actions = torch.from_numpy(rng.integers(0, n, lead))
    elif kind == 1:
        lens = rng.integers(1, 5, rng.integers(1, 4)).tolist()
        cls, size = TorchMultiCategorical.get_partial_dist_cls(input_lens=tuple(lens)), sum(lens)
        actions = torch.from_numpy(np.stack([rng.integers(0, n, lead) for n in lens], -1))
    else:
        k = int(rng.integers(1, 4))
        cls, size = TorchDiagGaussian, 2 * k
        actions = torch.from_numpy(rng.standard_normal((*lead, k))).to(dtype)
    now, before = (torch.from_numpy(rng.standard_normal((*lead, size))).to(dtype) for _ in range(2))
    if cls is TorchCategorical and rng.integers(2):  # impossible actions, but none that was taken
        forbidden = torch.from_numpy(rng.random((*lead, size)) < 0.4)
        forbidden.scatter_(-1, actions.unsqueeze(-1), False)
        fill = float(rng.choice([-np.inf, torch.finfo(dtype).min]))
        now, before = now.masked_fill(forbidden, fill), before.masked_fill(forbidden, fill)
    return cls, now, before, actions


def random_case(rng: np.random.Generator):
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    modules = int(rng.integers(4))
    lead = [*([modules] if modules else []), int(rng.integers(1, 30))]
    cls, now, before, actions = random_distribution(rng, lead, dtype)

    def numbers(scale=1.0):
        return torch.from_numpy(scale * rng.standard_normal(lead)).to(dtype)

    def setting(low, high):
        if modules and rng.integers(2):
            return torch.from_numpy(rng.uniform(low, high, modules)).to(dtype)
        return float(rng.uniform(low, high))

    has_critic, has_kl = rng.integers(2, size=2)
    weights = None
    if rng.integers(2):
        counts = torch.from_numpy(rng.integers(1, 4, lead)).to(dtype)
        weights = counts / counts.sum(-1, keepdim=True)
    old_logp = cls.from_logits(now).logp(actions) + numbers(0.3)
    rows = PPORows(
        now.requires_grad_(),
        numbers().requires_grad_() if has_critic else None,
        actions,
        before if has_kl else None,
        old_logp.detach(),
        numbers(),
        numbers() if has_critic else None,
        weights,
    )
    bound = float("inf") if rng.integers(2) else setting(0.1, 3.0)
    coefficients = PPOCoefficients(
        setting(0.05, 0.5), setting(0.0, 0.3) if rng.integers(2) else 0.0, bound, setting(0.1, 2.0), setting(0.0, 1.0)
    )
    return cls, coefficients, rows


def gradients_of(loss, rows: PPORows):
    wanted = [x for x in (rows.inputs, rows.values) if x is not None]
    return torch.autograd.grad(loss.sum(), wanted, retain_graph=True)


def check_case(rng: np.random.Generator, closed: list) -> None:
    cls, coefficients, rows = random_case(rng)
    found, expected = loss_of_rows(cls, coefficients, rows), by_autograd(cls, coefficients, rows)
    assert len(closed) == 1
    closed.clear()
    for name, one, other in zip(PPOLoss._fields, found, expected, strict=True):
        assert_near(one, other, name)
    for name, one, other in zip(
        ("inputs", "values"), gradients_of(found.total, rows), gradients_of(expected.total, rows), strict=False
    ):
        assert_near(one, other, name)


def assert_near(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Within what rounding does where numbers of the largest one's size cancel out."""
    assert one.shape == other.shape and one.dtype == other.dtype, name
    digits = 2e-3 if other.dtype is torch.float32 else 1e-10  # exp(logp) makes much of the last digits
    one, other = one.detach(), other.detach()
    assert float((one - other).abs().max()) <= digits * max(1.0, float(other.abs().max())), name


@pytest.mark.parametrize("seed", range(60))
def test_the_loss_and_its_gradients_are_those_of_autograd(seed, closed):
    check_case(np.random.default_rng(seed), closed)


@pytest.mark.slow
def test_the_loss_and_its_gradients_are_those_of_autograd_in_many_cases(closed):
    first = int(np.random.SeedSequence().generate_state(1)[0])
    for seed in range(first, first + 3000):
        print("seed", seed)
        check_case(np.random.default_rng(seed), closed)


@pytest.mark.parametrize("seed", range(12))
def test_single_terms_have_gradients_too(seed):
    cls, coefficients, rows = random_case(np.random.default_rng(seed))
    found, expected = loss_of_rows(cls, coefficients, rows), by_autograd(cls, coefficients, rows)
    for one, other in [
        (found.policy_loss + found.entropy, expected.policy_loss + expected.entropy),
        (found.total - 2 * found.policy_loss, expected.total - 2 * expected.policy_loss),
    ]:
        wanted = [rows.inputs]
        torch.testing.assert_close(
            torch.autograd.grad(one.sum(), wanted, retain_graph=True),
            torch.autograd.grad(other.sum(), wanted, retain_graph=True),
            rtol=1e-4,
            atol=1e-5,
        )


def test_gradients_have_gradients_of_their_own():
    inputs = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    rows = PPORows(
        inputs,
        None,
        torch.tensor([0, 1, 2, 0, 1, 2]),
        None,
        torch.full((6,), -1.0, dtype=torch.float64),
        torch.arange(6, dtype=torch.float64),
        None,
        None,
    )
    coefficients = PPOCoefficients(0.9, 0.1)
    second = []
    for compute in (loss_of_rows, by_autograd):
        (slope,) = torch.autograd.grad(compute(TorchCategorical, coefficients, rows).total, [inputs], create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), [inputs])[0])
    torch.testing.assert_close(*second)


class Colder(TorchCategorical):
    def entropy(self):
        return 2 * super().entropy()


class Sharper(TorchCategorical):
    @property
    def log_probs(self):
        return torch.log_softmax(2 * self.logits, -1)


@pytest.mark.parametrize("dist_cls", [Colder, Sharper])
def test_a_distribution_that_overrides_something_is_asked_itself(dist_cls, closed):
    inputs = torch.randn(6, 3, requires_grad=True)
    actions = torch.tensor([0, 1, 2, 0, 1, 2])
    rows = PPORows(inputs, None, actions, None, torch.full((6,), -1.0), torch.ones(6), None, None)
    coefficients = PPOCoefficients(0.2, 0.1)
    found, expected = (f(dist_cls, coefficients, rows) for f in (loss_of_rows, by_autograd))
    torch.testing.assert_close(found.total, expected.total)
    torch.testing.assert_close(gradients_of(found.total, rows), gradients_of(expected.total, rows))
    assert not closed


def test_distributions_without_a_closed_form_are_computed_by_autograd(closed):
    inputs = torch.randn(6, 4, requires_grad=True)
    rows = PPORows(inputs, None, torch.rand(6, 2), None, torch.full((6,), -1.0), torch.ones(6), None, None)
    loss_of_rows(TorchSquashedGaussian, PPOCoefficients(0.2, 0.1), rows).total.backward()
    assert inputs.grad is not None
    assert not closed


def test_an_advantage_that_has_a_gradient_gets_it(closed):
    inputs, advantages = torch.randn(6, 3), torch.ones(6, requires_grad=True)
    rows = PPORows(inputs, None, torch.tensor([0, 1, 2, 0, 1, 2]), None, torch.full((6,), -1.0), advantages, None, None)
    loss_of_rows(TorchCategorical, PPOCoefficients(0.2, 0.1), rows).total.backward()
    assert advantages.grad is not None
    assert not closed


def test_an_action_that_there_is_not_is_an_error():
    inputs, actions = torch.randn(2, 3, requires_grad=True), torch.tensor([0, 3])
    rows = PPORows(inputs, None, actions, None, -torch.ones(2), torch.ones(2), None, None)
    with pytest.raises(RuntimeError, match="out of bounds"):
        loss_of_rows(TorchCategorical, PPOCoefficients(0.2, 0.1), rows)
