from __future__ import annotations

import numpy as np
import pytest

from marl_connectors.connectors.running_stats import BY_HAND, Fragment, Sources, StatsTable, StreamMoments, slot_of


def state_of(count, mean, squares):
    return {"count": count, "mean": np.array([mean]), "squares": np.array([squares])}


def by_hand(count, mean, squares):
    return {"env_numbers": np.array([BY_HAND]), **{k: np.array([v]) for k, v in state_of(count, mean, squares).items()}}


def sources(streams, env_numbers):
    streams, env_numbers = np.array(streams), np.array(env_numbers)
    return Sources(slot_of(streams, env_numbers), env_numbers, tuple(range(5)), streams)


def test_vectors_by_hand_apply_at_once_together_with_what_was_merged():
    """0 and 2 were merged; 4 and 6 are by hand. The mean is 3, and the squares are 9 + 1 + 1 + 9."""
    table = StatsTable(1)
    table.restore("a", [{"base": state_of(2, 1.0, 2.0), "own": by_hand(2, 5.0, 2.0)}])
    table.restore("b", [{"base": state_of(2, 1.0, 2.0)}])
    mean, std = table.applied()
    assert mean.tolist() == [[3.0], [1.0]]
    np.testing.assert_allclose(std, np.sqrt([[20 / 3], [2.0]]), rtol=1e-7)
    table.add_by_hand(np.array([[4.0], [6.0]]), np.array([1, 1]))
    assert table.applied()[0].tolist() == [[3.0], [3.0]]
    table.merge()
    assert table.applied()[0].tolist() == [[3.0], [3.0]]
    assert (table.base.count.tolist(), table.base.squares.tolist()) == ([4, 4], [[20.0], [20.0]])


def test_vectors_of_env_runners_apply_after_a_merge():
    table = StatsTable(1)
    for key in "ab":
        table.stream_of(key)
    fragment = Fragment()
    for step, values in enumerate([[[2.0], [7.0]], [[4.0], [7.0]]]):
        fragment.step = step
        table.collect(np.array(values), sources([0, 1], [5, 3]), fragment)
    assert [part.tolist() for part in table.applied()] == [[[0.0], [0.0]], pytest.approx(np.ones((2, 1)))]
    assert table.get_state()["a"]["own"]["env_numbers"].tolist() == [5]
    table.merge()
    assert table.applied()[0].tolist() == [[3.0], [7.0]]
    assert table.get_state()["a"] == {"base": state_of(2, 3.0, 2.0)}


def test_fragments_that_are_not_merged_add_up():
    table = StatsTable(1)
    table.stream_of("a")
    for value in (1.0, 5.0):
        table.collect(np.array([[value]]), sources([0], [0]), Fragment())
    own = table.get_state()["a"]["own"]
    assert (own["count"].tolist(), own["mean"].tolist(), own["squares"].tolist()) == ([2], [[3.0]], [[8.0]])


def test_united_streams_have_the_moments_of_all_vectors():
    """The streams are 1, 3; 5; and 7, 9, 11. The first two are united: of 1, 3, 5 the mean is 3."""
    moments = StreamMoments(np.array([2.0, 1.0, 3.0]), np.array([[2.0], [5.0], [9.0]]), np.array([[2.0], [0.0], [8.0]]))
    united, found = moments.united(np.array([4, 4, 6]))
    assert united.tolist() == [4, 6]
    assert (found.count.tolist(), found.mean.tolist(), found.squares.tolist()) == ([3, 3], [[3], [9]], [[8], [8]])


def test_a_state_does_not_change_later():
    table = StatsTable(1)
    for key in "ab":
        table.stream_of(key)
    table.add_by_hand(np.array([[4.0]]), np.array([0]))
    before = table.get_state()
    table.add_by_hand(np.array([[8.0]]), np.array([0]))
    table.merge()
    after = table.get_state()
    table.add_by_hand(np.array([[9.0]]), np.array([0]))
    table.merge()
    assert before["a"]["own"]["mean"].tolist() == [[4.0]] and before["a"]["base"]["count"] == 0
    assert after["a"] == {"base": state_of(2, 6.0, 8.0)}
