"""A message is understood if the goal is the landmark that is nearest to the agent that was told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from marl_connectors.zoo.simple_reference_v3 import messages_understood


def thing(position):
    return SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position)))


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (((0.1, 0.0), (0.9, 0.0)), 1.0),  # the goal of agent_0 is landmark 0, that of agent_1 is landmark 1
        (((0.9, 0.0), (0.9, 0.0)), 0.5),
        (((0.9, 0.0), (0.1, 0.9)), 0.0),
    ],
)
def test_the_share_counts_both_agents(positions, expected):
    landmarks = [thing((0.0, 0.0)), thing((1.0, 0.0)), thing((0.0, 1.0))]
    agents = [thing(position) for position in positions]
    for speaker, listener, goal in ((0, 1, 1), (1, 0, 0)):
        agents[speaker].goal_a, agents[speaker].goal_b = agents[listener], landmarks[goal]
    env = SimpleNamespace(world=SimpleNamespace(agents=agents, landmarks=landmarks))
    assert messages_understood(env, None) == expected
