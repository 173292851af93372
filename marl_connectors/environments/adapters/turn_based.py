"""A turn-based (AEC) environment with the methods of a parallel environment, one turn in each step."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.environments.adapters.env_adapter import EnvAdapter
from marl_connectors.environments.rules import checks
from marl_connectors.errors import EnvError
from marl_connectors.flat_action_masks import flat_masks, mask_of, mask_of_one_row
from marl_connectors.trees import copied, leaves
from marl_connectors.typing import AgentID

EnvStep: TypeAlias = tuple[
    dict[AgentID, Any], dict[AgentID, Any], dict[AgentID, bool], dict[AgentID, bool], dict[AgentID, dict]
]
"""Observations, rewards, terminations, truncations and infos, each by agent."""


class TurnBasedEnv(EnvAdapter):
    """A PettingZoo ``AECEnv`` with the methods of a parallel environment, for ``MultiAgentEpisode.add_env_step``.

    A step is one agent's turn. Only the agent that acts next gets an observation, and with it its reward since its last
    turn, as ``AECEnv.last()`` returns it. The adapter makes the ``step(None)`` that ``AECEnv`` requires for an
    agent that has ended: the agent's final observation, reward, flags and info are in the dicts of the step after which
    its turn came. If the environment removes an agent without such a turn, the dicts contain the same, but no final
    observation if ``observe()`` does not work for the agent any more.

    A live agent's observation and info are the environment's own objects. They are valid until the next step.

    An agent that has ended may come back. If it is also the next one to act, the dicts of one step cannot contain both
    its last and its first observation. Then no agent acts next, and ``step({})`` returns the first observation.

    Attributes:
        env: The AEC environment.
        agents: The live agents, as ``env.agents``; empty before the reset and after the end.
        agent_selection: The agent that acts next; None if there is none.
    """

    __slots__ = ("_action_mask_key", "_reset_rewards", "_turn", "agent_selection")

    def __init__(self, env: AECEnv, *, action_mask_key: str | None = None):
        """Wraps an environment, which need not have been reset.

        Args:
            env: The environment.
            action_mask_key: The key of observations or infos under which action masks are. A mask that forbids all
                actions of the agent that acts next is an error. With None, masks are not checked.

        Raises:
            EnvError: If it is not an ``AECEnv``.
        """
        if not isinstance(env, AECEnv):
            raise EnvError(
                f"TurnBasedEnv: expected a PettingZoo AECEnv, but got a {type(env).__name__}. A parallel environment "
                f"or a gymnasium.Env needs no wrapping."
            )
        super().__init__(env)
        self._action_mask_key = action_mask_key
        self.agent_selection: AgentID | None = None
        self._turn = 0
        self._reset_rewards: dict[AgentID, Any] = {}

    @property
    def possible_agents(self) -> list[AgentID]:
        """All agents that may appear, if the environment has this attribute."""
        return self.env.possible_agents

    @property
    def acting(self) -> list[AgentID]:
        """The agent that acts next, if there is one."""
        return [] if self.agent_selection is None else [self.agent_selection]

    @property
    def where(self) -> str:
        """The environment and the number of its newest turn, for error messages."""
        return f"{self.env}, step {self._turn}"

    def observation_space(self, agent: AgentID) -> gym.Space:
        """Returns an agent's observation space."""
        return self.env.observation_space(agent)

    def action_space(self, agent: AgentID) -> gym.Space:
        """Returns an agent's action space."""
        return self.env.action_space(agent)

    @property
    def state_space(self) -> gym.Space | None:
        """The space of ``state()``; None if the environment has none."""
        return getattr(self.env, "state_space", None)

    def state(self) -> Any:
        """Returns the environment's state."""
        return self.env.state()

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts an episode.

        Returns:
            Observations and infos of the agent that acts first; empty if the episode is already over. Rewards of the
            reset itself are returned by the first step.

        Raises:
            EnvError: If the environment breaks the rules of ``AECEnv``.
        """
        self.env.reset(seed=seed, options=options)
        self._turn, self._reset_rewards = 0, {}
        self.agents = list(self.env.agents)
        observations, rewards, _, _, infos = self._next_turn()
        self._reset_rewards = {agent: reward for agent, reward in rewards.items() if np.any(reward)}
        first = self.agent_selection
        return ({}, {}) if first is None else ({first: observations[first]}, {first: infos[first]})

    def step(self, actions: dict[AgentID, Any]) -> EnvStep:
        """Plays one turn.

        Args:
            actions: A dict with the action of the agent in ``agent_selection`` only; empty if that is None.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent, of the agent that acts next and of
            agents that have ended. If no agent acts next although the episode continues, both dicts of flags contain
            ``"__all__": False``.

        Raises:
            EnvError: If the action is not that of the agent that acts next, or if the environment breaks the rules of
                ``AECEnv``.
        """
        agent = self.agent_selection
        if agent is None or len(actions) != 1 or agent not in actions:
            self._check_empty_step(actions)
        else:
            self.env.step(actions[agent])
        self._turn += 1
        data = self._next_turn()
        if self._reset_rewards:
            rewards = data[1]
            for agent, reward in self._reset_rewards.items():
                rewards[agent] = float(reward) + float(rewards.get(agent, 0.0))
            self._reset_rewards = {}
        if self.agent_selection is None and self.agents:  # an agent that ended here comes back: the episode continues
            data[2]["__all__"] = data[3]["__all__"] = False
        return data

    def take_reset_rewards(self) -> dict[AgentID, Any]:
        """Returns the rewards of the reset itself, by agent. The first step does not return them then."""
        rewards, self._reset_rewards = self._reset_rewards, {}
        return rewards

    def _check_empty_step(self, actions: dict[AgentID, Any]) -> None:
        if not self.agents:
            raise self._error("step() before the reset or after the end of the episode. Call reset() first.")
        if self.agent_selection is None:
            if actions:
                raise self._error(f"agents {list(actions)} act, but no agent has a turn now. Call step({{}}).")
            return
        raise self._error(
            f"it is the turn of agent {self.agent_selection!r}, but the actions are of {list(actions)}. Pass the "
            f"action of that agent only."
        )

    def _next_turn(self) -> EnvStep:
        """Advances to the next live agent's turn. Returns the data of that agent and of all agents that have ended."""
        env = self.env
        self.agent_selection = None
        observations, rewards, terminations, truncations, infos = data = ({}, {}, {}, {}, {})
        while True:
            agents = env.agents
            if agents != self.agents:
                self._update_agents(list(agents), data)
            if not agents:
                return data
            agent = env.agent_selection
            if agent not in agents:
                checks.raise_first(self.where, [checks.selected_absent(agent, agents)])
            if agent in terminations:
                return data
            observation, rewards[agent], terminated, truncated, info = env.last()
            if not (terminated or truncated):
                if observation is None:
                    checks.raise_first(self.where, [checks.no_observation(agent, True)])
                if self._action_mask_key is not None:
                    self._check_mask(agent, observation, info)
                self.agent_selection = agent
                observations[agent], infos[agent] = observation, info
                terminations[agent] = truncations[agent] = False
                return data
            self._add_end(agent, observation, terminated, truncated, info, data)
            env.step(None)
            if agent in env.agents and (env.terminations[agent] or env.truncations[agent]):
                checks.raise_first(self.where, [checks.not_removed(agent)])

    def _check_mask(self, agent: AgentID, observation: Any, info: Any) -> None:
        """Raises an EnvError if the mask of the agent that acts next forbids all actions."""
        mask = mask_of(observation, info, self._action_mask_key)
        if mask is None or any(np.any(leaf) for leaf in leaves(mask)) or isinstance(self.unwrapped, ParallelEnv):
            return  # agents of a parallel environment may wait, although they have turns here
        allowed = flat_masks(self.action_space(agent), mask_of_one_row(mask))
        if allowed is None or allowed.any():  # the zeros of a MultiBinary mask allow zeros
            return
        checks.raise_first(self.where, [checks.forbids_all(agent, str(self._action_mask_key), takes_turns=True)])

    def _update_agents(self, agents: list[AgentID], data: EnvStep) -> None:
        """Updates ``agents``, and adds the last data of agents that left without a last turn."""
        env = self.env
        _, rewards, ended, _, _ = data
        for agent in self.agents:
            if agent in agents or agent in ended:
                continue
            terminated, truncated = env.terminations.get(agent), env.truncations.get(agent)
            if not (terminated or truncated):
                checks.raise_first(self.where, [checks.left_without_flag([agent], agents)])
            try:
                observation = env.observe(agent)
            except Exception:  # AECEnv does not promise that it works for an agent that has left
                observation = None
            rewards[agent] = env._cumulative_rewards.get(agent, 0.0)
            self._add_end(agent, observation, terminated, truncated, env.infos.get(agent, {}), data)
        self.agents = agents

    def _add_end(
        self, agent: AgentID, observation: Any, terminated: Any, truncated: Any, info: dict, data: EnvStep
    ) -> None:
        """Adds copies of an ended agent's data, because the environment continues within the same step."""
        observations, rewards, terminations, truncations, infos = data
        for word, flag in (("termination", terminated), ("truncation", truncated)):
            checks.raise_first(self.where, [checks.flag_violation(agent, word, flag)])
        if observation is not None:
            observations[agent] = copied(observation)
        rewards[agent] = copied(rewards[agent])
        terminations[agent], truncations[agent] = bool(terminated), bool(truncated)
        infos[agent] = copied(info)

    def _error(self, text: str) -> EnvError:
        return EnvError(f"{self.where}: {text}")
