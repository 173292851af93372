"""One copy of a natively batched environment, to be tried out like any other environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from pettingzoo import ParallelEnv

from marl_connectors.environments.batched_calls import BatchedCalls
from marl_connectors.environments.batched_env import BatchedEnv
from marl_connectors.environments.validation.checks import ended_alone, raise_first
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


class BatchedCopy(ParallelEnv):
    """A natively batched environment with ``num_envs=1`` as a PettingZoo parallel environment."""

    def __init__(self, env: BatchedEnv, name: str):
        """Takes the environment.

        Args:
            env: The environment.
            name: For messages.

        Raises:
            EnvError: If it has no agents.
        """
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[AgentID] = []
        self.metadata = getattr(env, "metadata", None) or {"name": name, "render_modes": []}
        self.render_mode = getattr(env, "render_mode", None)
        self._name = name
        self._calls = BatchedCalls(env, name)
        self._seed = -1

    def observation_space(self, agent: AgentID) -> Space:
        """Of one agent."""
        return self.env.observation_space(agent)

    def action_space(self, agent: AgentID) -> Space:
        """Of one agent."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict[AgentID, Any], dict]:
        """Starts an episode; without a seed it follows from the one before."""
        self._seed = self._seed + 1 if seed is None else seed
        observations = self._calls.reset([self._seed], None)
        self.agents = list(self.possible_agents)
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[AgentID, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Steps all agents."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        step = self._calls.step([np.asarray(actions[agent]) for agent in self.agents])
        agents = self.agents
        rewards, terminations, truncations = (
            dict(zip(agents, values[0].tolist(), strict=True))
            for values in (step.rewards, step.terminations, step.truncations)
        )
        infos = {agent: {name: v[0, i] for name, v in step.infos.items()} for i, agent in enumerate(agents)}
        self.agents = [agent for agent in agents if not (terminations[agent] or truncations[agent])]
        if self.agents and len(self.agents) < len(agents):
            raise_first(self._name, [ended_alone([agent for agent in agents if agent not in self.agents])])
        return self._by_agent(step.observations), rewards, terminations, truncations, infos

    def _by_agent(self, observations: Tree) -> dict[AgentID, Any]:
        return self._calls.of_copy(tree_map(np.array, observations), 0)  # the environment may use its arrays again

    def render(self) -> Any:
        """What the environment draws."""
        return self.env.render()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()
