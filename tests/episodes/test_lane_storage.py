"""Views of a rollout: columns that are added to one agent's episode, and items in another shape than their column.

An extra model output that is added to one agent's episode afterwards belongs to that agent alone. Single items are read
correctly where a piece has rewritten observations in another shape.
"""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

OBS, ACT = spaces.Box(-99.0, 99.0, (1,), np.float32), spaces.Discrete(9)
STEPS = 3


def played(lanes=3, lookback=1):
    """All lanes act in all rows; row ``r`` of lane ``l`` has logp ``-10 * l - r``."""
    rollout = Rollout(OBS, ACT, num_rows=lookback + STEPS + 2, num_lanes=lanes)
    observe(rollout, 0)
    for row in range(lookback + STEPS):
        step(rollout, row)
    return rollout


def observe(rollout, row):
    here = slice(row * rollout.num_lanes, (row + 1) * rollout.num_lanes)
    numbers = 10 * np.arange(rollout.num_lanes) + row
    rollout.observe(here, numbers[:, None].astype(np.float32), row)
    return here, numbers


def step(rollout, row):
    here, numbers = observe(rollout, row)
    rollout.record(here, {"actions": np.full(rollout.num_lanes, row % 9), "logp": -numbers.astype(np.float32)})
    rollout.cursor += rollout.num_lanes
    observe(rollout, row + 1)


def view(rollout, lane, first=0, start=1, stop=None):
    storage = LaneStorage(rollout, lane, first_row=first, start_row=start, stop_row=stop)
    return SingleAgentEpisode.from_storage(
        storage, id_=f"e/{lane}", agent_id=lane, observation_space=OBS, action_space=ACT
    )


def keys(*episodes):
    return [set(episode.storage.extra_keys()) for episode in episodes]


def test_others_do_not_get_it():
    rollout = played()
    mine, *others = [view(rollout, lane) for lane in (1, 0, 2)]
    mine.set_extra_model_outputs(key="new", new_data=[7.0, 8.0, 9.0])
    assert keys(mine, *others) == [{"logp", "new"}, {"logp"}, {"logp"}]
    assert mine.get_extra_model_outputs("new").tolist() == [7.0, 8.0, 9.0]
    assert mine.get_extra_model_outputs("new", -1, neg_index_as_lookback=True) == 0.0
    for other in others:
        with pytest.raises(KeyError, match="'new'"):
            other.get_extra_model_outputs("new")
        assert set(other.get_data_dict()) & {"logp", "new"} == {"logp"}
        assert set(other.get_state()["columns"]) == {"obs", "infos", "t", "actions", "rewards", "logp"}
        assert keys(other.slice(slice(0, 2)), other.cut(1)) == [{"logp"}, {"logp"}]
    assert keys(mine.slice(slice(0, 2)), mine.cut(1)) == [{"logp", "new"}] * 2


def test_each_may_have_its_own_of_another_shape_under_the_same_name():
    rollout = played()
    one, two, three = (view(rollout, lane) for lane in range(3))
    one.set_extra_model_outputs(key="new", new_data=[1.0, 2.0, 3.0])
    two.set_extra_model_outputs(key="new", new_data=[[1, 2], [3, 4], [5, 6]])
    two.set_extra_model_outputs(key="new", new_data=[0, 0], at_indices=-1)
    assert one.get_extra_model_outputs("new").tolist() == [1.0, 2.0, 3.0]
    assert np.array(two.get_extra_model_outputs("new")).tolist() == [[1, 2], [3, 4], [0, 0]]
    assert keys(three) == [{"logp"}]


def test_the_next_life_in_the_same_lane_does_not_have_it():
    rollout = played()
    first = view(rollout, 0, stop=2)
    first.set_extra_model_outputs(key="new", new_data=[5.0])
    assert keys(first, view(rollout, 0, first=3, start=3)) == [{"logp", "new"}, {"logp"}]


def test_an_agent_that_gets_a_lane_after_a_cut_does_not_inherit_it():
    rollout = played()
    rollout.write("new", slice(12, 15), np.ones(3))  # a piece writes it to all newest rows
    following = rollout.continued(8, 1)
    following.observe(slice(3, 4), np.zeros((1, 1), np.float32), 0)  # in lane 0 somebody else begins
    assert keys(view(following, 0, first=1, start=1), view(following, 1)) == [{"logp"}, {"logp", "new"}]


def test_it_stays_where_it_is_when_the_rollout_grows_or_goes_on():
    rollout = played()
    ongoing, other = view(rollout, 1), view(rollout, 2)
    ongoing.set_extra_model_outputs(key="new", new_data=[7.0, 8.0, 9.0])
    rollout.widened(5)
    rollout.reserve(40)
    step(rollout, 4)
    assert keys(ongoing, other, view(rollout, 4)) == [{"logp", "new"}, {"logp"}, {"logp"}]
    assert ongoing.get_extra_model_outputs("new").tolist() == [7.0, 8.0, 9.0, 0.0]
    following = rollout.continued(8, 2)
    successors = [view(following, lane, first=0, start=2) for lane in (1, 2)]
    assert keys(*successors) == [{"logp", "new"}, {"logp"}]
    kept = successors[0].get_extra_model_outputs("new", [-2, -1], neg_index_as_lookback=True)
    assert kept.tolist() == [9.0, 0.0]
    restored = Rollout(OBS, ACT, num_rows=8, num_lanes=5)
    restored.set_states(following.get_states(np.arange(5), [5]), [5], np.arange(5), 3)
    assert keys(*(view(restored, lane, first=0, start=2) for lane in (1, 2))) == [{"logp", "new"}, {"logp"}]


def test_what_modules_put_out_is_of_all_even_if_it_begins_late():
    rollout = played()
    rollout.record(slice(9, 12), {"late": np.ones(3, np.float32)})
    assert keys(*(view(rollout, lane) for lane in range(3))) == [{"logp", "late"}] * 3


def test_an_action_that_waits_has_only_its_agents_outputs():
    rollout = played()
    mine, other = view(rollout, 0), view(rollout, 1)
    mine.set_extra_model_outputs(key="new", new_data=[1.0, 2.0, 3.0])
    rollout.pending[:] = True
    assert set(mine.storage.pending()) == {"actions", "rewards", "logp", "new"}
    assert set(other.storage.pending()) == {"actions", "rewards", "logp"}


def test_an_action_that_waits_is_read_as_it_was_written_back():
    rollout = played()
    episode = view(rollout, 0)
    rollout.record(slice(12, 15), {"actions": np.array([3, 4, 5]), "logp": np.zeros(3, np.float32)})
    rollout.pending[:] = True
    rollout.write("actions", slice(0, 3), np.full((3, 2), 0.5))  # of another shape, in other rows
    assert episode.storage.pending()["actions"] == 3


def test_agents_of_a_game_ask_for_their_own():
    rollout = played(lanes=2)
    parts = {agent: view(rollout, lane) for lane, agent in enumerate("ab")}
    game = MultiAgentEpisode.from_agent_episodes("e", parts, env_t_started=1, env_t=1 + STEPS)
    game.set_extra_model_outputs(key="new", new_data={"b": [1.0, 2.0, 3.0]})
    for env_steps in (True, False):
        found = game.get_extra_model_outputs("new", env_steps=env_steps)
        assert list(found) == ["b"] and found["b"].tolist() == [1.0, 2.0, 3.0]
    assert {agent: sorted(outputs) for agent, outputs in game.get_extra_model_outputs().items()} == {
        "a": ["logp"],
        "b": ["logp", "new"],
    }


def test_rows_have_it_if_all_of_their_episodes_do():
    rollout = played()
    parts = [view(rollout, lane) for lane in range(3)]
    for part in parts[:2]:
        part.set_extra_model_outputs(key="new", new_data=[1.0, 2.0, 3.0])
    assert not rows_of_episodes(parts, ["default_policy"]).has("new")
    assert rows_of_episodes(parts, ["default_policy"]).has("logp")
    assert rows_of_episodes(parts[:2], ["default_policy"]).has("new")
    assert not rows_of_episodes(parts[:2], ["default_policy"]).has("newer")


def test_a_train_batch_gets_it_only_if_all_agents_have_it():
    rollout = played()
    parts = [view(rollout, lane) for lane in range(3)]
    for part in parts[:2]:
        part.set_extra_model_outputs(key="new", new_data=[1.0, 2.0, 3.0])
    for own, wanted in ((parts, {"logp"}), (parts[:2], {"logp", "new"}), (parts[2:], {"logp"})):
        group = ColumnGroup(rows_of_episodes(own, ["default_policy"]))
        AddColumnsFromEpisodesToTrainBatch().columns(group, ARRAYS)
        assert set(group) & {"logp", "new"} == wanted


SPACE = spaces.Box(-99.0, 99.0, (2,), np.float32)


def half_written(num_rows, lookback, written):
    """An episode in lane 1 of 2 whose rows in ``written`` hold three numbers instead of two."""
    rollout = Rollout(SPACE, spaces.Discrete(3), num_rows=num_rows, num_lanes=2)
    row, lane = np.divmod(np.arange(2 * num_rows), 2)
    rollout.observe(slice(0, 2 * num_rows), np.stack([row, lane], axis=1).astype(np.float32), row)
    rollout.columns[Columns.REWARDS][:] = row
    for r in written:
        here = slice(2 * r + 1, 2 * r + 2)
        rollout.write(Columns.OBS, here, np.full((1, 3), 10.0 + r, np.float32))
    storage = LaneStorage(rollout, 1, first_row=0, start_row=lookback, stop_row=num_rows - 1)
    return SingleAgentEpisode.from_storage(storage, id_="x", observation_space=SPACE)


@examples(60)
@given(st.integers(1, 6), st.data())
def test_a_single_item_is_that_of_its_row_whatever_the_shape_of_the_others(num_rows, data):
    lookback = data.draw(st.integers(0, num_rows - 1))
    written = data.draw(st.sets(st.integers(0, num_rows - 1)))
    episode = half_written(num_rows, lookback, written)
    expected = [np.full(3, 10.0 + r) if r in written else np.array([r, 1.0]) for r in range(num_rows)]
    steps = num_rows - 1 - lookback
    for i in range(-num_rows, 0):
        np.testing.assert_array_equal(episode.get_observations(i), expected[i])
    for i in range(-lookback, steps + 1):
        np.testing.assert_array_equal(episode.get_observations(i, neg_index_as_lookback=True), expected[lookback + i])
    for i in range(steps):
        assert episode.get_rewards(i) == lookback + i == episode.get_rewards(i, fill=7.0)
    everything = episode.get_observations(slice(-lookback, None), neg_index_as_lookback=True)
    assert [item.tolist() for item in everything] == [item.tolist() for item in expected]
    for getter, first_outside in ((episode.get_observations, steps + 1), (episode.get_rewards, steps)):
        for outside in (first_outside, -num_rows - 1):
            with pytest.raises(IndexError):
                getter(outside)
    assert episode.get_rewards(steps, fill=7.0) == 7.0
    assert episode.get_rewards(-num_rows, fill=7.0) == 7.0
    assert episode.get_infos(-1) == {}
