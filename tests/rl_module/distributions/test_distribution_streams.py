"""Numbers from many streams at once, and log-probabilities that depend on their own row alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.rl_module.distributions import (
    TorchBeta,
    TorchCategorical,
    TorchSquashedGaussian,
    default_distribution,
)
from marl_connectors.seeding import StreamGenerator, name_word, stream_words, substream_words
from marl_connectors.trees import tree_map

WORDS = substream_words(stream_words(5, "test"), np.arange(2000, dtype=np.uint64))
BOX = spaces.Box(-2.0, 3.0, (3,))
DICT = spaces.Dict([("z", spaces.Discrete(4)), ("a", spaces.Tuple([BOX, spaces.MultiDiscrete([2, 5])]))])
DISTRIBUTIONS = {
    "discrete": (spaces.Discrete(5), None),
    "large discrete": (spaces.Discrete(70), None),
    "several choices": (spaces.MultiDiscrete([3, 2, 6]), None),
    "bits": (spaces.MultiBinary(4), None),
    "box": (BOX, None),
    "squashed": (BOX, TorchSquashedGaussian),
    "beta": (BOX, TorchBeta),
    "parts": (DICT, None),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "mean", "variance"),
    [
        ("random", 0.5, 1 / 12),
        ("standard_exponential", 1.0, 1.0),
        ("standard_normal", 0.0, 1.0),
        ("logistic", 0.0, math.pi**2 / 3),
    ],
)
def test_numbers_are_distributed_as_numpys(name, mean, variance, dtype):
    numbers = getattr(StreamGenerator(WORDS), name)(size=(2000, 51), dtype=dtype)
    assert numbers.dtype == dtype
    assert numbers.shape == (2000, 51)
    spread = math.sqrt(variance / numbers.size)
    assert abs(float(numbers.mean()) - mean) < 5 * spread
    assert abs(float(numbers.var()) / variance - 1) < 0.05
    expected = getattr(np.random.default_rng(0), name)(size=numbers.size)
    levels = np.linspace(0.001, 0.999, 50)
    gap = np.searchsorted(np.sort(expected), np.quantile(numbers, levels)) / numbers.size - levels
    assert np.abs(gap).max() < 5 * math.sqrt(0.5 / numbers.size)  # ten times as far as one would be off by chance


def test_numbers_of_one_stream_and_of_neighbouring_streams_are_not_correlated():
    numbers = StreamGenerator(WORDS).random((2000, 64))
    for pairs in (numbers[:, 1:] * 1.0, numbers[1:] * 1.0):
        others = numbers[:, :-1] if pairs.shape[1] == 63 else numbers[:-1]
        assert abs(np.corrcoef(pairs.ravel(), others.ravel())[0, 1]) < 5 / math.sqrt(pairs.size)


def test_a_stream_gives_the_same_numbers_whatever_streams_are_beside_it():
    whole = StreamGenerator(WORDS)
    some = StreamGenerator(WORDS[[7, 3, 1999]])
    for name in ("random", "standard_normal", "logistic", "standard_exponential"):
        for count in (1, 5, 8):
            a = getattr(whole, name)(size=(2000, count), dtype=np.float32)
            b = getattr(some, name)(size=(3, count), dtype=np.float32)
            assert a[[7, 3, 1999]].tobytes() == b.tobytes()


def test_a_size_that_does_not_fit_the_streams_is_an_error():
    with pytest.raises(ValueError, match=r"\(2000,\)"):
        StreamGenerator(WORDS).random((7, 3))


def test_names_of_different_types_have_different_words():
    assert len({name_word(name) for name in (1, "1", (1,), ("1",), b"1")}) == 5


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_log_probabilities_depend_on_their_own_row_alone(kind):
    space, cls = DISTRIBUTIONS[kind]
    dist_cls = default_distribution(space) if cls is None else cls
    num_inputs = dist_cls.required_input_dim(space)
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(300, num_inputs)).astype(np.float32)
    words = WORDS[:300]
    noise = torch.from_numpy(dist_cls.noise(StreamGenerator(words), (300,), num_inputs))
    distribution = dist_cls.from_logits(torch.from_numpy(inputs))
    drawn = distribution.sample(noise)
    actions = tree_map(lambda leaf: leaf.numpy(), drawn)
    whole = dist_cls.logp_of_rows(inputs, actions)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, distribution.logp(drawn).numpy(), rtol=1e-4, atol=1e-4)
    for _ in range(60):
        rows = rng.permutation(300)[: rng.integers(1, 300)]
        part = dist_cls.logp_of_rows(inputs[rows], tree_map(lambda leaf, rows=rows: leaf[rows], actions))
        assert part.tobytes() == whole[rows].tobytes()


class Cold(TorchCategorical):
    @classmethod
    def from_logits(cls, logits):
        return cls(2.0 * logits)


def test_log_probabilities_of_a_subclass_are_its_own():
    inputs, actions = np.array([[0.0, 1.0, 3.0]], np.float32), np.array([1])
    expected = 2.0 - np.log(1.0 + np.exp(2.0) + np.exp(6.0))
    np.testing.assert_allclose(Cold.logp_of_rows(inputs, actions), [expected], rtol=1e-6)
    assert inputs.tolist() == [[0.0, 1.0, 3.0]], "the inputs stay as they are"
