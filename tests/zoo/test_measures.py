"""Measures of success of the tasks, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.runs.command_runs import built
from marl_connectors import MultiAgentEpisode
from marl_connectors.callbacks import Success
from marl_connectors.zoo.measures import (
    cues_recalled,
    games_won,
    landmarks_covered,
    message_understood,
    messages_understood,
)


def game(modules, returns, env_t_started=0, acting=("player_0", "player_1")):
    """A finished episode, or its last chunk, in which these players have acted and the others never had a turn."""
    episode = MultiAgentEpisode(
        agent_to_module_mapping_fn=lambda agent_id, episode: modules[agent_id], env_t_started=env_t_started
    )
    observed = dict.fromkeys(acting, 0)
    episode.add_env_reset(observations=observed)
    episode.add_env_step(observed, dict.fromkeys(acting, 1), returns, terminateds={"__all__": True})
    return episode


@pytest.mark.parametrize(
    ("first", "second", "returns", "expected"),
    [
        ("main", "random", (1.0, -1.0), 1.0),
        ("main", "random", (-1.0, 1.0), 0.0),
        ("random", "main", (-1.0, 1.0), 1.0),
        ("random", "main", (0.0, 0.0), 0.0),  # a draw is not won
        ("main", "main", (1.0, -1.0), None),
        ("random", "random", (1.0, -1.0), None),
    ],
)
def test_the_agent_that_is_not_random_has_to_win(first, second, returns, expected):
    modules = {"player_0": first, "player_1": second}
    assert games_won(None, game(modules, dict(zip(modules, returns, strict=True)))) == expected


@pytest.mark.parametrize(("first", "second", "expected"), [("main", "random", 0.0), ("random", "main", 1.0)])
def test_a_game_that_the_first_player_gives_up_before_the_second_has_a_turn_counts(first, second, expected):
    modules = {"player_0": first, "player_1": second}
    given_up = game(modules, {"player_0": -0.5, "player_1": 0.5}, acting=("player_0",))
    assert games_won(None, given_up) == expected


def test_the_last_chunk_of_a_game_says_nothing():
    modules = {"player_0": "main", "player_1": "random"}
    assert games_won(None, game(modules, {"player_0": 1.0, "player_1": -1.0}, env_t_started=5)) is None


@pytest.mark.slow
def test_success_is_the_share_of_games_with_a_positive_return():
    words = ["--eval-opponent", "random", "--num-envs", "4", "--num-env-workers", "0", "--hidden", "4"]
    algo = built("marl_envs.last_stone_v0", *words)
    assert algo.evaluate(num_episodes=2)["env_runners"].get("success") is None  # the zoo does not have this game
    config = algo.config.copy().callbacks(on_episode_end=Success("games won", games_won))
    algo.stop()
    algo = config.build_algo()
    results = algo.evaluate(num_episodes=40, seed=1)["env_runners"]
    assert "success" not in algo.train()["env_runners"]
    algo.stop()
    returns = results["module_episode_returns"]["default_policy"]  # 1 for a won game, else -1
    assert returns["num_episodes"] == results["module_episode_returns"]["random"]["num_episodes"] == 40
    assert results["success"] == pytest.approx((returns["mean"] + 1) / 2)
    assert 0 < results["success"] < 1


@pytest.mark.parametrize(
    ("returns", "env_t_started", "expected"),
    [((2.0, 2.0), 0, 1.0), ((2.0, 1.0), 0, 0.75), ((0.0, 0.0), 0, 0.0), ((2.0, 2.0), 3, None)],
)
def test_the_share_is_the_mean_return_of_a_trial(returns, env_t_started, expected):
    agents = {f"agent_{index}": SimpleNamespace(get_return=lambda own=own: own) for index, own in enumerate(returns)}
    episode = SimpleNamespace(agent_episodes=agents, env_t_started=env_t_started)
    assert cues_recalled(SimpleNamespace(n_trials=2), episode) == expected


def thing(position):
    return SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position)))


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (((0.1, 0.0), (0.9, 0.0)), 1.0),  # the goal of agent_0 is landmark 0, that of agent_1 is landmark 1
        (((0.9, 0.0), (0.9, 0.0)), 0.5),
        (((0.9, 0.0), (0.1, 0.9)), 0.0),
    ],
)
def test_the_share_counts_both_agents(positions, expected):
    landmarks = [thing((0.0, 0.0)), thing((1.0, 0.0)), thing((0.0, 1.0))]
    agents = [thing(position) for position in positions]
    for speaker, listener, goal in ((0, 1, 1), (1, 0, 0)):
        agents[speaker].goal_a, agents[speaker].goal_b = agents[listener], landmarks[goal]
    env = SimpleNamespace(world=SimpleNamespace(agents=agents, landmarks=landmarks))
    assert messages_understood(env, None) == expected


@pytest.mark.parametrize(("listener", "expected"), [((0.9, 0.1), 1.0), ((0.1, 0.0), 0.0), ((0.2, 0.9), 0.0)])
def test_the_goal_is_the_nearest_landmark(listener, expected):
    def thing(position):
        return SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position)), goal_b=None)

    landmarks = [thing((0.0, 0.0)), thing((1.0, 0.0)), thing((0.0, 1.0))]
    agents = [thing((0.0, 0.0)), thing(listener)]
    agents[0].goal_b = landmarks[1]
    world = SimpleNamespace(agents=agents, landmarks=landmarks)
    assert message_understood(SimpleNamespace(world=world), None) == expected


def world(agents, landmarks):
    def things(positions):
        return [SimpleNamespace(state=SimpleNamespace(p_pos=np.array(position))) for position in positions]

    return SimpleNamespace(world=SimpleNamespace(agents=things(agents), landmarks=things(landmarks)))


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], 1.0),
        ([(0.0, 0.14), (1.1, 0.1), (0.0, 1.16)], 2 / 3),
        ([(0.0, 0.0), (0.0, 0.1), (0.1, 0.0)], 1 / 3),  # three agents at one landmark
        ([(0.5, 0.5), (0.5, 0.5), (0.5, 0.5)], 0.0),
    ],
)
def test_a_landmark_is_covered_by_an_agent_within_its_radius(agents, expected):
    assert landmarks_covered(world(agents, [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]), None) == pytest.approx(expected)


def test_one_agent_can_cover_two_landmarks():
    assert landmarks_covered(world([(0.0, 0.0)], [(0.1, 0.0), (-0.1, 0.0)]), None) == 1.0
