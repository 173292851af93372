"""OneHotObservations, AgentIdEncoding, PadObservations, ImageToFloat, WriteObservationsToEpisodes."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from observation_histories import newest, play

from marl_connectors.connectors.connector_v2 import item_key
from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding
from marl_connectors.connectors.env_to_module.image_to_float import ImageToFloat
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.connectors.env_to_module.pad_observations import PadObservations
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError

HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}]]
MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


def of(agent_id, observation, space=None):
    return SingleAgentEpisode(
        "x", observations=[observation], observation_space=space, agent_id=agent_id, multi_agent_episode_id="e"
    )


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


BOTH = spaces.Dict({"b": spaces.Box(0.0, 4.0, (1,), np.float32), "a": spaces.Box(0.0, 4.0, (1,), np.float32)})


def test_the_agents_number_is_appended():
    piece = AgentIdEncoding(BOTH, None, multi_agent=True)
    assert newest_of(piece, of("a", np.array([3.0]))).tolist() == [3, 1, 0]
    assert newest_of(piece, of("b", np.array([2.0]))).tolist() == [2, 0, 1]
    assert piece.observation_space["a"].high.tolist() == [4, 1, 1]
    ordered = AgentIdEncoding(BOTH, None, multi_agent=True, agent_ids=["b", "late", "a"])
    assert newest_of(ordered, of("a", np.array([3.0]))).tolist() == [3, 0, 0, 1]
    late = of("late", np.array([1.0]), BOTH["a"])
    assert newest_of(ordered, late).tolist() == [1, 0, 1, 0]


def test_agents_without_a_number_are_errors():
    with pytest.raises(ConfigError, match="agent 'a' has no number"):
        AgentIdEncoding(BOTH, None, multi_agent=True, agent_ids=["b"])
    with pytest.raises(ConnectorError, match=r"agent 'bb' has no number.*Did you mean 'b'"):
        newest_of(AgentIdEncoding(BOTH, None, multi_agent=True), of("bb", np.array([1.0]), BOTH["a"]))


@pytest.mark.parametrize("agent_ids", ["ab", ["a", "a"], []])
def test_agent_ids_are_a_list_without_repeats(agent_ids):
    with pytest.raises(ConfigError, match="agent_ids must be a list of one or more different agent ids"):
        AgentIdEncoding(agent_ids=agent_ids)


def test_one_agent_needs_no_number_and_only_flat_observations_are_taken():
    with pytest.raises(ConfigError, match="is for several agents"):
        AgentIdEncoding(BOTH["a"], None)
    with pytest.raises(ConfigError, match=r"those of agent 'a' are Discrete\(2\). Put FlattenObservations before it"):
        AgentIdEncoding(spaces.Dict({"a": spaces.Discrete(2)}), None, multi_agent=True)


def test_the_number_of_each_row_is_its_agents():
    space = spaces.Box(-5.0, 5.0, (2,), np.float32)
    everyone = spaces.Dict(dict.fromkeys("abcd", space))
    group = newest(play(HISTORY * 3, MAPPING, space))
    piece = AgentIdEncoding(everyone, spaces.Dict(dict.fromkeys("abcd", spaces.Discrete(4))))
    for _ in range(2):  # the second time from memory
        piece.on_columns(rl_module=None, columns=group)
        found = group.rows.get("obs")[:, 2:].argmax(1)
        assert ["abcd"[i] for i in found] == [episode.agent_id for episode in group.rows.episodes]


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
    with pytest.raises(ConfigError, match=r"those of agent 'x' are Box\(2, 2\) float32. Put FlattenObservations"):
        PadObservations(spaces.Dict({"x": spaces.Box(0, 1, (2, 2))}), None, multi_agent=True)
    late = of("late", np.zeros(5, np.float32), spaces.Box(0, 1, (5,)))
    with pytest.raises(ConfigError, match=r"agent 'late' has observations of Box\(5,\) float32, but the longest"):
        newest_of(PadObservations(UNLIKE, None, multi_agent=True), late)


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
    with pytest.raises(ConfigError, match="expected an image"):
        ImageToFloat(space, None)


def test_the_batch_is_written_to_the_episodes_alike():
    episodes = play(HISTORY, MAPPING)
    (on_items,) = copy.deepcopy(episodes)
    group = newest(episodes)
    group["obs"] = np.arange(3.0)[:, None] + np.zeros(7)
    batch = {"obs": {item_key(e): [group["obs"][i]] for i, e in enumerate(group.rows.episodes)}}
    WriteObservationsToEpisodes().on_columns(rl_module=None, columns=group)
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
    with pytest.raises(ConnectorError, match="the batch has no 'obs'"):
        piece(rl_module=None, batch={}, episodes=[episode])
    with pytest.raises(
        ConnectorError, match=r"expected one item of 'obs' for each of 3 acting agents, but there are 1"
    ):
        piece(rl_module=None, batch={"obs": {("e0", "a", "red"): [np.zeros(2)]}}, episodes=[episode])
    with pytest.raises(ConnectorError, match="2 items of 'obs', but 3 acting agents"):
        piece(rl_module=None, batch={"obs": [1, 2]}, episodes=[episode])
    group = newest([episode])
    with pytest.raises(ConnectorError, match="the batch has no 'obs'"):
        piece.on_columns(rl_module=None, columns=group)
    group["obs"] = torch.zeros(3, 2)
    with pytest.raises(ConnectorError, match="expected arrays in 'obs', got tensors"):
        piece.on_columns(rl_module=None, columns=group)
