import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.connectors.env_to_module.pad_observations import PadObservations
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError


def of(agent_id, observation, space=None):
    return SingleAgentEpisode(
        "x", observations=[observation], observation_space=space, agent_id=agent_id, multi_agent_episode_id="e"
    )


def newest_of(piece, episode):
    piece(rl_module=None, batch={}, episodes=[episode])
    return episode.get_observations(-1)


UNLIKE = spaces.Dict({"big": spaces.Box(1.0, 4.0, (3,), np.float32), "small": spaces.Box(-2.0, 9.0, (1,), np.float32)})


def test_short_observations_are_padded():
    piece = PadObservations(UNLIKE, None, multi_agent=True)
    assert newest_of(piece, of("small", np.array([7.0], np.float32))).tolist() == [7, 0, 0]
    assert newest_of(piece, of("big", np.array([1, 2, 3], np.float32))).tolist() == [1, 2, 3]
    common = piece.observation_space["small"]
    assert piece.observation_space["big"] == common
    assert common.low.tolist() == [-2, 0, 0]
    assert common.high.tolist() == [9, 4, 4]


def test_observations_that_cannot_be_padded_are_errors():
    with pytest.raises(ConfigError, match=r"(?s)'x'.*Box\(2, 2\).*float32.*FlattenObservations"):
        PadObservations(spaces.Dict({"x": spaces.Box(0, 1, (2, 2))}), None, multi_agent=True)
    late = of("late", np.zeros(5, np.float32), spaces.Box(0, 1, (5,)))
    with pytest.raises(ConfigError, match=r"(?s)'late'.*Box\(5,\).*float32"):
        newest_of(PadObservations(UNLIKE, None, multi_agent=True), late)
