"""Garbage is survived where failures are, and else named with copy, episode, step, agent and seed: whoever got it."""

from __future__ import annotations

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from helpers.envs.scripted_envs import small_config
from marl_connectors.environments.vector.sub_environment import InvalidDataCheck, SubEnvironment
from marl_connectors.errors import EnvError
from marl_connectors.seeding import derived_seed

BAD_REWARDS = {"reward": np.nan, "text reward": "x"}
BAD_FLAGS = {"flag": "yes", "number": 2}
NAN = np.full(2, np.nan, np.float32)
TEXTS = np.array(["u", "v"])


class Invalid(ParallelEnv):
    """Agents a and b in episodes of five steps; one thing is garbage, in one step of the second episode of a copy.

    Args:
        kind: What.
        at: In which step; 0 is the reset.
    """

    metadata = {"name": "garbage_v0", "render_modes": []}
    possible_agents = ["a", "b"]

    def __init__(self, kind, at=2):
        self.agents = []
        self._kind, self._at, self._num_episodes = kind, at, 0

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self._t = ["a", "b"], 0
        self._num_episodes += 1
        observations, _, _, _, infos = self._given()
        return observations, infos

    def step(self, actions):
        self._t += 1
        if self._t == 5:
            self.agents = []
        return self._given()

    def _given(self):
        names = self.possible_agents
        observations = {name: np.full(2, self._t, np.float32) for name in names}
        rewards, infos = dict.fromkeys(names, 1.0), {name: {"t": self._t} for name in names}
        terminations, truncations = dict.fromkeys(names, not self.agents), dict.fromkeys(names, False)
        if self._num_episodes == 2 and self._t == self._at:
            match self._kind:
                case "info":
                    infos["b"] = 3
                case "infos":
                    infos = 3
                case "nan":
                    observations["b"] = NAN
                case "infinity":
                    observations["b"] = np.float32([0, -np.inf])
                case "text":
                    observations["b"] = TEXTS
                case "flag" | "number":
                    truncations["b"] = BAD_FLAGS[self._kind]
                case _:
                    rewards["b"] = BAD_REWARDS[self._kind]
        return observations, rewards, terminations, truncations, infos


def runner_of(env, *, workers=0, num_envs=2, restart=False, check=False):
    config = small_config(env, disable_env_checking=not check).multi_agent(policies="shared")
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers)
    config.fault_tolerance(restart_failed_sub_environments=restart)
    return config.build_algo().env_runner


@pytest.mark.parametrize("check", [False, True])
def test_infinity_is_no_observation_even_if_its_space_has_no_bounds(check):
    runner = runner_of(partial(Invalid, "infinity", 3), check=check)
    with pytest.raises(
        EnvError, match="sub-environment 0, episode 1, agent 'b', env step 3: the observation contains infinity"
    ):
        runner.sample(num_timesteps=40)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "workers"), [(0, 0), (2, 0), (5, 0), (0, 2), (2, 2)])
@pytest.mark.parametrize("kind", ["info", "infos", "infinity"])
def test_garbage_costs_an_episode(kind, at, workers):
    runner = runner_of(partial(Invalid, kind, at), workers=workers, restart=True)
    episodes = runner.sample(num_timesteps=60)
    # a new environment counts its episodes anew: each of them fails in its second
    assert runner.take_failure_counts()["num_env_failures"] >= 2
    assert all(set(episode.get_infos(-1)["a"]) == {"t"} for episode in episodes)
    runner.close()


@pytest.mark.parametrize("at", [2, 5])
@pytest.mark.parametrize(
    "kind", ["info", "infos", "nan", "infinity", "text", "flag", "number", "reward", "text reward"]
)
def test_what_is_wrong_is_named_with_copy_episode_step_agent_and_seed(kind, at):
    runner = runner_of(partial(Invalid, kind, at))
    with pytest.raises(EnvError) as caught:
        runner.sample(num_timesteps=40)
    text = str(caught.value)
    step = at - 1 if kind == "reward" else at  # that of the action that was paid for
    assert re.match(rf"sub-environment 0, episode 1,.* step {step}\b", text), text
    assert kind == "infos" or "agent 'b'" in text
    assert f"seed is {derived_seed(runner.vector_env.seed, 'env', 0, 1)}." in text
    assert kind != "text" or "array(['u', 'v']" in text


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "restart"), [(0, True), (2, False)])
def test_flags_that_are_none_are_found_there_too(workers, restart):
    runner = runner_of(partial(Invalid, "flag"), workers=workers, restart=restart)
    if restart:
        runner.sample(num_timesteps=60)
        assert runner.take_failure_counts()["num_env_failures"] >= 2
    else:
        with pytest.raises(EnvError, match="the truncation of agent 'b' is 'yes'"):
            runner.sample(num_timesteps=60)
    runner.close()


class Leaving(ParallelEnv):
    """The agent culprit is paid NaN, leaves, and another one comes; z stays for twelve steps."""

    metadata = {"name": "leaving_v0", "render_modes": []}
    possible_agents = ["culprit", "innocent", "z"]

    def observation_space(self, agent):
        return spaces.Box(-1e3, 1e3, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self._t, self.agents = 0, ["culprit", "z"]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        self._t += 1
        acted = list(self.agents)
        rewards, ended = dict.fromkeys(acted, 0.0), dict.fromkeys(acted, False)
        if self._t == 3:
            rewards["culprit"] = np.nan
        if self._t == 4:
            ended["culprit"], self.agents = True, ["z"]
        if self._t == 5:
            self.agents = ["z", "innocent"]
        if self._t == 12:
            ended, self.agents = dict.fromkeys(acted, True), []
        observations = {agent: np.zeros(1, np.float32) for agent in {*acted, *self.agents}}
        return observations, rewards, ended, dict.fromkeys(acted, False), {}


@pytest.mark.parametrize("num_steps", [6, 20])
def test_it_is_the_agent_whose_row_it_is(num_steps):
    """Not the one that has the lane, or the copy's newer episode, when the fragment ends."""
    runner = runner_of(Leaving, num_envs=1)
    with pytest.raises(EnvError, match="sub-environment 0, episode 0, agent 'culprit', env step 2: the reward is nan"):
        runner.sample(num_timesteps=num_steps)


class Turns(AECEnv):
    """Agents a and b, two turns each; b sees NaN at its second, after which it has ended."""

    metadata = {"name": "turns_v0", "render_modes": [], "is_parallelizable": False}
    possible_agents = ["a", "b"]
    flag = True

    def observation_space(self, agent):
        return spaces.Box(-1e3, 1e3, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self._turn, self.agent_selection = ["a", "b"], 0, "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        return NAN if self._turn == 3 and self.flag is True else np.zeros(2, np.float32)

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._turn += 1
        self.agent_selection = "ab"[self._turn % 2]
        if self._turn == 4:
            self.terminations = dict.fromkeys(self.agents, self.flag)


def test_turn_based_environments_too():
    runner = runner_of(Turns, num_envs=2)
    with pytest.raises(
        EnvError, match=r"sub-environment 0, episode 0, agent 'b', env step 3: the observation contains NaN.*seed"
    ):
        runner.sample(num_timesteps=40)


class OddTurns(Turns):
    """Its flags are no flags."""

    flag = "yes"


def test_flags_of_turn_based_environments_too():
    with pytest.raises(EnvError, match=r"episode 0.*the termination of agent 'a' is 'yes'. Return True or False"):
        runner_of(OddTurns).sample(num_timesteps=40)


class Alone(gymnasium.Env):
    """A single agent that sees NaN in its third step, one before the last."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._t += 1
        return np.full(1, np.nan if self._t == 3 else 0.0, np.float32), 1.0, self._t == 4, False, {}


def test_single_agents_too():
    runner = small_config(Alone, disable_env_checking=True).build_algo().env_runner
    with pytest.raises(
        EnvError, match=r"sub-environment 0, episode 0, agent '\w+', env step 3: the observation contains NaN.*seed"
    ):
        runner.sample(num_timesteps=40)


class OldGym(Alone):
    """Of the days when there was one flag."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OlderGym(Alone):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            OldGym,
            r"step\(\) returned 4 values\. Return 5: observations, rewards, terminations, truncations and infos\.",
        ),
        (OlderGym, r"reset\(\) returned array\(\[0\.\], dtype=float32\)\. Return 2: observations and infos\."),
    ],
)
def test_what_is_not_gymnasiums_is_told(env, words, check):
    config = small_config(env, disable_env_checking=not check)
    with pytest.raises(EnvError, match=words):
        config.build_algo().env_runner.sample(num_timesteps=4)


class Ghost(Leaving):
    """The agent that comes has no space."""

    possible_agents = ["culprit", "z"]

    def observation_space(self, agent):
        return dict.fromkeys(self.possible_agents, super().observation_space(agent))[agent]

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, 0.0), *rest


def test_an_agent_without_a_space_is_named_where_environments_are_replaced():
    config = small_config(Ghost, disable_env_checking=True).multi_agent(policies="shared")
    config.fault_tolerance(restart_failed_sub_environments=True, num_consecutive_env_failures_tolerance=1)
    runner = config.build_algo().env_runner
    with pytest.raises(
        EnvError,
        match=r"episode 1, step 5: the observation of agent 'innocent' has no space: observation_space\('innocent'\) "
        r"raised KeyError: 'innocent' \(.* in observation_space\)\..* seed is \d+",
    ):
        runner.sample(num_timesteps=20)


class LeavesWithoutFlag(Turns):
    def step(self, action):
        super().step(action)
        if self._turn == 3:
            self.agents = ["b"]


def test_a_turn_is_counted_once():
    with pytest.raises(EnvError, match="agent 'a' left") as caught:
        runner_of(LeavesWithoutFlag).sample(num_timesteps=40)
    assert re.findall(r"step \d+", str(caught.value)) == ["step 2"], caught.value


def test_what_is_known_of_agents_that_never_come_again_is_forgotten():
    check, copy = InvalidDataCheck(None), SubEnvironment(Leaving(), 0)
    copy.agents = ["z"]
    names = [f"agent_{number}" for number in range(5000)]
    for name in names:
        check.check(copy, [name, "z"], dict.fromkeys([name, "z"], np.zeros(1, np.float32)), {})
    assert len(copy.expected) <= 1000
    copy.agents = names
    for _ in range(2):
        check.check(copy, names, dict.fromkeys(names, np.zeros(1, np.float32)), {})
    assert len(copy.expected) >= len(names)  # all that are there: none is asked for twice
    copy.use(Leaving())
    assert not copy.expected
