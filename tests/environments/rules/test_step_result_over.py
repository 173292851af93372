from __future__ import annotations

import numpy as np

from marl_connectors.environments.rules.step_result import EpisodeEnds, Event, StepResult


def test_ended_episodes_come_by_ascending_index_however_they_ended():
    nothing = np.zeros(0, bool)
    ends = EpisodeEnds([1, 3], [5, 6], [], nothing, nothing, [])
    events = [Event(2, 7, is_over=True), Event(0, 8, is_over=True, is_dropped=True), Event(4, 9)]
    assert list(StepResult([], [], ends=ends, events=events).over.items()) == [(0, 8), (1, 5), (2, 7), (3, 6)]
