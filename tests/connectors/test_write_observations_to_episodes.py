import copy

import numpy as np
import pytest
import torch

from helpers.episodes.observation_histories import newest, play
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.connector_v2 import item_key
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError

HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}]]


MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


def of(agent_id, observation, space=None):
    return SingleAgentEpisode(
        "x", observations=[observation], observation_space=space, agent_id=agent_id, multi_agent_episode_id="e"
    )


def test_the_batch_is_written_to_the_episodes_alike():
    episodes = play(HISTORY, MAPPING)
    (on_items,) = copy.deepcopy(episodes)
    group = newest(episodes)
    group["obs"] = np.arange(3.0)[:, None] + np.zeros(7)
    batch = {"obs": {item_key(e): [group["obs"][i]] for i, e in enumerate(group.rows.episodes)}}
    WriteObservationsToEpisodes().columns(group, ARRAYS)
    assert WriteObservationsToEpisodes()(rl_module=None, batch=batch, episodes=[on_items]) is batch
    for i, episode in enumerate(group.rows.episodes):
        assert episode.get_observations(-1).tolist() == [i] * 7
        assert on_items.agent_episodes[episode.agent_id].get_observations(-1).tolist() == [i] * 7


def test_a_plain_list_has_one_item_for_each_episode():
    """As RLlib's documents show it."""
    episodes = [SingleAgentEpisode(observations=[np.array([-10, -20], np.float32)]) for _ in range(2)]
    batch = {"obs": [np.array([0.0, 1.0], np.float32), np.array([2.0, 3.0], np.float32)]}
    WriteObservationsToEpisodes()(rl_module=None, batch=batch, episodes=episodes, explore=True, shared_data={})
    assert episodes[0].get_observations(-1).tolist() == [0, 1]
    assert episodes[1].get_observations(0).tolist() == [2, 3]


def test_what_cannot_be_written_is_an_error():
    (episode,) = play(HISTORY, MAPPING)
    piece = WriteObservationsToEpisodes()
    with pytest.raises(ConnectorError, match="'obs'"):
        piece(rl_module=None, batch={}, episodes=[episode])
    with pytest.raises(ConnectorError, match=r"(?s)'obs'.*\b3\b.*\b1\b"):
        piece(rl_module=None, batch={"obs": {("e0", "a", "red"): [np.zeros(2)]}}, episodes=[episode])
    with pytest.raises(ConnectorError, match=r"(?s)\b2\b.*'obs'.*\b3\b"):
        piece(rl_module=None, batch={"obs": [1, 2]}, episodes=[episode])
    group = newest([episode])
    with pytest.raises(ConnectorError, match="'obs'"):
        piece.columns(group, ARRAYS)
    group["obs"] = torch.zeros(3, 2)
    with pytest.raises(ConnectorError, match="'obs'"):
        piece.columns(group, ARRAYS)
