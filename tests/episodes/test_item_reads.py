"""Single items of a runner's episodes whose observations a piece has rewritten in another shape."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

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


@settings(max_examples=60)
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
