import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.observation_histories import newest, play
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding
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
    with pytest.raises(ConfigError, match="agent 'a'"):
        AgentIdEncoding(BOTH, None, multi_agent=True, agent_ids=["b"])
    with pytest.raises(ConnectorError, match=r"(?s)'bb'.*'b'"):
        newest_of(AgentIdEncoding(BOTH, None, multi_agent=True), of("bb", np.array([1.0]), BOTH["a"]))


@pytest.mark.parametrize("agent_ids", ["ab", ["a", "a"], []])
def test_agent_ids_are_a_list_without_repeats(agent_ids):
    with pytest.raises(ConfigError, match="agent_ids"):
        AgentIdEncoding(agent_ids=agent_ids)


def test_one_agent_needs_no_number_and_only_flat_observations_are_taken():
    with pytest.raises(ConfigError, match="several"):
        AgentIdEncoding(BOTH["a"], None)
    with pytest.raises(ConfigError, match=r"(?s)'a'.*Discrete\(2\).*FlattenObservations"):
        AgentIdEncoding(spaces.Dict({"a": spaces.Discrete(2)}), None, multi_agent=True)


def test_the_number_of_each_row_is_its_agents():
    space = spaces.Box(-5.0, 5.0, (2,), np.float32)
    everyone = spaces.Dict(dict.fromkeys("abcd", space))
    group = newest(play(HISTORY * 3, MAPPING, space))
    piece = AgentIdEncoding(everyone, spaces.Dict(dict.fromkeys("abcd", spaces.Discrete(4))))
    for _ in range(2):  # the second time from memory
        piece.columns(group, ARRAYS)
        found = group.rows.get("obs")[:, 2:].argmax(1)
        assert ["abcd"[i] for i in found] == [episode.agent_id for episode in group.rows.episodes]
