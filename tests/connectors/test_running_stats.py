from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from helpers.modules.policies_by_hand import stream_state
from helpers.runs.random_runs import plain
from marl_connectors.connectors.running_stats import BY_HAND, Fragment, Sources, StatsTable, StreamMoments, slot_of


def by_hand(count, mean, squares):
    own = np.array([count]), np.array([[mean]]), np.array([[squares]])
    return dict(zip(("new_from", "new_counts", "new_means", "new_squares"), (np.array([BY_HAND]), *own), strict=True))


def sources(streams, env_numbers):
    streams, env_numbers = np.array(streams), np.array(env_numbers)
    return Sources(slot_of(streams, env_numbers), env_numbers, tuple(range(5)), streams)


def test_vectors_by_hand_apply_at_once_together_with_what_was_merged():
    """0 and 2 were merged; 4 and 6 are by hand. The mean is 3, and the squares are 9 + 1 + 1 + 9."""
    table = StatsTable(1)
    table.restore("a", [replace(stream_state(2, [1.0], [2.0]), **by_hand(2, 5.0, 2.0))])
    table.restore("b", [stream_state(2, [1.0], [2.0])])
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
    assert table.get_state()["a"].new_from.tolist() == [5]
    table.merge()
    assert table.applied()[0].tolist() == [[3.0], [7.0]]
    assert plain(table.get_state()["a"]) == plain(stream_state(2, [3.0], [2.0]))


def test_fragments_that_are_not_merged_add_up():
    table = StatsTable(1)
    table.stream_of("a")
    for value in (1.0, 5.0):
        table.collect(np.array([[value]]), sources([0], [0]), Fragment())
    own = table.get_state()["a"]
    assert (own.new_counts.tolist(), own.new_means.tolist(), own.new_squares.tolist()) == ([2], [[3.0]], [[8.0]])


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
    assert before["a"].new_means.tolist() == [[4.0]] and before["a"].count == 0
    assert plain(after["a"]) == plain(stream_state(2, [6.0], [8.0]))
