"""Rows of agents by env step, against values by hand and a plain search."""

from __future__ import annotations

import numpy as np
import pytest

from marl_connectors.episodes.env_step_index import AgentColumn, dicts_at, first_row_from, items_at, table
from marl_connectors.episodes.lookback import OUTSIDE, Padded
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.storage import NOTHING


def game():
    """White observes at env steps 0, 2, 3 and ends; black observes at 1 and 3. Items are ten times the env step."""
    episode = MultiAgentEpisode(id_="game")
    episode.add_env_reset(observations={"white": 0})
    episode.add_env_step({"black": 10}, {"white": 1}, {"white": 0.5})
    episode.add_env_step({"white": 20}, {"black": 2}, {"black": 0.25})
    episode.add_env_step({"white": 30, "black": 30}, {"white": 3}, {}, terminateds={"white": True})
    return episode


def lives(agent_id):
    return (game().agent_episodes[agent_id],)


@pytest.mark.parametrize("as_array", [False, True])
def test_the_first_row_from_an_env_step_is_that_of_a_plain_search(as_array):
    rng = np.random.default_rng(0)
    for _ in range(100):
        times = np.sort(rng.choice(30, rng.integers(0, 12), replace=False))
        for t in range(-2, 33):
            plain = int((times < t).sum())
            assert first_row_from(times if as_array else times.tolist(), t) == plain


def test_env_steps_that_an_agent_skipped_are_left_out_or_filled():
    column = AgentColumn.of(lives("white"), "obs")
    assert column is not None
    assert column.rows_at(range(0, 4), fill=False) == slice(0, 3)
    assert column.rows_at(range(0, 4), fill=True) == [0, OUTSIDE, 1, 2]
    assert column.rows_at(range(2, 6), fill=True) == Padded(0, slice(1, 3), 2)
    assert column.rows_at([3, 1], fill=False) == [2]
    assert list(column.indices_in(range(0, 4), fill=False)) == [0, 2, 3]


def test_items_are_those_of_the_env_steps():
    assert items_at(lives("white"), "obs", 2, None, False) == 20
    assert items_at(lives("white"), "obs", 1, None, False) is NOTHING
    assert items_at(lives("white"), "obs", 1, -1, False) == -1
    assert items_at(lives("white"), "obs", range(0, 3), -1, False) == [0, -1, 20]
    assert items_at(lives("white"), "no such column", 1, None, False) is NOTHING


def test_each_env_step_has_a_dict_of_the_agents_that_have_an_item():
    both = [(agent_id, lives(agent_id)) for agent_id in ("white", "black")]
    wanted = [{"white": 0}, {"black": 10}, {"white": 20}, {"white": 30, "black": 30}]
    assert dicts_at(both, "obs", range(0, 4), None, False) == wanted
    assert dicts_at(both, "obs", [3, 1], None, False) == [wanted[3], wanted[1]]


def test_the_table_shows_who_observed_acted_and_ended_when():
    lines = table({agent_id: lives(agent_id) for agent_id in ("white", "black")}, range(0, 4)).splitlines()
    assert lines[:-1] == ["env step   0   1   2   3", "white      x   .   x   T", "black      .   x   .   o"]
