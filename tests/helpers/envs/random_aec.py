"""Turn-based games in which anything may happen, and a plain loop over any AEC environment to hold a runner against."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import BaseWrapper

from helpers.envs.scripted_envs import BOX, Life


class RandomAEC(AECEnv):
    """Agents act in any order, die on anybody's turn, join, come back, and are paid at any time, by the reset's seed.

    Args:
        agents: The pool.
        spaces_of: Agent to ``(observation space, action space)``.
        join: Chance of each absent agent to join in a step.
        die: Chance of each agent to be flagged in a step, whoever's turn it is.
        back: Chance of an agent to be there again as soon as its dead turn was played.
        fixed: All agents start; else a random half of them.
        max_steps: Everybody who is left is truncated then.
        clears: Whether the last agents are removed then, without dead turns.
        dead_next: Whether those that ended have their turns at once, and not at some time.
        pays_newcomers: Whether agents are paid before their first turn.
        mutable: Give the same arrays again and again, changed in place.
    """

    metadata = {"name": "random_aec", "render_modes": []}

    def __init__(
        self,
        *,
        agents="abcd",
        spaces_of=None,
        join=0.0,
        die=0.0,
        back=0.0,
        fixed=True,
        max_steps=9,
        clears=False,
        dead_next=True,
        pays_newcomers=False,
        mutable=False,
    ):
        super().__init__()
        self.possible_agents = list(agents)
        self.spaces_of = spaces_of or {}
        self.join, self.die, self.back, self.fixed, self.max_steps = join, die, back, fixed, max_steps
        self.clears, self.dead_next, self.pays_newcomers, self.mutable = clears, dead_next, pays_newcomers, mutable
        self.buffers = {}
        self.agents = []
        self.paid = Counter()

    def observation_space(self, agent):
        return self.spaces_of.get(agent, (BOX, None))[0]

    def action_space(self, agent):
        return self.spaces_of.get(agent, (None, spaces.Discrete(3)))[1]

    def observe(self, agent):
        if not self.mutable:
            return self.seen[agent].copy()
        buffer = self.buffers.setdefault(agent, self.seen[agent].copy())
        for other in self.buffers:  # whatever was given before is lost
            self.buffers[other][...] = self.seen[agent] if other == agent else -9
        return buffer

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.t = 0
        self.agents, self.acted = [], set()
        self.rewards, self._cumulative_rewards = {}, {}
        self.terminations, self.truncations, self.infos = {}, {}, {}
        self._skip_agent_selection = None
        chosen = [a for a in self.possible_agents if self.fixed or self.rng.random() < 0.5]
        for agent in chosen or self.possible_agents[:1]:
            self._add(agent)
        self._look_and_pay(None, 0)
        self._select()

    def _add(self, agent):
        self.agents.append(agent)
        self.acted.discard(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if self.rng.random() < self.back and self.t < self.max_steps:
                self._add(agent)
            if self.agents and self.agent_selection not in self.agents:
                self._select()
            return
        assert self.action_space(agent).contains(np.asarray(action, self.action_space(agent).dtype)), action
        self.t += 1
        self.acted.add(agent)
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0
        before = list(self.agents)
        self._look_and_pay(agent, int(np.sum(action)))
        over = self.t >= self.max_steps
        for other in before:
            if over or self.rng.random() < self.die:
                kind = self.truncations if over or self.rng.random() < 0.5 else self.terminations
                kind[other] = True
        if over and self.clears:
            self.agents = []
            return
        if not over:
            for other in self.possible_agents:
                if other not in self.agents and self.rng.random() < self.join:
                    self._add(other)
        self._select()

    def _look_and_pay(self, actor, action):
        self.seen = {a: self._drawn(self.observation_space(a)) for a in self.possible_agents}
        for agent in self.agents:
            self.infos[agent] = {"n": int(self.rng.integers(100))} if self.rng.random() < 0.5 else {}
            pay = int(self.rng.integers(-4, 5)) + (action if agent == actor else 0)
            if agent in self.acted or self.pays_newcomers:
                self.rewards[agent] = pay
                self.paid[agent] += pay
        self._accumulate_rewards()

    def _drawn(self, space):
        return self.rng.uniform(-1, 1, space.shape).astype(space.dtype)

    def _select(self):
        live = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]
        among = live if self.dead_next and live else self.agents
        self.agent_selection = among[int(self.rng.integers(len(among)))]
        if self.dead_next:
            self._deads_step_first()

    def untold(self):
        """What was paid and will be told later: after the reset everything, else to those who do not act next."""
        waiting = [a for a in self.agents if a != self.agent_selection or self.t == 0]
        return Counter({a: self._cumulative_rewards[a] for a in waiting})


class RecordedTurns(BaseWrapper):
    """Passes everything through, and keeps the seed and the live agents' actions of each episode in ``log``."""

    def __init__(self, env):
        super().__init__(env)
        self.log: list[dict[str, Any]] = []

    def reset(self, seed=None, options=None):
        self.log.append({"seed": seed, "actions": []})
        super().reset(seed=seed, options=options)

    def step(self, action):
        if action is not None:
            self.log[-1]["actions"].append(copy.deepcopy(action))
        super().step(action)


def lives_in_turns(env, entry) -> tuple[list[Life], Counter]:
    """The lives in an episode of a ``RecordedTurns.log``, played again in a fresh environment by PettingZoo's own loop.

    Returns:
        The lives of agents that had a turn, and what was told to agents that had not acted in their lives.
    """
    lives: list[Life] = []
    live: dict[Any, Life] = {}
    uncredited: Counter = Counter()
    actions = iter(entry["actions"])
    env.reset(seed=entry["seed"])

    def tell(agent, observation, reward, terminated, truncated, info):
        life = live.get(agent)
        if life is not None and life.actions:
            life.rewards.append(float(reward))
        else:
            uncredited[agent] += reward
        if life is None:
            if terminated or truncated:
                return
            life = live[agent] = Life(agent, [], [])
            lives.append(life)
        life.obs.append(copy.deepcopy(life.obs[-1] if observation is None else observation))
        life.infos.append(copy.deepcopy(info))
        life.terminated, life.truncated = bool(terminated), bool(truncated) and not terminated
        if terminated or truncated:
            del live[agent]

    for agent in env.agent_iter(max_iter=10**6):
        observation, reward, terminated, truncated, info = env.last()
        tell(agent, observation, reward, terminated, truncated, info)
        if terminated or truncated:
            env.step(None)
            continue
        action = next(actions, None)
        if action is None:
            break
        live[agent].actions.append(action)
        env.step(action)
        for other in [a for a in live if a not in env.agents]:  # removed without a turn of their own
            ends = env.terminations[other], env.truncations[other]
            tell(other, env.observe(other), env._cumulative_rewards[other], *ends, env.infos[other])
    assert next(actions, None) is None, "the episode ended earlier than before"
    for life in live.values():  # what an agent waits for is not known yet
        del life.actions[len(life.rewards) :]
    return lives, uncredited
