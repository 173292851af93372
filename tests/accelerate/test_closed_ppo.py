"""PPO's loss in closed form, against the same loss by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_connectors.accelerate.closed_ppo import loss_and_gradients_of_rows, ppo_gradients
from marl_connectors.algorithms.ppo.learner import PPORows, loss_of_rows
from marl_connectors.ops.ppo_loss import PPOCoefficients, PPOLoss
from marl_connectors.rl_module.distributions import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)

RATIOS = torch.tensor([2.0, 0.5, 1.1, 2.0]).log()
ADVANTAGES = torch.tensor([4.0, -4.0, 2.0, -1.0])
VALUES, TARGETS = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 0.0])


def by_autograd(dist_cls, coefficients: PPOCoefficients, rows: PPORows) -> PPOLoss:
    """The formulas as they stand in the papers, of the distributions' own methods."""
    clip, entropy_coeff, vf_clip, vf_coeff, kl_coeff, delta = (
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
        distance = rows.values - rows.value_targets
        error = distance**2
        vf_unclipped = weights * error
        if not isinstance(delta, float) or delta < np.inf:  # 2 * delta * (|x| - delta / 2), Huber (1964)
            finite = torch.as_tensor(delta, dtype=error.dtype).clamp(max=1e6)
            error = torch.where(distance.abs() <= delta, error, 2 * finite * (distance.abs() - finite / 2))
        vf = weights * torch.where(error <= vf_clip, error, vf_clip + torch.zeros_like(error).detach())
        total = total + vf_coeff * vf
    if rows.before is not None:
        kl = weights * dist_cls.from_logits(rows.before).kl(now)
        total = total + kl_coeff * kl
    outside = weights * (ratio != clipped)
    terms = [term.sum(-1) for term in (total, policy, vf, vf_unclipped, entropy, kl, outside)]
    return PPOLoss(*terms)


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
    delta = float("inf") if rng.integers(2) else setting(0.1, 3.0)
    if isinstance(delta, torch.Tensor) and rng.integers(2):
        delta[0] = float("inf")  # one module has the squared error
    entropy_coeff = setting(0.0, 0.3) if rng.integers(2) else 0.0
    coefficients = PPOCoefficients(
        setting(0.05, 0.5), entropy_coeff, bound, setting(0.1, 2.0), setting(0.0, 1.0), delta
    )
    return cls, coefficients, rows


def gradients_of(loss, rows: PPORows):
    wanted = [x for x in (rows.inputs, rows.values) if x is not None]
    return torch.autograd.grad(loss.sum(), wanted, retain_graph=True)


def check_case(rng: np.random.Generator) -> None:
    cls, coefficients, rows = random_case(rng)
    expected, loss = by_autograd(cls, coefficients, rows), loss_of_rows(cls, coefficients, rows)
    found = loss_and_gradients_of_rows(cls, coefficients, rows)
    assert found is not None
    for name, one, plain, other in zip(PPOLoss._fields, found.terms, loss, expected, strict=True):
        assert_near(torch.from_numpy(one), other, name)
        assert_near(plain, other, name)
    gradients = [gradient for gradient in (found.by_inputs, found.by_values) if gradient is not None]
    wanted = gradients_of(expected.total, rows)
    for name, one, plain, other in zip(
        ("inputs", "values"), gradients, gradients_of(loss.total, rows), wanted, strict=False
    ):
        assert_near(one, other, name)
        assert_near(plain, other, name)
    assert len(gradients) == len(wanted)


def assert_near(one: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Within what rounding does where numbers of the largest one's size cancel out."""
    assert one.shape == other.shape and one.dtype == other.dtype, name
    digits = 2e-3 if other.dtype is torch.float32 else 1e-10  # exp(logp) makes much of the last digits
    one, other = one.detach(), other.detach()
    assert float((one - other).abs().max()) <= digits * max(1.0, float(other.abs().max())), name


@pytest.mark.parametrize("seed", range(60))
def test_the_loss_and_its_gradients_are_those_of_autograd(seed):
    check_case(np.random.default_rng(seed))


@pytest.mark.slow
def test_the_loss_and_its_gradients_are_those_of_autograd_in_many_cases():
    first = int(np.random.SeedSequence().generate_state(1)[0])
    for seed in range(first, first + 600):
        print("seed", seed)
        check_case(np.random.default_rng(seed))


class Colder(TorchCategorical):
    def entropy(self):
        return 2 * super().entropy()


class Sharper(TorchCategorical):
    @property
    def log_probs(self):
        return torch.log_softmax(2 * self.logits, -1)


def six_rows(inputs: torch.Tensor, **others) -> PPORows:
    actions = torch.tensor([0, 1, 2, 0, 1, 2])
    return PPORows(inputs, None, actions, None, torch.full((6,), -1.0), torch.ones(6), None, None)._replace(**others)


@pytest.mark.parametrize("dist_cls", [Colder, Sharper, TorchSquashedGaussian])
def test_a_distribution_that_computes_something_else_has_no_closed_form(dist_cls):
    actions = torch.rand(6, 2) if dist_cls is TorchSquashedGaussian else torch.tensor([0, 1, 2, 0, 1, 2])
    rows = six_rows(torch.randn(6, 4), actions=actions)
    assert loss_and_gradients_of_rows(dist_cls, PPOCoefficients(0.2, 0.1), rows) is None


@pytest.mark.parametrize(
    "others",
    [
        {"old_logp": torch.ones(6, dtype=torch.float64)},
        {"advantages": torch.ones(5)},
        {"actions": {"a": torch.ones(6)}},
    ],
)
def test_rows_that_do_not_fit_are_left_to_autograd(others):
    assert (
        loss_and_gradients_of_rows(TorchCategorical, PPOCoefficients(0.2, 0.1), six_rows(torch.randn(6, 3), **others))
        is None
    )


def test_an_action_that_there_is_not_is_an_error():
    rows = six_rows(torch.randn(2, 3), actions=torch.tensor([0, 3]), old_logp=-torch.ones(2), advantages=torch.ones(2))
    for compute in (loss_of_rows, loss_and_gradients_of_rows):
        with pytest.raises(RuntimeError, match="bounds"):
            compute(TorchCategorical, PPOCoefficients(0.2, 0.1), rows)


def by_values(**changes):
    """The derivatives with respect to the values above."""
    rows = {
        "logp": RATIOS - 1.5,
        "old_logp": torch.full((4,), -1.5),
        "advantages": ADVANTAGES,
        "values": VALUES,
        "value_targets": TARGETS,
    }
    own = {name: row.numpy() for name, row in rows.items()}
    return ppo_gradients(PPOCoefficients(0.25, 0.0, **changes), **own)[-1].tolist()


def test_a_value_error_beyond_the_huber_delta_has_a_bounded_gradient():
    # Errors 0, -2, 1, 4, of which 1.5 and more count as 1.5.
    assert by_values(vf_huber_delta=1.5, vf_loss_coeff=0.5) == [0.0, -1.5 / 4, 1 / 4, 1.5 / 4]
    assert by_values(vf_loss_coeff=0.5) == [0.0, -2 / 4, 1 / 4, 4 / 4]
