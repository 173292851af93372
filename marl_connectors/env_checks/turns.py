"""What an environment in which agents act one after another must do: PettingZoo's AEC API."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.env_checks.calls import CallFailed, digest
from marl_connectors.env_checks.play import Checks, Player, Told
from marl_connectors.typing import AgentID

_CREDIT_ADVICE = (
    "In step(): self._cumulative_rewards[agent] = 0 for the agent that acts, self._clear_rewards() before rewards are "
    "set, and self._accumulate_rewards() once after that."
)


class TurnPlayer(Player):
    """Plays an AEC environment, and keeps its own account of what every agent was paid."""

    takes_turns = True

    def __init__(self, env: Any, checks: Checks):
        super().__init__(env, checks)
        self._agents: list[AgentID] = []
        self._owed: dict[AgentID, float] = {}
        self._told: dict[AgentID, float] = {}
        self._gone: set[AgentID] = set()
        self._had_last_turn: set[AgentID] = set()

    def reset(self, seed: int | None) -> Told:
        self.call_reset(seed)
        self._agents, self._owed, self._told = [], {}, {}
        self._gone, self._had_last_turn = set(), set()
        self._take_note_of_agents()
        if not self._agents:
            self.add("error", "no-agents", "Nobody is in env.agents after the reset.", "Let somebody take part.")
            raise CallFailed
        self._book_rewards()
        return self._next_turn()

    def step(self, actions: dict[AgentID, Any]) -> Told:
        calls, tally = self.checks.calls, self.tally
        ((agent, action),) = actions.items()
        self.t += 1
        what = "step(None) of an agent that has ended" if action is None else f"step() with an action {self.allowed_by}"
        calls(f"{what} ({agent!r})", lambda: self.env.step(action), step=self.t)
        tally.steps += 1
        tally.step_seconds += calls.seconds
        tally.agent_steps += action is not None
        self.checks.data.look_again(self.t)
        self._owed[agent] = 0.0
        if action is None:
            self._check_removed(agent)
        self._book_rewards()
        self._take_note_of_agents()
        return self._next_turn()

    def _read(self, what: str, default: Any = None) -> Any:
        return self.checks.calls(f"env.{what}", lambda: getattr(self.env, what, default), step=self.t)

    def _next_turn(self) -> Told:
        """What the agent that is next gets from ``last()``."""
        told = Told(tokens=[("agents", None, digest(list(map(repr, self._agents))))])
        if not self._agents:
            return told
        agent = self._read("agent_selection")
        if agent not in self._agents:
            self.add(
                "error",
                "selected-stranger",
                f"env.agent_selection is {agent!r}, which is not in env.agents, {self._agents}.",
                "Select one of env.agents until there is none.",
            )
            raise CallFailed
        result = self.checks.calls("last()", self.env.last, step=self.t)
        self.tally.step_seconds += self.checks.calls.seconds
        if not isinstance(result, tuple) or len(result) != 5:
            what = "(observation, reward, termination, truncation, info)"
            self.add("error", "wrong-result", f"last() gives {result!r}, not {what}.", "Return all of them.", agent)
            raise CallFailed
        observation, reward, terminated, truncated, info = result
        ended = self.note_flags(agent, terminated, truncated)
        lives = not any(ended)
        data = self.checks.data
        if observation is not None:
            data.observation(agent, observation, self.t)
        elif lives:
            self.add("error", "no-observation", "The agent is to act, but sees None.", "Look at observe().", agent)
        elif not ended[0]:
            self.no_final_observation(agent)
        data.info(agent, info, self.t)
        if data.reward(agent, reward, self.t):
            self._compare_credit(agent, float(reward))
        told.to_act[agent] = lives
        if lives:
            mask = data.mask(agent, observation, info, self.t, takes_turns=True)
            if mask is not None:
                told.masks[agent] = mask
        else:
            self._had_last_turn.add(agent)
        told.observed(agent, observation, reward)
        told.tokens += [
            ("observation", agent, data.remember("observation", agent, observation)),
            ("reward", agent, digest(reward)),
            ("flags", agent, digest(ended)),
            ("info", agent, data.remember("info", agent, info)),
        ]
        return told

    # Credit.

    def _book_rewards(self) -> None:
        rewards = self._read("rewards", {})
        agents = self._read("agents")
        for agent, reward in dict(rewards).items():
            if not self.checks.data.reward(agent, reward, self.t):
                continue
            if agent in agents:
                self._owed[agent] = self._owed.get(agent, 0.0) + float(reward)
            elif reward:
                self.add(
                    "error",
                    "reward-to-the-dead",
                    f"env.rewards pays {float(reward):g} to an agent that has left, so it is lost.",
                    "Pay an agent before its last turn, step(None), is over.",
                    agent,
                )

    def _compare_credit(self, agent: AgentID, reward: float) -> None:
        owed, before = self._owed.get(agent, 0.0), self._told.get(agent, 0.0)
        self._told[agent] = reward
        if np.isclose(reward, owed, rtol=1e-5, atol=1e-6):
            return
        if np.isclose(reward, 2 * owed):
            why = "so it is added twice"
        elif before and np.isclose(reward, owed + before):
            why = f"so what it was told before, {before:g}, is counted again"
        else:
            why = "so something is lost or counted twice"
        self.add(
            "error",
            "reward-credit",
            f"env.rewards paid the agent {owed:g} since its last turn, but last() says {reward:g}, {why}.",
            _CREDIT_ADVICE,
            agent,
        )

    # Who leaves.

    def _take_note_of_agents(self) -> None:
        agents = list(self._read("agents"))
        if len(set(agents)) != len(agents):
            self.add("error", "agents-twice", f"env.agents is {agents}.", "Let each agent be there once.")
            agents = list(dict.fromkeys(agents))
        newcomers = [agent for agent in agents if agent not in self._agents]
        for agent in newcomers:
            self._had_last_turn.discard(agent)
            if agent in self._gone:
                self.add(
                    "note",
                    "agent-returns",
                    "The agent ended and comes back in the same episode.",
                    "Nothing to do here: it begins a trajectory of its own. PettingZoo wants a new name for it.",
                    agent,
                )
        self.note_agents(newcomers)
        for agent in self._agents:
            if agent not in agents:
                self._check_leaver(agent)
        self._agents = agents

    def _check_leaver(self, agent: AgentID) -> None:
        self._gone.add(agent)
        if agent in self._had_last_turn:
            return
        flags = [bool(self._read(kind, {}).get(agent)) for kind in ("terminations", "truncations")]
        if not any(flags):
            self.add(
                "error",
                "left-without-flag",
                "The agent left env.agents without being terminated or truncated.",
                "Set its flag, and let it have its last turn, step(None), which removes it.",
                agent,
            )
            return
        self.add(
            "warning",
            "no-last-turn",
            "The agent was removed without its last turn, step(None), in which it is told how it ended.",
            "Only flag it; AECEnv._was_dead_step(), called from step(None), removes it.",
            agent,
        )
        kept = (getattr(self.env, "_cumulative_rewards", None) or {}).get(agent, 0.0)
        owed = self._owed.pop(agent, 0.0)
        if not np.isclose(owed, kept, rtol=1e-5, atol=1e-6):
            self.add(
                "error",
                "reward-credit",
                f"The agent left with {owed:g} that it was paid, but never told of.",
                _CREDIT_ADVICE,
                agent,
            )

    def _check_removed(self, agent: AgentID) -> None:
        if agent not in self._read("agents"):
            return
        still = any(self._read(kind, {}).get(agent) for kind in ("terminations", "truncations"))
        if still:
            self.add(
                "error",
                "dead-not-removed",
                "step(None) did not take the agent out of env.agents.",
                "Begin step() with: if the agent is terminated or truncated, return self._was_dead_step(action).",
                agent,
            )
            raise CallFailed
        # It is there again: a new life, whose first turn is still to come.
        self._gone.add(agent)
        self._agents = [other for other in self._agents if other != agent]
