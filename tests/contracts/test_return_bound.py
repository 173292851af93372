"""The bound of returns in simple_speaker_listener_v4: no forces exceed it, and the physics are those of mpe2."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("mpe2")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import return_bound
from mpe2 import simple_speaker_listener_v4

sys.path.remove(str(Path(__file__).parents[2] / "benchmarks"))

STEPS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""The forces of the listener's actions."""


def test_returns_are_those_of_the_environment():
    env, actions = simple_speaker_listener_v4.parallel_env(), np.random.default_rng(0).integers(5, size=25)
    env.reset(seed=0)
    total = 0.0
    for action in actions:
        total += env.step({"speaker_0": 0, "listener_0": int(action)})[1]["listener_0"]
    forces = torch.tensor([STEPS[action] for action in actions], dtype=torch.float64)[:, None]
    assert return_bound.returns(return_bound.starts(1), forces).item() == pytest.approx(total, rel=1e-6)


def test_forces_are_projected_to_the_nearest_possible_ones():
    given = torch.tensor([[0.2, -0.3], [3.0, 0.1], [1.0, -1.0], [-0.9, 0.5]])
    expected = torch.tensor([[0.2, -0.3], [1.0, 0.0], [0.5, -0.5], [-0.7, 0.3]])
    assert torch.allclose(return_bound.possible(given), expected)


@pytest.mark.slow
def test_no_possible_forces_exceed_the_bound_and_the_best_ones_reach_it():
    start = return_bound.starts(20)
    found, bound = return_bound.best_returns(start)
    assert torch.all(found <= bound) and torch.all(bound - found < 0.01)
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        forces = return_bound.possible(2 * torch.randn(return_bound.CYCLES, 20, 2, generator=rng, dtype=torch.float64))
        assert torch.all(return_bound.returns(start, forces) <= bound)
