"""A turn-based environment that steps with dicts: who is told what in which step."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.env import ParallelEnv
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, BaseWrapper, OrderEnforcingWrapper

from helpers.envs.scripted_aec import Beat, ReusingAEC, ScriptedAEC
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import EnvError


def play(beats, agents="ab", **options):
    """The reset's result and then that of each step, of the turn-taking by ``agent_selection``; arrays as lists."""
    env = TurnBasedEnv(ScriptedAEC(beats, agents, **options))
    results = [plain(env.reset())]
    for _ in range(len(beats) - 1):
        actor = env.agent_selection
        results.append(plain(env.step({} if actor is None else {actor: 5})))
    return env, results


def plain(result):
    if isinstance(result, (dict, tuple)):
        items = result.items() if isinstance(result, dict) else enumerate(result)
        return {key: plain(item) for key, item in items}
    return result.tolist() if isinstance(result, np.ndarray) else result


def told(result):
    """Agent to (observation, reward, terminated, truncated); None for what is missing."""
    observations, rewards, terminations, truncations, _ = result.values()
    agents = {*observations, *rewards, *terminations, *truncations}
    return {a: tuple(part.get(a) for part in (observations, rewards, terminations, truncations)) for a in agents}


# Turns and rewards.


def test_only_the_agent_that_acts_next_observes():
    env, results = play([Beat("a"), Beat("b"), Beat("b"), Beat("a")])
    assert results[0] == {0: {"a": [0, 0]}, 1: {"a": {"t": 0, "action_mask": [0, 1]}}}
    assert [list(result[0].items()) for result in results[1:]] == [[("b", [1, 1])], [("b", [1, 2])], [("a", [0, 3])]]
    assert [set(part) for result in results[1:] for part in result.values()] == [{"b"}] * 10 + [{"a"}] * 5
    assert env.env.played == [("a", 5), ("b", 5), ("b", 5)]


def test_an_agent_is_told_at_its_own_turn_what_it_was_paid_since_the_last():
    beats = [Beat("a"), Beat("b", {"a": 1, "b": 10}), Beat("a", {"a": 2, "b": 20}), Beat("b", {"b": 40}), Beat("a")]
    _, results = play(beats)
    assert [result[1] for result in results[1:]] == [{"b": 10}, {"a": 3}, {"b": 60}, {"a": 0}]


def test_masks_in_infos_come_with_the_observation():
    _, results = play([Beat("a"), Beat("b"), Beat("a")])
    assert results[1][4] == {"b": {"t": 1, "action_mask": [1, 1]}}
    assert results[2][4] == {"a": {"t": 2, "action_mask": [0, 1]}}


@pytest.mark.parametrize("observation", [{"observation": np.ones(3), "action_mask": np.array([0, 1])}, (4, 5), "text"])
def test_a_live_agents_observation_is_the_environments_own_object(observation):
    inner = ScriptedAEC([Beat("a"), Beat("b")])
    inner.observe = lambda agent: observation
    env = TurnBasedEnv(inner)
    assert env.reset()[0]["a"] is observation
    assert env.step({"a": 1})[0]["b"] is observation


def test_what_the_reset_pays_is_told_with_the_first_step():
    _, results = play([Beat("a", {"a": 7, "b": 2}), Beat("b"), Beat("a", {"a": 1}), Beat("b")])
    assert [result[1] for result in results[1:]] == [{"b": 2, "a": 7}, {"a": 1}, {"b": 0}]
    _, results = play([Beat("a", {"a": 7}), Beat("a", {"a": 0.5}), Beat("b")])
    assert [result[1] for result in results[1:]] == [{"a": 7.5}, {"b": 0}]


def test_the_next_reset_forgets_what_was_not_told():
    env = TurnBasedEnv(ScriptedAEC([Beat("a", {"a": 7}), Beat("b")]))
    env.reset()
    env.env.beats = [Beat("a"), Beat("b")]
    env.reset()
    assert env.step({"a": 1})[1] == {"b": 0}


# Ends.


def test_a_dead_turn_is_played_inside_and_its_payoff_kept():
    env, results = play([Beat("a"), Beat("b"), Beat("a", {"a": 1, "b": -4}, terminated="b"), Beat("a", {"a": 8})])
    assert told(results[2]) == {"b": ([1, 2], -4, True, False), "a": ([0, 2], 1, False, False)}
    assert results[2][4]["b"] == {"t": 2, "action_mask": [0, 1]}
    assert told(results[3]) == {"a": ([0, 3], 8, False, False)}
    assert env.agents == ["a"] and env.agent_selection == "a"
    assert env.env.played == [("a", 5), ("b", 5), ("b", None), ("a", 5)]


def test_agents_that_end_together_keep_their_own_final_observations():
    env, results = play([Beat("a"), Beat("b", {"a": 1, "b": 2, "c": 3}, terminated="ac", truncated="bc")], "abc")
    assert told(results[1]) == {
        "a": ([0, 1], 1, True, False),
        "b": ([1, 1], 2, False, True),
        "c": ([2, 1], 3, True, True),
    }
    assert env.agents == [] and env.agent_selection is None


def test_what_is_told_about_an_end_is_a_copy():
    env = TurnBasedEnv(ReusingAEC([Beat("a"), Beat("a", terminated="b")]))
    env.reset()
    observations, rewards, _, _, infos = plain(env.step({"a": 1})).values()
    assert observations["b"] == {"observation": [1, 1], "action_mask": [0, 1]}
    assert (rewards["b"], infos["b"]) == (3.0, {"nested": {"mask": [0, 1]}})


def test_an_end_is_told_when_the_dead_turn_comes():
    beats = [
        Beat("a"),
        Beat("c", {"b": 1}, terminated="b", dead_next=False),
        Beat("b", {"b": 2}, dead_next=False),
    ]
    env = TurnBasedEnv(ScriptedAEC(beats, "abc"))
    env.reset()
    first = told(plain(env.step({"a": 0})))
    assert first == {"c": ([2, 1], 0, False, False)} and env.agents == ["a", "b", "c"]
    env.env._skip_agent_selection = "a"
    assert told(plain(env.step({"c": 0}))) == {"b": ([1, 2], 3, True, False), "a": ([0, 2], 0, False, False)}


@pytest.mark.parametrize("works", [True, False])
def test_an_environment_that_clears_its_agents_loses_neither_flags_nor_rewards(works):
    beats = [Beat("a"), Beat("b", {"a": 1}), Beat("a", {"a": 2, "b": 4}, terminated="a", truncated="b", removes="ab")]
    env, results = play(beats, gone_raise=not works)
    assert told(results[2]) == {
        "a": ([0, 2] if works else None, 3, True, False),
        "b": ([1, 2] if works else None, 4, False, True),
    }
    assert results[2][4] == {"a": {"t": 1, "action_mask": [1, 1]}, "b": {"t": 1, "action_mask": [1, 1]}}
    assert env.agents == [] and env.agent_selection is None


def test_an_agent_that_is_removed_while_others_go_on_is_told_once():
    beats = [Beat("a"), Beat("b", {"c": 5}, terminated="c", removes="c"), Beat("a"), Beat("b")]
    env, results = play(beats, "abc", gone_raise=False)
    assert told(results[1]) == {"c": ([2, 1], 5, True, False), "b": ([1, 1], 0, False, False)}
    assert ["c" in result[2] for result in results[1:]] == [True, False, False]
    assert env.agents == ["a", "b"]


def test_a_final_observation_of_none_is_left_out():
    _, results = play([Beat("a"), Beat("a", {"b": 2}, terminated="b")], blind="b")
    assert told(results[1]) == {"a": ([0, 1], 0, False, False), "b": (None, 2, True, False)}
    assert list(results[1][0]) == ["a"]


def test_an_episode_may_be_over_at_the_reset():
    env, (result,) = play([Beat("a", {"a": 1}, terminated="ab")])
    assert result == {0: {}, 1: {}} and env.agents == [] and env.agent_selection is None
    env, (result,) = play([Beat(None)], agents="")
    assert result == {0: {}, 1: {}} and env.agents == []
    with pytest.raises(EnvError, match=r"(?s)step 0.*step\(\)"):
        env.step({"a": 0})


def test_an_agent_that_is_dead_at_the_reset_never_appears_but_is_paid():
    env, results = play([Beat("b", {"a": 6}, terminated="a"), Beat("b", {"b": 1})])
    assert results[0][0] == {"b": [1, 0]} and env.agents == ["b"]
    assert results[1][1] == {"b": 1, "a": 6} and results[1][0] == {"b": [1, 1]}


# Joining and coming back.


def test_a_joiner_observes_at_its_first_turn_and_is_told_what_it_got_before():
    env, results = play([Beat("a"), Beat("a", {"c": 2}, joins="c"), Beat("c", {"c": 4}), Beat("a")], "a")
    assert [list(result[0]) for result in results] == [["a"], ["a"], ["c"], ["a"]]
    assert told(results[2]) == {"c": ([2, 2], 6, False, False)}
    assert env.agents == ["a", "c"]


def test_an_agent_comes_back_some_turns_after_its_end():
    beats = [Beat("a"), Beat("a", terminated="b"), Beat("a", joins="b"), Beat("b", {"b": 3}), Beat("a")]
    _, results = play(beats)
    assert told(results[1])["b"] == ([1, 1], 0, True, False)
    assert told(results[2]) == {"a": ([0, 2], 0, False, False)}
    assert told(results[3]) == {"b": ([1, 3], 3, False, False)}


def test_an_agent_that_is_back_at_once_begins_after_an_empty_step():
    env = TurnBasedEnv(ScriptedAEC([Beat("a"), Beat("b", {"b": 3}, terminated="b"), Beat("a")], returning="b"))
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations=env.reset()[0])
    result = env.step({"a": 1})
    assert result[2].pop("__all__") is False and result[3].pop("__all__") is False
    assert told(plain(result)) == {"b": ([1, 1], 3, True, False)}
    assert env.agent_selection is None and env.agents == ["a", "b"]
    add(episode, {"a": 1}, result)
    with pytest.raises(EnvError, match=r"(?s)\['b'\].*step\(\{\}\)"):
        env.step({"b": 1})
    result = env.step({})
    assert told(plain(result)) == {"b": ([1, 1], 0, False, False)} and env.agent_selection == "b"
    assert env.env.played == [("a", 1), ("b", None)]
    add(episode, {}, result)
    add(episode, {"b": 2}, env.step({"b": 2}))
    former, latest = episode.past_agent_episodes[0], episode.agent_episodes["b"]
    assert former.is_done and len(former) == 0
    assert latest.get_actions() == [] and latest.storage.pending()["actions"] == 2 and not latest.is_done
    assert len(episode) == 3 and episode.uncredited_reward == 3


def test_the_episode_goes_on_when_the_only_player_ends_and_comes_back():
    env = TurnBasedEnv(ScriptedAEC([Beat("a"), Beat("a", {"a": 3}, terminated="a"), Beat("a")], returning="a"))
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations=env.reset()[0])
    add(episode, {"a": 1}, env.step({"a": 1}))
    assert env.agent_selection is None and env.agents and not episode.is_done
    add(episode, {}, env.step({}))
    assert episode.get_agents_to_act() == {"a"} and len(episode.past_agent_episodes) == 1


def add(episode, actions, result):
    observations, rewards, terminations, truncations, infos = result
    episode.add_env_step(observations, actions, rewards, infos, terminateds=terminations, truncateds=truncations)


# Errors.


def stands_in(text):
    return pytest.raises(EnvError, match=text)


@pytest.mark.parametrize("actions", [{"b": 0}, {}, {"a": 0, "b": 0}])
def test_actions_of_others_than_the_acting_agent_are_refused(actions):
    env = TurnBasedEnv(ScriptedAEC([Beat("a"), Beat("b")]))
    env.reset()
    with pytest.raises(EnvError) as caught:
        env.step(actions)
    assert re.search(rf"step 0.*agent 'a'.*{re.escape(str(list(actions)))}", str(caught.value))
    assert env.env.played == []
    assert list(env.step({"a": 0})[0]) == ["b"]  # no harm was done


def test_steps_before_the_reset_and_after_the_end_are_refused():
    env = TurnBasedEnv(OrderEnforcingWrapper(ScriptedAEC([Beat("a"), Beat("a", terminated="ab")])))
    assert env.agents == [] and env.agent_selection is None
    with stands_in("reset"):
        env.step({"a": 0})
    env.reset()
    env.step({"a": 0})
    for actions in ({"a": 0}, {}):
        with pytest.raises(EnvError, match=r"(?s)step 1.*step\(\)"):
            env.step(actions)


def test_an_agent_that_leaves_without_a_flag_is_named():
    beats = [Beat("a"), Beat("b"), Beat("a", removes="b")]
    with pytest.raises(EnvError, match=r"(?s)step 2.*'b'.*env\.agents"):
        play(beats)
    with stands_in(r"(?s)'a'.*env.agents"):
        play([Beat("a"), Beat("a", terminated="b", removes="ab")])


def test_an_agent_that_its_dead_turn_does_not_remove_is_named():
    with stands_in(r"(?s)'b'.*step\(None\)"):
        play([Beat("a"), Beat("a", terminated="b")], staying="b")


@pytest.mark.parametrize("selected", [None, "c"])
def test_a_selected_agent_that_is_not_there_is_named(selected):
    with stands_in(rf"(?s)env.agent_selection.*{selected!r}.*env.agents.*\['a', 'b'\]"):
        play([Beat(selected)])
    with pytest.raises(EnvError, match=rf"step 1: env.agent_selection is {selected!r}"):
        play([Beat("a"), Beat(selected)])


def test_a_live_agent_that_observes_nothing_is_named():
    with pytest.raises(EnvError, match=r"(?s)step 1.*'b'"):
        play([Beat("a"), Beat("b")], blind="b")


@pytest.mark.parametrize("env", [ParallelEnv(), gymnasium.Env(), None])
def test_only_aec_environments_are_taken(env):
    with pytest.raises(EnvError, match=f"(?s)PettingZoo.*AECEnv.*{type(env).__name__}"):
        TurnBasedEnv(env)


# Pass-through.


def test_the_rest_of_the_environment_shines_through_its_wrappers():
    inner = ScriptedAEC([Beat("a"), Beat("b")])
    wrapped = OrderEnforcingWrapper(AssertOutOfBoundsWrapper(BaseWrapper(inner)))
    env = TurnBasedEnv(wrapped)
    assert env.unwrapped is inner and env.env is wrapped
    assert env.possible_agents == ["a", "b", "c", "d"] and env.metadata is inner.metadata
    assert env.render_mode == "ansi"
    assert env.action_space("b") == spaces.Discrete(11) and env.observation_space("a") == inner.observation_space("a")
    env.reset(seed=3, options={"x": 1})
    assert (inner.seed, inner.options) == (3, {"x": 1})
    assert env.render() == "t = 0"
    assert told(plain(env.step({"a": 9}))) == {"b": ([1, 1], 0, False, False)}
    env.close()
    assert inner.closed


def test_an_environment_without_possible_agents_or_render_mode_is_taken():
    class Bare(AECEnv):
        pass

    env = TurnBasedEnv(Bare())
    assert getattr(env, "possible_agents", "missing") == "missing" and env.render_mode is None


def test_an_illegal_move_in_tictactoe_ends_the_game_at_the_movers_cost():
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    env = TurnBasedEnv(tictactoe.env())
    observations, _ = env.reset()
    assert observations["player_1"]["action_mask"].tolist() == [1] * 9
    observations, *_ = env.step({"player_1": 4})
    assert observations["player_2"]["action_mask"].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    observations, rewards, terminations, truncations, _ = env.step({"player_2": 4})
    assert rewards == {"player_2": -1, "player_1": 0}
    assert terminations == truncations == {"player_1": True, "player_2": True}
    assert observations["player_1"]["observation"][1, 1].tolist() == [1, 0] and env.agents == []
