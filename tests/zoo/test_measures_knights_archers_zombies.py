"""How long the line is held, in games whose end is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marl_connectors.environments.registry.factory import make_env
from marl_connectors.zoo.measures import time_held


def idle_game(**config: Any) -> tuple[float, int]:
    """Plays a game in which nobody does anything, and returns its measure and its number of steps."""
    pytest.importorskip("pettingzoo.butterfly.knights_archers_zombies_v11")
    env: Any = make_env("pettingzoo.butterfly.knights_archers_zombies_v11", config)
    env.reset(seed=0)
    steps = 0
    while env.agents:
        env.step(dict.fromkeys(env.agents, np.int64(5)))
        steps += 1
    return time_held(env.unwrapped, None), steps


def test_a_zombie_that_gets_through_ends_the_game_early():
    held, steps = idle_game(max_cycles=900)
    assert held == pytest.approx(steps / 900)
    assert 0.1 < held < 0.2  # the first zombie comes after 20 steps, and needs some 130 for its way


def test_a_line_that_is_held_to_the_end_counts_one():
    assert idle_game(max_cycles=60) == (1.0, 60)
