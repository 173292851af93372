"""PPO's loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marl_connectors.ops.ppo_loss import ppo_loss

LOG = math.log
# Probability ratios 2, 1/2, 1.1 and 2 with clip_param 0.25, so between 0.75 and 1.25:
#   advantage  4: min(8, 5) = 5;   -4: min(-2, -3) = -3;   2: 2.2 (not clipped);   -1: min(-2, -1.25) = -2.
# Their mean is (5 - 3 + 2.2 - 2) / 4 = 0.55.
RATIOS = torch.tensor([2.0, 0.5, 1.1, 2.0]).log()
ADVANTAGES = torch.tensor([4.0, -4.0, 2.0, -1.0])
ENTROPY = torch.tensor([1.0, 2.0, 3.0, 2.0])  # mean 2
VALUES, TARGETS = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 0.0])  # squares 0, 4, 1, 16
KL = torch.tensor([0.0, 0.25, 0.5, 0.25])  # mean 0.25


def loss(**changes):
    settings = {
        "logp": RATIOS - 1.5,
        "old_logp": torch.full((4,), -1.5),
        "advantages": ADVANTAGES,
        "entropy": ENTROPY,
        "clip_param": 0.25,
        "entropy_coeff": 0.0,
    }
    return ppo_loss(**(settings | changes))


def test_the_surrogate_takes_the_worse_of_the_clipped_and_the_unclipped():
    result = loss()
    assert float(result.policy_loss) == pytest.approx(-0.55)
    assert float(result.total) == pytest.approx(-0.55)
    assert (float(result.vf_loss), float(result.kl)) == (0.0, 0.0)


def test_a_ratio_beyond_the_clip_has_no_gradient_where_it_would_gain():
    logp = (RATIOS - 1.5).requires_grad_()
    loss(logp=logp).total.backward()
    # d(-A r / 4)/d logp = -A r / 4: rows 0 and 1 are clipped, rows 2 and 3 (which would only lose) are not.
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 0.0, -2.2 / 4, 2.0 / 4]))


def test_entropy_is_a_bonus():
    assert float(loss(entropy_coeff=0.1).total) == pytest.approx(-0.55 - 0.2)


def test_the_value_error_is_squared_and_clipped_row_by_row():
    result = loss(values=VALUES, value_targets=TARGETS, vf_clip_param=5.0, vf_loss_coeff=0.5)
    assert float(result.vf_loss_unclipped) == 21 / 4
    assert float(result.vf_loss) == (0 + 4 + 1 + 5) / 4
    assert float(result.total) == pytest.approx(-0.55 + 0.5 * 2.5)
    assert float(loss(values=VALUES, value_targets=TARGETS).vf_loss) == 21 / 4


def test_a_clipped_value_error_has_no_gradient():
    values = VALUES.clone().requires_grad_()
    loss(values=values, value_targets=TARGETS, vf_clip_param=5.0).total.backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, -4.0, 2.0, 0.0]) / 4)


def test_the_huber_loss_is_twice_that_of_torch_and_grows_linearly():
    result = loss(values=VALUES, value_targets=TARGETS, vf_huber_delta=1.5, vf_loss_coeff=0.5)
    # Errors 0, -2, 1, 4: beyond 1.5, a row's loss is 1.5 * (2 * |error| - 1.5).
    assert float(result.vf_loss) == pytest.approx((0 + 1.5 * 2.5 + 1 + 1.5 * 6.5) / 4)
    assert float(result.vf_loss) == pytest.approx(
        2 * float(torch.nn.functional.huber_loss(VALUES, TARGETS, delta=1.5)), rel=1e-6
    )
    assert float(result.vf_loss_unclipped) == 21 / 4, "the mean squared error"
    assert float(result.total) == pytest.approx(-0.55 + 0.5 * float(result.vf_loss))
    values = VALUES.clone().requires_grad_()
    loss(values=values, value_targets=TARGETS, vf_huber_delta=1.5, vf_loss_coeff=0.5).total.backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, -1.5, 1.0, 1.5]) / 4)


def test_modules_with_the_huber_loss_and_the_squared_error_are_computed_together():
    found = loss(
        logp=torch.stack([RATIOS - 1.5] * 2),
        old_logp=torch.full((2, 4), -1.5),
        advantages=torch.stack([ADVANTAGES] * 2),
        entropy=torch.stack([ENTROPY] * 2),
        values=torch.stack([VALUES] * 2),
        value_targets=torch.stack([TARGETS] * 2),
        vf_huber_delta=torch.tensor([1.5, math.inf]),
        vf_clip_param=torch.tensor([math.inf, 5.0]),
    )
    torch.testing.assert_close(found.vf_loss, torch.tensor([14.5 / 4, 10 / 4]))


def test_the_divergence_is_a_penalty():
    result = loss(kl=KL, kl_coeff=2.0)
    assert float(result.kl) == 0.25
    assert float(result.total) == pytest.approx(-0.55 + 0.5)


def test_stacked_modules_have_losses_and_coefficients_of_their_own():
    def twice(x):
        return torch.stack([x, x.flip(0)])

    result = loss(
        logp=torch.stack([RATIOS - 1.5, torch.full((4,), -1.5)]),
        old_logp=torch.full((2, 4), -1.5),
        advantages=twice(ADVANTAGES),
        entropy=twice(ENTROPY),
        kl=twice(KL),
        kl_coeff=torch.tensor([2.0, 4.0]),
        entropy_coeff=torch.tensor([0.1, 0.0]),
    )
    # The second module's ratios are all 1, so its surrogate is the mean advantage, 1/4.
    torch.testing.assert_close(result.policy_loss, torch.tensor([-0.55, -0.25]))
    torch.testing.assert_close(result.total, torch.tensor([-0.55 - 0.2 + 0.5, -0.25 + 1.0]))


def test_the_clip_fraction_is_that_of_the_ratios_outside_of_the_range():
    assert float(loss().clip_fraction) == 0.75
    assert float(loss(weights=torch.tensor([0.1, 0.2, 0.6, 0.1])).clip_fraction) == pytest.approx(0.4)
