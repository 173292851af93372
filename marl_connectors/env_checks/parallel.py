"""What an environment in which all agents act at once must do: PettingZoo's parallel API, and Gymnasium's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from marl_connectors.env_checks.calls import CallFailed, digest, outcome_in_child
from marl_connectors.env_checks.play import Checks, Player, Told
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID

_RESET = ("observations", "infos")
_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


class ParallelPlayer(Player):
    """Plays a parallel environment, or a Gymnasium one as that of one agent."""

    def __init__(self, env: Any, checks: Checks):
        super().__init__(env, checks)
        self.single_agent = isinstance(env, gym.Env)
        self._acted: set[AgentID] = set()
        self._gone: set[AgentID] = set()

    def reset(self, seed: int | None) -> Told:
        observations, infos = self._unpacked(self.call_reset(seed), _RESET, "reset()")
        self._acted, self._gone = set(), set()
        agents = self._agents(over=False)
        if not agents:
            self.add("error", "no-agents", "Nobody is in env.agents after the reset.", "Let somebody take part.")
            raise CallFailed
        self.note_agents(agents)
        return self._tell(agents, agents, observations, {}, {}, infos)

    def step(self, actions: dict[AgentID, Any]) -> Told:
        calls, tally = self.checks.calls, self.tally
        given = {agent: digest(action) for agent, action in actions.items() if isinstance(action, np.ndarray)}
        send = actions[DEFAULT_AGENT_ID] if self.single_agent else dict(actions)
        self.t += 1
        result = calls(f"step() with actions {self.allowed_by}", lambda: self.env.step(send), step=self.t)
        tally.steps += 1
        tally.step_seconds += calls.seconds
        tally.agent_steps += len(actions)
        self.checks.data.look_again(self.t)
        for agent, token in given.items():
            if digest(actions[agent]) != token:
                self.add(
                    "warning",
                    "action-changed",
                    "step() writes to the action array that it was given.",
                    "Copy the action first: np.clip(action, low, high) instead of action *= ...",
                    agent,
                )
        observations, rewards, terminations, truncations, infos = self._unpacked(result, _STEP, "step()")
        flags = self._flags(list(actions), terminations, truncations)
        ended = {agent for agent, both in flags.items() if any(both)}
        now = self._agents(over=bool(ended))
        self._check_leaving(list(actions), ended, now)
        self._check_rewards(list(actions), rewards)
        newcomers = [agent for agent in now if agent not in actions and agent not in ended]
        self._note_returns(newcomers)
        self.note_agents(newcomers)
        for agent in ended.intersection(actions):
            terminated, truncated = flags[agent]
            if truncated and not terminated and observations.get(agent) is None:
                self.no_final_observation(agent)
        self._acted.update(actions)
        self._gone |= ended
        alive = [agent for agent in actions if agent not in ended and agent in now]
        return self._tell([*actions, *newcomers], alive + newcomers, observations, rewards, flags, infos)

    def step_after_the_end(self) -> None:
        """What ``step({})`` does once the episode is over, tried in another process."""
        if self.single_agent:
            return
        outcome = outcome_in_child(lambda: self.env.step({}))
        if outcome:
            self.checks.findings.add(
                "warning" if outcome.startswith("killed") else "note",
                "step-after-end",
                f"step({{}}) after the end of an episode {outcome}.",
                "Nothing to do here: after the end comes a reset. Other libraries may step once more.",
            )

    # What came.

    def _unpacked(self, result: Any, names: tuple[str, ...], what: str) -> tuple[Any, ...]:
        parts: list[Any] = list(result) if isinstance(result, (tuple, list)) else [result]
        words = [name.removesuffix("s") if self.single_agent else name for name in names]
        if len(parts) != len(names):
            came = f"{len(parts)} values" if len(parts) > 1 else f"a {type(parts[0]).__name__}"
            self.add("error", "wrong-result", f"{what} gives {came}, not ({', '.join(words)}).", "Return all of them.")
            raise CallFailed
        if self.single_agent:
            return tuple({DEFAULT_AGENT_ID: part} for part in parts)
        wrong = [(word, part) for word, part in zip(words, parts, strict=True) if not isinstance(part, Mapping)]
        for word, part in wrong:
            if word == "infos" and part is None:
                self.add("note", "info", f"The infos of {what} are None.", "Return a dict by agent.", part="all")
                continue
            self.add("error", "wrong-result", f"The {word} of {what} are {part!r}.", "Return a dict by agent.")
            raise CallFailed
        return tuple(part if isinstance(part, Mapping) else {} for part in parts)

    def _agents(self, *, over: bool) -> list[AgentID]:
        if self.single_agent:
            return [] if over else [DEFAULT_AGENT_ID]
        agents = self.checks.calls("env.agents", lambda: list(self.env.agents), step=self.t)
        if len(set(agents)) != len(agents):
            self.add("error", "agents-twice", f"env.agents is {agents}.", "Let each agent be there once.")
        return list(dict.fromkeys(agents))

    def _flags(self, acted: list[AgentID], terminations: Any, truncations: Any) -> dict[AgentID, tuple[bool, bool]]:
        """By agent, of those that acted, and of others where a flag is up."""
        flags = {}
        for agent in dict.fromkeys([*acted, *terminations, *truncations]):
            if agent == "__all__":
                continue
            raw = terminations.get(agent, False), truncations.get(agent, False)
            if agent in acted:
                flags[agent] = self.note_flags(agent, *raw)
                if agent not in terminations or agent not in truncations:
                    self.add(
                        "note",
                        "flag-missing",
                        "The agent acted, but has no flag in terminations or truncations.",
                        "Give both flags to all agents that acted. What is missing counts as False.",
                        agent,
                    )
            elif any(np.any(flag) for flag in raw):
                flags[agent] = bool(np.any(raw[0])), bool(np.any(raw[1]))
                if agent not in self._acted and agent not in self._gone:
                    self.add(
                        "warning",
                        "flag-of-stranger",
                        "The agent is flagged as ended, but has never acted.",
                        "Flag agents that take part. A flag in the step of its arrival keeps an agent out.",
                        agent,
                    )
        return flags

    # Who leaves, and who is paid.

    def _check_leaving(self, acted: list[AgentID], ended: set[AgentID], now: list[AgentID]) -> None:
        for agent in acted:
            if agent not in ended and agent not in now:
                self.add(
                    "error",
                    "left-without-flag",
                    "The agent left env.agents without being terminated or truncated.",
                    "Flag it in the step in which it leaves.",
                    agent,
                )
            elif agent in ended and agent in now and not self.single_agent:
                self.add(
                    "warning",
                    "ended-but-stays",
                    "The agent has ended, but is still in env.agents. It gets no more actions.",
                    "Take it out of env.agents in that step.",
                    agent,
                )

    def _check_rewards(self, acted: list[AgentID], rewards: Any) -> None:
        for agent in acted:
            if agent in rewards:
                self.checks.data.reward(agent, rewards[agent], self.t)
            else:
                self.add(
                    "warning",
                    "reward-missing",
                    "The agent acted, but got no reward. That counts as 0.",
                    "Give a reward to all agents that acted, also those that end.",
                    agent,
                )
        for agent in rewards:
            if agent not in acted and self.checks.data.reward(agent, rewards[agent], self.t) and rewards[agent]:
                self._stray_reward(agent, rewards[agent])

    def _stray_reward(self, agent: AgentID, reward: Any) -> None:
        if agent in self._acted:
            self.add(
                "warning",
                "reward-without-action",
                f"The agent is paid {float(reward):g} in a step in which it did not act.",
                "It is added to the reward of its last action. Pay an agent in the steps in which it acts.",
                agent,
            )
        else:
            self.add(
                "warning",
                "reward-uncredited",
                f"The agent is paid {float(reward):g} before it ever acted, so no action can be credited.",
                "It is counted as uncredited_reward. Pay an agent from its first action on.",
                agent,
            )

    def _note_returns(self, newcomers: list[AgentID]) -> None:
        for agent in newcomers:
            if agent in self._gone:
                self.add(
                    "note",
                    "agent-returns",
                    "The agent ended and comes back in the same episode.",
                    "Nothing to do here: it begins a trajectory of its own. PettingZoo wants a new name for it.",
                    agent,
                )

    def _tell(
        self, agents: list[AgentID], to_act: list[AgentID], observations: Any, rewards: Any, flags: Any, infos: Any
    ) -> Told:
        """Checks what the agents observe and are told."""
        data, told = self.checks.data, Told(to_act=dict.fromkeys(to_act, True))
        told.tokens.append(("agents", None, digest(sorted(map(repr, to_act)))))
        for agent in agents:
            observation, info = observations.get(agent), infos.get(agent, {})
            if observation is not None:
                data.observation(agent, observation, self.t)
            elif agent in told.to_act:
                self.add(
                    "error",
                    "no-observation",
                    f"The agent is to act, but {'sees None' if agent in observations else 'has no observation'}.",
                    "Give an observation to every agent in env.agents.",
                    agent,
                )
            data.info(agent, info, self.t)
            told.observed(agent, observation, rewards.get(agent))
            told.tokens.append(("observation", agent, data.remember("observation", agent, observation)))
            told.tokens.append(("reward", agent, digest(rewards.get(agent, math.nan))))
            told.tokens.append(("flags", agent, digest(flags.get(agent))))
            told.tokens.append(("info", agent, data.remember("info", agent, info)))
            if agent in told.to_act:
                mask = data.mask(agent, observation, info, self.t, takes_turns=False)
                if mask is not None:
                    told.masks[agent] = mask
        return told
