import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.state import fields_of, read_state

OBS, ACT = spaces.Box(-99.0, 99.0, (1,), np.float32), spaces.Discrete(9)


def newest(rollout):
    return slice(int(rollout.cursor[0]), int(rollout.cursor[0]) + rollout.num_lanes)


def filled(num_rows=4, lanes=2, steps=2):
    """Lane 0 sees 0, 1, 2, ..., lane 1 sees 10, 11, 12, ...; both act 1, 2, ... for rewards 0.5, 1.5, ..."""
    rollout = Rollout(OBS, ACT, num_rows=num_rows, num_lanes=lanes)
    for step in range(steps + 1):
        here = newest(rollout)
        rollout.observe(here, np.array([[10 * lane + step] for lane in range(lanes)], np.float32), step)
        if step < steps:
            rollout.record(here, {"actions": np.full(lanes, step + 1), "logp": np.full(lanes, -step, np.float32)})
            rollout.columns["rewards"][here] = step + 0.5
            rollout.cursor += lanes
    return rollout


def lane(rollout, number, first=0, start=0, stop=None):
    return LaneStorage(rollout, number, first_row=first, start_row=start, stop_row=stop)


def table(rollout, name="obs"):
    return rollout.columns[name].reshape(rollout.num_rows, rollout.num_lanes).tolist()


def test_a_lane_is_a_view_that_follows_its_cursor():
    rollout = filled()
    view = lane(rollout, 1)
    assert (len(view), view.last_row) == (2, 2)
    assert view.column("obs").tolist() == [[10], [11], [12]]
    assert view.column("actions").tolist() == [1, 2]
    assert view.column("rewards").tolist() == [0.5, 1.5]
    assert view.column("t").tolist() == [0, 1, 2]
    assert np.shares_memory(view.column("obs"), rollout.columns["obs"])
    rollout.record(newest(rollout), {"actions": np.full(2, 3), "logp": np.zeros(2, np.float32)})
    rollout.cursor += 2
    rollout.observe(newest(rollout), np.array([[3], [13]], np.float32), 3)
    assert view.column("obs").tolist() == [[10], [11], [12], [13]]
    view.stop_row = 1
    assert (len(view), view.column("obs").tolist(), view.column("actions").tolist()) == (1, [[10], [11]], [1])


def test_lookback_is_in_the_columns_but_not_in_the_length():
    view = lane(filled(), 0, first=0, start=1)
    assert (len(view), view.lookback) == (1, 1)
    assert view.column("obs").tolist() == [[0], [1], [2]]


def test_an_action_that_waits_is_pending():
    rollout = filled()
    view = lane(rollout, 0)
    assert view.pending() is None
    rollout.record(newest(rollout), {"actions": np.full(2, 7), "logp": np.full(2, -7, np.float32)})
    rollout.pending[:] = True
    assert view.pending() == {"actions": 7, "rewards": 0.0, "logp": -7.0}
    view.stop_row = 2
    assert view.pending() is None


def test_more_rows_keep_what_is_there():
    rollout = filled(num_rows=3)
    rollout.reserve(2)
    assert rollout.num_rows == 3
    rollout.reserve(3)
    assert rollout.num_rows == 5
    assert table(rollout) == [[0, 10], [1, 11], [2, 12], [0, 0], [0, 0]]
    assert table(rollout, "t") == [[0, 0], [1, 1], [2, 2], [-1, -1], [-1, -1]]


def test_more_lanes_keep_what_is_there():
    rollout = filled(num_rows=3)
    rollout.infos = {3: {"x": 1}}  # row 1, lane 1
    rollout.widened(3)
    assert table(rollout) == [[0, 10, 0], [1, 11, 0], [2, 12, 0]]
    assert table(rollout, "t") == [[0, 0, -1], [1, 1, -1], [2, 2, -1]]
    assert rollout.cursor.tolist() == [6, 7, 2]  # rows 2, 2, 0
    assert rollout.infos == {4: {"x": 1}}
    assert lane(rollout, 1, stop=2).column("infos") == [{}, {"x": 1}, {}]
    empty = Rollout(OBS, ACT, num_rows=2, num_lanes=0)
    empty.widened(2)
    assert empty.cursor.tolist() == [0, 1]


def test_a_fresh_rollout_continues_with_lookback_and_the_open_row():
    rollout = filled()
    rollout.record(newest(rollout), {"actions": np.full(2, 7), "logp": np.full(2, -7, np.float32)})
    rollout.pending[1] = True
    rollout.infos = {2: {"row": 1}, 5: {"row": 2}}
    new = rollout.continued(num_rows=4, lookback=1)
    assert table(new) == [[1, 11], [2, 12], [0, 0], [0, 0]]
    assert table(new, "actions") == [[2, 2], [7, 7], [0, 0], [0, 0]]
    assert table(new, "rewards") == [[1.5, 1.5], [0, 0], [0, 0], [0, 0]]
    assert table(new, "t") == [[1, 1], [2, 2], [-1, -1], [-1, -1]]
    assert new.infos == {0: {"row": 1}, 3: {"row": 2}}
    assert (new.cursor.tolist(), new.pending.tolist()) == ([2, 3], [False, True])
    new.columns["obs"][:] = 99
    assert table(rollout)[1] == [1, 11]


def test_more_lookback_than_there_are_rows_leaves_zeros_before():
    new = filled(steps=1).continued(num_rows=1, lookback=3)
    assert table(new) == [[0, 0], [0, 0], [0, 10], [1, 11]]


def test_lanes_in_different_rows_are_in_step_afterwards():
    rollout = filled()
    rollout.cursor[0] = 2  # row 1
    new = rollout.continued(num_rows=2, lookback=1)
    assert table(new) == [[0, 11], [1, 12]]


def test_only_rows_of_the_lanes_episode_come_along_and_none_of_a_lane_that_is_free():
    rollout = filled(lanes=3)
    new = rollout.continued(num_rows=3, lookback=2, oldest=np.array([1, 2, 3]))
    assert table(new, "t") == [[-1, -1, -1], [1, -1, -1], [2, 2, -1], *[[-1] * 3] * (new.num_rows - 3)]
    assert table(new)[:3] == [[0, 0, 0], [1, 0, 0], [2, 12, 0]]
    assert table(new, "rewards")[:3] == [[0, 0, 0], [1.5, 0, 0], [0, 0, 0]]


def restored(states, counts, order, num_rows=4):
    new = Rollout(OBS, ACT, num_rows=num_rows, num_lanes=sum(counts))
    new.set_states(states, counts, np.array(order), 3)
    return new


def test_a_state_goes_there_and_back():
    rollout = filled(num_rows=5)
    rollout.write("obs", slice(0, 6), np.arange(18.0).reshape(6, 3))
    new = restored(rollout.get_states(np.arange(2), [2]), [2], [0, 1])
    assert new.read("obs", slice(0, 6)).tolist() == np.arange(18.0).reshape(6, 3).tolist()
    assert new.source("obs").tolist() == [[0], [10], [1], [11], [2], [12], [0], [0]]
    assert new.columns["actions"].tolist() == [1, 1, 2, 2, 0, 0, 0, 0]
    assert new.columns["t"].tolist() == [0, 0, 1, 1, 2, 2, -1, -1]
    new.observe(slice(6, 8), np.array([[3], [13]], np.float32), 3)
    assert new.read("obs", slice(6, 8)).tolist() == [[3], [13]]


def test_a_state_has_parts_for_lanes_which_are_put_together_in_any_order():
    rollout = filled(lanes=3)
    rollout.pending[:] = [False, True, False]
    one, two = rollout.get_states(np.array([2, 0, 1]), [2, 1])
    assert [own.layers["obs"][0].tolist() for own in (one, two)] == [
        [[20], [0], [21], [1], [22], [2]],
        [[10], [11], [12]],
    ]
    assert [own.acted.tolist() for own in (one, two)] == [[True] * 4 + [False] * 2, [True] * 3]
    new = restored([two, one], [1, 2], [2, 0, 1])
    assert table(new) == [[0, 10, 20], [1, 11, 21], [2, 12, 22], [0, 0, 0]]
    assert new.pending.tolist() == [False, True, False]


def test_a_state_has_no_columns_and_layers_that_its_rows_do_not_have():
    rollout = filled(lanes=3)
    rollout.columns["t"].reshape(-1, 3)[:2, 1] = -1  # lane 1 has begun in the newest row
    rollout.write("obs", np.array([0, 3]), np.zeros((2, 3)))
    rollout.write("own", np.array([5, 8]), np.ones(2))
    first, second, third = rollout.get_states(np.arange(3), [1, 1, 1])
    assert [len(own.layers["obs"]) for own in (first, second, third)] == [2, 1, 1]
    assert [list(own.level) for own in (first, second, third)] == [["obs"], [], []]
    assert ["logp" in own.layers for own in (first, second, third)] == [True, False, True]
    assert ["own" in own.layers for own in (first, second, third)] == [False, False, True]
    assert [own.given.get("own", np.zeros(0)).tolist() for own in (first, third)] == [[], [False, True, True]]
    new = restored([first, second, third], [1, 1, 1], [0, 1, 2])
    assert new.given["own"].reshape(-1, 3)[:3].tolist() == [[False] * 3, [False, False, True], [False, False, True]]
    assert new.layered["obs"].tolist() == [1, 0, 0, 1, *[0] * 8]
    assert list(new.given) == ["own"], "lane 1 has not acted, so that it lacks no output of a module"


def test_parts_with_other_layers_are_aligned():
    """Pieces have written other shapes in another order in each rollout, or none."""
    rollouts = [filled(lanes=1) for _ in range(3)]
    for rollout, sizes in zip(rollouts, [(2, 3), (3, 2), ()], strict=True):
        for row, size in enumerate(sizes):
            rollout.write("obs", slice(row, row + 1), np.full((1, size), 10.0 * size + row))
    new = restored([rollout.get_states(np.arange(1), [1])[0] for rollout in rollouts], [1] * 3, [0, 1, 2])
    assert [new.item("obs", position).tolist() for position in range(9)] == [
        [20, 20], [30, 30, 30], [0],
        [31, 31, 31], [21, 21], [1],
        [2], [2], [2],
    ]  # fmt: skip
    assert len(new._layers["obs"]) == 3


def test_rows_of_another_number_are_refused():
    (state,) = filled().get_states(np.arange(2), [2])
    with pytest.raises(CheckpointError, match=r"(?s)episode_lookback_horizon.*\b6\b"):
        Rollout(OBS, ACT, num_rows=9, num_lanes=2).set_states([state], [2], np.arange(2), 4)
    with pytest.raises(CheckpointError, match="'actions'"):
        Rollout(OBS, OBS, num_rows=9, num_lanes=2).set_states([state], [2], np.arange(2), 3)


def test_observations_that_are_written_back_leave_the_environments_own_alone():
    rollout = filled()
    rollout.write("obs", np.array([2]), np.array([[7.5]], np.float32))
    assert rollout.read("obs", np.array([2, 3])).tolist() == [[7.5], [11]]  # one written, one from the environment
    assert rollout.is_uniform("obs", np.array([2, 3]))
    assert rollout.source("obs")[2:4].tolist() == [[1], [11]]
    rollout.write("obs", np.array([2]), np.array([[8.5]], np.float32))
    assert len(rollout._layers["obs"]) == 2
    rollout.write("rewards", np.array([2]), np.array([4.0]))
    assert rollout.source("rewards") is rollout.columns["rewards"] and rollout.columns["rewards"][2] == 4.0


def test_values_that_a_columns_dtype_cannot_hold_get_a_column_of_their_own():
    rollout = filled()
    rollout.write("actions", np.array([0]), np.array([300]))
    assert rollout.read("actions", np.array([0])).tolist() == [300]


def test_another_shape_gets_a_column_of_its_own():
    rollout = filled()
    rollout.write("obs", slice(0, 2), np.array([[0.0, 1.0], [2.0, 3.0]]))
    assert rollout.read("obs", slice(0, 2)).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert rollout.read("obs", slice(2, 4)).tolist() == [[1], [11]]
    assert table_of_source(rollout)[:2] == [[0, 10], [1, 11]]
    with pytest.raises(EpisodeError, match=r"(?s)\b4\b.*\b2\b.*'obs'"):
        rollout.read("obs", slice(0, 4))
    assert [np.asarray(item).tolist() for item in lane(rollout, 0).column("obs")] == [[0.0, 1.0], [1.0], [2.0]]


def table_of_source(rollout):
    return rollout.source("obs").reshape(rollout.num_rows, rollout.num_lanes).tolist()


def test_a_row_that_is_observed_again_holds_the_new_observation():
    rollout = filled()
    rollout.write("obs", slice(0, 2), np.zeros((2, 2)))
    rollout.observe(slice(0, 2), np.array([[5], [6]], np.float32), 0)
    assert rollout.read("obs", slice(0, 2)).tolist() == [[5], [6]]


def test_two_pieces_may_change_the_shape_one_after_the_other_at_every_step():
    rollout = filled()
    for row in range(3):
        here = slice(2 * row, 2 * row + 2)
        once = np.append(rollout.read("obs", here), np.full((2, 1), 0.5), 1)
        rollout.write("obs", here, once)
        rollout.write("obs", here, np.append(rollout.read("obs", here), np.full((2, 1), 0.25), 1))
    assert rollout.read("obs", slice(0, 6, 2)).tolist() == [[0, 0.5, 0.25], [1, 0.5, 0.25], [2, 0.5, 0.25]]
    assert lane(rollout, 1).column("obs").tolist() == [[10, 0.5, 0.25], [11, 0.5, 0.25], [12, 0.5, 0.25]]
    for other in (rollout.continued(4, 1),):
        assert other.read("obs", slice(0, 4)).tolist()[1] == [11, 0.5, 0.25]
    rollout.widened(3)
    rollout.reserve(6)
    assert rollout.read("obs", slice(1, 9, 3)).tolist() == [[10, 0.5, 0.25], [11, 0.5, 0.25], [12, 0.5, 0.25]]


def test_a_piece_after_another_may_turn_integers_into_floats_at_every_step():
    space = spaces.Dict({"board": spaces.Box(0, 9, (2,), np.int8), "mask": spaces.MultiBinary(2)})
    rollout = Rollout(space, spaces.Discrete(2), num_rows=2, num_lanes=1)
    for row in range(2):
        here = slice(row, row + 1)
        rollout.write("obs", here, np.array([[row, 4]], np.int8))
        board = rollout.read("obs", here)
        assert board.dtype == np.int8
        rollout.write("obs", here, board / np.float32(8))
        assert rollout.read("obs", here).tolist() == [[row / 8, 0.5]]


def test_an_action_may_come_flat_but_not_in_another_size():
    rollout = Rollout(OBS, spaces.Box(-1.0, 1.0, (2, 2), np.float32), num_rows=1, num_lanes=1)
    rollout.record(slice(0, 1), {"actions": np.array([[1, 2, 3, 4]], np.float32)})
    assert rollout.columns["actions"].tolist() == [[[1, 2], [3, 4]]]
    with pytest.raises(EpisodeError, match=r"(?s)'actions'.*float32.*\[1\].*float32.*\[2, 2\]"):
        rollout.record(slice(0, 1), {"actions": np.zeros((1, 1), np.float32)})


@pytest.mark.parametrize("before", [np.zeros((2, 1)), np.zeros((2, 6)), np.zeros((2, 3, 1)), {"h": np.zeros((2, 3))}])
def test_what_modules_output_keeps_its_shape(before):
    rollout = Rollout(OBS, ACT, num_rows=1, num_lanes=2)
    rollout.record(newest(rollout), {"logits": before})
    with pytest.raises(EpisodeError, match=r"(?s)'logits'.*float64.*\[3\]"):
        rollout.record(newest(rollout), {"logits": np.ones((2, 3))})


def test_what_an_episode_sets_the_rollout_holds():
    rollout = filled()
    episode = SingleAgentEpisode.from_storage(lane(rollout, 1), id_="e", observation_space=OBS, action_space=ACT)
    episode.set_rewards(new_data=9.0, at_indices=-1)
    episode.set_observations(new_data=np.array([7.0]), at_indices=0)
    assert table(rollout, "rewards")[1] == [1.5, 9.0]
    assert table(rollout)[0] == [0, 7]


def test_nested_observations_are_trees_of_columns():
    space = spaces.Dict({"p": OBS, "q": spaces.Tuple([spaces.Discrete(3)])})
    rollout = Rollout(space, ACT, num_rows=1, num_lanes=2)
    rollout.observe(slice(0, 2), {"p": np.array([[1], [2]], np.float32), "q": (np.array([0, 1]),)}, 0)
    new = rollout.continued(2, 0)
    new.widened(3)
    found = new.read("obs", slice(0, 2))
    assert (found["p"].tolist(), found["q"][0].tolist()) == ([[1], [2]], [0, 1])


def test_whole_numbers_are_written_among_the_fractions_that_came_later():
    """The newest column that can hold them takes them, so that all rows can be read together."""
    rollout = filled()
    everything = slice(0, 6)
    rollout.write("obs", everything, np.arange(6)[:, None])
    rollout.write("obs", everything, np.arange(6)[:, None] + 0.5)
    rollout.write("obs", slice(2, 4), np.array([[7], [8]]))
    assert rollout.read("obs", everything)[:, 0].tolist() == [0.5, 1.5, 7.0, 8.0, 4.5, 5.5]


def test_whole_numbers_that_come_before_and_after_fractions_are_read_together_with_them():
    rollout = filled()
    for row, values in enumerate(([[1], [2]], [[0.5], [1.5]], [[3], [4]])):
        rollout.write("obs", slice(2 * row, 2 * row + 2), np.array(values))
    assert rollout.read("obs", slice(0, 6))[:, 0].tolist() == [1.0, 2.0, 0.5, 1.5, 3.0, 4.0]


@pytest.mark.parametrize("column", ["action_dist_inputs", "action_logp", "vf_preds"])
def test_what_modules_have_put_out_is_floats_in_a_state(column):
    rollout = filled()
    rollout.write(column, np.arange(6), np.ones(6, np.float32))
    (state,) = rollout.get_states(np.arange(2), [2])
    fields = fields_of(state)
    whole = {**fields["layers"], column: [np.ones(len(state.acted), np.int64)]}
    assert read_state(type(state), fields).layers[column][0].dtype == np.float32
    with pytest.raises(CheckpointError, match=column):
        read_state(type(state), {**fields, "layers": whole})
