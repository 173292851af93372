"""What makes the updates of off-policy algorithms."""

from __future__ import annotations

from marl_connectors import DQNConfig


def test_a_fraction_of_an_update_is_still_due_after_a_restore():
    algo, other = (DQNConfig().environment("CartPole-v1").build_algo() for _ in range(2))
    algo.replay.updates_due = 0.25
    other.replay.set_state(algo.replay.get_state())
    assert other.replay.updates_due == 0.25
    algo.stop()
    other.stop()
