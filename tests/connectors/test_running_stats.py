from __future__ import annotations

import numpy as np

from marl_connectors.connectors.running_stats import StatsTable, to_state


def state_of(count, mean, squares):
    return {"count": count, "mean": np.array([mean]), "squares": np.array([squares])}


def test_what_was_merged_before_counts_together_with_what_came_since():
    table = StatsTable(1)
    table.restore("a", base=state_of(2, 1.0, 2.0), own=state_of(0, 0.0, 0.0))  # 0 and 2
    total = table.total(np.array([0]))
    assert (total.count.tolist(), total.mean.tolist(), total.squares.tolist()) == ([2], [[1.0]], [[2.0]])
    table.restore("a", base=state_of(2, 1.0, 2.0), own=state_of(2, 5.0, 2.0))  # 0, 2 and 4, 6: the mean is 3
    total = table.total(np.array([0]))
    assert (total.count.tolist(), total.mean.tolist(), total.squares.tolist()) == ([4], [[3.0]], [[9.0 + 1 + 1 + 9]])


def test_streams_without_merged_statistics_stand_beside_others():
    table = StatsTable(1)
    table.restore("a", base=state_of(2, 1.0, 2.0), own=state_of(0, 0.0, 0.0))
    table.restore("b", base=state_of(0, 0.0, 0.0), own=state_of(1, 7.0, 0.0))
    total = table.total(np.array([0, 1]))
    assert (total.count.tolist(), total.mean.tolist()) == ([2, 1], [[1.0], [7.0]])
    assert table.total(np.array([1])).mean.tolist() == [[7.0]]


def test_a_state_does_not_change_later():
    table = StatsTable(1)
    for key in "ab":
        table.restore(key, base=state_of(0, 0.0, 0.0), own=state_of(1, 4.0, 0.0))
    state = to_state(table.own, 0)
    table.add(np.array([0]), table.own.at(np.array([1]))._replace(mean=np.array([[8.0]])))
    assert table.own.mean.tolist() == [[6.0], [4.0]]
    assert state == {"count": 1, "mean": [4.0], "squares": [0.0]}
