import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.errors import EpisodeError


def test_rows_stand_by_module_then_episode_then_time():
    episodes = [chunk("n", 10, 2), chunk("m", 20, 1), chunk("n", 30, 1)]
    rows = rows_of_episodes(episodes, ["m", "n", "unused"])
    assert rows.get("obs")[:, 0].tolist() == [20, 21, 10, 11, 12, 30, 31]
    assert (rows.module_ids, rows.splits, rows.counts) == (("m", "n"), (0, 2, 7), [2, 3, 2])
    assert rows.acted.tolist() == [True, False, True, True, False, True, False]
    assert rows.rows_per_module is None
    assert [e.id_ for e in rows.episodes] == ["m20", "n10", "n30"]
    assert rows_of_episodes([chunk("m", 0, 1), chunk("n", 0, 1)], ["m", "n"]).rows_per_module == 2


def test_an_offset_reads_the_same_agents_other_steps():
    rows = rows_of_episodes([chunk("m", 10, 2), chunk("m", 20, 1)], ["m"])
    assert rows.get("obs", -1, fill=-1.0)[:, 0].tolist() == [-1, 10, 11, -1, 20]
    assert rows.get("obs", 1, fill=-1.0)[:, 0].tolist() == [11, 12, -1, 21, -1]
    assert rows.get("rewards", -1, fill=0.0).tolist() == [0, 0.5, 1.5, 0, 0.5]
    with pytest.raises(EpisodeError, match=r"(?s)\b2\b.*\b5\b.*'obs'.*offset -1"):
        rows.get("obs", -1)


def test_an_offset_reaches_into_the_lookback():
    rows = rows_of_episodes([chunk("m", 10, 1, lookback=1)], ["m"])
    assert rows.get("obs")[:, 0].tolist() == [11, 12]
    assert rows.get("obs", -1)[:, 0].tolist() == [10, 11]


def test_what_is_set_the_episodes_hold():
    episodes = [chunk("m", 10, 2), chunk("m", 20, 1)]
    rows = rows_of_episodes(episodes, ["m"])
    rows.set("rewards", np.array([1.0, 2.0, 0.0, 3.0, 0.0]))
    assert [list(e.get_rewards()) for e in episodes] == [[1.0, 2.0], [3.0]]
    rows.set("obs", np.arange(10.0).reshape(5, 2))
    assert episodes[1].get_observations().tolist() == [[6, 7], [8, 9]]


def test_rows_of_several_rollouts_are_one_selection():
    episodes = [chunk("m", 10, 2), chunk("m", 20, 1)]
    for episode in episodes:
        rows_of_episodes([episode], ["m"])  # each is in a rollout of its own now
    rows = rows_of_episodes(episodes, ["m"])
    assert len(rows.parts) == 2
    assert rows.get("obs", -1, fill=0.0)[:, 0].tolist() == [0, 10, 11, 0, 20]
    rows.set("rewards", np.arange(5.0))
    assert [list(e.get_rewards()) for e in episodes] == [[0.0, 1.0], [3.0]]


def test_last_rows_alone():
    rows = rows_of_episodes([chunk("n", 10, 2), chunk("m", 20, 1)], ["m", "n"], last_only=True)
    assert rows.get("obs")[:, 0].tolist() == [21, 12]
    assert (rows.counts, rows.acted.tolist()) == ([1, 1], [False, False])


def test_a_group_like_another_keeps_rows_that_were_dropped():
    """After GeneralAdvantageEstimation, a group has fewer rows than its selection."""
    group = ColumnGroup(rows_of_episodes([chunk("m", 10, 1), chunk("n", 20, 1)], ["m", "n"]))
    group.splits, group.rows_per_module = (0, 1, 2), 1
    like = group.like()
    assert (like.splits, like.rows_per_module, like.module_ids, dict(like)) == ((0, 1, 2), 1, ("m", "n"), {})
