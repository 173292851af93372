import copy

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError


@pytest.fixture
def game():
    """Agent a and b observed at the newest step, c did not."""
    episode = MultiAgentEpisode(id_="g", agent_to_module_mapping_fn=lambda agent, episode: f"m_{agent}")
    episode.add_env_reset(observations={"a": 0, "b": 0, "c": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 5, "b": 6, "c": 7}, {"a": 0.5})
    return episode


def test_items_stand_under_their_episodes_key(game):
    batch, alone = {}, SingleAgentEpisode("alone")
    ConnectorV2.add_batch_item(batch, "x", 1, alone)
    ConnectorV2.add_batch_item(batch, "x", 2, alone)
    ConnectorV2.add_batch_item(batch, column="x", item_to_add=3, single_agent_episode=game.agent_episodes["a"])
    ConnectorV2.add_batch_item(batch, "y", 4)
    assert batch == {"x": {("alone",): [1, 2], ("g", "a", "m_a"): [3]}, "y": [4]}


def test_n_items_come_as_a_list_an_array_or_a_tree():
    batch, episode = {}, SingleAgentEpisode("e")
    ConnectorV2.add_n_batch_items(batch, "list", [1, 2], 2, episode)
    ConnectorV2.add_n_batch_items(batch, "array", np.array([[1, 2], [3, 4]]), num_items=2, single_agent_episode=episode)
    ConnectorV2.add_n_batch_items(batch, "tree", {"p": np.array([1, 2]), "q": (np.array([3, 4]),)}, 2, episode)
    ConnectorV2.add_n_batch_items(batch, "plain", [1, 2], 2)
    assert batch["list"] == {("e",): [1, 2]}
    assert [row.tolist() for row in batch["array"][("e",)]] == [[1, 2], [3, 4]]
    assert batch["tree"][("e",)] == [{"p": 1, "q": (3,)}, {"p": 2, "q": (4,)}]
    assert batch["plain"] == [1, 2]


def test_a_wrong_number_of_items_is_an_error():
    with pytest.raises(ValueError, match=r"(?s)\b3\b.*'x'.*\b2\b"):
        ConnectorV2.add_n_batch_items({}, "x", [1, 2], 3, SingleAgentEpisode("e"))


def test_items_are_changed_in_place_with_their_ids():
    batch = {"x": {("e",): [1, 2], ("g", "a", "m"): [3]}, "y": {("e",): [10, 20], ("g", "a", "m"): [30]}}
    seen = []

    def double(item, eps_id, agent_id, module_id):
        seen.append((item, eps_id, agent_id, module_id))
        return 2 * item

    ConnectorV2.foreach_batch_item_change_in_place(batch, "x", double)
    assert batch["x"] == {("e",): [2, 4], ("g", "a", "m"): [6]}
    assert seen == [(1, "e", None, None), (2, "e", None, None), (3, "g", "a", "m")]
    ConnectorV2.foreach_batch_item_change_in_place(batch, ["x", "y"], lambda items, *ids: (items[1], items[0]))
    assert batch == {"x": {("e",): [10, 20], ("g", "a", "m"): [30]}, "y": {("e",): [2, 4], ("g", "a", "m"): [6]}}


def test_items_by_module_and_in_plain_lists_are_changed_too():
    by_module = {"m": {"x": [1, 2]}, "n": {"x": [3], "y": [0]}}
    ConnectorV2.foreach_batch_item_change_in_place(by_module, "x", lambda item, eps, agent, module: (item, module))
    assert by_module == {"m": {"x": [(1, "m"), (2, "m")]}, "n": {"x": [(3, "n")], "y": [0]}}
    plain = {"x": [1, 2]}
    ConnectorV2.foreach_batch_item_change_in_place(plain, "x", lambda item, *ids: (item, ids))
    assert plain == {"x": [(1, (None, None, None)), (2, (None, None, None))]}


def test_changing_an_unknown_column_is_an_error():
    with pytest.raises(ValueError, match=r"(?s)'rewads'.*'rewards'"):
        ConnectorV2.foreach_batch_item_change_in_place({"rewards": {("e",): [1]}}, "rewads", lambda item, *ids: item)


def test_columns_by_column_become_columns_by_module():
    batch = {"obs": {"m": 1, "n": 2}, "rewards": {"m": 3}}
    assert ConnectorV2.switch_batch_from_column_to_module_ids(batch) == {"m": {"obs": 1, "rewards": 3}, "n": {"obs": 2}}


def test_the_iterator_gives_those_that_observed_or_all(game):
    alone = SingleAgentEpisode("alone")
    parts = list(ConnectorV2.single_agent_episode_iterator([game, alone]))
    assert [part.agent_id for part in parts] == ["a", "b", None]
    parts = list(ConnectorV2.single_agent_episode_iterator(episodes=[game, alone], agents_that_stepped_only=False))
    assert [part.agent_id for part in parts] == ["a", "b", "c", None]


def test_the_iterator_leaves_out_who_ended_while_others_go_on(game):
    game.add_env_step({"a": 2, "b": 2}, {"a": 0, "b": 0}, {}, terminateds={"a": True})
    assert [part.agent_id for part in ConnectorV2.single_agent_episode_iterator([game])] == ["b"]
    game.add_env_step({"b": 3}, {"b": 0}, {}, terminateds={"b": True})
    assert [part.agent_id for part in ConnectorV2.single_agent_episode_iterator([game])] == ["b"]


def test_the_iterator_zips_with_a_column_of_items(game):
    column = {("g", "b", "m_b"): [7, 8], ("alone",): [9]}
    episodes = [game, SingleAgentEpisode("alone"), SingleAgentEpisode("alone")]
    pairs = ConnectorV2.single_agent_episode_iterator(episodes, zip_with_batch_column=column)
    assert [(part.agent_id, item) for part, item in pairs] == [("b", 7), (None, 9)]
    chunks = [SingleAgentEpisode("alone"), SingleAgentEpisode("alone")]
    pairs = ConnectorV2.single_agent_episode_iterator(chunks, zip_with_batch_column={("alone",): [1, 2]})
    assert [item for _, item in pairs] == [1, 2]


def test_a_piece_works_out_its_output_spaces():
    class Wider(ConnectorV2):
        def recompute_output_observation_space(self, in_obs_space, in_act_space):
            return spaces.Box(-1.0, 1.0, (in_obs_space.shape[0] + in_act_space.n,))

    box, discrete = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
    piece = Wider(box, discrete)
    assert (piece.observation_space.shape, piece.action_space) == ((5,), discrete)
    piece.input_observation_space = spaces.Box(-1.0, 1.0, (7,))
    assert piece.observation_space.shape == (9,)
    assert Wider().observation_space is None


def test_a_piece_without_either_method_says_what_to_override():
    with pytest.raises(NotImplementedError, match=r"(?s)ConnectorV2.*__call__"):
        ConnectorV2()(rl_module=None, batch={}, episodes=[])
    with pytest.raises(NotImplementedError, match="columns"):
        ConnectorV2().columns(None, ARRAYS)


def test_like_states_are_merged_and_others_need_a_piece_that_knows_how():
    state = {"a": 1, "b": [np.array([1.0, np.nan]), {"c": None}]}
    assert ConnectorV2().merge_states([state, copy.deepcopy(state)]) is state
    assert ConnectorV2().merge_states([]) == {}
    for other in ({"a": 2, "b": state["b"]}, {"a": 1}, {"a": 1, "b": [np.array([1.0, 2.0]), {"c": None}]}, {"x": 1}):
        with pytest.raises(ConnectorError, match=r"(?s)ConnectorV2.*\b2\b.*merge_states"):
            ConnectorV2().merge_states([state, other])


def test_the_iterator_notes_whose_turn_it_is(game):
    progress.begin(None)
    turns = []
    for part in ConnectorV2.single_agent_episode_iterator([game]):
        list(ConnectorV2.single_agent_episode_iterator([game], agents_that_stepped_only=False))
        turns.append(progress.episode is part)
    assert turns == [True, True]
    assert progress.episode is None
