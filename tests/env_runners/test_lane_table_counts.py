from __future__ import annotations

import numpy as np
from gymnasium import spaces

from marl_connectors.env_runners.lane_group import LaneGroup
from marl_connectors.env_runners.lane_table import SampledSteps, StepCounts


def test_each_vector_step_is_a_step_of_every_sub_environment():
    counts = StepCounts()
    counts.vector_steps = 3
    counts.end_layout([], 4)
    counts.end_layout([], 4)
    counts.vector_steps = 1
    counts.end_layout([], 2)
    assert counts.take()["num_env_steps_sampled"] == 3 * 4 + 1 * 2
    assert counts.take()["num_env_steps_sampled"] == 0


def test_steps_that_are_counted_are_not_counted_again():
    group = LaneGroup(0, spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2), lookback=1)
    group.open([(0, "a", "m"), (1, "a", "m")])
    group.sort(np.array([0]))
    group.select(["m"], 1)
    counts = StepCounts()
    for _ in range(2):
        counts.vector_steps = 3
        counts.end_layout([group], 2)
        counts.settle(group, np.array([0, 1]))
    assert counts.take() == {
        "num_env_steps_sampled": 12,
        "num_agent_steps_sampled": {"a": 12},
        "num_module_steps_sampled": {"m": 12},
    }


def test_counts_are_sorted_by_agent_and_module():
    counts = StepCounts()
    counts.sampled = SampledSteps(3, {"b": 1, 10: 2, "a": 3, 9: 4}, {"n": 1, "m": 2})
    state = counts.sampled.in_order()
    assert list(state.agents.items()) == [(9, 4), (10, 2), ("a", 3), ("b", 1)]
    assert list(state.modules.items()) == [("m", 2), ("n", 1)]
    taken = counts.take()
    assert list(taken["num_agent_steps_sampled"]) == [9, 10, "a", "b"]
    assert list(taken["num_module_steps_sampled"]) == ["m", "n"]
