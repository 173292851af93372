from __future__ import annotations

from types import SimpleNamespace

import pytest

from marl_connectors.env_runners.done_episodes import first_of_each_sub_env, first_rounds, missing, shares


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
