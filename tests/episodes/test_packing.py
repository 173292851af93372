import numpy as np
from gymnasium import spaces

from helpers.episodes.little_chunks import chunk
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.packing import rows_of_episodes


def test_a_column_that_only_some_have_is_not_there():
    rows = rows_of_episodes([chunk("m", 10, 1, logp=0.5), chunk("m", 20, 1)], ["m"])
    assert rows.has("rewards")
    assert not rows.has("logp")


def test_packed_episodes_become_views_and_keep_their_data():
    episode = chunk("m", 10, 2, lookback=1, logp=0.25)
    before = [list(map(float, episode.get_rewards())), list(episode.get_extra_model_outputs("logp"))]
    rows_of_episodes([episode], ["m"])
    assert isinstance(episode.storage, LaneStorage)
    assert [episode.get_rewards().tolist(), episode.get_extra_model_outputs("logp").tolist()] == before
    assert episode.get_observations([-1], neg_index_as_lookback=True).tolist() == [[10.0]]


def test_episodes_with_other_spaces_are_packed_apart():
    one, other = chunk("m", 10, 1), chunk("n", 20, 2)
    other.observation_space = spaces.Box(-9.0, 99.0, (1,), np.float32)
    rows_of_episodes([one, other], ["m", "n"])
    assert one.storage.rollout is not other.storage.rollout
    assert other.get_observations()[:, 0].tolist() == [20, 21, 22]


def test_infos_come_along():
    episode = chunk("m", 10, 1)
    episode.storage.columns["infos"][1] = {"x": 1}
    rows_of_episodes([chunk("m", 0, 2), episode], ["m"])
    assert episode.get_infos() == [{}, {"x": 1}]


def test_what_was_packed_once_stays_where_it_is():
    episode = chunk("m", 10, 1)
    rows_of_episodes([episode], ["m"])
    storage = episode.storage
    rows_of_episodes([episode, chunk("m", 20, 1)], ["m"])
    assert episode.storage is storage
