"""What pieces remember of a runner's rows, and how they read rows that stand in one run."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EpisodeError

SPACE = spaces.Box(-999.0, 999.0, (2,), np.float32)


def played(num_rows, lanes):
    """A rollout in which row ``r`` of lane ``l`` holds ``[r, l]``, the reward ``10 r + l`` and the action ``r % 3``."""
    rollout = Rollout(SPACE, spaces.Discrete(3), num_rows=num_rows, num_lanes=lanes)
    row, lane = np.divmod(np.arange(num_rows * lanes), lanes)
    rollout.observe(slice(0, len(row)), np.stack([row, lane], axis=1).astype(np.float32), row)
    rollout.columns[Columns.REWARDS][:] = 10 * row + lane
    rollout.columns[Columns.ACTIONS][:] = row % 3
    rollout.cursor = np.arange(lanes) + (num_rows - 1) * lanes
    return rollout


def rows_at(rollout, row, first_rows, *, t_started=(), as_slice=True):
    """The rows of all lanes; each lane's episode begins at the first row that is kept of it."""
    here = np.arange(rollout.num_lanes) + row * rollout.num_lanes
    first = np.array(first_rows) * rollout.num_lanes + np.arange(rollout.num_lanes)
    episodes = [
        SingleAgentEpisode.from_storage(
            LaneStorage(rollout, lane, first_row=begin, start_row=begin, stop_row=row),
            id_=f"e{lane}",
            agent_id=f"a{lane}",
            multi_agent_episode_id="e",
            module_id="m",
            t_started=t_started[lane] if t_started else 0,
            observation_space=SPACE,
        )
        for lane, begin in enumerate(first_rows)
    ]
    positions = slice(int(here[0]), int(here[-1]) + 1) if as_slice else here
    lanes = rollout.num_lanes
    return Rows(
        (RowPart(rollout, positions, first, here),),
        module_ids=("m",),
        splits=(0, lanes),
        episodes=episodes,
        counts=[1] * lanes,
    )


def reached_by(rows, column, n, newest):
    """Which of the newest items there are."""
    ones = lambda items: np.ones(len(items), bool)
    return rows.recent(column, n, newest=newest, who="test", each=ones).tolist()


@examples(60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(4, 6), st.integers(1, 5), st.data())
def test_the_newest_items_are_the_same_for_one_run_of_rows_and_for_single_positions(first_rows, row, n, data):
    column, newest = data.draw(st.sampled_from([(Columns.OBS, 0), (Columns.REWARDS, -1), (Columns.ACTIONS, -1)]))
    rollout = played(row + 1, len(first_rows))
    rows = [rows_at(rollout, row, first_rows, as_slice=as_slice) for as_slice in (True, False)]
    found = [own.recent(column, n, newest=newest, who="test") for own in rows]
    reached = [reached_by(own, column, n, newest) for own in rows]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(*reached)
    assert found[0].dtype == found[1].dtype
    for lane, begin in enumerate(first_rows):  # and they are the right ones
        for i, wanted in enumerate(range(row + newest - n + 1, row + newest + 1)):
            assert reached[0][lane][i] == (wanted >= begin)
            if column == Columns.REWARDS:
                assert found[0][lane, i] == (10 * wanted + lane if wanted >= begin else 0)


def test_a_lookback_that_is_long_enough_for_some_rows_is_not_taken_for_enough_for_others():
    rollout = played(4, 2)
    begun_here = rows_at(rollout, 3, [2, 2])
    for _ in range(2):
        assert reached_by(begun_here, Columns.OBS, 3, 0) == [[False, True, True]] * 2
    went_on = rows_at(rollout, 3, [2, 2], t_started=[7, 7])
    with pytest.raises(ConnectorError, match=r"(?s)'a0'.*\b7\b"):
        went_on.recent(Columns.OBS, 3, newest=0, who="test")


def test_what_is_long_enough_to_look_back_one_step_is_not_taken_for_enough_for_three():
    rollout = played(4, 2)
    rows = rows_at(rollout, 3, [3, 2], t_started=[0, 7])
    assert reached_by(rows, Columns.OBS, 2, 0) == [[False, True], [True, True]]
    with pytest.raises(ConnectorError, match=r"\b3 steps"):
        rows.recent(Columns.OBS, 4, newest=0, who="test")


def test_observations_of_two_shapes_in_one_run_are_an_error_that_says_so():
    rollout = played(3, 2)
    rollout.write(Columns.OBS, slice(2, 4), np.zeros((2, 5), np.float32))
    with pytest.raises(EpisodeError, match="shape"):
        rows_at(rollout, 2, [0, 0]).recent(Columns.OBS, 2, newest=0, who="test")


@pytest.mark.parametrize("how", ["reset_state", "set_state"])
def test_a_filter_that_forgets_does_so_for_rows_that_go_on(how):
    rollout = played(3, 2)
    piece = MeanStdFilter(
        spaces.Dict({"a0": SPACE, "a1": SPACE}), spaces.Dict({a: spaces.Discrete(3) for a in ("a0", "a1")})
    )
    blank = piece.get_state()
    rows = rows_at(rollout, 1, [0, 0])
    piece.columns(ColumnGroup(rows), ARRAYS)
    rollout.observe(slice(2, 4), np.full((2, 2), 7.0, np.float32), 1)
    piece.reset_state() if how == "reset_state" else piece.set_state(blank)
    piece.columns(ColumnGroup(rows), ARRAYS)
    own = piece.get_state()
    assert {agent_id: part.new_counts for agent_id, part in own.items()} == {"a0": 1, "a1": 1}
    assert all(part.new_means.tolist() == [[7.0, 7.0]] for part in own.values())
