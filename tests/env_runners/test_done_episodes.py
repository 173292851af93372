from __future__ import annotations

from types import SimpleNamespace

import pytest

from marl_connectors.env_runners.done_episodes import (
    SamplePlace,
    first_of_each_sub_env,
    first_rounds,
    merged_order,
    missing,
    shares,
)


def done(*env_indices):
    return [SimpleNamespace(env_index=index, number=number) for number, index in enumerate(env_indices)]


@pytest.mark.parametrize(("number", "expected"), [(0, [0, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (7, [3, 2, 2])])
def test_shares_differ_by_one_at_most(number, expected):
    assert shares(3, number) == expected


def test_more_episodes_of_one_sub_environment_are_not_those_that_another_lacks():
    assert missing(done(1, 1, 1), 2, 3) == [2, 0]
    assert missing(done(0), 2, 3) == [1, 1]


def test_the_first_episodes_of_each_sub_environment_are_chosen():
    found = first_of_each_sub_env(done(1, 1, 0, 1, 0), 2, 3)
    assert [entry.number for entry in found] == [0, 2, 4]
    assert first_of_each_sub_env(done(1, 1, 0), 2, 3) is None


def test_rounds_are_as_many_as_the_slowest_sub_environment_has_finished():
    assert [entry.number for entry in first_rounds(done(1, 1, 0, 1), 2)] == [0, 2]
    assert first_rounds(done(1, 1), 2) == []


def places(*found):
    return [SamplePlace(*own) for own in found]


def test_ended_episodes_are_in_the_order_of_their_ends_and_chunks_follow():
    first = places((1, 2), (0, 5), (0, None), (1, None))
    second = places((2, 1), (3, 2), (2, 5), (2, None), (3, None))
    assert merged_order([first, second]) == [
        *[(1, 0), (0, 0), (1, 1), (0, 1), (1, 2)],
        *[(0, 2), (0, 3), (1, 3), (1, 4)],
    ]


def test_the_order_does_not_depend_on_the_order_of_the_runners():
    first, second = places((0, 3), (0, None)), places((1, 3), (1, None))
    assert merged_order([first, second]) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert merged_order([second, first]) == [(1, 0), (0, 0), (1, 1), (0, 1)]


def test_episodes_of_one_sub_environment_that_end_together_keep_their_order():
    assert merged_order([places((0, 1), (0, 1), (0, 2))]) == [(0, 0), (0, 1), (0, 2)]
    assert merged_order([[], []]) == []
