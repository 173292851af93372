"""Uniform distributions over actions in a range."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import TorchUniform
from marl_connectors.seeding import stream

BOUNDS = torch.tensor([[-1.0, 0.0, 1.0, 4.0]])  # one number between -1 and 1, another between 0 and 4


def test_quantities_are_those_of_a_rectangle():
    rectangle = TorchUniform.from_logits(BOUNDS)
    assert rectangle.logp(torch.tensor([[0.5, 3.0]])).tolist() == pytest.approx([-math.log(8)])
    assert rectangle.logp(torch.tensor([[0.5, 4.1]])).tolist() == [-math.inf]
    assert rectangle.entropy().tolist() == pytest.approx([math.log(8)])
    assert rectangle.to_deterministic().tolist() == [[0.0, 2.0]]


def test_the_divergence_is_finite_where_the_other_one_covers_it():
    small, large = TorchUniform.from_logits(BOUNDS), TorchUniform.from_logits(torch.tensor([[-1.0, -4.0, 1.0, 12.0]]))
    assert small.kl(large).tolist() == pytest.approx([math.log(16 / 4)])
    assert large.kl(small).tolist() == [math.inf]


def test_noise_is_the_position_between_the_bounds():
    noise = torch.tensor([[0.25, 0.5]])
    assert TorchUniform.from_logits(BOUNDS).sample(noise).tolist() == [[-0.5, 2.0]]
    drawn = TorchUniform.noise(stream(0, "test"), (3, 5), 4)
    assert drawn.shape == (3, 5, 2) and drawn.dtype == np.float32


def test_it_needs_two_numbers_for_each_of_a_bounded_action():
    assert TorchUniform.required_input_dim(spaces.Box(-2.0, 3.0, (2, 3))) == 12
    with pytest.raises(ModuleError, match="bounds"):
        TorchUniform.required_input_dim(spaces.Box(0.0, np.inf, (2,)))
