"""Little environments whose every transition is known, and a slow, obvious account of who did what when."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

if TYPE_CHECKING:
    from marl_connectors import PPOConfig

BOX = spaces.Box(-1000.0, 1000.0, (2,), np.float32)


@dataclass
class Step:
    """What one ``reset`` or ``step`` gives. Flags that are not named are False, infos are empty."""

    obs: dict[Any, Any]
    rewards: dict[Any, Any] = field(default_factory=dict)
    terminated: tuple = ()
    truncated: tuple = ()
    infos: dict[Any, dict] = field(default_factory=dict)
    agents: list | None = None
    """Who is in ``env.agents`` afterwards; None for those that observe and have no flag."""


class ScriptEnv(ParallelEnv):
    """Plays scripts, one an episode, the last one again and again. An observation ``x`` stands for ``[x, 0]``."""

    metadata = {"name": "script", "render_modes": []}

    def __init__(self, scripts, *, possible_agents=None, observation_spaces=None, action_spaces=None):
        self.scripts = scripts
        agents = list(dict.fromkeys(agent for script in scripts for step in script for agent in step.obs))
        self.possible_agents = agents if possible_agents is None else list(possible_agents)
        self.observation_spaces = dict(observation_spaces or {})
        self.action_spaces = dict(action_spaces or {})
        self.episode = -1
        self.agents = []

    def observation_space(self, agent):
        return self.observation_spaces.get(agent, BOX)

    def action_space(self, agent):
        return self.action_spaces.get(agent, spaces.Discrete(2))

    def reset(self, seed=None, options=None):
        self.episode = min(self.episode + 1, len(self.scripts) - 1)
        self.t = 0
        step = self._next()
        return step[0], step[4]

    def step(self, actions):
        return self._next()

    def _next(self):
        step = self.scripts[self.episode][self.t]
        self.t += 1
        gone = {*step.terminated, *step.truncated}
        self.agents = [a for a in step.obs if a not in gone] if step.agents is None else list(step.agents)
        obs = {a: np.array([x, 0.0], np.float32) if isinstance(x, (int, float)) else x for a, x in step.obs.items()}
        named = {**step.obs, **step.rewards, **dict.fromkeys(gone)}
        return (
            obs,
            dict(step.rewards),
            {a: a in step.terminated for a in named},
            {a: a in step.truncated for a in named},
            {a: step.infos.get(a, {}) for a in named},
        )


class LifeEnv(ParallelEnv):
    """Agents die one by one, join late and come back, as the reset's seed has it; rewards depend on their own actions.

    Args:
        agents: The pool.
        spaces_of: Agent to ``(observation space, action space)``.
        join: Chance of each absent agent to join in a step.
        die: Chance of each live agent to end in a step.
        fixed: All agents start; else a random half of them.
        max_steps: Everybody is truncated then.
        mutable: Give the same arrays and infos at every step, changed in place.
        pays_absent: Chance of each agent that has ended, or has not come yet, to be paid in a step.
    """

    metadata = {"name": "life", "render_modes": []}

    def __init__(
        self,
        *,
        agents=("a", "b", "c"),
        spaces_of=None,
        join=0.0,
        die=0.0,
        fixed=True,
        max_steps=7,
        mutable=False,
        pays_absent=0.0,
    ):
        self.possible_agents = list(agents)
        self.spaces_of = spaces_of or {}
        self.join, self.die, self.fixed, self.max_steps, self.mutable = join, die, fixed, max_steps, mutable
        self.pays_absent = pays_absent
        self.agents = []
        self.buffers = {}
        self.infos = {agent: {} for agent in agents}

    def observation_space(self, agent):
        return self.spaces_of.get(agent, (BOX, None))[0]

    def action_space(self, agent):
        return self.spaces_of.get(agent, (None, spaces.Discrete(3)))[1]

    def _observe(self, agent):
        space = self.observation_space(agent)
        fresh = self.rng.uniform(-1, 1, space.shape).astype(space.dtype)
        info = {"n": int(self.rng.integers(100))} if self.rng.random() < 0.5 else {}
        if not self.mutable:
            return fresh, info
        buffer = self.buffers.setdefault(agent, fresh.copy())
        buffer[...] = fresh
        self.infos[agent].clear()
        self.infos[agent].update(info)
        return buffer, self.infos[agent]

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.t = 0
        chosen = [a for a in self.possible_agents if self.fixed or self.rng.random() < 0.5]
        self.agents = chosen or self.possible_agents[:1]
        seen = {a: self._observe(a) for a in self.agents}
        return {a: s[0] for a, s in seen.items()}, {a: s[1] for a, s in seen.items()}

    def step(self, actions):
        assert list(actions) == self.agents, (list(actions), self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(np.asarray(action, self.action_space(agent).dtype)), action
        self.t += 1
        over = self.t >= self.max_steps
        ends = {a: self.rng.random() < self.die for a in self.agents}
        by_time = {a: over or (ends[a] and self.rng.random() < 0.5) for a in self.agents}
        acting = self.agents
        self.agents = [a for a in acting if not (ends[a] or by_time[a])]
        if self.agents:
            self.agents += [a for a in self.possible_agents if a not in acting and self.rng.random() < self.join]
        seen = {a: self._observe(a) for a in (*acting, *(a for a in self.agents if a not in acting))}
        rewards = {a: float(np.sum(actions[a])) + self.t + hash_of(a) for a in acting}
        if self.pays_absent:
            absent = [a for a in self.possible_agents if a not in acting]
            rewards |= {a: float(self.t) for a in absent if self.rng.random() < self.pays_absent}
        return (
            {a: s[0] for a, s in seen.items()},
            rewards,
            {a: bool(ends.get(a)) and not by_time[a] for a in seen},
            {a: bool(by_time.get(a)) for a in seen},
            {a: s[1] for a, s in seen.items()},
        )


def short_life(env_config: dict[str, Any]) -> LifeEnv:
    """For ``register_env``: a LifeEnv that is over after four steps."""
    return LifeEnv(max_steps=4, **env_config)


def hash_of(agent) -> float:
    """A number that tells agents apart and is the same in every process."""
    return float(sum(map(ord, str(agent))))


class Recorded(ParallelEnv):
    """Passes everything through and keeps copies of it, an entry in ``log`` an episode."""

    def __init__(self, env):
        self.env = env
        self.metadata = env.metadata
        self.possible_agents = env.possible_agents
        self.log = []

    @property
    def agents(self):
        return self.env.agents

    def observation_space(self, agent):
        return self.env.observation_space(agent)

    def action_space(self, agent):
        return self.env.action_space(agent)

    def reset(self, seed=None, options=None):
        observations, infos = self.env.reset(seed=seed, options=options)
        self.log.append(
            copy.deepcopy({"obs": observations, "infos": infos, "agents": list(self.env.agents), "steps": []})
        )
        return observations, infos

    def step(self, actions):
        given = copy.deepcopy(actions)
        result = self.env.step(actions)
        self.log[-1]["steps"].append((given, *copy.deepcopy(result), list(self.env.agents)))
        return result


@dataclass
class Life:
    """One agent's trajectory from a beginning to an end."""

    agent: Any
    obs: list
    infos: list
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


def lives_of_log(entry) -> list[Life]:
    """The lives in one episode of a ``Recorded.log``, by the plainest of loops."""
    lives: list[Life] = []
    live: dict[Any, Life] = {}

    def begin(agent, observations, infos):
        live[agent] = Life(agent, [observations[agent]], [infos.get(agent, {})])
        lives.append(live[agent])

    for agent in entry["agents"]:
        begin(agent, entry["obs"], entry["infos"])
    for actions, observations, rewards, terminations, truncations, infos, agents in entry["steps"]:
        for agent, action in actions.items():
            life = live[agent]
            life.actions.append(action)
            life.rewards.append(float(rewards.get(agent, 0.0)))
            life.obs.append(observations.get(agent, life.obs[-1]))
            life.infos.append(infos.get(agent, {}))
            life.terminated = bool(terminations.get(agent))
            life.truncated = bool(truncations.get(agent)) and not life.terminated
            if life.terminated or life.truncated:
                del live[agent]
        for agent in agents:
            if agent not in actions:
                begin(agent, observations, infos)
    return lives


def lives_of_chunks(chunks) -> list[Life]:
    """The lives in consecutive chunks of one episode, in order of their beginnings; their seams are checked."""
    lives: dict[str, Life] = {}
    for chunk in chunks:
        parts = chunk.all_agent_episodes() if hasattr(chunk, "all_agent_episodes") else [chunk]
        for part in parts:
            observations, infos = list(part.get_observations()), list(part.get_infos())
            life = lives.get(part.id_)
            if life is None:
                assert part.t_started == 0
                life = lives[part.id_] = Life(part.agent_id, observations[:1], infos[:1])
            else:
                assert not (life.terminated or life.truncated), "a life goes on after its end"
                assert part.t_started == len(life.actions)
                np.testing.assert_array_equal(life.obs[-1], observations[0])
                assert life.infos[-1] == infos[0]
            life.obs += observations[1:]
            life.infos += infos[1:]
            life.actions += list(part.get_actions())
            life.rewards += [float(r) for r in part.get_rewards()]
            life.terminated, life.truncated = part.is_terminated, part.is_truncated
    return list(lives.values())


def assert_same_lives(found: list[Life], expected: list[Life]) -> None:
    """Whether two accounts agree: order of agents that begin at the same time aside."""
    key = lambda life: (str(life.agent), [float(np.sum(o)) for o in life.obs])
    found, expected = sorted(found, key=key), sorted(expected, key=key)
    assert [life.agent for life in found] == [life.agent for life in expected]
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(here.obs), np.array(there.obs))
        assert here.infos == there.infos
        assert here.rewards == there.rewards
        taken, received = np.array(here.actions), np.array(there.actions)
        if taken.dtype.kind == "f":  # the environment gets them clipped; its bounds here are -1 and 1
            taken = np.clip(taken, -1, 1).reshape(received.shape)
        np.testing.assert_array_equal(taken, received)
        assert (here.terminated, here.truncated) == (there.terminated, there.truncated)


def small_config(env, algorithm: type[PPOConfig] | None = None, **environment) -> PPOConfig:
    """PPO with a tiny network; nothing is left to chance or to the clock."""
    from marl_connectors import PPOConfig  # here, so that worker processes and scripts need not import torch

    return (
        (algorithm or PPOConfig)()
        .environment(env, **environment)
        .rl_module(model_config={"fcnet_hiddens": (4,), "vf_share_layers": True})
        .env_runners(rollout_fragment_length=5, num_env_workers=0)
        .training(train_batch_size_per_learner=10, minibatch_size=5, num_epochs=1, lr=0.01)
        .debugging(seed=0)
    )
