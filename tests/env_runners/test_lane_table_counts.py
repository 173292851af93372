from __future__ import annotations

from marl_connectors.env_runners.lane_table import StepCounts


def test_each_vector_step_is_a_step_of_every_sub_environment():
    counts = StepCounts()
    counts.vector_steps = 3
    counts.end_layout([], 4)
    counts.end_layout([], 4)
    counts.vector_steps = 1
    counts.end_layout([], 2)
    assert counts.take()["num_env_steps_sampled"] == 3 * 4 + 1 * 2
    assert counts.take()["num_env_steps_sampled"] == 0
