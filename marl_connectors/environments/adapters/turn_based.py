"""A turn-based (AEC) environment as one that steps with dicts, a turn a step."""

from __future__ import annotations

from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.connectors.action_masks import flat_masks, mask_of, mask_of_one_row
from marl_connectors.environments.validation import checks
from marl_connectors.errors import EnvError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID

EnvStep: TypeAlias = tuple[
    dict[AgentID, Any], dict[AgentID, Any], dict[AgentID, bool], dict[AgentID, bool], dict[AgentID, dict]
]
"""Observations, rewards, terminations, truncations and infos, each by agent."""


class TurnBasedEnv:
    """A PettingZoo ``AECEnv`` with the methods of a parallel environment, for ``MultiAgentEpisode.add_env_step``.

    A step is one agent's turn: the agent that acts next observes, and nobody else. It is told then what it was paid
    since its last turn, as ``AECEnv.last()`` has it. What ``AECEnv`` asks for once an agent has ended, ``step(None)``,
    is done inside: the agent's final observation, reward, flags and info are in the dicts of the step after which its
    turn came. An agent that the environment removes without such a turn is told the same, but its final observation is
    missing where ``observe()`` does not work for it any more.

    A live agent's observation and info are the environment's own objects, good until the next step.

    An agent that has ended may come back. Where it is the very next to act, one step's dicts have no room for its last
    and its first observation: then nobody acts next, and ``step({})`` gives the first.

    Attributes:
        env: The AEC environment.
        agents: Who takes part, as ``env.agents``; empty before the reset and after the end.
        agent_selection: Who acts next; None if nobody does.
    """

    __slots__ = ("_action_mask_key", "_turn", "_untold", "agent_selection", "agents", "env")

    def __init__(self, env: AECEnv, *, action_mask_key: str | None = None):
        """Wraps an environment, which need not have been reset.

        Args:
            env: The environment.
            action_mask_key: Under which key of observations or infos action masks are. One that forbids everything to
                the agent that acts next is an error then; None does not look at masks.

        Raises:
            EnvError: If it is not an ``AECEnv``.
        """
        if not isinstance(env, AECEnv):
            raise EnvError(
                f"TurnBasedEnv: expected a PettingZoo AECEnv, but got a {type(env).__name__}. A parallel environment "
                f"or a gymnasium.Env needs no wrapping."
            )
        self.env = env
        self._action_mask_key = action_mask_key
        self.agents: list[AgentID] = []
        self.agent_selection: AgentID | None = None
        self._turn = 0
        self._untold: dict[AgentID, Any] = {}

    @property
    def possible_agents(self) -> list[AgentID]:
        """All agents that may appear, where the environment says so."""
        return self.env.possible_agents

    @property
    def metadata(self) -> dict[str, Any]:
        """The environment's."""
        return self.env.metadata

    @property
    def render_mode(self) -> str | None:
        """The environment's, or None."""
        return getattr(self.env, "render_mode", None)

    @property
    def unwrapped(self) -> AECEnv:
        """The environment without any wrappers."""
        return self.env.unwrapped

    @property
    def where(self) -> str:
        """The environment and its newest turn, as its errors name them."""
        return f"{self.env}, step {self._turn}"

    def observation_space(self, agent: AgentID) -> gym.Space:
        """An agent's."""
        return self.env.observation_space(agent)

    def action_space(self, agent: AgentID) -> gym.Space:
        """An agent's."""
        return self.env.action_space(agent)

    @property
    def state_space(self) -> gym.Space | None:
        """The space of ``state()``, where the environment has one."""
        return getattr(self.env, "state_space", None)

    def state(self) -> Any:
        """The environment's."""
        return self.env.state()

    def render(self) -> Any:
        """What the environment draws."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts an episode.

        Returns:
            Observations and infos of the agent that acts first; empty if the episode is over already. What the reset
            itself paid is told with the first step.

        Raises:
            EnvError: If the environment breaks the rules of ``AECEnv``.
        """
        self.env.reset(seed=seed, options=options)
        self._turn, self._untold = 0, {}
        self.agents = list(self.env.agents)
        observations, rewards, _, _, infos = self._next_turn()
        self._untold = {agent: reward for agent, reward in rewards.items() if np.any(reward)}
        first = self.agent_selection
        return ({}, {}) if first is None else ({first: observations[first]}, {first: infos[first]})

    def step(self, actions: dict[AgentID, Any]) -> EnvStep:
        """Plays one turn. A hot path: beside ``env.step()`` and ``env.last()``, a few looks at the environment.

        Args:
            actions: The action of the agent in ``agent_selection``, and no other.

        Returns:
            Observations, rewards, terminations, truncations and infos, of the agent that acts next and of those that
            have ended. If nobody acts next although the episode goes on, ``"__all__"`` is False among the flags.

        Raises:
            EnvError: If it is another agent's turn, or nobody's, or the environment breaks the rules of ``AECEnv``.
        """
        agent = self.agent_selection
        if agent is None or len(actions) != 1 or agent not in actions:
            self._check_empty_step(actions)
        else:
            self.env.step(actions[agent])
        self._turn += 1
        told = self._next_turn()
        if self._untold:
            rewards = told[1]
            for paid, reward in self._untold.items():
                rewards[paid] = reward + rewards[paid] if paid in rewards else reward
            self._untold = {}
        if self.agent_selection is None and self.agents:  # somebody who ends here comes back: the episode goes on
            told[2]["__all__"] = told[3]["__all__"] = False
        return told

    def take_untold(self) -> dict[AgentID, Any]:
        """What the reset itself paid, by agent. The first step will not tell it then."""
        untold, self._untold = self._untold, {}
        return untold

    def _check_empty_step(self, actions: dict[AgentID, Any]) -> None:
        if not self.agents:
            raise self._error("step() before the reset or after the end of the episode. Call reset() first.")
        if self.agent_selection is None:
            if actions:
                raise self._error(f"agents {list(actions)} act, but it is nobody's turn. Call step({{}}).")
            return
        raise self._error(
            f"it is the turn of agent {self.agent_selection!r}, but the actions are of {list(actions)}. Give the "
            f"action of the one agent that has just observed."
        )

    def _next_turn(self) -> EnvStep:
        """Goes on to the next live agent's turn. Told are that agent and all that have ended."""
        env = self.env
        self.agent_selection = None
        observations, rewards, terminations, truncations, infos = told = ({}, {}, {}, {}, {})
        while True:
            agents = env.agents
            if agents != self.agents:
                self._update_agents(list(agents), told)
            if not agents:
                return told
            agent = env.agent_selection
            if agent not in agents:
                checks.raise_first(self.where, [checks.selected_absent(agent, agents)])
            if agent in terminations:
                return told
            observation, rewards[agent], terminated, truncated, info = env.last()
            if not (terminated or truncated):
                if observation is None:
                    checks.raise_first(self.where, [checks.no_observation(agent, True)])
                if self._action_mask_key is not None:
                    self._check_mask(agent, observation, info)
                self.agent_selection = agent
                observations[agent], infos[agent] = observation, info
                terminations[agent] = truncations[agent] = False
                return told
            self._tell_end(agent, observation, terminated, truncated, info, told)
            env.step(None)
            if agent in env.agents and (env.terminations[agent] or env.truncations[agent]):
                checks.raise_first(self.where, [checks.not_removed(agent)])

    def _check_mask(self, agent: AgentID, observation: Any, info: Any) -> None:
        """A hot path: an agent whose turn it is must be allowed something."""
        mask = mask_of(observation, info, self._action_mask_key)
        if mask is None or any(np.any(leaf) for leaf in leaves(mask)) or isinstance(self.unwrapped, ParallelEnv):
            return  # agents of a parallel environment may wait, although they have turns here
        allowed = flat_masks(self.action_space(agent), mask_of_one_row(mask))
        if allowed is None or allowed.any():  # the zeros of a MultiBinary mask allow zeros
            return
        checks.raise_first(self.where, [checks.forbids_all(agent, str(self._action_mask_key), takes_turns=True)])

    def _update_agents(self, agents: list[AgentID], told: EnvStep) -> None:
        """Takes note of those that came, and tells those that left without a turn of their own."""
        env = self.env
        _, rewards, ended, _, _ = told
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
            self._tell_end(agent, observation, terminated, truncated, env.infos.get(agent, {}), told)
        self.agents = agents

    def _tell_end(
        self, agent: AgentID, observation: Any, terminated: Any, truncated: Any, info: dict, told: EnvStep
    ) -> None:
        """Copies what is told about an agent that has ended: the environment goes on within the same step."""
        observations, rewards, terminations, truncations, infos = told
        for word, flag in (("termination", terminated), ("truncation", truncated)):
            checks.raise_first(self.where, [checks.flag_violation(agent, word, flag)])
        if observation is not None:
            observations[agent] = tree_map(_copied, observation)
        rewards[agent] = _copied(rewards[agent])
        terminations[agent], truncations[agent] = bool(terminated), bool(truncated)
        infos[agent] = tree_map(_copied, info)

    def _error(self, text: str) -> EnvError:
        return EnvError(f"{self.where}: {text}")


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
