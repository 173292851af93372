"""MARWIL's loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marl_connectors.ops.marwil_loss import marwil_loss

LOGP = torch.tensor([-1.0, -2.0, -3.0])
ENTROPY = torch.tensor([0.5, 1.0, 1.5])
VALUES, TARGETS = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])  # advantages 2, 0, -2


def loss(**changes):
    return marwil_loss(**({"logp": LOGP, "entropy": ENTROPY} | changes))


def test_without_values_it_is_the_negative_log_likelihood():
    found = loss()
    assert [float(term) for term in found] == [2.0, 2.0, 0.0, -2.0, 1.0, 1.0]


def test_actions_count_by_the_exponential_of_their_advantages():
    found = loss(values=VALUES, value_targets=TARGETS, beta=0.5 * math.log(3), vf_coeff=0.25)
    # Factors 3, 1 and 1/3: the policy loss is (3 * 1 + 1 * 2 + 1/3 * 3) / 3; the value loss is (4 + 0 + 4) / 3 / 2.
    assert float(found.policy_loss) == pytest.approx(2.0)
    assert float(found.vf_loss) == pytest.approx(4 / 3)
    assert float(found.total) == pytest.approx(2.0 + 1 / 3)
    assert float(found.mean_weight) == pytest.approx(13 / 9)
    assert float(found.mean_logp) == -2.0


def test_advantages_are_divided_by_their_norm_and_factors_are_bounded():
    found = loss(values=VALUES, value_targets=TARGETS, beta=math.log(3), advantage_norm=2.0, max_weight=2.0)
    assert float(found.mean_weight) == pytest.approx((2 + 1 + 1 / 3) / 3)
    assert float(found.policy_loss) == pytest.approx((2 * 1 + 1 * 2 + 1) / 3)


def test_factors_have_no_gradient():
    values, logp = VALUES.clone().requires_grad_(), LOGP.clone().requires_grad_()
    loss(logp=logp, values=values, value_targets=TARGETS, beta=0.5 * math.log(3)).total.backward()
    torch.testing.assert_close(values.grad, torch.tensor([-2.0, 0.0, 2.0]) / 3)
    torch.testing.assert_close(logp.grad, -torch.tensor([3.0, 1.0, 1 / 3]) / 3)


def test_wide_policies_get_a_bonus():
    assert float(loss(log_std=torch.tensor([0.0, 3.0, 6.0]), logstd_coeff=0.5).total) == pytest.approx(2.0 - 1.5)


def test_each_module_has_its_own_coefficients_and_row_weights():
    pairs = {name: torch.stack([x, x]) for name, x in (("logp", LOGP), ("values", VALUES), ("value_targets", TARGETS))}
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    beta = torch.tensor([0.5 * math.log(3), math.log(2)])
    found = loss(**pairs, entropy=torch.stack([ENTROPY, ENTROPY]), beta=beta, weights=weights)
    torch.testing.assert_close(found.policy_loss, torch.tensor([3.0 * 1, 0.25 * 3]))
    torch.testing.assert_close(found.vf_loss, torch.tensor([2.0, 2.0]))
