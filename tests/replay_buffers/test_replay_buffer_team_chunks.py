"""Chunks of episodes, cut anywhere, become the env steps of whole episodes."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.cut_games import BOX, POOL, played
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, MultiAgentEpisode
from marl_connectors.replay_buffers.replay_buffer import (
    JointReplayBuffer,
    PrioritizedJointReplayBuffer,
    PrioritizedTeamReplayBuffer,
    TeamReplayBuffer,
)
from marl_connectors.replay_buffers.ring import ACTED, AGENT_FLAGS, ALIVE, TERMINATED, TRUNCATED

TEAM = {"x": ["a"], "y": ["b", "c"]}


def game(name, number, agents=POOL):
    """An episode that has begun, in which all agents have seen 0."""
    episode = MultiAgentEpisode(
        name,
        observation_space=dict.fromkeys(POOL, BOX),
        action_space=dict.fromkeys(POOL, spaces.Discrete(9)),
        agent_to_module_mapping_fn=lambda agent, episode: "x" if agent == "a" else "y",
    )
    episode.add_env_reset(observations=seen(number, agents, 0))
    return episode


def seen(number, agents, t):
    return {a: np.array([number, POOL.index(a), t], np.float32) for a in agents}


def plain_game():
    """One in which everybody acts, so that the columns of all modules are known."""
    episode = game("first", 99)
    episode.add_env_step(
        seen(99, POOL, 1), dict.fromkeys(POOL, 1), dict.fromkeys(POOL, 1.0), terminateds={"__all__": True}
    )
    return episode


def expected_of(wholes):
    """(game, agent, env step) to flags, action and reward, read from whole episodes step by step."""
    found = {}
    for whole in wholes:
        for own in whole.all_agent_episodes():
            times = [int(t) for t in own.storage.column(Columns.T)]
            number = int(own.get_observations(0)[0])
            for i in range(len(own)):
                flags = ACTED | ALIVE
                if i == len(own) - 1:
                    flags |= TERMINATED * own.is_terminated | TRUNCATED * own.is_truncated
                found[number, own.agent_id, times[i]] = flags, own.get_actions(i), own.get_rewards(i)
            is_stopped = whole.is_done and own.is_truncated and not own.is_terminated and times[-1] == whole.env_t
            if not own.is_done or is_stopped:
                found[number, own.agent_id, times[-1]] = ALIVE, None, None
    return found


def kept_in(buffer):
    """The same of a buffer."""
    ring, found = buffer._rings["all agents"], {}
    for module_id, agents in TEAM.items():
        flags, observations = ring.columns[AGENT_FLAGS][module_id], ring.columns[Columns.OBS][module_id]
        actions, rewards = ring.columns[Columns.ACTIONS][module_id], ring.columns[Columns.REWARDS][module_id]
        for at, slot in zip(*np.nonzero(flags), strict=True):
            acted = flags[at, slot] & ACTED
            step = (actions[at, slot], rewards[at, slot]) if acted else (None, None)
            key = int(observations[at, slot][0]), agents[slot], int(ring.columns[Columns.T][at])
            found[key] = int(flags[at, slot]), *step
    return found


@pytest.mark.few(11)
@pytest.mark.parametrize(
    "cls", [TeamReplayBuffer, JointReplayBuffer, PrioritizedTeamReplayBuffer, PrioritizedJointReplayBuffer]
)
@pytest.mark.parametrize("seed", [*range(10), *fresh_seeds(100)])
def test_chunks_cut_anywhere_become_the_env_steps_of_whole_episodes(cls, seed):
    rng = np.random.default_rng([seed, 1])
    wholes = [played(seed, number)[0] for number in range(6)]
    buffer = cls(capacity=3000, agents=TEAM)
    buffer.add([plain_game()])
    chunks = [played(seed, number, cut=0.4) for number in range(6)]
    while any(chunks):  # each episode's in their order, several at once, also of one episode
        buffer.add([own.pop(0) for own in chunks for _ in range(rng.integers(3)) if own])
    assert kept_in(buffer) == expected_of([plain_game(), *wholes])
    assert len(buffer) == 1 + sum(map(len, wholes))
    going_on = {whole.id_ for whole in wholes if not whole.is_done}
    assert {e.episode_id for e in buffer._rings["all agents"]._open.values()} <= going_on
    assert buffer._rings["all agents"]._ended.keys() <= going_on


def test_an_agent_whose_end_comes_in_a_later_chunk_without_a_step_of_it_has_ended_with_its_last_step():
    first = game("g", 0)
    first.add_env_step(seen(0, "abc", 1), dict.fromkeys("abc", 2), dict.fromkeys("abc", 1.0))
    second = first.cut()
    second.add_env_step(seen(0, "a", 2), {"a": 3}, {"a": 1.0}, terminateds={"b": True}, truncateds={"c": True})
    buffer = TeamReplayBuffer(100, agents=TEAM)
    for chunk in (first, second):
        buffer.add([chunk])
    acted = ACTED | ALIVE
    assert {key[1:]: step[0] for key, step in kept_in(buffer).items()} == {
        ("a", 0): acted,
        ("a", 1): acted,
        ("a", 2): ALIVE,
        ("b", 0): acted | TERMINATED,
        ("c", 0): acted | TRUNCATED,
    }


def test_an_agent_that_waits_since_a_chunk_that_never_came_changes_no_rows_of_other_episodes():
    first, second = game("first", 0, "ab"), game("second", 1, "ab")
    for t in range(1, 9):
        first.add_env_step(seen(0, "ab", t), {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, terminateds={"__all__": t == 8})
        waits = t < 5
        second.add_env_step(
            seen(1, "a" if waits else "ab", t),
            {"a": 2, "b": 2} if t in (1, 6, 7, 8) else {"a": 2},
            {"a": 2.0, "b": 2.0},
        )
    buffer = TeamReplayBuffer(12, agents=TEAM)
    buffer.add([first])
    before = kept_in(buffer)
    buffer.add([second[3:6]])
    found = kept_in(buffer)
    assert buffer._rings["all agents"].num_lanes == 1
    assert {k: v for k, v in found.items() if k[0] == 0} == {k: v for k, v in before.items() if k in found}
    assert len([k for k in found if k[0] == 0]) >= 2 * 7
    assert {k[1:] for k in found if k[0] == 1} == {("a", 3), ("a", 4), ("a", 5), ("a", 6), ("b", 5), ("b", 6)}
