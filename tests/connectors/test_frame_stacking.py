import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from marl_connectors.connectors.learner.frame_stacking import FrameStackingLearner
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError


def episode(observations, space=None, **options):
    steps = len(observations) - 1
    return SingleAgentEpisode(
        "x",
        observations=observations,
        observation_space=space,
        actions=[0] * steps,
        rewards=[0.0] * steps,
        **{"len_lookback_buffer": 0, **options},
    )


def train_columns(episodes, piece):
    group = ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))
    piece.columns(group, ARRAYS)
    return group["obs"]


def test_vectors_stand_one_after_another_oldest_first():
    vectors = [np.array([t, -t], np.float32) for t in (1, 2, 3)]
    piece = FrameStacking(spaces.Box(-9, 9, (2,), np.float32), None, num_frames=2, as_learner_connector=True)
    assert piece.observation_space.shape == (4,)
    expected = [[0, 0, 1, -1], [1, -1, 2, -2]]
    batch = piece(rl_module=None, batch={}, episodes=[episode(vectors)])
    assert [item.tolist() for item in batch["obs"][("x",)]] == expected
    assert train_columns([episode(vectors)], piece).tolist() == [*expected, [2, -2, 3, -3]]
    newest = FrameStackingEnvToModule(num_frames=2)(rl_module=None, batch={}, episodes=[episode(vectors)])
    assert [item.tolist() for item in newest["obs"][("x",)]] == [[2, -2, 3, -3]]


def test_images_are_stacked_along_their_channels():
    """As RLlib does with one channel: (w, h, 1) becomes (w, h, N)."""
    images = [np.full((2, 3, 1), t, np.uint8) for t in (5, 6)]
    piece = FrameStackingLearner(spaces.Box(0, 255, (2, 3, 1), np.uint8), None, num_frames=3)
    assert piece.observation_space == spaces.Box(0, 255, (2, 3, 3), np.uint8)
    found = train_columns([episode(images)], piece)
    assert found.dtype == np.uint8
    assert found[:, 1, 2].tolist() == [[0, 0, 5], [0, 5, 6]]


def test_channels_of_one_image_stay_together():
    images = [np.stack([np.full((2, 2), t), np.full((2, 2), 10 * t)], -1).astype(np.uint8) for t in (1, 2)]
    found = train_columns([episode(images)], FrameStacking(num_frames=2, as_learner_connector=True))
    assert found.shape == (2, 2, 2, 4)
    assert found[:, 0, 1].tolist() == [[0, 0, 1, 10], [1, 10, 2, 20]]


def test_numbers_become_vectors():
    piece = FrameStacking(spaces.Box(-1, 9, (), np.float64), None, num_frames=2, as_learner_connector=True)
    assert piece.observation_space.shape == (2,)
    found = train_columns([episode([np.float64(4), np.float64(5)])], piece)
    assert found.tolist() == [[0, 4], [4, 5]]


def test_parts_are_stacked_one_by_one():
    space = spaces.Dict({"v": spaces.Box(0, 9, (2,), np.float32), "b": spaces.MultiBinary(1)})
    items = [{"v": np.array([t, t + 1], np.float32), "b": np.array([1], np.int8)} for t in (1, 2)]
    piece = FrameStacking(space, None, num_frames=2, as_learner_connector=True)
    found = train_columns([episode(items, space)], piece)
    assert found["v"].tolist() == [[0, 0, 1, 2], [1, 2, 2, 3]]
    assert found["b"].tolist() == [[0, 1], [1, 1]]
    assert piece.observation_space["v"].shape == (4,)
    assert piece.observation_space["b"] == spaces.MultiBinary((2,))


def test_the_lookback_of_a_chunk_is_used():
    vectors = [np.array([t], np.float32) for t in (1, 2, 3, 4)]
    chunk = episode(vectors, t_started=2, len_lookback_buffer=2)
    found = train_columns([chunk], FrameStacking(num_frames=3, as_learner_connector=True))
    assert found.tolist() == [[1, 2, 3], [2, 3, 4]]


def test_a_lookback_that_is_too_short_is_an_error_and_not_zeros():
    vectors = [np.array([t], np.float32) for t in (1, 2, 3, 4)]
    message = r"(?s)FrameStacking\(num_frames=4\).*\b3\b.*'x'.*\b7\b.*\b1\b.*.env_runners\(episode_lookback_horizon=3\)"
    piece = FrameStacking(num_frames=4, as_learner_connector=True)
    with pytest.raises(ConnectorError, match=message):
        train_columns([episode(vectors, t_started=7, len_lookback_buffer=1)], piece)
    with pytest.raises(ConnectorError, match=message):
        piece(rl_module=None, batch={}, episodes=[episode(vectors, t_started=7, len_lookback_buffer=1)])
    assert piece.lookback == 3


def test_an_earlier_life_is_not_seen():
    lives = [episode([np.array([t], np.float32), np.array([t + 1], np.float32)]) for t in (1, 5)]
    found = train_columns(lives, FrameStacking(num_frames=3, as_learner_connector=True))
    assert found.tolist() == [[0, 0, 1], [0, 1, 2], [0, 0, 5], [0, 5, 6]]


def test_discrete_observations_are_an_error_before_the_run():
    with pytest.raises(ConfigError, match=r"Discrete\(3\)"):
        FrameStacking(spaces.Discrete(3), None, num_frames=2)


@pytest.mark.parametrize("num_frames", [0, -1, 2.0, True])
def test_num_frames_must_be_a_count(num_frames):
    with pytest.raises(ConfigError, match=r"(?s)FrameStacking.*num_frames"):
        FrameStacking(num_frames=num_frames)


def test_observations_that_are_in_the_batch_already_are_an_error():
    seen = episode([np.zeros(1, np.float32)])
    with pytest.raises(ConnectorError, match="'obs'"):
        FrameStacking(num_frames=2)(rl_module=None, batch={"obs": {(seen.id_,): [np.zeros(1)]}}, episodes=[seen])
