"""Taking stones in turns: whose turn it is, who is out, who is paid what, and what good play is."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import api_test, seed_test

from helpers.examples import examples
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_envs import last_stone_v0


def started(**arguments):
    env = last_stone_v0.raw_env(random_start=False, **arguments)
    env.reset(seed=0)
    return env


def play(env, choose):
    """The payments of one game; ``choose(env, observation)`` names the moves."""
    paid = dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        paid[agent] += reward
        env.step(None if terminated or truncated else choose(env, observation))
    return paid


def at_random(rng):
    return lambda env, observation: int(rng.choice(np.flatnonzero(observation["action_mask"])))


def best(env, observation):
    return env.unwrapped.best_moves()[0]


# PettingZoo takes all observations but Boxes for a possible mistake; so does it with those of its own classic games.
@pytest.mark.filterwarnings("ignore:Observation space for each agent probably should be:UserWarning")
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array:UserWarning")
@pytest.mark.parametrize("make", [last_stone_v0.env, last_stone_v0.raw_env])
@pytest.mark.parametrize("n_players", [2, 3, 5])
def test_keeps_pettingzoos_contract(make, n_players):
    state = random.getstate()  # the test draws from Python's global generator
    api_test(make(n_players=n_players), num_cycles=100)
    seed_test(lambda: make(n_players=n_players), num_cycles=50)
    random.setstate(state)


def test_stones_are_taken_in_turns_and_whoever_takes_the_last_one_loses():
    env = started(stones=5)
    moves = []
    for action in (2, 0, 0):  # takes 3, 1, 1
        moves.append((env.agent_selection, env.stones_left))
        env.step(action)
    assert moves == [("player_0", 5), ("player_1", 2), ("player_0", 1)]
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}
    assert env.terminations == {"player_0": True, "player_1": True}
    assert not any(env.truncations.values())


def test_with_three_players_the_loser_goes_and_the_pile_is_filled_again():
    env = started(n_players=3, stones=2, max_take=2)
    env.step(1)  # player_0 takes both
    assert env.rewards == {"player_0": -1.0, "player_1": 0.0, "player_2": 0.0}
    assert env.terminations == {"player_0": True, "player_1": False, "player_2": False}
    assert (env.agent_selection, env.stones_left) == ("player_0", 2)
    env.step(None)
    assert env.agents == ["player_1", "player_2"] and env.agent_selection == "player_1"
    env.step(0)
    env.step(0)  # player_2 has to take the last one
    assert env.rewards == {"player_1": 1.0, "player_2": 0.0}  # the second of three that is out is paid 0
    assert env.terminations == {"player_1": True, "player_2": True}
    env.step(None)
    env.step(None)
    assert env.agents == []


def test_an_observation_counts_players_from_the_observer():
    env = started(n_players=3, stones=4, max_take=4)
    env.step(0)
    left = [0.0, 0.0, 1.0, 0.0]  # three stones
    assert env.observe("player_1")["observation"].tolist() == [*left, 1.0, 1.0, 1.0]
    assert env.observe("player_1")["action_mask"].tolist() == [1, 1, 1, 0]
    assert env.observe("player_2")["action_mask"].tolist() == [0, 0, 0, 0]
    env.step(2)  # player_1 is out
    full = [0.0, 0.0, 0.0, 1.0]
    assert env.observe("player_0")["observation"].tolist() == [*full, 1.0, 0.0, 1.0]
    assert env.observe("player_1")["observation"].tolist() == [*full, 0.0, 1.0, 1.0]
    assert env.observe("player_2")["observation"].tolist() == [*full, 1.0, 1.0, 0.0]
    assert env.observe("player_2")["action_mask"].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(env.state(), env.observe("player_2")["observation"])


def test_after_the_end_the_pile_is_empty_and_nothing_may_be_done():
    env = started(stones=1)
    env.step(0)
    observation = env.observe("player_1")
    assert observation["observation"].tolist() == [0.0, 1.0, 0.0]
    assert observation["action_mask"].tolist() == [0, 0, 0]
    assert env.best_moves() == []


def test_two_players_lose_at_one_stone_and_every_max_take_plus_one_more():
    # Misère Nim with one pile, known since Bouton (1901).
    lost = [stones for stones in range(1, 25) if started(stones=stones, max_take=3).optimal_returns[0] < 0]
    assert lost == [1, 5, 9, 13, 17, 21]
    lost = [stones for stones in range(1, 12) if started(stones=stones, max_take=2).optimal_returns[0] < 0]
    assert lost == [1, 4, 7, 10]


@pytest.mark.parametrize(("stones", "moves"), [(2, [0]), (3, [1]), (4, [2]), (5, [0, 1, 2]), (8, [2]), (1, [0])])
def test_the_best_move_leaves_the_other_at_a_lost_number(stones, moves):
    assert started(stones=stones).best_moves() == moves


def test_three_players_with_two_stones_by_hand():
    # Who begins takes one, the next has to take the last one and is out (-1). Then the third begins, takes one of two,
    # and the first takes the last one (0).
    env = started(n_players=3, stones=2, max_take=1)
    assert env.optimal_returns == (0.0, -1.0, 1.0)
    assert env.random_returns == env.optimal_returns  # there is no choice
    assert play(env, best) == {"player_0": 0.0, "player_1": -1.0, "player_2": 1.0}


def test_random_returns_by_hand():
    # Two stones, up to two at once: who begins takes both and loses, or takes one and wins.
    assert started(stones=2, max_take=2).random_returns == (0.0, 0.0)
    # Three stones: takes 1 (then 2 are left: value 0), 2 (then the other loses: +1).
    assert started(stones=3, max_take=2).random_returns == (0.5, -0.5)


def slow_values(left, pile, stones, max_take, n_players):
    """All lines of play, without a table: what each player that is in gets if all play their best."""
    if left == 1:
        return [1.0]
    lines = []
    for take in range(1, min(pile, max_take) + 1):
        if take == pile:
            lines.append(
                [1 - 2 * (left - 1) / (n_players - 1), *slow_values(left - 1, stones, stones, max_take, n_players)]
            )
        else:
            later = slow_values(left, pile - take, stones, max_take, n_players)
            lines.append(later[-1:] + later[:-1])
    top = max(line[0] for line in lines)
    return next(line for line in lines if line[0] == top)


@examples(25)
@given(st.integers(2, 3), st.integers(1, 5), st.integers(1, 3))
def test_optimal_returns_are_those_of_a_search_through_all_lines(n_players, stones, max_take):
    env = started(n_players=n_players, stones=stones, max_take=max_take)
    assert list(env.optimal_returns) == slow_values(n_players, stones, stones, max_take, n_players)
    paid = play(env, lambda env, _: min(env.best_moves()))
    assert tuple(paid.values()) == env.optimal_returns


def test_nobody_beats_best_moves_from_a_won_position():
    rng = np.random.default_rng(0)
    chance = at_random(rng)
    for game in range(30):
        env = last_stone_v0.raw_env()
        env.reset(seed=game)
        first = env.agent_selection  # 10 is no lost number
        paid = play(env, lambda env, o, first=first: best(env, o) if env.agent_selection == first else chance(env, o))
        assert paid[first] == 1.0


def test_random_returns_are_the_mean_of_random_games():
    env = started(n_players=3, stones=4, max_take=2)
    rng = np.random.default_rng(1)
    games = []
    for _ in range(400):
        env.reset()
        games.append(list(play(env, at_random(rng)).values()))
    # A payment has a standard deviation below 0.9, so the mean of 400 one below 0.045.
    np.testing.assert_allclose(np.mean(games, axis=0), env.random_returns, atol=4 * 0.045)


@examples(40)
@given(st.integers(2, 5), st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**31))
def test_payments_sum_to_zero_and_are_all_different(n_players, stones, max_take, seed):
    env = last_stone_v0.env(n_players=n_players, stones=stones, max_take=max_take)
    env.reset(seed=seed)
    paid = play(env, at_random(np.random.default_rng(seed)))
    np.testing.assert_allclose(sorted(paid.values()), np.linspace(-1.0, 1.0, n_players), atol=1e-12)


def test_the_seed_draws_who_begins():
    env = last_stone_v0.raw_env(n_players=3)
    first = []
    for seed in range(30):
        env.reset(seed=seed)
        first.append(env.agent_selection)
    env.reset(seed=0)
    assert set(first) == {"player_0", "player_1", "player_2"} and env.agent_selection == first[0]


def test_a_game_runs_turn_by_turn_with_its_masks_and_late_payments():
    env = TurnBasedEnv(last_stone_v0.env(n_players=3, stones=2, max_take=2, random_start=False))
    observations, _ = env.reset(seed=0)
    assert list(observations) == ["player_0"]
    observations, rewards, terminations, _, _ = env.step({"player_0": 1})
    assert rewards == {"player_0": -1.0, "player_1": 0.0}
    assert terminations == {"player_0": True, "player_1": False}
    assert observations["player_0"]["action_mask"].tolist() == [0, 0]
    env.step({"player_1": 0})
    observations, rewards, terminations, _, _ = env.step({"player_2": 0})
    assert rewards == {"player_1": 1.0, "player_2": 0.0}
    assert terminations == {"player_1": True, "player_2": True} and env.agents == []


@pytest.mark.parametrize("action", [2, 3, -1, None])
def test_a_move_against_the_rules_is_refused(action):
    env = started(stones=2)
    with pytest.raises(ValueError, match=r"(?s)^last_stone_v0.*'player_0'.*\[0, 1\].*\b2\b"):
        env.step(action)


def test_a_step_outside_a_game_is_refused():
    env = last_stone_v0.raw_env(stones=1)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(0)
    env.reset(seed=0)
    for action in (0, None, None):
        env.step(action)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step(0)


def test_a_long_game_is_solved_without_deep_recursion():
    assert started(n_players=4, stones=600, max_take=5).optimal_returns in set(
        itertools.permutations([-1.0, 1 - 2 * 2 / 3, 1 - 2 / 3, 1.0])
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_players": 1}, r"n_players.*\b2\b.*\b1\b"),
        ({"stones": 0}, r"\bstones\b.*\b1\b.*\b0\b"),
        ({"max_take": 1.5}, r"max_take.*\b1\b.*1.5"),
        ({"render_mode": "human"}, r"render_mode.*'rgb_array'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=rf"^last_stone_v0: .*{message}"):
        last_stone_v0.env(**arguments)
