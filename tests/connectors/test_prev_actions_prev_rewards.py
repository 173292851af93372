import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError

OBS = spaces.Box(-9.0, 9.0, (1,), np.float32)


def episode(actions, rewards, action_space, **options):
    return SingleAgentEpisode(
        "x",
        observations=[np.array([t], np.float32) for t in range(len(actions) + 1)],
        actions=actions,
        rewards=rewards,
        observation_space=OBS,
        action_space=action_space,
        **{"len_lookback_buffer": 0, **options},
    )


def newest(piece, one):
    piece(rl_module=None, batch={}, episodes=[one])
    return one.get_observations(-1)


def test_observation_actions_rewards_oldest_first():
    space = spaces.Discrete(3)
    piece = PrevActionsPrevRewards(OBS, space, n_prev_actions=2, n_prev_rewards=2)
    found = newest(piece, episode([0, 2, 1], [5.0, 6.0, 7.0], space))
    assert found.tolist() == [3, 0, 0, 1, 0, 1, 0, 6, 7]
    assert found.dtype == np.float32
    assert piece.observation_space.contains(found)


def test_before_the_first_step_there_are_zeros_and_no_first_action():
    space = spaces.Discrete(2)
    found = newest(PrevActionsPrevRewards(OBS, space, n_prev_actions=2, n_prev_rewards=2), episode([], [], space))
    assert found.tolist() == [0] * 7
    found = newest(PrevActionsPrevRewards(OBS, space, n_prev_actions=2, n_prev_rewards=2), episode([0], [4.0], space))
    assert found.tolist() == [1, 0, 0, 1, 0, 0, 4]


def test_actions_count_from_0_whatever_the_start():
    """As modules choose them; a space's start is added for the environment only."""
    space = spaces.Discrete(2, start=5)
    assert newest(PrevActionsPrevRewards(OBS, space), episode([1], [0.0], space)).tolist() == [1, 0, 1, 0]


def test_actions_of_other_spaces_become_flat():
    space = spaces.Box(-1.0, 1.0, (2, 1), np.float32)
    found = newest(PrevActionsPrevRewards(OBS, space), episode([np.array([[0.5], [-0.5]], np.float32)], [1.0], space))
    assert found.tolist() == [1, 0.5, -0.5, 1]
    space = spaces.Dict({"d": spaces.MultiDiscrete([2, 2]), "b": spaces.MultiBinary(1)})
    action = {"d": np.array([1, 0]), "b": np.array([1], np.int8)}
    found = newest(PrevActionsPrevRewards(OBS, space, n_prev_rewards=0), episode([action], [1.0], space))
    assert found.tolist() == [1, 1, 0, 1, 1, 0]


def test_rllibs_dict_is_there_for_those_who_want_it():
    space = spaces.Discrete(2)
    piece = PrevActionsPrevRewards(OBS, space, n_prev_rewards=2, flatten=False)
    found = newest(piece, episode([1], [4.0], space))
    assert {key: value.tolist() for key, value in found.items()} == {
        "_orig_obs": [1],
        "prev_n_actions": [0, 1],
        "prev_n_rewards": [0, 4],
    }
    assert piece.observation_space.contains(found)
    flat = FlattenObservations(piece.observation_space, space)
    assert flat.observation_space.shape == (5,)


@pytest.mark.parametrize("n", [1, 2])
def test_a_lookback_that_is_too_short_is_an_error_and_not_zeros(n):
    space = spaces.Discrete(2)
    chunk = episode([0, 1], [1.0, 2.0], space, t_started=4, len_lookback_buffer=2)
    assert newest(PrevActionsPrevRewards(OBS, space, n_prev_actions=n, n_prev_rewards=n), chunk).shape == (1 + 3 * n,)
    chunk = episode([0, 1], [1.0, 2.0], space, t_started=4, len_lookback_buffer=2)
    piece = PrevActionsPrevRewards(OBS, space, n_prev_actions=0, n_prev_rewards=3)
    with pytest.raises(ConnectorError, match=r"(?s)\b3\b.*episode_lookback_horizon=3"):
        piece(rl_module=None, batch={}, episodes=[chunk])
    assert piece.lookback == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_prev_actions": -1}, r"(?s)n_prev_actions.*-1"),
        ({"n_prev_rewards": 1.5}, r"(?s)n_prev_rewards.*1.5"),
        ({"n_prev_actions": 0, "n_prev_rewards": 0}, r"both 0\b"),
    ],
)
def test_wrong_numbers_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        PrevActionsPrevRewards(**options)


def test_an_unknown_action_space_is_an_error():
    with pytest.raises(ConfigError, match="space"):
        PrevActionsPrevRewards(OBS, None)
