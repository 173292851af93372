"""Measures of success of the tasks of the zoo: functions of an environment and an episode, as for ``Success``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

OPPONENT = "random"
"""The id of the module that plays at random in the games of evaluations."""
NEAR = 0.15
"""The largest distance of an agent from a landmark that it covers: the agent's radius."""


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
    paid = episode.get_paid_returns()  # of all players, also of one whose opponent gave up first
    players = [agent_id for agent_id in paid if episode.module_for(agent_id) != OPPONENT]
    if len(players) in (0, len(paid)):
        return None
    return float(sum(paid[agent_id] for agent_id in players) > 0)


def reached_the_line(env: Any, episode: Any) -> float:
    """Returns 1 if the pendulum's end is above the line, one link's length above the axis."""
    first, second, *_ = env.state
    return float(-math.cos(first) - math.cos(first + second) > 1.0)


def battles_won(env: Any, episode: Any) -> float | None:
    """Returns 1 if more soldiers are left of the army that does not play at random than of the other one, else 0.

    None if both or none of the armies play at random, or for a battle that a sample has cut.
    """
    if episode.env_t_started:
        return None
    playing = {agent_id.partition("_")[0] for agent_id in episode.agent_ids if episode.module_for(agent_id) != OPPONENT}
    if len(playing) != 1:
        return None
    red, blue = (env.env.get_num(handle) for handle in env.handles)
    return float(red > blue if playing == {"red"} else blue > red)


def balanced(env: Any, episode: Any) -> float:
    """Returns 1 if the pole still stands at the end, and the cart is on its track."""
    position, _, angle, _ = env.state
    return float(abs(position) <= env.x_threshold and abs(angle) <= env.theta_threshold_radians)


def time_held(env: Any, episode: Any) -> float:
    """Returns the share of the longest possible game for which no zombie got through and somebody was alive."""
    return env.frames / env.max_cycles


def landed(env: Any, episode: Any) -> float:
    """Returns 1 if the lander has come to rest on its legs."""
    return float(not env.lander.awake and not env.game_over)


def wall_reached(env: Any, episode: Any) -> float:
    """Returns 1 if the ball has reached the left wall."""
    return float(env.terminate)


def cues_recalled(env: Any, episode: Any) -> float | None:
    """Returns the share of questions that the agents have answered with their cue, which has the reward 1.

    None for an episode that a sample has cut, because only its end is known here.
    """
    if episode.env_t_started:
        return None
    returns = [agent_episode.get_return() for agent_episode in episode.agent_episodes.values()]
    return float(np.mean(returns)) / env.n_trials


def messages_understood(env: Any, episode: Any) -> float:
    """Returns the share of agents that are closer to their goal than to any other landmark."""
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])

    def is_at_goal(speaker: Any) -> bool:
        listener, goal = speaker.goal_a, speaker.goal_b
        nearest = np.linalg.norm(landmarks - listener.state.p_pos, axis=1).argmin()
        return env.world.landmarks[nearest] is goal

    return float(np.mean([is_at_goal(agent) for agent in env.world.agents]))


def message_understood(env: Any, episode: Any) -> float:
    """Returns 1 if the listener is closer to its goal than to any other landmark."""
    speaker, listener = env.world.agents
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])
    nearest = np.linalg.norm(landmarks - listener.state.p_pos, axis=1).argmin()
    return float(env.world.landmarks[nearest] is speaker.goal_b)


def landmarks_covered(env: Any, episode: Any) -> float:
    """Returns the share of landmarks that an agent covers."""
    agents = np.array([agent.state.p_pos for agent in env.world.agents])
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])
    distances = np.linalg.norm(landmarks[:, None] - agents, axis=-1)
    return float((distances.min(axis=1) <= NEAR).mean())
