"""Plays whole episodes with random actions, checks everything that the environment returns, and replays them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pettingzoo import AECEnv

from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnvAdapter
from marl_connectors.environments.adapters.single_agent import SingleAgentEnv
from marl_connectors.environments.check.agent_data import contents, conversions, mask_violation
from marl_connectors.environments.check.calls import CallFailed, Calls, digest, outcome_in_child
from marl_connectors.environments.check.report import EnvMeasurements, Findings
from marl_connectors.environments.check.spaces import SpaceBook
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.checks import leaf_name
from marl_connectors.environments.rules.violations import Violation
from marl_connectors.spaces import values_per_choice
from marl_connectors.typing import AgentID

_MANY = 1000


@dataclass(slots=True)
class Outcome:
    """The outcome of one call of ``reset`` or ``step``.

    Attributes:
        to_act: The agents that act next. The value is False for an agent of a turn-based environment that has ended
            and must be stepped with None.
        masks: The values that masks allow, ``[n]`` bool, by agent; only for agents with masks.
        tokens: Digests of all data, for comparisons, by ``("observation", agent)``, ``("reward", agent)`` and so on.
        numbers: Observations and rewards whose numeric distance can be computed, under the same keys.
    """

    to_act: dict[AgentID, bool] = field(default_factory=dict)
    masks: dict[AgentID, np.ndarray] = field(default_factory=dict)
    tokens: dict[tuple[str, Any], bytes] = field(default_factory=dict)
    numbers: dict[tuple[str, Any], np.ndarray] = field(default_factory=dict)


@dataclass(slots=True)
class Played:
    """An episode, or the beginning of one.

    Attributes:
        seed: The seed of the reset; None for a reset without a seed.
        first: The outcome of the reset.
        steps: The actions and the outcome of each step.
        is_over: Whether the episode ended.
        flags: How the agents of the last step ended: ``"terminated"``, ``"truncated"``.
    """

    seed: int | None
    first: Outcome
    steps: list[tuple[dict[AgentID, Any], Outcome]] = field(default_factory=list)
    is_over: bool = False
    flags: set[str] = field(default_factory=set)


@dataclass(slots=True)
class PlayTotals:
    """The number and the duration of the calls in all episodes, with all instances of the environment."""

    resets: int = 0
    reset_seconds: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    agent_steps: int = 0
    lengths: list[int] = field(default_factory=list)

    def measurements(self, episodes: int) -> EnvMeasurements | None:
        """Returns the measurements for the report; None if there were no steps."""
        if not self.steps:
            return None
        return EnvMeasurements(
            episodes=episodes,
            episode_lengths=tuple(self.lengths),
            steps=self.steps,
            agent_steps=self.agent_steps,
            agents_per_step=self.agent_steps / self.steps,
            seconds_per_step=self.step_seconds / self.steps,
            seconds_per_reset=self.reset_seconds / max(self.resets, 1),
        )


@dataclass(slots=True)
class Session:
    """The objects that all CheckedEnvs of one environment share.

    Attributes:
        name: The name of the environment.
        findings: The findings so far.
        calls: Makes the calls.
        spaces: The agents' spaces.
        mask_key: The key of observations or infos under which action masks are; None to ignore them.
        given: The data that the environment returned from its last call.
        totals: The number and the duration of the calls.
        seen: All agents that ever took part.
        masks_in: The places in which masks were found: ``"observations"``, ``"infos"``.
    """

    name: str
    findings: Findings
    calls: Calls
    spaces: SpaceBook
    mask_key: str | None
    given: GivenData
    totals: PlayTotals = field(default_factory=PlayTotals)
    seen: dict[AgentID, None] = field(default_factory=dict)
    masks_in: set[str] = field(default_factory=set)


class CheckedEnv(ABC):
    """Plays one environment, and checks what it returns.

    The methods are the same for parallel and for turn-based environments.

    Attributes:
        env: The environment.
        session: Collects findings and measurements.
        t: The number of steps since the reset.
        ended_as: How the agents that ended in the last step ended: ``"terminated"``, ``"truncated"``.
    """

    takes_turns = False

    def __init__(self, env: Any, session: Session):
        self.env = env
        self.session = session
        self.t = 0
        self.ended_as: set[str] = set()
        self._gone: set[AgentID] = set()

    @abstractmethod
    def reset(self, seed: int | None) -> Outcome:
        """Starts an episode.

        Raises:
            CallFailed: If the episode cannot be played.
        """

    @abstractmethod
    def step(self, actions: dict[AgentID, Any]) -> Outcome:
        """Plays a step.

        Args:
            actions: The actions of all agents in ``Outcome.to_act``.

        Raises:
            CallFailed: If the episode cannot be continued.
        """

    def call_reset(self, seed: int | None) -> Any:
        """Calls the environment's ``reset`` and returns its result."""
        self.t, self.ended_as, self._gone = 0, set(), set()
        session = self.session
        if seed is None:
            given = session.calls("reset()", self.env.reset, step=0)
        else:
            given = session.calls(f"reset(seed={seed})", lambda: self.env.reset(seed=seed), step=0)
        session.totals.resets += 1
        session.totals.reset_seconds += session.calls.seconds
        session.given.look_again(0)
        return given

    def call_step(self, whose: str, action: Any, num_agents: int) -> Any:
        """Calls the environment's ``step`` and returns its result."""
        self.t += 1
        session, totals = self.session, self.session.totals
        allowed_by = "that the masks allow" if session.masks_in else "from the action space"
        what = whose if action is None else f"step() with {whose} {allowed_by}"
        given = session.calls(what, lambda: self.env.step(action), step=self.t)
        totals.steps += 1
        totals.step_seconds += session.calls.seconds
        totals.agent_steps += num_agents
        session.given.look_again(self.t)
        return given

    def agents(self) -> list[AgentID]:
        """Returns the agents in ``env.agents``, each of them once."""
        agents = self.session.calls("env.agents", lambda: list(self.env.agents), step=self.t)
        if len(set(agents)) != len(agents):
            self.note("agents-twice", f"env.agents is {agents}")
        return list(dict.fromkeys(agents))

    def welcome(self, agents: list[AgentID]) -> None:
        """Records and checks agents that take part from now on."""
        self.session.spaces.compare(agents, self.t)
        possible = getattr(self.env, "possible_agents", None)
        for agent in agents:
            self.session.seen.setdefault(agent)
            if possible and agent not in possible:
                self.note("agent-not-possible", f"the agent is not in possible_agents, {_some(list(possible))}", agent)
            if agent in self._gone:
                self.note("agent-returns", "the agent ended and comes back in the same episode", agent)

    def ends(self, agent: AgentID, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Returns an agent's two flags as bools, and records how it ended."""
        both = bool(np.all(terminated)), bool(np.all(truncated))
        if all(both):
            clause = "the agent is both terminated and truncated, which counts as terminated: nothing comes after it"
            self.note("both-flags", clause, agent)
        if any(both):
            self.ended_as.add("terminated" if both[0] else "truncated")
        return both

    def judge(self, acted: list[AgentID], outcome: Outcome, given: tuple[Any, ...], flags: dict[AgentID, Any]) -> None:
        """Checks the data that agents get, and stores what a replay is compared with.

        Args:
            acted: The agents that acted; empty for a reset.
            outcome: The outcome with the agents that act next. Masks, tokens and numbers are added to it.
            given: Observations, rewards, terminations, truncations and infos by agent.
            flags: The two flags as bools, by agent, of agents that have flags.
        """
        session, observations, rewards, infos = self.session, given[0], given[1], given[4]
        live = [agent for agent, lives in outcome.to_act.items() if lives]
        for found in contents(acted, live, given, session.spaces.observation_space):
            self.add(found)
        for agent in dict.fromkeys([*acted, *outcome.to_act]):
            observation, reward, info = observations.get(agent), rewards.get(agent), infos.get(agent, {})
            space = session.spaces.observation_space(agent)
            if observation is not None and space is not None:
                for found in conversions(agent, space, observation):
                    self.add(found)
            terminated, truncated = flags.get(agent, (False, False))
            if observation is None and truncated and not terminated:
                clause = "the agent is truncated without a last observation, which its value is estimated from"
                self.note("no-final-observation", clause, agent)
            if agent in live:
                self._keep_mask(agent, observation, info, outcome)
            for what, value in (("observation", observation), ("info", info)):
                outcome.tokens[what, agent] = session.given.remember(what, agent, value)
            for what, value in (("reward", reward), ("flags", flags.get(agent))):
                outcome.tokens[what, agent] = digest(value)
            for what, value in (("observation", observation), ("reward", reward)):
                array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic, float)) else np.zeros(0)
                if array.dtype.kind == "f" and 0 < array.size <= _MANY:
                    outcome.numbers[what, agent] = array.copy()

    def _keep_mask(self, agent: AgentID, observation: Any, info: Any, outcome: Outcome) -> None:
        """Checks the mask of an agent that acts next, and stores the values that it allows."""
        key, space = self.session.mask_key, self.session.spaces.action_space(agent)
        holders = {"observations": observation, "infos": info}
        found = [place for place, given in holders.items() if isinstance(given, Mapping) and given.get(key) is not None]
        if key is None or not found:
            return
        self.session.masks_in.add(found[0])
        if space is None or values_per_choice(space) is None:
            return
        mask = holders[found[0]][key]
        wrong = mask_violation(agent, space, mask, key, takes_turns=self.takes_turns)
        if wrong is not None:
            self.add(wrong)
        if wrong is None or wrong.level == "note":
            allowed = checks.allowed_actions(space, mask)
            if allowed is not None:
                outcome.masks[agent] = allowed

    def add(self, found: Violation) -> None:
        """Adds a violation in this step to the findings."""
        self.session.findings.add(found, self.t)

    def note(self, kind: str, what: str, agent: AgentID | None = None, **other: Any) -> None:
        """Adds a violation of this kind in this step to the findings."""
        self.session.findings.note(kind, what, agent, step=self.t, **other)

    def give_up(self, found: Violation | None) -> None:
        """Ends the episode if there is a violation after which it cannot be continued.

        Raises:
            CallFailed: If ``found`` is not None.
        """
        if found is not None:
            self.add(found)
            raise CallFailed


class CheckedParallelEnv(CheckedEnv):
    """Plays a parallel environment."""

    def __init__(self, env: Any, session: Session):
        super().__init__(env, session)
        self._acted: set[AgentID] = set()

    def reset(self, seed: int | None) -> Outcome:
        given = self.call_reset(seed)
        self._acted = set()
        self.give_up(checks.reset_violation(given))
        agents = self.agents()
        if not agents:
            self.give_up(checks.no_live_agents())
        self.welcome(agents)
        return self._outcome([], agents, (given[0], {}, {}, {}, self._infos(given[1])), {})

    def step(self, actions: dict[AgentID, Any]) -> Outcome:
        before = {agent: digest(action) for agent, action in actions.items() if isinstance(action, np.ndarray)}
        acted = list(actions)
        given = self.call_step("actions", dict(actions), len(actions))
        for agent, token in before.items():
            if digest(actions[agent]) != token:
                self.note("action-changed", "step() writes to the action array that it was given", agent)
        self.give_up(checks.result_violation(given))
        observations, rewards, terminations, truncations, infos = given
        flags = self._flags(acted, terminations, truncations)
        ended = {agent for agent, both in flags.items() if any(both)}
        now = self.agents()
        for agent in acted:
            if found := checks.left_without_flag([] if agent in ended else [agent], now):
                self.add(found)
            if agent in ended and agent in now:
                self.note(
                    "ended-but-stays", "the agent has ended, but is still in env.agents; it gets no more actions", agent
                )
        self._check_rewards(acted, rewards)
        newcomers = [agent for agent in now if agent not in actions and agent not in ended]
        self.welcome(newcomers)
        self._acted.update(acted)
        self._gone |= ended
        to_act = [agent for agent in acted if agent not in ended and agent in now] + newcomers
        given = (observations, rewards, terminations, truncations, self._infos(infos))
        return self._outcome(acted, to_act, given, flags)

    def _outcome(self, acted: list[AgentID], to_act: list[AgentID], given: tuple[Any, ...], flags: Any) -> Outcome:
        outcome = Outcome(dict.fromkeys(to_act, True))
        outcome.tokens["agents", None] = digest(sorted(map(repr, to_act)))
        self.judge(acted, outcome, given, flags)
        return outcome

    def _infos(self, infos: Any) -> Any:
        if infos is None:
            self.note("info", "the infos are None, not a dict", level="note", part="all")
        return infos or {}

    def _flags(self, acted: list[AgentID], terminations: Any, truncations: Any) -> dict[AgentID, tuple[bool, bool]]:
        """Returns the two flags, by agent, of the agents that acted and of other agents with a flag that is True."""
        flags = {}
        for agent in dict.fromkeys([*acted, *terminations, *truncations]):
            raw = terminations.get(agent, False), truncations.get(agent, False)
            if agent in acted:
                flags[agent] = self.ends(agent, *raw)
                if agent not in terminations or agent not in truncations:
                    clause = "the agent acted, but has no flag in terminations or truncations"
                    self.note("flag-missing", clause, agent)
            elif agent != "__all__" and any(np.any(flag) for flag in raw):
                flags[agent] = bool(np.any(raw[0])), bool(np.any(raw[1]))
                if agent not in self._acted and agent not in self._gone:
                    self.note("flag-of-stranger", "the agent is flagged as ended, but has never acted", agent)
        return flags

    def _check_rewards(self, acted: list[AgentID], rewards: Any) -> None:
        for agent in acted:
            if agent not in rewards:
                self.note("reward-missing", "the agent acted, but got no reward, which counts as 0", agent)
        for agent, reward in rewards.items():
            if agent in acted or checks.reward_violation(agent, reward) or not reward:
                continue
            if agent in self._acted:
                clause = f"the agent gets the reward {float(reward):g} in a step in which it did not act"
                self.note("reward-without-action", clause, agent)
            else:
                clause = (
                    f"the agent gets the reward {float(reward):g} before its first action, so it counts for no action"
                )
                self.note("reward-uncredited", clause, agent)

    def step_after_the_end(self) -> None:
        """Tries in another process what ``step({})`` does after the end of an episode."""
        if isinstance(self.env, SingleAgentEnv):
            return
        if came := outcome_in_child(lambda: self.env.step({})):
            level = "warning" if came.startswith("killed") else "note"
            self.session.findings.note("step-after-end", f"step({{}}) after the end of an episode {came}", level=level)


class CheckedMultiAgentEnv(CheckedParallelEnv):
    """Plays a MultiAgentEnv, in which agents may wait."""

    env: MultiAgentEnvAdapter

    def step(self, actions: dict[AgentID, Any]) -> Outcome:
        acted = list(actions)
        given = self.call_step("actions", dict(actions), len(actions))
        flags = {agent: self.ends(agent, given[2][agent], given[3][agent]) for agent in given[2]}
        ended = [agent for agent, both in flags.items() if any(both)]
        to_act = self.env.acting
        self.welcome([agent for agent in to_act if agent not in self._acted])
        self._acted.update(to_act)
        self._gone.update(ended)
        return self._outcome([*acted, *ended], to_act, given, flags)

    def step_after_the_end(self) -> None:
        """Does nothing, because RLlib's API does not say what such a step does."""


class CheckedAECEnv(CheckedEnv):
    """Plays an AEC environment, and adds up every agent's rewards to check ``last()``."""

    takes_turns = True

    def __init__(self, env: AECEnv, session: Session):
        super().__init__(env, session)
        self._agents: list[AgentID] = []
        self._accumulated: dict[AgentID, float] = {}
        self._reported: dict[AgentID, float] = {}
        self._had_last_turn: set[AgentID] = set()

    def reset(self, seed: int | None) -> Outcome:
        self.call_reset(seed)
        self._agents, self._accumulated, self._reported, self._had_last_turn = [], {}, {}, set()
        self._update_agents()
        if not self._agents:
            self.give_up(checks.no_live_agents())
        self._accumulate_rewards()
        return self._next_turn()

    def step(self, actions: dict[AgentID, Any]) -> Outcome:
        ((agent, action),) = actions.items()
        whose = f"step(None) of an agent that has ended ({agent!r})" if action is None else f"an action of {agent!r}"
        self.call_step(whose, action, int(action is not None))
        self._accumulated[agent] = 0.0
        if action is None and agent in self._read("agents"):
            if any(self._flags_of(agent)):
                self.give_up(checks.not_removed(agent))
            self._gone.add(agent)  # it has joined again and has not had its first turn yet
            self._agents = [other for other in self._agents if other != agent]
        self._accumulate_rewards()
        self._update_agents()
        return self._next_turn()

    def _read(self, what: str, default: Any = None) -> Any:
        return self.session.calls(f"env.{what}", lambda: getattr(self.env, what, default), step=self.t)

    def _flags_of(self, agent: AgentID) -> list[bool]:
        return [bool(self._read(kind, {}).get(agent)) for kind in ("terminations", "truncations")]

    def _next_turn(self) -> Outcome:
        """Returns the outcome for the agent that acts next, from ``last()``."""
        outcome = Outcome(tokens={("agents", None): digest(list(map(repr, self._agents)))})
        if not self._agents:
            return outcome
        agent = self._read("agent_selection")
        if agent not in self._agents:
            self.give_up(checks.selected_absent(agent, self._agents))
        result = self.session.calls("last()", self.env.last, step=self.t)
        self.session.totals.step_seconds += self.session.calls.seconds
        self.give_up(checks.wrong_values("last", result))
        flags = self.ends(agent, result[2], result[3])
        outcome.to_act[agent] = not any(flags)
        if any(flags):
            self._had_last_turn.add(agent)
        if checks.reward_violation(agent, result[1]) is None:
            self._compare_credit(agent, float(result[1]))
        self.judge([agent], outcome, tuple({agent: part} for part in result), {agent: flags})
        return outcome

    # Rewards.

    def _accumulate_rewards(self) -> None:
        rewards, agents = self._read("rewards", {}), self._read("agents")
        for agent, reward in dict(rewards).items():
            if found := checks.reward_violation(agent, reward):
                self.add(found)
            elif agent in agents:
                self._accumulated[agent] = self._accumulated.get(agent, 0.0) + float(reward)
            elif reward:
                clause = f"env.rewards has {float(reward):g} for an agent that has left, so it is lost"
                self.note("reward-to-the-dead", clause, agent)

    def _compare_credit(self, agent: AgentID, reward: float) -> None:
        accumulated, before = self._accumulated.get(agent, 0.0), self._reported.get(agent, 0.0)
        self._reported[agent] = reward
        if np.isclose(reward, accumulated, rtol=1e-5, atol=1e-6):
            return
        why = "so something is lost or counted twice"
        if np.isclose(reward, 2 * accumulated):
            why = "so it is added twice"
        elif before and np.isclose(reward, accumulated + before):
            why = f"so its previous reward, {before:g}, is counted again"
        clause = (
            f"the agent got {accumulated:g} in env.rewards since its last turn, but last() returns {reward:g}, {why}"
        )
        self.note("reward-credit", clause, agent)

    # Agents that join and leave.

    def _update_agents(self) -> None:
        agents = self.agents()
        newcomers = [agent for agent in agents if agent not in self._agents]
        self._had_last_turn.difference_update(newcomers)
        self.welcome(newcomers)
        for agent in self._agents:
            if agent not in agents:
                self._check_leaver(agent)
        self._agents = agents

    def _check_leaver(self, agent: AgentID) -> None:
        self._gone.add(agent)
        if agent in self._had_last_turn:
            return
        if not any(self._flags_of(agent)):
            self.add(checks.left_without_flag([agent], ()))  # type: ignore[arg-type]
            return
        clause = "the agent was removed without its last turn, step(None), which returns its last observation"
        self.note("no-last-turn", clause, agent)
        kept = (getattr(self.env, "_cumulative_rewards", None) or {}).get(agent, 0.0)
        accumulated = self._accumulated.pop(agent, 0.0)
        if not np.isclose(accumulated, kept, rtol=1e-5, atol=1e-6):
            self.note("reward-credit", f"the agent left with {accumulated:g}, which last() never returned", agent)


def _some(agents: list[AgentID]) -> str:
    return f"[{', '.join(map(repr, agents[:5]))}, ...]" if len(agents) > 5 else str(agents)


def play(checked_env: CheckedEnv, seed: int | None, rng: np.random.Generator, max_steps: int) -> Played:
    """Plays an episode with random actions that the masks allow.

    Args:
        checked_env: The environment.
        seed: The seed of the reset; None for a reset without a seed.
        rng: Draws the actions.
        max_steps: The number of steps after which the episode is stopped.

    Raises:
        CallFailed: If the environment fails.
        OutOfTime: If there is no time left.
    """
    session = checked_env.session
    session.spaces.forget_samplers()
    outcome = checked_env.reset(seed)
    episode = Played(seed, outcome)
    while outcome.to_act and len(episode.steps) < max_steps:
        session.calls.check_time()
        actions = {
            agent: session.spaces.sample(agent, outcome.masks.get(agent), rng) if lives else None
            for agent, lives in outcome.to_act.items()
        }
        checked_env.ended_as = set()
        outcome = checked_env.step(actions)
        episode.steps.append((actions, outcome))
        episode.flags = checked_env.ended_as or episode.flags
    episode.is_over = not outcome.to_act
    if episode.is_over:
        session.totals.lengths.append(checked_env.t)
    return episode


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between an episode and its replay.

    Attributes:
        step: The number of the step; 0 is the reset.
        what: ``"observation"``, ``"reward"``, ``"flags"``, ``"info"`` or ``"agents"``.
        agent: The agent concerned; None for ``"agents"``.
        apart: The largest difference, if it is as small as the rounding of a physics engine; else None.
    """

    step: int
    what: str
    agent: AgentID | None
    apart: float | None = None


def replay(checked_env: CheckedEnv, seed: int | None, episode: Played) -> tuple[Mismatch | None, Mismatch | None]:
    """Plays the actions of an episode again, and compares.

    Args:
        checked_env: The environment.
        seed: The seed of the reset.
        episode: The episode.

    Returns:
        The first difference in anything but infos, and the first difference in infos if that comes earlier. Each is
        None if there is none.
    """
    in_infos = None
    for mismatch in replay_by_steps(checked_env, seed, episode):
        if mismatch is not None and mismatch.what != "info":
            return mismatch, in_infos
        in_infos = in_infos or mismatch
    return None, in_infos


def replay_by_steps(checked_env: CheckedEnv, seed: int | None, episode: Played) -> Iterator[Mismatch | None]:
    """Replays an episode step by step, and yields the difference in each reset or step, or None."""
    expected, outcome = episode.first, checked_env.reset(seed)
    for number, (actions, after) in enumerate(episode.steps):
        checked_env.session.calls.check_time()
        yield _first_mismatch(number, expected, outcome)
        if list(outcome.to_act) != list(actions):
            yield Mismatch(number, "agents", None)
            return
        expected, outcome = after, checked_env.step(actions)
    yield _first_mismatch(len(episode.steps), expected, outcome)


def _first_mismatch(step: int, expected: Outcome, found: Outcome) -> Mismatch | None:
    """Returns the most important difference between two outcomes; None if they are equal. Infos count least."""
    if expected.tokens == found.tokens:
        return None
    keys = {**expected.tokens, **found.tokens}
    different = [key for key in keys if expected.tokens.get(key) != found.tokens.get(key)]
    mismatches = [
        Mismatch(step, *key, _slightly_apart(expected.numbers.get(key), found.numbers.get(key))) for key in different
    ]
    return min(mismatches, key=lambda mismatch: 2 * (mismatch.what == "info") + (mismatch.apart is not None))


def _slightly_apart(before: np.ndarray | None, now: np.ndarray | None) -> float | None:
    if before is None or now is None or before.shape != now.shape:
        return None
    if not np.allclose(before, now, rtol=1e-3, atol=1e-3):
        return None
    return float(np.abs(before.astype(np.float64) - now).max())


class GivenData:
    """The data that the environment returned since its last call. They are checked for changes after the next call."""

    def __init__(self, findings: Findings):
        """Starts without any data. Changes of data are added to the findings."""
        self._findings = findings
        self._given: list[tuple[str, AgentID, Any, bytes]] = []
        self._arrays: dict[int, list[tuple[AgentID, tuple[Any, ...], np.ndarray, bytes]]] = {}  # by memory address
        self._writes_to_shared = False

    def remember(self, what: str, agent: AgentID, value: Any) -> bytes:
        """Stores an observation or info, and returns its digest."""
        token = digest(value)
        self._given.append((what, agent, value, token))
        if what == "observation" and not self._remember_arrays(agent, value, ()):
            self._findings.note("read-only-arrays", "observations are arrays that cannot be written to", agent)
        return token

    def _remember_arrays(self, agent: AgentID, item: Any, path: tuple[Any, ...]) -> bool:
        """Stores the arrays in an observation, and returns whether all are writeable."""
        if isinstance(item, (Mapping, tuple, list)):
            parts = item.items() if isinstance(item, Mapping) else enumerate(item)
            writeable = [self._remember_arrays(agent, part, (*path, key)) for key, part in parts]
            return all(writeable)
        if not isinstance(item, np.ndarray):
            return True
        if item.size:
            place = item.__array_interface__["data"][0]
            self._arrays.setdefault(place, []).append((agent, path, item, digest(item)))
        return item.flags.writeable

    def newest(self) -> list[tuple[Any, bytes]]:
        """Returns the data since the last call, each with its digest."""
        return [(value, token) for _, _, value, token in self._given]

    def look_again(self, step: int) -> None:
        """Finds data that have changed, and arrays that several agents got. Then all data are forgotten."""
        for found in self._arrays.values():
            agents = list(dict.fromkeys(agent for agent, *_ in found))
            if len(agents) > 1:
                self._shared(agents, *found[0][1:], step)
        self._arrays.clear()
        for what, agent, value, token in self._given:
            if digest(value) != token:
                clause = f"the {what} changed after it was returned, because the environment writes to one object"
                self._findings.note(f"{what}-reused", clause, agent, step=step)
        self._given.clear()

    def _shared(self, agents: list[AgentID], path: tuple[Any, ...], array: np.ndarray, token: bytes, step: int) -> None:
        """Adds a finding for an array that several agents got in one step.

        If the environment fills it again for each agent, it contains the last agent's observation for all.
        """
        one, other = agents[:2]
        what = f"Agents {one!r} and {other!r} got the same array as observation{leaf_name(path)}"
        if digest(array) != token:
            self._writes_to_shared = True
            clause = f"{what}, and the environment writes to it in each step, so all see what was written last"
            self._findings.note("observation-shared", clause, one, step=step, part=path)
        elif not self._writes_to_shared:
            advice = (
                "Nothing to do if both should see the same. Otherwise make an array for each agent: an array that is "
                "filled again for the next agent contains the last agent's observation."
            )
            clause = f"{what}, so they see the same"
            self._findings.note("observation-shared", clause, one, level="note", advice=advice, part=path)
