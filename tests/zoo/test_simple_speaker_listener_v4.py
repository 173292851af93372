"""A message is understood if the goal is the landmark that is nearest to the listener."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from marl_connectors.zoo.simple_speaker_listener_v4 import message_understood


@pytest.mark.parametrize(("listener", "expected"), [((0.9, 0.1), 1.0), ((0.1, 0.0), 0.0), ((0.2, 0.9), 0.0)])
def test_the_goal_is_the_nearest_landmark(listener, expected):
    def thing(position):
        return SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position)), goal_b=None)

    landmarks = [thing((0.0, 0.0)), thing((1.0, 0.0)), thing((0.0, 1.0))]
    agents = [thing((0.0, 0.0)), thing(listener)]
    agents[0].goal_b = landmarks[1]
    world = SimpleNamespace(agents=agents, landmarks=landmarks)
    assert message_understood(SimpleNamespace(world=world), None) == expected
