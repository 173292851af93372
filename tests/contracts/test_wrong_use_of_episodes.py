"""What must not be done to an episode is an error at the call, and leaves the episode as it was."""

import copy

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from marl_connectors import EpisodeError, MultiAgentEpisode, SingleAgentEpisode


def alone(steps=3, **options):
    episode = SingleAgentEpisode(**options)
    episode.add_env_reset(0)
    for t in range(steps):
        episode.add_env_step(t + 1, t, float(t))
    return episode


def game(**options):
    episode = MultiAgentEpisode(id_="g", **options)
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 5, "b": 6}, {"a": 1.0})
    return episode


def without_clock(state):
    state = dict(state)
    del state["duration_s"]
    return state | {"agent_episodes": [without_clock(life) for life in state.get("agent_episodes", [])]}


UNUSABLE = [None, "1", float("nan"), float("inf"), [1, 2], 10**400, {"a": 1}]


@pytest.mark.parametrize("reward", UNUSABLE, ids=repr)
def test_a_reward_is_one_finite_number(reward):
    episode, both = alone(), game()
    with pytest.raises(EpisodeError, match="finite"):
        episode.add_env_step(9, 9, reward)
    with pytest.raises(EpisodeError, match="agent 'a'"):
        both.add_env_step({"a": 2, "b": 2}, {"a": 1}, {"a": reward})
    for as_arrays in (False, True):
        episode = alone().to_numpy() if as_arrays else alone()
        with pytest.raises(EpisodeError, match="finite"):
            episode.set_rewards(new_data=reward, at_indices=0)
        with pytest.raises(EpisodeError, match="finite"):
            episode.set_rewards(new_data=[1.0, reward, 1.0])
    assert len(episode) == 3 and both.env_t == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"infos": {"b": 5}},
        {"infos": [{}]},
        {"infos": {"a": "text"}},
        {"observations": None},
        {"observations": [1]},
        {"observations": {"__all__": 1}},
        {"actions": [1]},
        {"actions": {"b": 1}},
        {"actions": {"c": 1}},
        {"rewards": [1.0]},
        {"terminateds": True},
        {"truncateds": ["a"]},
        {"extra_model_outputs": {"b": {"logp": 0.0}}},
        {"extra_model_outputs": {"a": {"logp": 0.0}}},
    ],
    ids=str,
)
def test_a_step_that_fails_changes_nothing(wrong):
    episode = game()
    before = copy.deepcopy(without_clock(episode.get_state()))
    step = {"observations": {"a": 2, "b": 2}, "actions": {"a": 7}, "rewards": {"a": 1.0, "b": 2.0}} | wrong
    with pytest.raises(EpisodeError):
        episode.add_env_step(**step)
    assert without_clock(episode.get_state()) == before
    episode.add_env_step({"a": 2, "b": 2}, {"a": 7}, {"a": 1.0, "b": 2.0})
    episode.validate()


def test_a_single_agents_step_or_reset_that_fails_changes_nothing():
    episode = alone()
    with pytest.raises(EpisodeError, match="infos"):
        episode.add_env_step(9, 9, 1.0, 5)
    episode.validate()
    assert len(episode) == 3
    fresh = MultiAgentEpisode()
    with pytest.raises(EpisodeError, match=r"(?s)'b'.*\binfos\b"):
        fresh.add_env_reset(observations={"a": 0, "b": 0}, infos={"b": 3})
    fresh.add_env_reset(observations={"a": 0, "b": 0})


def test_a_mapping_function_that_fails_changes_nothing():
    def mapping(agent_id, episode):
        if agent_id == "late":
            raise ValueError("who is that?")
        return "m"

    episode = game(agent_to_module_mapping_fn=mapping)
    with pytest.raises(ValueError, match="who is that"):
        episode.add_env_step({"a": 2, "late": 0}, {"a": 7}, {"a": 1.0})
    assert episode.env_t == 1 and episode.agent_episodes["a"].get_actions() == [5]


def test_spaces_are_checked_when_that_is_on():
    small = Box(0, 1, (2,))
    episode = MultiAgentEpisode(observation_space=small, action_space={"a": Discrete(2)}, check_spaces=True)
    with pytest.raises(EpisodeError, match=r"(?s)'a'.*step 0.*Box\(2,\)"):
        episode.add_env_reset(observations={"a": np.full(2, 9.0)})
    good = np.zeros(2)
    episode.add_env_reset(observations={"a": good})
    with pytest.raises(EpisodeError, match=r"(?s)\(5,\).*\(2,\)"):
        episode.add_env_step({"a": np.zeros(5)}, {"a": 0}, {})
    with pytest.raises(EpisodeError, match=r"(?s)Discrete\(2\).*\b7\b.*\[0, 1\]"):
        episode.add_env_step({"a": good}, {"a": 7}, {})
    later = MultiAgentEpisode.from_state(episode.cut().get_state())
    with pytest.raises(EpisodeError, match="space"):
        later.add_env_step({"a": good}, {"a": 7}, {})
    with pytest.raises(EpisodeError, match="space"):
        MultiAgentEpisode(observations=[{"a": good - 1}], observation_space=small, check_spaces=True)
    with pytest.raises(EpisodeError, match=r"(?s)action.*space"):
        SingleAgentEpisode(observations=[0, 1], actions=[7], rewards=[1.0], action_space=Discrete(2), check_spaces=True)
    single = alone(observation_space=Discrete(9), check_spaces=True)
    with pytest.raises(EpisodeError, match="t=3"):
        single.cut().add_env_step(10, 0, 0.0)
    game(observation_space=Discrete(1)).add_env_step({"a": 55}, {}, {})  # off by default


def test_indices_are_ints():
    for episode in (alone(), alone().to_numpy()):
        for indices in ([True, False], np.array([True, False]), [np.array([0, 1])], "0", [0.5], slice("a", None)):
            with pytest.raises(TypeError, match="indices"):
                episode.get_observations(indices)


def test_a_lookback_is_0_or_more():
    for wrong in (-1, "auto", None, 1.5):
        with pytest.raises(EpisodeError, match=r"(?s)len_lookback_buffer.*\b0\b"):
            alone().cut(wrong)
        with pytest.raises(EpisodeError, match=r"(?s)len_lookback_buffer.*\b0\b"):
            MultiAgentEpisode().cut(wrong)
    with pytest.raises(EpisodeError, match="len_lookback_buffer"):
        alone().slice(slice(1, 3), len_lookback_buffer=-1)
    with pytest.raises(EpisodeError, match="len_lookback_buffer"):
        SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0], len_lookback_buffer=-1)
    with pytest.raises(EpisodeError, match="len_lookback_buffer"):
        MultiAgentEpisode(observations=[{"a": 0}], len_lookback_buffer=-1)
    with pytest.raises(EpisodeError, match=r"(?s)slice\(start, stop\).*\b3\b"):
        alone().slice(3)


def test_setting_for_an_unknown_agent_sets_nothing():
    episode = game()
    with pytest.raises(KeyError, match="zz"):
        episode.set_observations(new_data={"a": 5, "zz": 6}, at_indices=0)
    assert episode.get_observations(0) == {"a": 0, "b": 0}
    with pytest.raises(EpisodeError, match="'actions'"):
        episode.set_actions(new_data={"a": 1})


def test_a_chunk_of_which_one_agent_does_not_fit_is_not_appended():
    whole = game()
    chunk = whole.cut()
    chunk.agent_episodes["a"].set_observations(new_data=99, at_indices=-1)
    chunk.add_env_step({"a": 2, "b": 2}, {"a": 1}, {"a": 1.0, "c": 4.0})
    before = copy.deepcopy(without_clock(whole.get_state()))
    with pytest.raises(EpisodeError, match="differ"):
        whole.concat_episode(chunk)
    assert without_clock(whole.get_state()) == before


def test_items_that_do_not_stand_in_one_array_leave_all_agents_lists():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": {"x": 1}, "b": {"x": 1}})
    episode.add_env_step({"a": {"x": 1}, "b": {"y": 1}}, {"a": 0, "b": 0}, {})
    with pytest.raises(EpisodeError, match="keys"):
        episode.to_numpy()
    assert not episode.agent_episodes["a"].is_numpy


# And what may be done has no surprises.


def test_a_deep_copy_shares_nothing():
    for make in (alone, game):
        episode = make()
        twin = copy.deepcopy(episode)
        if make is alone:
            twin.add_env_step(9, 9, 5.0)
        else:
            twin.add_env_step({"a": 9, "b": 9}, {"a": 9}, {"a": 5.0})
        assert len(twin) == len(episode) + 1 and twin.get_return() != episode.get_return()
        episode.validate()


def test_what_is_added_is_copied():
    observation, action, mask, output = np.zeros(2), np.zeros(2), np.ones(3), np.zeros(1)
    episode = SingleAgentEpisode()
    episode.add_env_reset({"x": observation}, {"action_mask": mask})
    episode.add_env_step({"x": observation}, action, 0.0, {"m": {"n": mask}}, extra_model_outputs={"o": output})
    both = MultiAgentEpisode()
    both.add_env_reset(observations={"a": observation}, infos={"a": {"action_mask": mask}})
    both.add_env_step({"a": observation}, {"a": action}, {}, extra_model_outputs={"a": {"o": output}})
    for array in (observation, action, mask, output):
        array[:] = 7
    assert episode.get_observations(-1)["x"].tolist() == [0, 0] and episode.get_actions(-1).tolist() == [0, 0]
    assert episode.get_infos(0)["action_mask"].tolist() == episode.get_infos(1)["m"]["n"].tolist() == [1, 1, 1]
    assert episode.get_extra_model_outputs("o", -1).tolist() == [0]
    assert both.get_infos(0)["a"]["action_mask"].tolist() == [1, 1, 1]
    assert both.get_actions(0)["a"].tolist() == [0, 0] and both.get_observations(1)["a"].tolist() == [0, 0]
    assert both.get_extra_model_outputs("o", 0)["a"].tolist() == [0]


def test_dtypes_outlive_any_number_of_cuts_slices_and_states():
    first = SingleAgentEpisode(
        observations=[np.uint8(1), np.uint8(2)], actions=[np.int8(1)], rewards=[1.0], len_lookback_buffer=0
    ).to_numpy()
    for chunk in (
        first.cut(1),
        first.cut(1).cut(1),
        first.cut().cut()[:],
        SingleAgentEpisode.from_state(first.cut(1).get_state()),
    ):
        chunk.add_env_step(3, 2, 1.0)
        chunk.to_numpy()
        assert (chunk.get_observations().dtype, chunk.get_actions().dtype) == (np.uint8, np.int8)


def test_a_tuple_is_one_value_of_a_multi_discrete_space():
    pairs = MultiDiscrete([3, 3])
    episode = MultiAgentEpisode(action_space=pairs)
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": (1, 2)}, {"a": 1.0})
    episode.add_env_step({}, {"a": (2, 0)}, {})
    episode.to_numpy()
    assert episode.get_actions()["a"].tolist() == [[1, 2], [2, 0]]
    episode.set_actions(new_data={"a": (0, 0)}, at_indices=0)
    assert episode.get_actions()["a"].tolist() == [[0, 0], [2, 0]]


def test_the_environment_may_say_that_the_episode_goes_on_without_live_agents():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 1}, {"a": 1.0}, terminateds={"a": True, "__all__": False})
    assert not episode.is_done and episode.get_terminateds() == {"a": True, "__all__": False}
    episode.add_env_step({"a": 2}, {}, {})
    episode.add_env_step({"a": 3}, {"a": 1}, {"a": 1.0}, terminateds={"a": True})
    assert episode.is_terminated and len(episode.all_agent_episodes()) == 2


def test_a_dict_space_is_by_agent_if_the_first_agent_is_among_its_keys():
    by_agent = Dict({"a": Discrete(2), "b": Discrete(3)})
    episode = MultiAgentEpisode(observation_space=by_agent)
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"ghost": 1, "b": 1}, {}, {})
    spaces = {agent_id: life.observation_space for agent_id, life in episode.agent_episodes.items()}
    assert spaces == {"a": Discrete(2), "ghost": None, "b": Discrete(3)}
    shared = MultiAgentEpisode(observation_space=by_agent)
    shared.add_env_reset(observations={"x": {"a": 0, "b": 0}})
    shared.add_env_step({"a": {"a": 0, "b": 0}}, {}, {})
    assert shared.cut().agent_episodes["a"].observation_space == by_agent


def test_agents_may_be_asked_for_in_any_collection():
    episode = game()
    for asked in (["a", "b"], ("a", "b"), {"a", "b"}, episode.agent_episodes.keys(), iter("ab"), np.array(["a", "b"])):
        assert episode.get_observations(0, asked) == {"a": 0, "b": 0}


def test_given_lookback_has_no_uncredited_rewards():
    episode = MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}], actions=[{}], rewards=[{"a": 5.0, "b": 3.0}])
    assert len(episode) == 0 and episode.uncredited_reward == 0


def test_a_slice_before_a_late_reward_does_not_know_of_it():
    for make, late in (
        (alone, lambda chunk: (chunk.credit(4.0), chunk.add_env_step(9, 9, 0.5))),
        (game, lambda chunk: chunk.add_env_step({}, {}, {"a": 4.0})),
    ):
        whole = make().cut(1)
        late(whole)
        head, rest = whole[:0], whole[0:]
        life = head if make is alone else head.agent_episodes["a"]
        paid = 2.0 if make is alone else 1.0
        assert (life.get_rewards(-1, neg_index_as_lookback=True), life.uncredited_reward) == (paid, 0.0)
        head.concat_episode(rest)
        assert head.uncredited_reward == whole.uncredited_reward == 4.0
        after = head if make is alone else head.agent_episodes["a"]
        assert after.get_rewards(-1, neg_index_as_lookback=True) == paid + 4.0


def test_durations_of_chunks_add_up(monkeypatch):
    clock = iter(range(100))
    for module in ("episode_base", "single_agent_episode"):
        monkeypatch.setattr(f"marl_connectors.episodes.{module}.perf_counter", lambda: float(next(clock)))
    first = alone(2)
    second = first.cut()
    second.add_env_step(3, 3, 0.0)
    second.add_env_step(4, 4, 0.0)
    assert (first.get_duration_s(), second.get_duration_s()) == (2.0, 1.0)
    first.concat_episode(second)
    assert first.get_duration_s() == 3.0


def test_endless_new_agents_leave_nothing_behind():
    episode, asked = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent_id, _: "m"), 0
    episode.add_env_reset(observations={0: 0})
    for t in range(1, 3001):
        episode.add_env_step({t: 0}, {t - 1: 0}, {t - 1: 1.0}, truncateds={t - 1: True})
        if t % 10 == 0:
            assert len(episode.all_agent_episodes()) <= 12
            episode = episode.cut()
        asked = max(asked, len(episode._module_of), len(episode._ended_before))
    assert asked <= 1_011 and episode._truncated_before
    episode.add_env_step({2999: 0}, {}, {}, terminateds={3000: True})
    assert episode.get_agents_to_act() == {2999}
