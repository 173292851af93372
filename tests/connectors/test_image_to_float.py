import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.connectors.env_to_module.image_to_float import ImageToFloat
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError


def newest_of(piece, episode):
    piece(rl_module=None, batch={}, episodes=[episode])
    return episode.get_observations(-1)


def test_images_become_floats_with_channels_first():
    image = np.arange(12, dtype=np.uint8).reshape(2, 3, 2) * 20
    space = spaces.Box(0, 255, (2, 3, 2), np.uint8)
    found = newest_of(ImageToFloat(space, None), SingleAgentEpisode(observations=[image]))
    assert found.dtype == np.float32
    assert found.shape == (2, 2, 3)
    assert found[1, 0, 2] == np.float32(100 / 255)
    piece = ImageToFloat(space, None, channels_first=False)
    assert newest_of(piece, SingleAgentEpisode(observations=[image]))[0, 2, 1] == np.float32(100 / 255)
    assert piece.observation_space == spaces.Box(0.0, 1.0, (2, 3, 2), np.float32)


def test_grey_images_get_a_channel():
    piece = ImageToFloat(spaces.Box(0, 255, (2, 3), np.uint8), None)
    found = newest_of(piece, SingleAgentEpisode(observations=[np.full((2, 3), 255, np.uint8)]))
    assert found.tolist() == [[[1.0] * 3] * 2]
    assert piece.observation_space.shape == (1, 2, 3)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Box(0, 1, (2, 2, 3), np.float32)])
def test_without_an_image_it_has_nothing_to_do(space):
    with pytest.raises(ConfigError, match="image"):
        ImageToFloat(space, None)
