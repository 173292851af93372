"""Distributions over parts of Dict and Tuple actions, and masks over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.errors import ConfigError, ModuleError
from marl_connectors.rl_module.distributions import (
    TorchBernoulli,
    TorchBeta,
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiDistribution,
    default_distribution,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(4, 7, generator=GENERATOR) * 2
UNEQUAL, EQUAL = spaces.MultiDiscrete([2, 4, 1]), spaces.MultiDiscrete([[2], [2], [2]])


NESTED = spaces.Dict(
    {
        "move": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(3)]),
        "say": spaces.Discrete(4, start=1),
        "many": UNEQUAL,
    }
)


def test_parts_are_independent_and_in_the_spaces_order():
    dist_cls = default_distribution(NESTED)
    assert list(NESTED.spaces) == ["many", "move", "say"]  # Gymnasium sorts the keys
    assert issubclass(dist_cls, TorchMultiDistribution)
    assert dist_cls.required_input_dim(NESTED) == 7 + (4 + 3) + 4
    inputs = torch.randn(5, 18, generator=torch.Generator().manual_seed(1))
    others = torch.randn(5, 18, generator=torch.Generator().manual_seed(2))
    noise = torch.from_numpy(dist_cls.noise(np.random.default_rng(0), (5,), 18))
    ours, other = dist_cls.from_logits(inputs), dist_cls.from_logits(others)
    actions = ours.sample(noise)
    classes = [default_distribution(UNEQUAL), TorchDiagGaussian, TorchBernoulli, TorchCategorical]
    parts = [(0, 7), (7, 11), (11, 14), (14, 18)]
    own = [cls.from_logits(inputs[:, a:b]) for cls, (a, b) in zip(classes, parts, strict=True)]
    theirs = [cls.from_logits(others[:, a:b]) for cls, (a, b) in zip(classes, parts, strict=True)]
    noises = noise.split([7, 2, 3, 4], -1)
    expected = [part.sample(n) for part, n in zip(own, noises, strict=True)]
    found = [actions["many"], actions["move"][0], actions["move"][1], actions["say"]]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    logp = sum(part.logp(action) for part, action in zip(own, expected, strict=True))
    torch.testing.assert_close(ours.logp(actions), logp)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in own))
    torch.testing.assert_close(ours.kl(other), sum(a.kl(b) for a, b in zip(own, theirs, strict=True)))
    best = ours.to_deterministic()
    assert torch.equal(best["move"][1], own[2].to_deterministic()) and list(best) == ["many", "move", "say"]


def test_a_mask_over_parts_forbids_in_each_that_has_choices():
    dist_cls = default_distribution(NESTED)
    inputs = torch.randn(6, 18, generator=torch.Generator().manual_seed(1))
    allowed = np.random.default_rng(0).integers(0, 2, (6, 7 + 2 * 3 + 4)).astype(bool)
    allowed[0] = False  # forbids all, so nothing
    mask = torch.from_numpy(allowed)
    found = dist_cls.apply_action_mask(inputs, mask)
    many = default_distribution(UNEQUAL)
    expected = [
        many.apply_action_mask(inputs[:, :7], mask[:, :7]),
        inputs[:, 7:11],
        TorchBernoulli.apply_action_mask(inputs[:, 11:14], mask[:, 7:13]),
        TorchCategorical.apply_action_mask(inputs[:, 14:], mask[:, 13:]),
    ]
    assert torch.equal(found, torch.cat(expected, -1))
    assert torch.equal(dist_cls.apply_action_mask(inputs.expand(3, 6, 18), mask.expand(3, 6, 17))[1], found)
    assert torch.equal(found[0], inputs[0])
    with pytest.raises(ModuleError, match=r"(?s)\(6, 16\).*\(6, 17\).*'move'.*\b6\b"):
        dist_cls.apply_action_mask(inputs, mask[:, 1:])


def test_where_masks_leave_one_action_in_each_part_nothing_is_random():
    space = spaces.Dict({"bits": spaces.MultiBinary(2), "one": spaces.Discrete(3), "two": spaces.MultiDiscrete([2, 2])})
    dist_cls = default_distribution(space)
    only = torch.tensor([[1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0]] * 4, dtype=torch.bool)
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).mul(50).requires_grad_()
    ours = dist_cls.from_logits(dist_cls.apply_action_mask(logits, only))
    noise = torch.from_numpy(dist_cls.noise(np.random.default_rng(0), (4,), 9))
    for action in (ours.sample(noise), ours.to_deterministic()):
        assert (action["bits"] == torch.tensor([0, 1])).all()
        assert (action["one"] == 2).all()
        assert (action["two"] == torch.tensor([1, 0])).all()
    assert ours.entropy().tolist() == ours.logp(action).tolist() == [0, 0, 0, 0]
    (ours.entropy() + ours.logp(action) + ours.kl(ours)).sum().backward()
    assert (logits.grad == 0).all()


def test_box_parts_take_the_distribution_that_was_asked_for():
    dist_cls = default_distribution(NESTED, "beta")
    assert dist_cls.parts[1].dist_cls.parts[0].dist_cls is TorchBeta
    with pytest.raises(ConfigError, match=r"(?s)action_distribution.*'betta'.*'beta'"):
        default_distribution(NESTED, "betta")


def test_a_part_that_draws_itself_makes_the_whole_draw_itself():
    class Own(TorchDiagGaussian):
        @classmethod
        def noise(cls, rng, shape, num_inputs):
            return None

    space = spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,))])
    kinds = {spaces.Discrete: TorchCategorical, spaces.Box: Own}
    dist_cls = TorchMultiDistribution.of_parts(space, lambda part: kinds[type(part)])
    assert dist_cls.noise(np.random.default_rng(0), (2,), 7) is None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert [part.shape for part in dist_cls.from_logits(LOGITS).sample()] == [(4,), (4, 2)]
