"""Distributions over several choices and bits, and what masks forbid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import (
    TorchBernoulli,
    TorchCategorical,
    TorchMultiCategorical,
    default_distribution,
)

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(4, 7, generator=GENERATOR) * 2
OTHERS = torch.randn(4, 7, generator=GENERATOR) * 2
UNEQUAL, EQUAL = spaces.MultiDiscrete([2, 4, 1]), spaces.MultiDiscrete([[2], [2], [2]])


def independent(logits, space):
    """A torch distribution for each choice, in float64."""
    lens = space.nvec.ravel().tolist()
    return [reference.Categorical(logits=part) for part in logits.double()[:, : sum(lens)].split(lens, -1)]


@pytest.mark.parametrize("space", [UNEQUAL, EQUAL])
def test_several_choices_are_independent_categorical_distributions(space):
    dist_cls = default_distribution(space)
    size = dist_cls.required_input_dim(space)
    assert issubclass(dist_cls, TorchMultiCategorical) and size == space.nvec.sum()
    ours, other = dist_cls.from_logits(LOGITS[:, :size]), dist_cls.from_logits(OTHERS[:, :size])
    theirs, others = independent(LOGITS, space), independent(OTHERS, space)
    actions = torch.from_numpy(np.random.default_rng(0).integers(0, space.nvec.ravel(), (4, 3)))
    logp = sum(choice.log_prob(actions[:, i]) for i, choice in enumerate(theirs))
    torch.testing.assert_close(ours.logp(actions).double(), logp, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.logp(actions.reshape(4, 3, 1)), ours.logp(actions))
    torch.testing.assert_close(ours.entropy().double(), sum(c.entropy() for c in theirs), rtol=1e-5, atol=1e-6)
    kl = sum(reference.kl_divergence(a, b) for a, b in zip(theirs, others, strict=True))
    torch.testing.assert_close(ours.kl(other).double(), kl, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours.to_deterministic(), torch.stack([c.logits.argmax(-1) for c in theirs], -1))


def test_the_class_for_equal_spaces_is_one_and_the_same():
    assert default_distribution(UNEQUAL) is default_distribution(spaces.MultiDiscrete([2, 4, 1], start=[5, 0, 1]))
    assert default_distribution(UNEQUAL) is not default_distribution(EQUAL)
    both = [spaces.Dict({"a": UNEQUAL, "b": spaces.Box(0, 1, (2,))}) for _ in range(2)]
    assert default_distribution(both[0]) is default_distribution(both[1])
    assert default_distribution(both[0]) is not default_distribution(both[0], "beta")
    lens = TorchMultiCategorical.from_logits(LOGITS, input_lens=[2, 4, 1])
    assert type(lens) is default_distribution(UNEQUAL)
    with pytest.raises(ModuleError, match=r"(?s)\b7\b.*\(2, 2, 2\)"):
        default_distribution(EQUAL).from_logits(LOGITS)
    with pytest.raises(ModuleError, match=r"\b7 logits"):
        TorchMultiCategorical.from_logits(LOGITS)


def test_bits_are_bernoulli_distributions():
    ours, other = TorchBernoulli.from_logits(LOGITS), TorchBernoulli.from_logits(OTHERS)
    theirs, others = reference.Bernoulli(logits=LOGITS.double()), reference.Bernoulli(logits=OTHERS.double())
    bits = (torch.arange(28).reshape(4, 7) % 3 == 0).to(torch.int8)
    torch.testing.assert_close(ours.logp(bits).double(), theirs.log_prob(bits.double()).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.entropy().double(), theirs.entropy().sum(-1), rtol=1e-5, atol=1e-5)
    kl = reference.kl_divergence(theirs, others).sum(-1)
    torch.testing.assert_close(ours.kl(other).double(), kl, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.to_deterministic(), (LOGITS > 0).long())


@pytest.mark.parametrize("from_noise", [True, False])
def test_samples_follow_the_probabilities(from_noise):
    count, dist_cls = 20_000, default_distribution(UNEQUAL)

    def sampled(cls, logits):
        noise = torch.from_numpy(cls.noise(np.random.default_rng(0), (count,), logits.shape[-1]))
        return cls.from_logits(logits.expand(count, -1)).sample(noise if from_noise else None).double()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        choices, bits = sampled(dist_cls, LOGITS[:1]), sampled(TorchBernoulli, LOGITS[:1])
    # Four standard errors of a frequency: 4 * sqrt(0.25 / 20000) = 0.014.
    torch.testing.assert_close(bits.mean(0), LOGITS[0].double().sigmoid(), rtol=0, atol=0.014)
    for i, choice in enumerate(independent(LOGITS[:1], UNEQUAL)):
        found = torch.stack([(choices[:, i] == value).double().mean() for value in range(choice.probs.shape[-1])])
        torch.testing.assert_close(found, choice.probs[0], rtol=0, atol=0.014)


def forbidding(dist_cls, mask, logits=LOGITS):
    inputs = logits.clone().requires_grad_()
    return inputs, dist_cls.from_logits(dist_cls.apply_action_mask(inputs, mask.expand(len(logits), -1)))


def test_a_mask_over_several_choices_forbids_in_each():
    dist_cls = default_distribution(UNEQUAL)
    mask = torch.tensor([True, False, False, True, True, False, True])
    inputs, ours = forbidding(dist_cls, mask)
    allowed = reference.Categorical(logits=LOGITS[:, 3:5].double())
    torch.testing.assert_close(ours.entropy().double(), allowed.entropy(), rtol=1e-5, atol=1e-6)
    logp = ours.logp(torch.tensor([0, 2, 0]).expand(4, -1))
    torch.testing.assert_close(logp.double(), allowed.log_prob(torch.tensor(1).expand(4)), rtol=1e-5, atol=1e-6)
    for seed in range(20):
        actions = ours.sample(torch.from_numpy(dist_cls.noise(np.random.default_rng(seed), (4,), 7)))
        assert (actions[:, 0] == 0).all() and ((actions[:, 1] == 1) | (actions[:, 1] == 2)).all()
    _, other = forbidding(dist_cls, mask, OTHERS)
    kl = reference.kl_divergence(allowed, reference.Categorical(logits=OTHERS[:, 3:5].double()))
    torch.testing.assert_close(ours.kl(other).double(), kl, rtol=1e-5, atol=1e-6)
    (ours.kl(other) + ours.entropy() + logp).sum().backward()
    assert torch.isfinite(inputs.grad).all() and (inputs.grad[:, ~mask] == 0).all()


def test_a_choice_of_which_all_is_forbidden_is_free():
    dist_cls = default_distribution(UNEQUAL)
    inputs, ours = forbidding(dist_cls, torch.tensor([False, False, True, False, False, False, False]))
    first = reference.Categorical(logits=LOGITS[:, :2].double())
    torch.testing.assert_close(ours.entropy().double(), first.entropy(), rtol=1e-5, atol=1e-6)
    ours.entropy().sum().backward()
    assert torch.isfinite(inputs.grad).all()
    _, free = forbidding(dist_cls, torch.zeros(7, dtype=torch.bool))
    torch.testing.assert_close(free.entropy(), dist_cls.from_logits(LOGITS).entropy())


def test_a_mask_over_bits_says_what_each_may_be():
    # The first must be 0, the second must be 1, the others are free, the last because nothing is left to it.
    mask = torch.tensor([1, 0, 0, 1, *[1, 1] * 4, 0, 0])
    inputs, ours = forbidding(TorchBernoulli, mask)
    free = reference.Bernoulli(logits=LOGITS[:, 2:].double())
    torch.testing.assert_close(ours.entropy().double(), free.entropy().sum(-1), rtol=1e-5, atol=1e-5)
    for seed in range(20):
        bits = ours.sample(torch.from_numpy(TorchBernoulli.noise(np.random.default_rng(seed), (4,), 7)))
        assert (bits[:, 0] == 0).all() and (bits[:, 1] == 1).all()
    _, other = forbidding(TorchBernoulli, mask, OTHERS)
    kl = reference.kl_divergence(free, reference.Bernoulli(logits=OTHERS[:, 2:].double())).sum(-1)
    torch.testing.assert_close(ours.kl(other).double(), kl, rtol=1e-5, atol=1e-5)
    total = ours.logp(bits) + ours.entropy() + ours.kl(other)
    total.sum().backward()
    assert torch.isfinite(total).all() and torch.isfinite(inputs.grad).all() and (inputs.grad[:, :2] == 0).all()


def test_masks_that_do_not_fit_are_errors():
    with pytest.raises(ModuleError, match=r"(?s)\(4, 7\).*\(4, 14\).*\b2\b"):
        TorchBernoulli.apply_action_mask(LOGITS, torch.ones(4, 7))
    with pytest.raises(ModuleError, match=r"\(4, 7\)"):
        default_distribution(UNEQUAL).apply_action_mask(LOGITS, torch.ones(4, 6))


def test_masks_are_applied_by_an_override():
    class ForbidsNothing(TorchCategorical):
        @classmethod
        def apply_action_mask(cls, inputs, mask):
            del mask
            return inputs

    class Shifted(TorchCategorical):
        @classmethod
        def apply_action_mask(cls, inputs, mask):
            return super().apply_action_mask(inputs, mask) + 1.0

    logits, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[True, False, True]])
    assert torch.equal(ForbidsNothing.apply_action_mask(logits, mask), logits)
    lowest = torch.finfo(torch.float32).min
    assert torch.equal(Shifted.apply_action_mask(logits, mask), torch.tensor([[2.0, lowest + 1.0, 4.0]]))
    assert not ForbidsNothing.takes_arrays and not Shifted.takes_arrays, "they may compute with torch alone"


def test_masks_are_applied_to_arrays_as_to_tensors():
    masks = np.array([[1, 0, 1, 0, 0, 1, 1], [1] * 7, [0] * 7, [0, 0, 0, 0, 0, 0, 2]])
    lowest = float(np.finfo(np.float32).min)
    expected = [
        [x if any(mask) is False or mask[i] else lowest for i, x in enumerate(row)]
        for row, mask in zip(LOGITS.tolist(), masks.tolist(), strict=True)
    ]
    assert expected[2] == LOGITS[2].tolist()
    for given in (masks, masks.astype(bool), masks.astype(np.float32)):
        found = TorchCategorical.apply_action_mask(LOGITS.numpy(), given)
        assert found.dtype == np.float32 and found.tolist() == expected
        assert torch.equal(TorchCategorical.apply_action_mask(LOGITS, given), torch.from_numpy(found))
        several = default_distribution(UNEQUAL)
        assert np.array_equal(
            several.apply_action_mask(LOGITS.numpy(), given), several.apply_action_mask(LOGITS, given)
        )
    with pytest.raises(ModuleError, match=r"\(4, 7\)"):
        TorchCategorical.apply_action_mask(LOGITS.numpy(), masks[:, 1:])
