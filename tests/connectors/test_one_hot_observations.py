import numpy as np
from gymnasium import spaces

from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode


def newest_of(piece, episode):
    piece(rl_module=None, batch={}, episodes=[episode])
    return episode.get_observations(-1)


def test_discrete_observations_become_one_hot():
    piece = OneHotObservations(spaces.Discrete(3, start=4), None)
    assert newest_of(piece, SingleAgentEpisode(observations=[5])).tolist() == [0, 1, 0]
    assert piece.observation_space == spaces.Box(0.0, 1.0, (3,), np.float32)
    piece = OneHotObservations(spaces.MultiDiscrete([2, 3]), None)
    assert newest_of(piece, SingleAgentEpisode(observations=[np.array([1, 0])])).tolist() == [0, 1, 1, 0, 0]


def test_parts_that_are_not_discrete_stay():
    box = spaces.Box(0.0, 1.0, (2,), np.float64)
    piece = OneHotObservations(spaces.Dict({"d": spaces.Discrete(2), "x": box}), None)
    found = newest_of(piece, SingleAgentEpisode(observations=[{"d": 1, "x": np.array([0.25, 0.5])}]))
    assert found["d"].tolist() == [0, 1]
    assert found["x"].tolist() == [0.25, 0.5]
    assert piece.observation_space["x"] == box
