import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.columns import Columns
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import EpisodeError

BOX = spaces.Box(-10, 10, (2,), np.float32)


def make(steps=5, lookback=0, **options):
    """Observations 0..steps, actions 10.., rewards 1, 2, 4, ..., logp -1, -2, ...; every infos dict names its step."""
    return SingleAgentEpisode(
        id_="e",
        agent_id="a",
        module_id="m",
        observations=list(range(steps + 1)),
        infos=[{"i": i} for i in range(steps + 1)],
        actions=[10 + i for i in range(steps)],
        rewards=[2.0**i for i in range(steps)],
        extra_model_outputs={"logp": [-1.0 - i for i in range(steps)]},
        len_lookback_buffer=lookback,
        t_started=lookback,
        **options,
    )


def same(one, other):
    for get in ("get_observations", "get_actions", "get_rewards", "get_infos"):
        assert list(getattr(one, get)()) == list(getattr(other, get)()), get
    assert list(one.get_extra_model_outputs("logp")) == list(other.get_extra_model_outputs("logp"))
    for name in ("id_", "agent_id", "module_id", "t", "t_started", "is_terminated", "is_truncated"):
        assert getattr(one, name) == getattr(other, name), name
    assert list(one.storage.column(Columns.T)) == list(other.storage.column(Columns.T))
    assert one.uncredited_reward == other.uncredited_reward
    one, other = one.storage.pending(), other.storage.pending()
    assert one == other


def test_an_episode_holds_one_observation_more_than_the_rest():
    episode = SingleAgentEpisode()
    assert not episode.is_reset and len(episode) == 0
    episode.add_env_reset(0, {"first": True})
    assert episode.is_reset and len(episode) == 0
    episode.add_env_step(1, 5, 0.5, {"second": True}, extra_model_outputs={"logp": -1.0}, terminated=True)
    assert (len(episode), episode.t, episode.env_steps(), episode.agent_steps()) == (1, 1, 1, 1)
    assert episode.get_observations() == [0, 1] and episode.get_actions() == [5] and episode.get_rewards() == [0.5]
    assert episode.get_infos() == [{"first": True}, {"second": True}]
    assert episode.get_extra_model_outputs("logp", -1) == -1.0
    assert episode.is_done and not episode.is_truncated and episode.get_duration_s() > 0
    assert repr(episode).startswith("SAEps(len=1 done=True R=0.5")


@pytest.mark.parametrize("to_numpy", [False, True])
def test_getters_reach_into_the_lookback(to_numpy):
    episode = make(5, lookback=3)
    if to_numpy:
        episode.to_numpy()
    assert len(episode) == 2 and episode.t == 5 and episode.get_return() == 8.0 + 16.0
    assert list(episode.get_observations()) == [3, 4, 5]
    assert episode.get_observations(-1, neg_index_as_lookback=True) == 2
    assert list(episode.get_actions(slice(-2, 1), neg_index_as_lookback=True)) == [11, 12, 13]
    assert list(episode.get_rewards([0, -1])) == [8.0, 16.0]
    assert list(episode.get_rewards(slice(-7, -4), fill=0.0)) == [0, 0, 1]
    assert episode.get_infos(slice(2, 4), fill={"none": 0}) == [{"i": 5}, {"none": 0}]
    assert list(episode.get_extra_model_outputs("logp", slice(0, 3), fill=7.0)) == [-4, -5, 7]
    assert episode.get_observation(-1) == 5 and episode.get_action(0) == 13 and episode.get_reward(9, fill=0.0) == 0
    with pytest.raises(IndexError, match="agent 'a'"):
        episode.get_actions(2)
    with pytest.raises(KeyError, match="'logp'"):
        episode.get_extra_model_outputs("log")


def test_the_documents_reward_right_after_reset_is_filled():
    episode = SingleAgentEpisode()
    episode.add_env_reset(np.zeros(3))
    assert episode.get_reward(-1, fill=0.0) == 0.0


@pytest.mark.parametrize("to_numpy", [False, True])
def test_the_documents_ten_last_observations_are_filled_on_the_left(to_numpy):
    episode = SingleAgentEpisode(observation_space=BOX)
    episode.add_env_reset(np.array([1, 2], np.float32))
    if to_numpy:
        episode.to_numpy()
    last = episode.get_observations(indices=[-3, -2, -1], fill=0.0)
    assert np.concatenate(last, axis=0).tolist() == [0, 0, 0, 0, 1, 2]


def test_one_hot_actions_of_a_list_and_an_array_are_alike():
    episode = SingleAgentEpisode(
        observations=[0, 1], actions=[2], rewards=[0.0], len_lookback_buffer=0, action_space=spaces.Discrete(3)
    )
    for _ in range(2):
        got = episode.get_actions([-2, -1], fill=0.0, one_hot_discrete=True)
        assert np.array(got).tolist() == [[0, 0, 0], [0, 0, 1]]
        episode.to_numpy()


@pytest.mark.parametrize("to_numpy", [False, True])
def test_setters_write_where_getters_read(to_numpy):
    episode = make(4, lookback=1)
    if to_numpy:
        episode.to_numpy()
    episode.set_observations(new_data=-5, at_indices=-1, neg_index_as_lookback=True)
    episode.set_observation(new_value=99, at_index=-1)
    episode.set_actions(new_data=[50, 51], at_indices=slice(0, 2))
    episode.set_rewards(new_data=[0.5, 0.25, 0.125])
    episode.set_extra_model_outputs(key="logp", new_data=[-9.0], at_indices=[2])
    episode.set_extra_model_outputs(key="values", new_data=np.array([1.0, 2.0, 3.0]))
    assert list(episode.get_observations(slice(-5, None))) == [-5, 1, 2, 3, 99]
    assert list(episode.get_actions()) == [50, 51, 13]
    assert list(episode.get_rewards()) == [0.5, 0.25, 0.125]
    assert list(episode.get_extra_model_outputs("logp")) == [-2, -3, -9]
    assert list(episode.get_extra_model_outputs("values", slice(-4, None))) == [0, 1, 2, 3]


def test_setters_never_change_a_length():
    for episode in (make(), make().to_numpy()):
        with pytest.raises(IndexError, match="length"):
            episode.set_rewards(new_data=[1.0, 2.0])
        with pytest.raises(IndexError, match="length"):
            episode.set_observations(new_data=np.zeros(9))
        with pytest.raises(IndexError, match="range"):
            episode.set_actions(new_data=1, at_indices=5)
        with pytest.raises(EpisodeError, match="array"):
            episode.set_rewards(new_data=1.0)
        assert list(episode.get_rewards()) == [1, 2, 4, 8, 16]


def test_another_shape_needs_the_whole_column_of_an_array():
    episode = make(2).to_numpy()
    with pytest.raises(EpisodeError, match="items"):
        episode.set_observations(new_data=np.zeros(3), at_indices=0)
    episode.set_observations(new_data=np.ones((3, 4), np.float32))
    assert episode.get_observations().shape == (3, 4) and episode.get_observations().dtype == np.float32


def test_appending_to_an_array_keeps_its_dtype():
    for space in (None, spaces.Box(0, 255, (), np.uint8)):
        observations = list(np.array([1, 2], np.uint8))
        episode = SingleAgentEpisode(observation_space=space, observations=observations, actions=[0], rewards=[0])
        episode.to_numpy()
        if space is None:
            assert episode.get_observations(-1).dtype == np.uint8
        episode.add_env_step(3, 1, 1)
        assert not episode.is_numpy
        assert episode.to_numpy().get_observations(slice(-3, None)).dtype == np.uint8


def test_nested_spaces_become_trees_of_arrays():
    space = spaces.Dict({"x": BOX, "y": spaces.Tuple([spaces.Discrete(4), spaces.MultiDiscrete([2, 2])])})
    observations = [{"x": np.full(2, i, np.float64), "y": (i, (0, 1))} for i in range(3)]
    episode = SingleAgentEpisode(
        observation_space=space, observations=observations, actions=[0, 1], rewards=[0, 1], len_lookback_buffer=1
    ).to_numpy()
    got = episode.get_observations()
    assert got["x"].dtype == np.float32 and got["x"].tolist() == [[1, 1], [2, 2]]
    assert got["y"][0].tolist() == [1, 2] and got["y"][1].tolist() == [[0, 1], [0, 1]]
    assert episode.get_observations(-1)["y"][0] == 2
    again = SingleAgentEpisode.from_state(episode.get_state())
    assert again.get_observations(-1)["y"][1].tolist() == [0, 1]
    assert again.observation_space == space


def test_slices_keep_everything_and_concatenate_to_the_whole():
    for whole in (make(), make().to_numpy()):
        whole.is_terminated = True
        whole.custom_data["note"] = 1
        parts = whole[:2], whole[2:4], whole[4:]
        assert [len(part) for part in parts] == [2, 2, 1]
        assert [part.is_terminated for part in parts] == [False, False, True]
        assert [part.t_started for part in parts] == [0, 2, 4]
        assert parts[1].get_infos() == [{"i": 2}, {"i": 3}, {"i": 4}]
        assert (parts[1].agent_id, parts[1].module_id, parts[1].custom_data) == ("a", "m", {"note": 1})
        joined = parts[0]
        joined.concat_episode(parts[1])
        joined.concat_episode(parts[2])
        same(joined, whole)


def test_a_slice_takes_a_lookback_along():
    whole = make(5, lookback=2)
    part = whole.slice(slice(1, 3))
    assert list(part.get_actions(slice(-4, None))) == [11, 12, 13, 14]
    assert part.storage.lookback == 2 and part.t_started == 3
    assert whole.slice(slice(1, 3), len_lookback_buffer=9).storage.lookback == 3
    assert len(whole[-1:]) == 1 and len(whole[5:2]) == 0
    with pytest.raises(EpisodeError, match="rewards"):
        whole[::2]
    with pytest.raises(TypeError):
        whole[1]  # type: ignore[index]


def test_writing_to_a_slice_leaves_the_whole_alone():
    for whole in (make(), make().to_numpy()):
        whole[:2].set_rewards(new_data=[0.0, 0.0])
        assert list(whole.get_rewards()) == [1, 2, 4, 8, 16]


def test_cut_while_an_action_is_pending_loses_nothing():
    whole, chunk = make(), make()
    for episode in (whole, chunk):
        episode.act(15, {"logp": -6.0})
        episode.credit(32.0)
    successor = chunk.cut(2)
    assert len(successor) == 0 and successor.storage.lookback == 2 and successor.t_started == 5
    assert successor.storage.pending() == {"actions": 15, "rewards": 32.0, "logp": -6.0}
    for episode in (whole, successor):
        episode.credit(0.5)
        episode.observe(6, {"i": 6}, 6)
        episode.end(terminated=False, truncated=True)
    assert successor.get_rewards() == [32.5] and chunk.get_return() == 31.0
    chunk.concat_episode(successor)
    same(chunk, whole)


def test_a_late_reward_after_a_cut_finds_its_action_again():
    for lookback in (0, 1):
        whole, chunk = make(), make()
        successor = chunk.cut(lookback)
        successor.credit(3.0)
        whole.credit(3.0)
        assert successor.uncredited_reward == 3.0
        chunk.concat_episode(successor)
        same(chunk, whole)


def test_a_reward_before_the_first_action_is_kept_and_reported():
    episode = SingleAgentEpisode()
    episode.add_env_reset(0)
    episode.credit(2.0)
    episode.add_env_step(1, 0, 1.0)
    assert episode.get_rewards() == [1.0] and episode.uncredited_reward == 2.0
    assert SingleAgentEpisode.from_state(episode.get_state()).uncredited_reward == 2.0


def test_observing_twice_without_acting_replaces_the_first():
    episode = SingleAgentEpisode()
    episode.add_env_reset(0, {"old": 1})
    episode.observe(1, {"new": 1}, 3)
    assert episode.get_observations() == [1] and episode.get_infos() == [{"new": 1}]
    assert episode.storage.column(Columns.T) == [3]


def test_an_end_without_a_final_observation_repeats_the_last_one():
    episode = make(1)
    episode.act(11, {"logp": -2.0})
    episode.credit(5.0)
    episode.end(terminated=True, truncated=False)
    assert episode.get_observations() == [0, 1, 1] and episode.get_rewards() == [1.0, 5.0] and episode.is_terminated
    episode.validate()


def test_observations_and_infos_are_copied_because_environments_reuse_them():
    buffer, info = np.zeros(2), {"n": 0}
    episode = SingleAgentEpisode()
    episode.add_env_reset(buffer, info)
    buffer[:], info["n"] = 1, 1
    assert episode.get_observations(0).tolist() == [0, 0] and episode.get_infos(0) == {"n": 0}


def test_the_state_is_plain_data():
    episode = make(3, lookback=1)
    episode.custom_data["seen"] = {(1, 2): 3}
    episode.act(13, {"logp": -4.0})
    again = SingleAgentEpisode.from_state(json.loads(json.dumps(episode.get_state())))
    same(again, episode)
    assert again.custom_data == {"seen": {(1, 2): 3}}
    episode.custom_data["env"] = object()
    with pytest.raises(EpisodeError, match=r"custom_data\['env'\]"):
        episode.get_state()


def test_the_data_dict_has_one_item_a_step():
    episode = make(2, lookback=0, truncated=True)
    data = episode.get_data_dict()
    assert data["obs"] == [0, 1] and data["actions"] == [10, 11] and data["t"] == [0, 1]
    assert data["truncateds"] == [False, True] and data["terminateds"] == [False, False]
    assert data["logp"] == [-1, -2] and data["eps_id"] == ["e", "e"]
    assert episode.to_numpy().get_data_dict()["truncateds"].tolist() == [False, True]
    assert SingleAgentEpisode().get_data_dict()["terminateds"] == []


def test_wrong_use_is_an_error_at_the_call():
    with pytest.raises(EpisodeError, match="1 reward"):
        SingleAgentEpisode(observations=[0, 1], actions=[0, 1], rewards=[0])
    episode = make(1)
    wrong: tuple[Any, ...] = (None, "1", float("nan"), [1, 2])
    for reward in wrong:
        with pytest.raises(EpisodeError, match="finite"):
            episode.add_env_step(2, 0, reward, extra_model_outputs={"logp": 0.0})
    with pytest.raises(EpisodeError, match="same"):
        episode.add_env_step(2, 0, 1.0)
    with pytest.raises(EpisodeError, match="first"):
        episode.add_env_reset(0)
    with pytest.raises(EpisodeError, match="observed"):
        SingleAgentEpisode().add_env_step(0, 0, 0.0)
    episode.act(1, {"logp": 0.0})
    with pytest.raises(EpisodeError, match="twice"):
        episode.act(1, {"logp": 0.0})
    episode.end(terminated=True, truncated=False)
    with pytest.raises(EpisodeError, match="terminated"):
        episode.add_env_step(2, 0, 0.0)
    with pytest.raises(EpisodeError, match="over"):
        episode.cut()
    with pytest.raises(EpisodeError, match="t=2"):
        make(2).concat_episode(make(3))
    with pytest.raises(EpisodeError, match="different"):
        SingleAgentEpisode(observations=[np.zeros(1), np.zeros(2)], actions=[0], rewards=[0]).to_numpy()


def test_a_successor_looks_back_beyond_the_chunk_that_it_follows():
    chunk = make(5, lookback=3)
    assert len(chunk) == 2
    successor = chunk.cut(4)
    assert successor.storage.lookback == 4
    assert successor.get_rewards([-4, -1], neg_index_as_lookback=True) == [2.0, 16.0]


def test_a_late_reward_of_a_chunk_without_steps_is_noted_by_the_chunk_that_it_continues():
    chunk = make(3).cut(2)
    successor = chunk.cut(2)
    successor.credit(3.0)
    chunk.concat_episode(successor)
    assert len(chunk) == 0 and chunk.uncredited_reward == 3.0
    assert chunk.get_rewards([-1], neg_index_as_lookback=True) == [4.0 + 3.0]
