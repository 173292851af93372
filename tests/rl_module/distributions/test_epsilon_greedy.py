import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors import EpsilonGreedy


def inputs_of(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    values = torch.from_numpy(rng.normal(size=(5, n)).astype(np.float32))
    epsilon = torch.from_numpy(rng.choice([0.0, 0.3, 1.0], (5, 1)).astype(np.float32))
    mask = torch.from_numpy(rng.random((5, n)) < 0.6)
    inputs = EpsilonGreedy.apply_action_mask(torch.cat([values, epsilon], -1), mask)
    allowed = torch.where(mask.any(-1, keepdim=True), mask, True)
    return inputs, values, epsilon, allowed


@pytest.mark.parametrize("seed", range(30))
def test_probabilities_are_those_of_the_definition(seed):
    inputs, values, epsilon, allowed = inputs_of(seed)
    found = EpsilonGreedy.from_logits(inputs).probs
    for i in range(5):
        best = max((j for j in range(values.shape[1]) if allowed[i, j]), key=lambda j: values[i, j])
        for j in range(values.shape[1]):
            expected = epsilon[i, 0] / allowed[i].sum() * allowed[i, j] + (1 - epsilon[i, 0]) * (j == best)
            torch.testing.assert_close(found[i, j], expected)


def test_values_may_be_of_any_precision():
    inputs = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)
    assert EpsilonGreedy.from_logits(inputs).probs.tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("seed", range(10))
def test_actions_are_drawn_with_these_probabilities(seed):
    inputs, *_ = inputs_of(seed)
    distribution = EpsilonGreedy.from_logits(inputs.expand(20_000, *inputs.shape))
    noise = EpsilonGreedy.noise(np.random.default_rng(seed), (20_000, 5), inputs.shape[-1])
    drawn = torch.nn.functional.one_hot(distribution.sample(torch.from_numpy(noise)), inputs.shape[-1] - 1)
    torch.testing.assert_close(drawn.float().mean(0), distribution.probs[0], atol=0.02, rtol=0)
    assert not drawn[:, distribution.probs[0] == 0].any()


@pytest.mark.parametrize("seed", range(10))
def test_a_choice_in_arrays_is_the_same(seed):
    inputs, *_ = inputs_of(seed)
    noise = EpsilonGreedy.noise(np.random.default_rng(seed), (5,), inputs.shape[-1])
    choose, distribution = EpsilonGreedy.actions_of_rows, EpsilonGreedy.from_logits(inputs)
    np.testing.assert_array_equal(choose(inputs.numpy(), noise), distribution.sample(torch.from_numpy(noise)))
    np.testing.assert_array_equal(choose(inputs.numpy(), None), distribution.to_deterministic())


@pytest.mark.parametrize("seed", range(10))
def test_logp_entropy_and_kl_are_those_of_the_probabilities(seed):
    inputs, *_ = inputs_of(seed)
    one, other = EpsilonGreedy.from_logits(inputs), EpsilonGreedy.from_logits(inputs.flip(0))
    own, others = one.probs.double(), other.probs.double()
    for j in range(own.shape[1]):
        torch.testing.assert_close(one.logp(torch.full((5,), j)).double(), own[:, j].log(), atol=1e-4, rtol=1e-4)
    terms = torch.where(own > 0, own * own.log(), 0.0)
    torch.testing.assert_close(one.entropy().double(), -terms.sum(-1), atol=1e-5, rtol=1e-4)
    kl = (terms - torch.where(own > 0, own * others.log(), 0.0)).sum(-1)
    torch.testing.assert_close(one.kl(other).double(), kl, atol=1e-4, rtol=1e-4)


def test_inputs_are_the_values_and_epsilon():
    assert EpsilonGreedy.required_input_dim(spaces.Discrete(4)) == 5
    assert EpsilonGreedy.noise_parts(5) == [("uniform", 5)]
