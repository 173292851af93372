import copy
import json

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.multi_agent_histories import AGENTS, play
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import EpisodeReader, EpisodeWriter
from marl_connectors.columns import Columns
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import EpisodeError

# env step:       0        1        2        3              4
OBSERVATIONS = [{"a": 0}, {"b": 1}, {"a": 2}, {"a": 3, "b": 3}, {"a": 4}]
ACTIONS = [{"a": 10}, {"b": 21}, {"a": 12}, {"a": 13, "b": 23}]
REWARDS = [{"a": 1.0, "b": 0.5}, {"a": 2.0, "b": 4.0}, {"a": 8.0, "b": 16.0}, {"a": 32.0, "b": 64.0}]
# a: rows at t=0 (reward 1 + 2), 2 (8), 3 (32); b joins at t=1: rows at t=1 (4 + 16), 3 (64, waits); 0.5 is uncredited.


def make(**options):
    return MultiAgentEpisode(
        id_="e", observations=OBSERVATIONS, actions=ACTIONS, rewards=REWARDS, len_lookback_buffer=0, **options
    )


def summary(episode):
    """All that two equal episodes must agree about, as plain lists."""
    lives = sorted(episode.all_agent_episodes(), key=lambda e: e.id_)
    return {
        "env": (episode.id_, episode.env_t_started, episode.env_t, episode.is_terminated, episode.is_truncated),
        "lives": [
            {
                "id": (e.id_, e.agent_id, e.module_id, e.t_started, e.is_terminated, e.is_truncated),
                "columns": [
                    list(e.storage.column(n)) for n in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T)
                ],
                "infos": e.get_infos(),
                "pending": e.storage.pending(),
                "uncredited": e.uncredited_reward,
            }
            for e in lives
        ],
        "uncredited": episode.uncredited_reward,
    }


def test_turns_joins_and_waiting_actions_end_up_in_the_right_rows():
    episode = make()
    assert len(episode) == 4 and episode.agent_ids == {"a", "b"} and episode.agent_steps() == 4
    assert episode.agent_episodes["a"].get_rewards() == [3.0, 8.0, 32.0]
    assert episode.agent_episodes["b"].get_rewards() == [20.0]
    assert episode.agent_episodes["b"].storage.pending() == {"actions": 23, "rewards": 64.0}
    assert episode.uncredited_reward == 0.5
    assert episode.get_return() == 63.0 and episode.get_return(include_hanging_rewards=True) == 127.0
    assert episode.get_agents_to_act() == {"a"} and episode.get_agents_that_stepped() == {"a"}


@pytest.mark.parametrize("to_numpy", [False, True])
def test_getters_count_env_steps(to_numpy):
    episode = make()
    if to_numpy:
        episode.to_numpy()

    def plain(found):
        return {a: np.asarray(items).tolist() for a, items in found.items()}

    assert plain(episode.get_observations()) == {"a": [0, 2, 3, 4], "b": [1, 3]}
    assert episode.get_observations(-1) == {"a": 4} and episode.get_observations(1) == {"b": 1}
    assert episode.get_observations(1, fill=-1) == {"a": -1, "b": 1}
    assert plain(episode.get_observations([0, 1], "a")) == {"a": [0]}
    assert plain(episode.get_actions()) == {"a": [10, 12, 13], "b": [21, 23]}
    assert episode.get_actions(-1) == {"a": 13, "b": 23}
    assert plain(episode.get_rewards(slice(2, None))) == {"a": [8, 32], "b": [64]}
    assert plain(episode.get_rewards(slice(-5, 2), fill=0.0)) == {"a": [0, 3, 0], "b": [0, 0, 20]}
    assert episode.get_observations(slice(1, 3), return_list=True) == [{"b": 1}, {"a": 2}]
    assert episode.get_actions(slice(0, 2), fill=0, return_list=True) == [{"a": 10, "b": 0}, {"a": 0, "b": 21}]
    assert episode.get_infos(0) == {"a": {}}
    with pytest.raises(IndexError, match="MultiAgentEpisode 'e', obs"):
        episode.get_observations(5)
    with pytest.raises(KeyError, match="agent 'c'"):
        episode.get_observations(0, "c")


@pytest.mark.parametrize("to_numpy", [False, True])
def test_getters_count_the_agents_own_steps(to_numpy):
    episode = make()
    if to_numpy:
        episode.to_numpy()
    assert episode.get_observations(-1, env_steps=False) == {"a": 4, "b": 3}
    assert episode.get_observations(1, ["b"], env_steps=False) == {"b": 3}
    assert episode.get_actions(-1, env_steps=False) == {"a": 13, "b": 23}
    assert episode.get_rewards(2, env_steps=False, fill=0.0) == {"a": 32, "b": 0}
    with pytest.raises(EpisodeError, match="return_list"):
        episode.get_rewards(env_steps=False, return_list=True)


def test_extra_model_outputs_stand_where_the_actions_are():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0, "b": 0}, {}, extra_model_outputs={"a": {"p": 0.5}, "b": {"p": 0.25}})
    assert episode.get_extra_model_outputs("p") == {"a": [0.5], "b": [0.25]}
    assert episode.get_extra_model_outputs(indices=-1) == {"a": {"p": 0.5}, "b": {"p": 0.25}}
    assert episode.get_extra_model_outputs(return_list=True) == [{"a": {"p": 0.5}, "b": {"p": 0.25}}]
    with pytest.raises(KeyError, match="'q'"):
        episode.get_extra_model_outputs("q")


def test_lookback_is_counted_in_env_steps_for_all_agents():
    episode = MultiAgentEpisode(
        observations=OBSERVATIONS, actions=ACTIONS, rewards=REWARDS, len_lookback_buffer=2, env_t_started=2
    )
    assert len(episode) == 2 and episode.env_t == 4 and episode.env_lookback == 2
    assert episode.get_observations(-1, neg_index_as_lookback=True) == {"b": 1}
    assert episode.get_observations(0) == {"a": 2}
    assert episode.agent_episodes["a"].get_rewards() == [8.0, 32.0]
    assert episode.agent_episodes["b"].get_rewards() == [20.0]
    assert MultiAgentEpisode(observations=OBSERVATIONS, actions=ACTIONS, rewards=REWARDS).env_t == 0


def test_one_hot_with_fill_across_agents():
    episode = MultiAgentEpisode(action_space=spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}))
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 0}, {"a": 1}, {"a": 0})
    got = episode.get_actions(-1, fill=0, one_hot_discrete=True)
    assert got["a"].tolist() == [0, 1] and got["b"].tolist() == [0, 0, 0]


def test_setters_write_the_agents_own_steps():
    episode = make()
    episode.set_observations(new_data={"a": -4, "b": -3}, at_indices=-1)
    episode.set_actions(new_data={"a": [1, 2, 3]})
    episode.set_rewards(new_data={"b": [7.0]}, at_indices=[0])
    assert episode.get_observations() == {"a": [0, 2, 3, -4], "b": [1, -3]}
    assert episode.agent_episodes["a"].get_actions() == [1, 2, 3] and episode.get_rewards(1) == {"b": 7.0}
    with pytest.raises(KeyError, match="'c'"):
        episode.set_rewards(new_data={"c": [0.0]})


def test_truncation_and_termination_stay_apart():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    flags = {"terminateds": {"a": True}, "truncateds": {"b": True}}
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1, "b": 1}, **flags)
    assert episode.get_terminateds() == {"a": True, "b": False, "__all__": False}
    assert episode.get_truncateds() == {"a": False, "b": True, "__all__": True}
    assert episode.is_done and not episode.is_terminated


def test_all_agents_terminated_end_the_episode_by_termination_also_across_a_cut():
    for flag, terminated in (("terminateds", True), ("truncateds", False)):
        episode = MultiAgentEpisode()
        episode.add_env_reset(observations={"a": 0, "b": 0})
        episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {}, **{flag: {"a": True}})
        successor = episode.cut(1)
        assert successor.agent_ids == {"b"}
        successor.add_env_step({"b": 2}, {"b": 0}, {}, terminateds={"b": True})
        assert (successor.is_terminated, successor.is_truncated) == (terminated, not terminated)


def test_the_flag_for_all_leaves_an_agents_own_flag_alone():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0, "b": 0}, {"b": 3.0}, terminateds={"__all__": True}, truncateds={"a": True})
    assert episode.get_terminateds() == {"a": False, "b": True, "__all__": True}
    assert episode.get_truncateds() == {"a": True, "b": False, "__all__": True}
    assert episode.agent_episodes["b"].get_observations() == [0, 0]
    assert episode.agent_episodes["b"].get_rewards() == [3.0]


def test_an_agent_that_dies_without_acting_is_done_and_keeps_its_last_reward():
    episode = make()
    episode.add_env_step({"b": 5}, {}, {"a": 100.0}, terminateds={"a": True})
    assert episode.agent_episodes["a"].is_done and not episode.is_done
    assert episode.agent_episodes["a"].get_rewards() == [3.0, 8.0, 132.0]


def test_an_agent_that_comes_back_starts_a_new_life():
    episode = MultiAgentEpisode(id_="e")
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 5, "b": 5}, {"a": 1.0}, terminateds={"a": True})
    episode.add_env_step({"a": 1, "b": 2}, {"b": 6}, {"a": 0.5}, terminateds={"a": True})  # said again: not a life
    assert len(episode.all_agent_episodes()) == 2 and episode.agent_episodes["a"].get_rewards() == [1.5]
    with pytest.raises(EpisodeError, match="ended"):
        episode.add_env_step({}, {"a": 0}, {})
    episode.add_env_step({"a": 3, "b": 3}, {"b": 7}, {})
    episode.add_env_step({"a": 4, "b": 4}, {"a": 8, "b": 8}, {"a": 2.0})
    former, latest = episode.past_agent_episodes[0], episode.agent_episodes["a"]
    assert (former.get_rewards(), latest.get_rewards()) == ([1.5], [2.0]) and former.id_ != latest.id_
    assert episode.get_observations(agent_ids="a") == {"a": [0, 1, 3, 4]}
    assert episode.get_actions(slice(None), "a", fill=0) == {"a": [5, 0, 0, 8]}
    assert episode.to_numpy().get_observations(agent_ids="a")["a"].tolist() == [0, 1, 3, 4]
    joined = episode[:1]
    joined.concat_episode(episode[1:3])
    joined.concat_episode(episode[3:])
    assert summary(joined) == summary(episode)


def test_rewards_of_agents_that_never_were_there_are_reported():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"ghost": 2.0})
    assert episode.uncredited_reward == 2.0 and episode.agent_ids == {"a"}


@pytest.mark.parametrize("at", range(5))
def test_consecutive_slices_concatenate_to_the_whole(at):
    for whole in (make(), make().to_numpy()):
        first, second = whole[:at], whole[at:]
        assert first.get_return() + second.get_return() == whole.get_return()
        first.concat_episode(second)
        assert summary(first) == summary(whole)


def test_a_slice_that_ends_in_an_agents_gap_has_its_action_waiting():
    part = make()[:1]
    assert part.agent_episodes["a"].storage.pending() == {"actions": 10, "rewards": 3.0}
    assert part.agent_episodes["b"].get_observations() == [1] and len(part.agent_episodes["b"]) == 0
    assert make()[1:3].agent_episodes["a"].get_actions() == [10, 12]


def test_cut_continues_while_an_action_waits():
    whole, chunk = make(), make()
    successor = chunk.cut(1)
    assert len(successor) == 0 and successor.env_t_started == 4
    assert successor.agent_episodes["b"].storage.pending() == {"actions": 23, "rewards": 64.0}
    for episode in (whole, successor):
        episode.add_env_step({"a": 5, "b": 5}, {"a": 14}, {"a": 128.0, "b": 0.25}, truncateds={"__all__": True})
    assert successor.agent_episodes["b"].get_rewards() == [64.25]
    chunk.concat_episode(successor)
    assert summary(chunk) == summary(whole)


def test_the_mapping_function_is_asked_once_and_remembered_across_cuts():
    asked = []

    def mapping(agent_id, episode):
        asked.append((agent_id, episode.id_))
        return f"module_{agent_id}"

    episode = make(agent_to_module_mapping_fn=mapping, agent_module_ids={"b": "given"})
    assert episode.module_for("a") == "module_a" and episode.module_for("b") == "given"
    assert episode.cut().module_for("a") == "module_a" and episode.cut().agent_episodes["a"].module_id == "module_a"
    assert asked == [("a", "e")]
    assert MultiAgentEpisode().module_for("x") == "default_policy"


def test_the_state_is_plain_data():
    episode = make(observation_space={"a": spaces.Discrete(9), "b": spaces.Discrete(9)})
    again = MultiAgentEpisode.from_state(json.loads(json.dumps(episode.get_state())))
    assert summary(again) == summary(episode) and again.observation_space == episode.observation_space
    assert again.module_for("a") == "default_policy"
    arrays = MultiAgentEpisode.from_state(make().to_numpy().get_state())
    assert arrays.is_numpy and summary(arrays) == summary(make())


def test_print_shows_who_did_what_when(capsys):
    make().print()
    assert capsys.readouterr().out.splitlines()[:3] == [
        "env step   0   1   2   3   4",
        "a          x   .   x   x   o",
        "b          .   x   .   x   .",
    ]


def test_episodes_can_be_made_of_agent_episodes():
    whole = make()
    episode = MultiAgentEpisode.from_agent_episodes("e", whole.agent_episodes, env_t_started=0, env_t=4)
    assert summary(episode)["lives"] == summary(whole)["lives"]
    with pytest.raises(EpisodeError, match="ended"):
        episode.attach("a", whole.agent_episodes["a"])


def test_wrong_use_is_an_error_and_changes_nothing():
    episode = make()
    before = summary(episode)
    for step, message in [
        (({}, {"zoe": 1}, {}), "'zoe'"),
        (({}, {"b": 1}, {}), "twice"),
        (({"a": 5}, {"a": 1}, {"b": None}), "agent 'b'"),
    ]:
        with pytest.raises(EpisodeError, match=message):
            episode.add_env_step(*step)
    with pytest.raises(EpisodeError, match="no action"):
        episode.add_env_step({}, {}, {}, extra_model_outputs={"a": {"p": 1}})
    with pytest.raises(EpisodeError, match="first"):
        episode.add_env_reset(observations={"a": 0})
    assert summary(episode) == before
    with pytest.raises(EpisodeError, match=r"(?s)\b5\b.*\b4\b"):
        MultiAgentEpisode(observations=OBSERVATIONS, actions=ACTIONS, rewards=REWARDS[:2])
    with pytest.raises(EpisodeError, match="env_t=4"):
        episode.concat_episode(make())
    episode.add_env_step({"a": 5}, {"a": 1}, {}, terminateds={"__all__": True})
    for call in (lambda: episode.add_env_step({}, {}, {}), episode.cut, lambda: episode.concat_episode(episode)):
        with pytest.raises(EpisodeError, match=r"over|end"):
            call()


# The order of agents.


def random_lives(seed):
    """An episode whose agents pause, end, and come back in new lives."""
    rng = np.random.default_rng(seed)
    history = [
        {
            "absent": set(rng.choice(AGENTS, int(rng.integers(3)), replace=False).tolist()),
            "ends": {str(rng.choice(AGENTS)): bool(rng.integers(2))} if rng.random() < 0.6 else {},
            "rewards": {},
        }
        for _ in range(int(rng.integers(1, 12)))
    ]
    return play([history], dict.fromkeys(AGENTS, "red"))[0], int(rng.integers(len(history) + 1))


def through_a_file(episode, folder):
    with EpisodeWriter(folder) as writer:
        writer.write([episode])
    return EpisodeReader(folder).sample()[0]


def in_two_parts(episode, cut):
    first = episode[:cut]
    first.concat_episode(episode[cut:])
    return first


def order_of_lives(episode):
    return list(episode.agent_episodes), [life.id_ for life in episode.all_agent_episodes()]


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", [*range(30), *fresh_seeds(200)])
def test_agents_and_their_lives_keep_their_order(seed, tmp_path):
    episode, cut = random_lives(seed)
    expected = order_of_lives(episode)
    assert order_of_lives(MultiAgentEpisode.from_state(episode.get_state())) == expected
    assert order_of_lives(episode[:]) == expected
    assert order_of_lives(copy.deepcopy(episode)) == expected
    assert order_of_lives(through_a_file(episode, tmp_path)) == expected
    assert order_of_lives(in_two_parts(episode, cut)) == expected
    present = order_of_lives(episode[:cut])[0]
    assert present == [agent for agent in expected[0] if agent in present]


def test_a_state_in_which_an_agent_lives_twice_is_refused():
    episode, _ = random_lives(0)
    state = episode.get_state()
    state["agent_episodes"][0]["is_terminated"] = state["agent_episodes"][0]["is_truncated"] = False
    with pytest.raises(EpisodeError, match="life"):
        MultiAgentEpisode.from_state(state)
