"""Small cases that random histories came upon, one for each mistake."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from marl_connectors import MultiAgentEpisode, SingleAgentEpisode
from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout


def late_reward():
    """A chunk whose only reward, 4, is for the action of the chunk before, which earned 1 there."""
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 10}, {"a": 1.0})
    chunk = episode.cut(1)
    chunk.add_env_step({}, {}, {"a": 4.0})
    return chunk


@pytest.mark.parametrize("at", [0, 1])
def test_a_late_reward_is_in_the_lookback_once_after_slices_are_put_together(at):
    whole = late_reward()
    assert whole.agent_episodes["a"].get_rewards(-1, neg_index_as_lookback=True) == 5.0
    joined = whole[:at]
    joined.concat_episode(whole[at:])
    assert joined.agent_episodes["a"].get_rewards(-1, neg_index_as_lookback=True) == 5.0
    assert joined.uncredited_reward == whole.uncredited_reward == 4.0


def test_a_late_reward_among_given_data_is_reported():
    given = MultiAgentEpisode(
        observations=[{"a": 0}, {"a": 1}, {}],
        actions=[{"a": 10}, {}],
        rewards=[{"a": 1.0}, {"a": 4.0}],
        len_lookback_buffer=1,
        env_t_started=1,
    )
    assert (given.get_return(), given.uncredited_reward) == (0.0, late_reward().uncredited_reward)


def test_arrays_that_were_appended_are_read_at_any_env_step():
    first = MultiAgentEpisode()
    first.add_env_reset(observations={"a": 0})
    second = first.cut()
    for t in (1, 2, 3):
        second.add_env_step({"a": t}, {"a": 10 * t}, {"a": 1.0})
    first.concat_episode(second.to_numpy())
    assert [first.get_observations(t, fill=0) for t in range(4)] == [{"a": 0}, {"a": 1}, {"a": 2}, {"a": 3}]
    assert first.get_actions([1, 2], fill=0) == {"a": [20, 30]}


def test_no_actions_at_all_are_no_one_hot_vectors():
    space = MultiDiscrete([2, 3])
    for episode in (SingleAgentEpisode(action_space=space), SingleAgentEpisode(action_space=space).to_numpy()):
        assert np.shape(episode.get_actions(one_hot_discrete=True))[0] == 0


def test_one_dict_space_for_all_agents_is_not_taken_for_a_space_of_each():
    space = Dict({"x": Box(0, 1, (2,)), "n": Discrete(3)})
    episode = MultiAgentEpisode(observation_space=space, action_space=Discrete(2))
    episode.add_env_reset(observations={"a": {"x": [0, 1], "n": 1}})
    assert episode.to_numpy().get_observations()["a"]["x"].dtype == np.float32


def test_arrays_made_while_the_first_action_waits_have_its_types():
    for before in (False, True):
        episode = SingleAgentEpisode()
        episode.add_env_reset(0)
        if before:
            episode.to_numpy()
        episode.act(3, {"logp": np.float32(-1)})
        episode.to_numpy().observe(1, {}, 1)
        episode.to_numpy()
        assert episode.get_actions().dtype == np.int64
        assert episode.get_extra_model_outputs("logp").dtype == np.float32


def test_an_agent_with_a_tuple_as_id_is_known_where_it_has_no_data():
    episode, agent_id = MultiAgentEpisode(), ("team", 1)
    episode.add_env_reset(observations={agent_id: 0, "b": 0})
    episode.add_env_step({"b": 1}, {agent_id: 1, "b": 1}, {}, terminateds={agent_id: True})
    assert episode.get_observations(0, agent_id) == {agent_id: 0}
    assert episode.cut().get_observations(0, agent_id) == {}
    with pytest.raises(KeyError, match="'team'"):
        episode.get_observations(0, ("team", "b"))


def test_wrong_agents_and_indices_are_errors_also_without_any_extra_model_output():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    with pytest.raises(KeyError, match="agent 'b'"):
        episode.get_extra_model_outputs(agent_ids="b")
    with pytest.raises(IndexError, match="range"):
        episode.get_extra_model_outputs(indices=5)


def test_nothing_can_be_set_in_a_view_without_steps():
    rollout = Rollout(Discrete(3), Discrete(3), num_rows=2, num_lanes=1)
    rollout.observe(slice(0, 1), np.zeros(1, np.int64), 0)
    view = SingleAgentEpisode.from_storage(LaneStorage(rollout, 0, first_row=0, start_row=0), id_="e")
    view.set_actions(new_data=[])
    view.set_rewards(new_data=[], at_indices=slice(0, 0))
    assert len(view.get_actions()) == 0 and rollout.columns[Columns.ACTIONS].tolist() == [0, 0]


def test_flags_said_again_end_an_episode_that_went_on_without_agents_also_after_a_cut():
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 1}, {"a": 1.0}, terminateds={"a": True, "__all__": False})
    chunks = (episode.cut(), episode)
    for chunk in chunks:
        chunk.add_env_step({"a": 1}, {}, {}, terminateds={"a": True})
        assert chunk.is_terminated and not chunk.is_truncated


def test_what_the_first_agent_tells_about_a_dict_space_holds_after_chunks_are_put_together():
    first = MultiAgentEpisode(id_="e", observation_space=Dict({"a": Discrete(2), "b": Discrete(3)}))
    first.add_env_reset(observations={})
    second = first.cut()
    second.add_env_step({"a": 0}, {}, {})
    first.concat_episode(second)
    first.add_env_step({"ghost": 1}, {}, {})
    assert first.agent_episodes["a"].observation_space == Discrete(2)
    assert first.agent_episodes["ghost"].observation_space is None
