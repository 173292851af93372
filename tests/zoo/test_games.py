"""A game counts as won if the agent that does not play at random has a positive return."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marl_connectors.callbacks import Success
from marl_connectors.cli.run_settings import RunSettings
from marl_connectors.zoo.games import games_won


def game(modules, returns, env_t_started=0):
    """A finished episode, or its last chunk."""
    agents = {agent_id: SimpleNamespace(get_return=lambda own=own: own) for agent_id, own in returns.items()}
    return SimpleNamespace(
        agent_ids=set(agents), module_for=modules.get, agent_episodes=agents, env_t_started=env_t_started
    )


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


def test_the_last_chunk_of_a_game_says_nothing():
    modules = {"player_0": "main", "player_1": "random"}
    assert games_won(None, game(modules, {"player_0": 1.0, "player_1": -1.0}, env_t_started=5)) is None


def test_success_is_the_share_of_games_with_a_positive_return():
    settings = RunSettings("marl_envs.last_stone_v0", eval_opponent="random", num_envs=4, num_env_workers=0, hidden=[4])
    algo = settings.build_algorithm()
    assert algo.evaluate(num_episodes=2).get("success") is None  # the zoo does not have this game
    config = algo.config.copy().callbacks(on_episode_end=Success("games won", games_won))
    algo.stop()
    algo = config.build_algo()
    results = algo.evaluate(num_episodes=40, seed=1)
    assert "success" not in algo.train()["env_runners"]
    algo.stop()
    returns = results["module_episode_returns"]["default_policy"]  # 1 for a won game, else -1
    assert returns["num_episodes"] == results["module_episode_returns"]["random"]["num_episodes"] == 40
    assert results["success"] == pytest.approx((returns["mean"] + 1) / 2)
    assert 0 < results["success"] < 1
