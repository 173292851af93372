"""The share of covered landmarks, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from marl_connectors.zoo.simple_spread_v3 import landmarks_covered


def world(agents, landmarks):
    def things(positions):
        return [SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position))) for position in positions]

    return SimpleNamespace(world=SimpleNamespace(agents=things(agents), landmarks=things(landmarks)))


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], 1.0),
        ([(0.0, 0.14), (1.1, 0.1), (0.0, 1.16)], 2 / 3),
        ([(0.0, 0.0), (0.0, 0.1), (0.1, 0.0)], 1 / 3),  # three agents at one landmark
        ([(0.5, 0.5), (0.5, 0.5), (0.5, 0.5)], 0.0),
    ],
)
def test_a_landmark_is_covered_by_an_agent_within_its_radius(agents, expected):
    assert landmarks_covered(world(agents, [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]), None) == pytest.approx(expected)


def test_one_agent_can_cover_two_landmarks():
    assert landmarks_covered(world([(0.0, 0.0)], [(0.1, 0.0), (-0.1, 0.0)]), None) == 1.0
