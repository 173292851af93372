import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.observation_histories import VECTOR, newest, play
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError

HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}]]
MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


class OneHot(ObservationPreprocessor):
    """The documents' example, word for word but for its comments."""

    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        return spaces.Box(0.0, 1.0, (in_obs_space.n,), np.float32)

    def preprocess(self, observation):
        new_obs = np.zeros(shape=self.observation_space.shape, dtype=np.float32)
        new_obs[observation] = 1.0
        return new_obs


def test_the_example_of_the_documents():
    piece = OneHot(spaces.Discrete(4), spaces.Discrete(2))
    episode = SingleAgentEpisode(observations=[2])
    piece(rl_module=None, batch={}, episodes=[episode])
    assert episode.get_observations(-1).tolist() == [0, 0, 1, 0]
    assert piece.observation_space.shape == (4,)


def test_the_episode_says_whose_observation_it_is():
    class Who(SingleAgentObservationPreprocessor):
        def preprocess(self, observation, episode):
            return np.array([ord(episode.agent_id), len(episode)], np.float32)

    group = newest(play(HISTORY, MAPPING))
    Who().columns(group, ARRAYS)
    found = {e.agent_id: e.get_observations(-1).tolist() for e in group.rows.episodes}
    assert found == {"a": [97, 2], "c": [99, 2], "d": [100, 1]}


def test_observations_may_be_changed_in_place_without_harm_to_the_trajectory():
    class Add(SingleAgentObservationPreprocessor):
        def preprocess(self, observation, episode):
            observation += 1
            return observation.astype(np.float64)

    group = newest(play(HISTORY, MAPPING))
    rollout = group.rows.parts[0].rollout
    before = rollout.source("obs").copy()
    newest_before = group.rows.get("obs").copy()
    Add().columns(group, ARRAYS)
    np.testing.assert_array_equal(rollout.source("obs"), before)
    np.testing.assert_array_equal(group.rows.get("obs"), newest_before + np.float32(1))


def test_a_batch_is_handed_over_read_only_with_its_rows():
    class Batch(SingleAgentObservationPreprocessor):
        def preprocess_batch(self, observations, rows):
            assert len(rows) == len(observations)
            with pytest.raises(ValueError, match="read-only"):
                observations += 1
            return observations * 2

    group = newest(play(HISTORY, MAPPING))
    before = group.rows.get("obs").copy()
    Batch().columns(group, ARRAYS)
    np.testing.assert_array_equal(group.rows.get("obs"), before * 2)


def test_a_batch_form_alone_works_on_items_too():
    class Twice(SingleAgentObservationPreprocessor):
        def preprocess_batch(self, observations, rows):
            return observations * 2

    episode = SingleAgentEpisode(observations=[np.array([1.0, 2.0])])
    Twice()(rl_module=None, batch={}, episodes=[episode])
    assert episode.get_observations(-1).tolist() == [2.0, 4.0]


def test_what_is_in_the_batch_is_what_is_preprocessed():
    class Negative(SingleAgentObservationPreprocessor):
        def preprocess(self, observation, episode):
            return -observation

    episode = SingleAgentEpisode("x", observations=[np.array([1.0])])
    batch = Negative()(rl_module=None, batch={"obs": {("x",): [np.array([5.0])]}}, episodes=[episode])
    assert batch["obs"]["x",][0].tolist() == [-5.0]
    assert episode.get_observations(-1).tolist() == [1.0]
    group = newest(play(HISTORY, MAPPING))
    group["obs"] = np.ones((3, 2))
    Negative().columns(group, ARRAYS)
    assert group["obs"].tolist() == [[-1, -1]] * 3


def test_a_piece_without_either_method_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="preprocess"):
        SingleAgentObservationPreprocessor().columns(newest(play(HISTORY, MAPPING)), ARRAYS)


def test_agents_with_like_spaces_need_observations_of_one_shape():
    class Ragged(SingleAgentObservationPreprocessor):
        def preprocess(self, observation, episode):
            return np.zeros(ord(episode.agent_id) - 96)

    with pytest.raises(ConnectorError, match=r"(?s)float64\[1\].*float64\[3\].*float64\[4\]"):
        Ragged().columns(newest(play(HISTORY, MAPPING)), ARRAYS)


class Sum(MultiAgentObservationPreprocessor):
    """Everyone sees the sum of what all see, and how many they are."""

    def preprocess(self, observations, episode):
        total = sum(observations.values())
        return {agent_id: np.append(total, len(observations)).astype(np.float32) for agent_id in observations}


def test_all_agents_of_an_environment_are_preprocessed_together():
    (episode,) = play(HISTORY, MAPPING)
    parts = episode.agent_episodes
    total = sum(parts[agent].get_observations(-1) for agent in "acd")
    absent = parts["b"].get_observations(-1)
    Sum()(rl_module=None, batch={}, episodes=[episode])
    for agent in "acd":
        np.testing.assert_allclose(parts[agent].get_observations(-1), [*total, 3], rtol=1e-6)
    np.testing.assert_array_equal(parts["b"].get_observations(-1), absent)


def test_agents_that_are_left_out_keep_theirs_and_strangers_are_an_error():
    class First(MultiAgentObservationPreprocessor):
        def preprocess(self, observations, episode):
            return {self.who: np.zeros(3, np.float32)}

    (episode,) = play(HISTORY, MAPPING)
    before = episode.agent_episodes["c"].get_observations(-1)
    First.who = "a"
    First()(rl_module=None, batch={}, episodes=[episode])
    assert episode.agent_episodes["a"].get_observations(-1).tolist() == [0, 0, 0]
    np.testing.assert_array_equal(episode.agent_episodes["c"].get_observations(-1), before)
    First.who = "b"
    with pytest.raises(ConnectorError, match="agent 'b'"):
        First()(rl_module=None, batch={}, episodes=[episode])


def test_a_single_agent_is_sent_to_the_other_class():
    with pytest.raises(ConnectorError, match="SingleAgentObservationPreprocessor"):
        Sum()(rl_module=None, batch={}, episodes=[SingleAgentEpisode("x", observations=[0])])


def test_an_episode_in_which_nobody_observed_is_left_alone():
    Sum()(rl_module=None, batch={}, episodes=[MultiAgentEpisode(observation_space={"a": VECTOR})])
