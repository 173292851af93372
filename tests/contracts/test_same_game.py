"""One game gives the same transitions, whether it is played through PettingZoo's parallel or through its AEC interface.

The parallel game is added to an episode as it comes, the turn-based one through ``TurnBasedEnv``. The third account is
PettingZoo's own loop over ``agent_iter()`` and ``last()``, which says what an AEC environment means.
"""

from __future__ import annotations

import copy
import zlib
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode

# The three accounts: agent to its lives, a life being (observation, action, reward, next observation, terminated,
# truncated) for each step; and the rewards that no action can have earned.


class Choice:
    """Picks actions: an agent's n-th is the same in every account, whoever else acts before or after."""

    def __init__(self, env):
        self.env, self.counts = env, defaultdict(int)

    def __call__(self, agent, observation):
        self.counts[agent] += 1
        space = self.env.action_space(agent)
        space.seed(zlib.crc32(f"{agent}/{self.counts[agent]}".encode()))
        return int(space.sample(observation["action_mask"])) if isinstance(observation, dict) else space.sample()


def by_episode(env, seed=0):
    """Plays a game with dicts, a parallel one or one of turns, into an episode."""
    choose, episode = Choice(env), MultiAgentEpisode()
    observations, infos = env.reset(seed=seed)
    episode.add_env_reset(observations=observations, infos=infos)
    while env.agents:
        actions = {a: choose(a, observations[a]) for a in env.agents if a in episode.get_agents_to_act()}
        observations, rewards, terminations, truncations, infos = env.step(actions)
        episode.add_env_step(observations, actions, rewards, infos, terminateds=terminations, truncateds=truncations)
    lives = defaultdict(list)
    for one in (*episode.past_agent_episodes, *episode.agent_episodes.values()):
        seen, steps = one.get_observations(), range(len(one))
        ends = [(one.is_terminated, one.is_truncated) if i == len(one) - 1 else (False, False) for i in steps]
        row = [(seen[i], one.get_actions(i), one.get_rewards(i), seen[i + 1], *ends[i]) for i in steps]
        lives[one.agent_id].append([plain(transition) for transition in row])
    assert episode.is_done and all(one.is_done for one in episode.all_agent_episodes())
    return with_steps(lives), episode.uncredited_reward


def by_hand(env, seed=0):
    """Plays a game as PettingZoo's documentation does."""
    choose, lives, waiting, uncredited = Choice(env), defaultdict(list), {}, 0.0
    env.reset(seed=seed)
    for agent in env.agent_iter():
        seen, reward, terminated, truncated, _ = env.last()
        observation = plain(seen)
        if agent in waiting:
            lives[agent][-1].append(
                [*waiting.pop(agent), float(reward), observation, bool(terminated), bool(truncated)]
            )
        else:
            past = [transition for life in lives[agent] for transition in life]
            if past:
                past[-1][2] += float(reward)
            else:
                uncredited += float(reward)
            lives[agent].append([])
        action = None if terminated or truncated else choose(agent, seen)
        if action is not None:
            waiting[agent] = [observation, plain(action)]
        env.step(action)
    return with_steps(lives), uncredited


def with_steps(lives):
    """Without the lives that ended before the agent acted."""
    return {agent: kept for agent, agent_lives in lives.items() if (kept := [life for life in agent_lives if life])}


def plain(item):
    """A copy in lists and Python's own numbers."""
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (tuple, list)):
        return [plain(value) for value in item]
    return item.tolist() if isinstance(item, (np.ndarray, np.generic)) else copy.copy(item)


def lengths(lives):
    return {agent: [len(life) for life in agent_lives] for agent, agent_lives in lives.items()}


def total(lives):
    return sum(transition[2] for agent_lives in lives.values() for life in agent_lives for transition in life)


# Simultaneous games of our own.


class Meadow(ParallelEnv):
    """Who ends and joins when is given. What agents see and earn depends on all that was done.

    Actions of agents that are gone are passed over, because ``parallel_to_aec`` goes on sending the last action of
    those that ended without an observation.

    Args:
        ends: Step to agent to "terminated", "truncated" or "both". The agents that are left are truncated in step 8.
        joins: Step to agents; they are paid for it.
        agents: Who starts.
        last_look: Whether agents that end observe once more.
    """

    metadata = {"name": "meadow", "render_modes": []}
    render_mode = None

    def __init__(self, ends=None, joins=None, agents="abc", *, last_look=True):
        self.ends, self.joins, self.first_agents, self.last_look = ends or {}, joins or {}, list(agents), last_look
        self.possible_agents = list("abcd")
        self.buffers = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}

    def observation_space(self, agent):
        return spaces.Box(0, 2000, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(7)

    def observe(self, agent):
        """The same array each time."""
        self.buffers[agent][:] = "abcd".index(agent), self.t, self.state
        return self.buffers[agent]

    def reset(self, seed=None, options=None):
        self.t, self.state, self.agents = 0, 1 + (seed or 0), list(self.first_agents)
        return {agent: self.observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        acting, numbers = self.agents, {agent: int(actions[agent]) for agent in self.agents}
        self.t += 1
        self.state = (31 * self.state + sum(self._weight(a) * n for a, n in numbers.items())) % 1009
        ends = {a: how for a, how in self.ends.get(self.t, {}).items() if a in acting}
        if self.t == 8:
            ends = {**dict.fromkeys(acting, "truncated"), **ends}
        self.agents = [a for a in acting if a not in ends] + list(self.joins.get(self.t, ""))
        told = list(dict.fromkeys([*acting, *self.agents]))
        rewards = {a: (numbers[a] + self.state) / 8 if a in acting else self._weight(a) / 4 for a in told}
        terminations = {a: ends.get(a) in ("terminated", "both") for a in told}
        truncations = {a: ends.get(a) in ("truncated", "both") for a in told}
        observing = told if self.last_look else self.agents
        observations = {a: self.observe(a) for a in observing}
        return observations, rewards, terminations, truncations, {a: {"t": self.t} for a in told}

    def _weight(self, agent):
        return 1 + "abcd".index(agent)


class Market(AECEnv):
    """A meadow that takes the actions one by one, by the book: rewards accumulate, those that ended have a turn.

    Args:
        clears: Remove all agents with the last action instead of giving them a last turn.
    """

    metadata = {"name": "market", "render_modes": [], "is_parallelizable": True}
    render_mode = None

    def __init__(self, meadow, *, clears=False):
        super().__init__()
        self.meadow, self.clears = meadow, clears
        self.possible_agents = meadow.possible_agents
        self.observation_space, self.action_space = meadow.observation_space, meadow.action_space
        self.observe = meadow.observe

    def reset(self, seed=None, options=None):
        _, self.infos = self.meadow.reset(seed=seed)
        self.agents = list(self.meadow.agents)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.agent_selection, self._skip_agent_selection, self.actions = self.agents[0], None, {}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0
        self.actions[agent] = action
        if len(self.actions) < len(self.agents):
            self.agent_selection = self.agents[len(self.actions)]
            return
        _, self.rewards, self.terminations, self.truncations, self.infos = self.meadow.step(self.actions)
        self.actions = {}
        self.agents = list(self.rewards)
        self._cumulative_rewards = {agent: self._cumulative_rewards.get(agent, 0) for agent in self.agents}
        self._accumulate_rewards()
        self.agent_selection = next(iter(self.meadow.agents), agent)
        if self.clears and not self.meadow.agents:
            self.agents = []
        self._deads_step_first()


CASES = {
    "nobody ends before the time limit": {},
    "one agent": {"agents": "a", "ends": {3: {"a": "terminated"}}},
    "agents that die one by one": {"ends": {2: {"b": "terminated"}, 4: {"a": "terminated"}, 5: {"c": "terminated"}}},
    "agents that die together": {"ends": {3: dict.fromkeys("abc", "terminated")}},
    "two die, one is truncated": {"ends": {1: {"a": "terminated", "b": "truncated", "c": "terminated"}}},
    "both flags": {"ends": {2: {"a": "both"}, 3: {"b": "both", "c": "both"}}},
    "a joiner that outlives the others": {"joins": {2: "d"}, "ends": {5: dict.fromkeys("abc", "terminated")}},
    "a joiner that dies at once": {"joins": {2: "d"}, "ends": {3: {"d": "terminated"}}},
    "a joiner in the step in which another dies": {"joins": {3: "d"}, "ends": {3: {"a": "terminated"}}, "agents": "ab"},
    "an agent that comes back": {"ends": {2: {"a": "terminated"}, 6: {"a": "truncated"}}, "joins": {4: "a"}},
}


@pytest.mark.parametrize("last_look", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_parallel_game_is_the_same_by_turns(case, last_look):
    parallel = by_episode(Meadow(**CASES[case], last_look=last_look))
    assert by_episode(TurnBasedEnv(parallel_to_aec(Meadow(**CASES[case], last_look=last_look)))) == parallel
    # parallel_to_aec gives a last turn to those that are in the last observations. Without one, the loop over
    # agent_iter() hears nothing of an agent's end, nor of its last reward; both are in the environment's own dicts.
    if last_look:
        assert by_hand(parallel_to_aec(Meadow(**CASES[case]))) == parallel


@pytest.mark.parametrize("case", CASES)
def test_a_simultaneous_game_of_turns_is_the_same_in_parallel(case):
    turns = by_episode(TurnBasedEnv(Market(Meadow(**CASES[case]))))
    assert by_episode(aec_to_parallel(Market(Meadow(**CASES[case])))) == turns
    assert by_hand(Market(Meadow(**CASES[case]))) == turns
    # Not so aec_to_parallel: it asks those in env.agents for what they see and earn, which are none then.
    assert by_episode(TurnBasedEnv(Market(Meadow(**CASES[case]), clears=True))) == turns


def test_the_accounts_hold_what_was_played():
    lives, uncredited = by_episode(TurnBasedEnv(parallel_to_aec(Meadow(**CASES["an agent that comes back"]))))
    assert lengths(lives) == {"a": [2, 2], "b": [8], "c": [8]}
    assert [life[-1][4:] for life in lives["a"]] == [[True, False], [False, True]]
    assert [transition[0][1] for transition in lives["a"][1]] == [4, 5] and lives["a"][1][-1][3][1] == 6
    assert uncredited == 0
    _, uncredited = by_episode(Meadow(**CASES["a joiner that dies at once"]))
    assert uncredited == 4 / 4  # for joining, before it did anything


# Games of others.

SPEAKER = next((m for v in ("v4", "v3") if find_spec(m := f"mpe2.simple_speaker_listener_{v}")), "mpe2")
SIMULTANEOUS = [
    (SPEAKER, {"max_cycles": 9}),
    ("mpe2.simple_spread_v3", {"max_cycles": 9}),
    ("mpe2.simple_tag_v3", {"max_cycles": 50}),
    ("pettingzoo.classic.rps_v2", {"max_cycles": 9}),
    ("pettingzoo.sisl.multiwalker_v9", {"max_cycles": 9}),
]
# They call themselves parallelizable, but an agent sees what others did in the same round before its turn, and is paid
# for it; in parallel it sees the round's beginning.
ONE_AFTER_ANOTHER = [
    ("pettingzoo.sisl.pursuit_v5", {"max_cycles": 9}),
    ("pettingzoo.butterfly.knights_archers_zombies_v11", {"spawn_delay": 1, "max_zombies": 40, "max_cycles": 130}),
]


def module_or_skip(name):
    try:
        return import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.mark.parametrize(("name", "settings"), SIMULTANEOUS)
def test_a_simultaneous_game_of_others_is_the_same_by_turns_and_in_parallel(name, settings):
    module = module_or_skip(name)
    turns = by_episode(TurnBasedEnv(module.env(**settings)))
    assert by_hand(module.env(**settings)) == turns
    assert by_episode(module.parallel_env(**settings)) == turns
    assert any(transition[2] for agent_lives in turns[0].values() for life in agent_lives for transition in life)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), ONE_AFTER_ANOTHER)
def test_a_game_of_others_that_is_not_quite_simultaneous_is_the_same_as_by_hand(name, settings):
    module = module_or_skip(name)
    turns, parallel = by_episode(TurnBasedEnv(module.env(**settings))), by_episode(module.parallel_env(**settings))
    assert by_hand(module.env(**settings)) == turns
    assert lengths(turns[0]) == lengths(parallel[0])
    assert total(turns[0]) + turns[1] == pytest.approx(total(parallel[0]) + parallel[1])


@pytest.mark.parametrize("maker", ["env", "raw_env"])
@pytest.mark.parametrize("name", ["pettingzoo.classic.tictactoe_v3", "pettingzoo.classic.connect_four_v3"])
def test_a_board_game_is_the_same_as_by_hand(name, maker):
    make = getattr(module_or_skip(name), maker)
    turns = by_episode(TurnBasedEnv(make()))
    assert by_hand(make()) == turns
    lives, uncredited = turns
    assert sorted(agent_lives[-1][-1][2] for agent_lives in lives.values()) == [-1, 1]
    assert (total(lives), uncredited) == (0, 0)


# Games of turns in any order.


class Bazaar(AECEnv):
    """Turns, payments, ends, joins and returns as a generator has it. It keeps account of what it pays.

    Observations ``[agent, t]`` are all in one array.
    """

    metadata = {"name": "bazaar", "render_modes": []}

    def __init__(self, *, clears=False):
        super().__init__()
        self.possible_agents, self.clears = list("abcd"), clears
        self.buffer = np.zeros(2)

    def action_space(self, agent):
        return spaces.Discrete(5)

    def observe(self, agent):
        self.buffer[:] = "abcd".index(agent), self.t
        return self.buffer

    def reset(self, seed=None, options=None):
        self.rng, self.t, self.paid = np.random.default_rng(seed), 0, 0.0
        self.agents, self._skip_agent_selection = [], None
        self.rewards, self._cumulative_rewards, self.infos = {}, {}, {}
        self.terminations, self.truncations = {}, {}
        for agent in "abc":
            self._add(agent)
        self.agent_selection = "b"

    def _add(self, agent):
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        self.t += 1
        for one in self.agents:
            ending, how = self.rng.random(2)
            self.terminations[one] = ending < 0.1 and how < 0.7
            self.truncations[one] = self.t == 25 or (ending < 0.1 and how > 0.4)
        for absent in [a for a in self.possible_agents if a not in self.agents]:
            if self.t < 25 and self.rng.random() < 0.2:
                self._add(absent)
        for one in self.agents:
            self.rewards[one] = int(self.rng.integers(-3, 4)) * (1 + action) / 4
            self.paid += self.rewards[one]
        self._accumulate_rewards()
        live = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]
        self.agent_selection = live[self.rng.integers(len(live))] if live else agent
        if self.clears and not live:
            self.agents = []
        self._deads_step_first()


@pytest.mark.parametrize("seed", range(30))
def test_every_reward_of_a_game_of_turns_is_credited_once_to_the_action_before_it(seed):
    env = Bazaar()
    lives, uncredited = by_episode(TurnBasedEnv(env), seed=seed)
    assert total(lives) + uncredited == env.paid
    assert (lives, uncredited) == by_hand(Bazaar(), seed=seed)
    assert (lives, uncredited) == by_episode(TurnBasedEnv(Bazaar(clears=True)), seed=seed)
