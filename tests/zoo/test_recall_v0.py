"""The share of recalled cues, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marl_connectors.zoo.recall_v0 import cues_recalled


@pytest.mark.parametrize(
    ("returns", "env_t_started", "expected"),
    [((2.0, 2.0), 0, 1.0), ((2.0, 1.0), 0, 0.75), ((0.0, 0.0), 0, 0.0), ((2.0, 2.0), 3, None)],
)
def test_the_share_is_the_mean_return_of_a_trial(returns, env_t_started, expected):
    agents = {f"agent_{index}": SimpleNamespace(get_return=lambda own=own: own) for index, own in enumerate(returns)}
    episode = SimpleNamespace(agent_episodes=agents, env_t_started=env_t_started)
    assert cues_recalled(SimpleNamespace(n_trials=2), episode) == expected
