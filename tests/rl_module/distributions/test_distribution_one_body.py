"""Distributions compute with arrays as with tensors, and can be made as RLlib makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiDistribution,
    TorchSquashedGaussian,
)
from marl_connectors.rl_module.distributions import EpsilonGreedy, TorchBernoulli, TorchUniform, default_distribution
from marl_connectors.trees import leaves, tree_map

BOX = spaces.Box(-2.0, 3.0, (3,))
KINDS = {
    "Discrete": (spaces.Discrete(4), TorchCategorical),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 4, 1]), None),
    "MultiDiscrete of one size": (spaces.MultiDiscrete([3, 3]), None),
    "MultiBinary": (spaces.MultiBinary(3), TorchBernoulli),
    "Box": (BOX, TorchDiagGaussian),
    "squashed": (BOX, TorchSquashedGaussian),
    "uniform": (BOX, TorchUniform),
    "epsilon greedy": (spaces.Discrete(3), EpsilonGreedy),
    "Dict": (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([BOX, spaces.MultiBinary(2)])}), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_give_what_tensors_give(kind):
    space, cls = KINDS[kind]
    dist_cls = cls or default_distribution(space)
    rng, num_inputs = np.random.default_rng(0), dist_cls.required_input_dim(space)
    inputs, others = (rng.normal(size=(2, 5, num_inputs)).astype(np.float32) for _ in range(2))
    if dist_cls is TorchUniform:
        inputs[..., 3:], others[..., :3], others[..., 3:] = inputs[..., :3] + 1, inputs[..., :3] - 1, 9.0
    elif dist_cls is EpsilonGreedy:
        inputs[..., -1] = others[..., -1] = 0.3
    noise = dist_cls.noise(rng, (2, 5), num_inputs)
    assert dist_cls.takes_arrays and noise.dtype == np.float32
    one, other = dist_cls.from_logits(inputs), dist_cls.from_logits(others)
    ones, others = (dist_cls.from_logits(torch.from_numpy(x)) for x in (inputs, others))
    drawn = one.sample(noise)
    pairs = [
        (drawn, ones.sample(torch.from_numpy(noise))),
        (one.to_deterministic(), ones.to_deterministic()),
        (one.logp(drawn), ones.logp(tree_map(torch.from_numpy, drawn))),
        (one.entropy(), ones.entropy()),
        (one.kl(other), ones.kl(others)),
    ]
    for in_arrays, in_tensors in pairs:
        for own, theirs in zip(leaves(in_arrays), leaves(in_tensors), strict=True):
            assert isinstance(own, np.ndarray) and own.dtype == theirs.numpy().dtype
            np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-5)
    assert (one.log_stds() is None) is (ones.log_stds() is None)


def test_a_subclass_is_given_tensors_unless_it_says_that_it_takes_arrays():
    class Own(TorchCategorical):
        def to_deterministic(self):
            seen.append(type(self.logits))
            return self.logits.argmin(-1)

    class OfArrays(Own):
        takes_arrays = True

    seen, logits = [], np.array([[3.0, 1.0]], np.float32)
    for cls in (Own, OfArrays, OfArrays.get_partial_dist_cls(always_samples=True)):
        found = cls.actions_of_rows(logits, None)
        assert isinstance(found, np.ndarray) and found.tolist() == [1]
    assert seen == [torch.Tensor, np.ndarray, np.ndarray]


def test_categorical_distributions_of_logits_and_of_probabilities():
    probs = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    for one in (TorchCategorical(probs=probs), TorchCategorical(logits=probs.log())):
        torch.testing.assert_close(one.logp(torch.tensor([1, 0])), torch.tensor([0.75, 1.0]).log())
        drawn = one.sample(sample_shape=(7, 2))
        assert drawn.shape == (7, 2, 2) and not drawn[..., 1].any()
        assert one.sample().shape == (2,)


def test_normal_distributions_of_means_and_deviations():
    loc, scale = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, 2.0]])
    one = TorchDiagGaussian(loc=loc, scale=scale)
    expected = torch.distributions.Normal(loc, scale)
    value = torch.tensor([[0.3, 0.4]])
    torch.testing.assert_close(one.logp(value), expected.log_prob(value).sum(-1))
    torch.testing.assert_close(one.entropy(), expected.entropy().sum(-1))
    torch.testing.assert_close(TorchDiagGaussian(loc, 2.0).log_stds(), torch.full((1, 2), 2.0).log())
    assert one.sample(sample_shape=[3]).shape == (3, 1, 2)


@pytest.mark.parametrize("is_dict", [True, False])
def test_distributions_of_parts(is_dict):
    parts = TorchCategorical(logits=torch.zeros(4, 3)), TorchDiagGaussian(torch.zeros(4, 2), torch.ones(4, 2))
    whole = TorchMultiDistribution(dict(zip("ab", parts, strict=True)) if is_dict else parts)
    drawn = whole.sample(sample_shape=(5,))
    assert [part.shape for part in leaves(drawn)] == [(5, 4), (5, 4, 2)]
    action = whole.to_deterministic()
    assert list(action) == ["a", "b"] if is_dict else isinstance(action, tuple)
    torch.testing.assert_close(
        whole.logp(action), sum(p.logp(own) for p, own in zip(parts, leaves(action), strict=True))
    )
    torch.testing.assert_close(whole.entropy(), parts[0].entropy() + parts[1].entropy())
    assert whole.kl(whole).abs().max() == 0


def test_the_kinds_of_noise_are_unknown_where_a_class_draws_other_numbers():
    class Colder(TorchCategorical):
        @classmethod
        def noise(cls, rng, shape, num_inputs):
            return 0.5 * super().noise(rng, shape, num_inputs)

    assert TorchCategorical.known_noise_parts(3) == [("gumbel", 3)]
    assert Colder.known_noise_parts(3) is None
