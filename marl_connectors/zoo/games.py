"""The success of games: how often an agent wins against an opponent."""

from __future__ import annotations

from typing import Any

OPPONENT = "random"
"""The id of the module that plays at random in the games of evaluations."""


def games_won(env: Any, episode: Any) -> float | None:
    """Returns 1 if the agents that do not play at random have won, which is a positive return, else 0.

    Args:
        env: The environment.
        episode: The MultiAgentEpisode.

    Returns:
        None if no agent plays at random, or if all do: such a game does not say how good a policy is. None also for a
        game that a sample has cut, because only its end is known here.
    """
    if episode.env_t_started:
        return None
    players = [agent_id for agent_id in episode.agent_ids if episode.module_for(agent_id) != OPPONENT]
    if len(players) in (0, len(episode.agent_ids)):
        return None
    return float(sum(episode.agent_episodes[agent_id].get_return() for agent_id in players) > 0)
