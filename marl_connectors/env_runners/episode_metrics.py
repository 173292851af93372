"""Returns and lengths of episodes: tallied while they go on, summarised when they are over."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.episodes.multi_agent_growth import REMEMBERED_AGENTS
from marl_connectors.typing import AgentID, ModuleID


@dataclass(slots=True)
class Returns:
    """Count, sum, spread and extremes of returns, without the returns.

    Attributes:
        count: How many there are.
        total: Their sum.
        squares: The sum of their squared distances from their mean.
        lowest: The lowest, infinite if there is none.
        highest: The highest, minus infinite if there is none.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> Returns:
        """Of at least one return; their order does not matter, not even for rounding."""
        array = np.sort(values)
        squares = float(np.square(array - array.mean()).sum())
        return cls(len(array), float(array.sum()), squares, float(array.min()), float(array.max()))

    @property
    def mean(self) -> float:
        """NaN if there is none."""
        return self.total / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of these very returns; NaN if there is none."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan

    def merge(self, other: Returns) -> None:
        """Takes in others; Chan, Golub and LeVeque (1979) have the formula for the squares."""
        if self.count and other.count:
            gap = other.mean - self.mean
            self.squares += gap * gap * self.count * other.count / (self.count + other.count)
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)


@dataclass(slots=True)
class EndedAgent:
    """What an agent was paid in its lives, the newest of which has ended.

    Attributes:
        module_id: Who chose its actions in the newest life.
        life_return: Of the newest life; it still grows if the agent is paid late.
        is_truncated: Whether that life was truncated.
        earlier_lives: How many lives it had before, in the same episode.
        earlier_returns: The sum of their returns.
    """

    module_id: ModuleID
    life_return: float
    is_truncated: bool
    earlier_lives: int = 0
    earlier_returns: float = 0.0


@dataclass(slots=True)
class EpisodeTally:
    """The returns of an episode, in bounded memory.

    Attributes:
        length: Env steps, once the episode is over.
        episode_return: All that the environment paid to anyone; while the episode goes on, without what live agents
            were paid.
        agents: The ``REMEMBERED_AGENTS`` agents that ended last, the very last one at the end.
        settled: Module to the returns of all other lives that have ended.
        any_settled_truncated: Whether an agent ended by truncation that is not in ``agents`` any more.
    """

    length: int = 0
    episode_return: float = 0.0
    agents: dict[AgentID, EndedAgent] = field(default_factory=dict)
    settled: dict[ModuleID, Returns] = field(default_factory=dict)
    any_settled_truncated: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no agent has ended yet, or was paid without having acted."""
        return not (self.agents or self.settled or self.episode_return)

    @property
    def is_truncated(self) -> bool:
        """Whether the newest life of any agent ended by truncation."""
        return self.any_settled_truncated or any(agent.is_truncated for agent in self.agents.values())

    def end_life(self, agent_id: AgentID, module_id: ModuleID, life_return: float, is_truncated: bool) -> None:
        """An agent has ended. A hot path."""
        self.episode_return += life_return
        agents = self.agents
        former = agents.pop(agent_id, None)
        if former is None:
            agents[agent_id] = EndedAgent(module_id, life_return, is_truncated)
            if len(agents) > REMEMBERED_AGENTS:
                oldest = agents.pop(next(iter(agents)))
                self._settle(oldest)
                self.any_settled_truncated |= oldest.is_truncated
        else:
            self._settle(former)
            lives, returns = former.earlier_lives + 1, former.earlier_returns + former.life_return
            agents[agent_id] = EndedAgent(module_id, life_return, is_truncated, lives, returns)

    def pay(self, agent_id: AgentID, reward: float) -> None:
        """An agent was paid that did not act: after its end, or before its first action."""
        self.episode_return += reward
        agent = self.agents.get(agent_id)
        if agent is not None:
            agent.life_return += reward

    def _settle(self, agent: EndedAgent) -> None:
        paid = agent.life_return
        self.settled.setdefault(agent.module_id, Returns()).merge(Returns(1, paid, 0.0, paid, paid))

    @property
    def agent_returns(self) -> dict[AgentID, tuple[int, float]]:
        """Agent to the number of its lives that have ended and the sum of their returns, as far as remembered."""
        return {a: (e.earlier_lives + 1, e.earlier_returns + e.life_return) for a, e in self.agents.items()}

    def get_state(self) -> dict[str, Any]:
        """As plain data and arrays."""
        agents = self.agents.values()
        return {
            "length": self.length,
            "episode_return": self.episode_return,
            "agent_ids": list(self.agents),
            "module_ids": [agent.module_id for agent in agents],
            "life_returns": np.array([agent.life_return for agent in agents], np.float64),
            "truncated": np.array([agent.is_truncated for agent in agents], bool),
            "earlier_lives": np.array([agent.earlier_lives for agent in agents], np.int64),
            "earlier_returns": np.array([agent.earlier_returns for agent in agents], np.float64),
            "settled": {module_id: asdict(returns) for module_id, returns in self.settled.items()},
            "any_settled_truncated": self.any_settled_truncated,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EpisodeTally:
        """The tally that ``get_state`` described."""
        columns = [state[name].tolist() for name in ("life_returns", "truncated", "earlier_lives", "earlier_returns")]
        agents = map(EndedAgent, state["module_ids"], *columns)
        return cls(
            length=state["length"],
            episode_return=state["episode_return"],
            agents=dict(zip(state["agent_ids"], agents, strict=True)),
            settled={module_id: Returns(**returns) for module_id, returns in state["settled"].items()},
            any_settled_truncated=state["any_settled_truncated"],
        )


class JointTally(NamedTuple):
    """The returns of an episode whose agents all ended in the same step, each after one life.

    Attributes:
        length: Env steps.
        episode_return: All that the environment paid to anyone.
        is_truncated: Whether any agent ended by truncation.
        agent_ids: The agents.
        module_ids: Who chose the actions of each.
        returns: ``[num_agents]`` what each was paid.
        truncated: ``[num_agents]`` bool, whether each ended by truncation.
    """

    length: int
    episode_return: float
    is_truncated: bool
    agent_ids: tuple[AgentID, ...]
    module_ids: tuple[ModuleID, ...]
    returns: np.ndarray
    truncated: np.ndarray

    def by_agent(self) -> EpisodeTally:
        """The same as an EpisodeTally."""
        tally = EpisodeTally(length=self.length)
        for life in zip(self.agent_ids, self.module_ids, self.returns.tolist(), self.truncated.tolist(), strict=True):
            tally.end_life(*life)
        tally.episode_return = self.episode_return
        return tally

    @property
    def agent_returns(self) -> dict[AgentID, tuple[int, float]]:
        """As those of an EpisodeTally."""
        return self.by_agent().agent_returns

    def get_state(self) -> dict[str, Any]:
        """As plain data and arrays."""
        return {**self._asdict(), "agent_ids": list(self.agent_ids), "module_ids": list(self.module_ids)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> JointTally:
        """The tally that ``get_state`` described."""
        return cls(**{**state, "agent_ids": tuple(state["agent_ids"]), "module_ids": tuple(state["module_ids"])})


Tally = EpisodeTally | JointTally


def tally_from_state(state: Mapping[str, Any]) -> Tally:
    """The tally of either kind that ``get_state`` described."""
    return (JointTally if "returns" in state else EpisodeTally).from_state(state)


def joint_tallies(
    lengths: Sequence[int],
    agent_ids: Sequence[tuple[AgentID, ...]],
    module_ids: Sequence[tuple[ModuleID, ...]],
    returns: np.ndarray,
    truncated: np.ndarray,
    begins: np.ndarray,
) -> list[JointTally]:
    """The tallies of several episodes, a part of all agents' ``returns`` and ``truncated`` each.

    Args:
        lengths: Of each episode.
        agent_ids: Of each episode.
        module_ids: Of each episode.
        returns: ``[N]`` of all agents, episode after episode.
        truncated: ``[N]`` bool, likewise.
        begins: Where each episode's agents begin.
    """
    totals = np.add.reduceat(returns, begins).tolist()
    any_truncated = np.logical_or.reduceat(truncated, begins).tolist()
    cuts = begins[1:]
    parts = np.split(returns, cuts), np.split(truncated, cuts)
    return list(map(JointTally, lengths, totals, any_truncated, agent_ids, module_ids, *parts))


def summarize(episodes: Collection[Tally]) -> dict[str, Any]:
    """Means over finished episodes; NaN where there are none.

    Returns:
        ``episode_return_mean/min/max`` (a multi-agent episode's return is all that its agents were paid),
        ``episode_len_mean``, ``num_episodes``, ``module_episode_returns`` (``{module_id: {mean, std, min, max,
        num_episodes}}`` over the returns of the module's agents) and ``agent_episode_returns_mean`` (of at most
        ``REMEMBERED_AGENTS`` agents).
    """
    lives: dict[ModuleID, list[float]] = defaultdict(list)
    by_module: dict[ModuleID, Returns] = defaultdict(Returns)
    by_agent: dict[AgentID, tuple[int, list[float]]] = {}

    def add_agent(agent_id: AgentID, count: int, totals: list[float]) -> None:
        earlier_count, earlier = by_agent.get(agent_id, (0, []))
        by_agent[agent_id] = earlier_count + count, earlier + totals

    joint: dict[tuple[tuple[AgentID, ...], tuple[ModuleID, ...]], list[np.ndarray]] = defaultdict(list)
    for episode in episodes:
        if isinstance(episode, JointTally):
            rows = joint[episode.agent_ids, episode.module_ids]
            if not rows:
                for agent_id in episode.agent_ids[-REMEMBERED_AGENTS:]:
                    by_agent.setdefault(agent_id, (0, []))  # in its place; the order is that of the episodes
            rows.append(episode.returns)
            continue
        for agent in episode.agents.values():
            lives[agent.module_id].append(agent.life_return)
        for module_id, returns in episode.settled.items():
            by_module[module_id].merge(returns)
        for agent_id, (count, total) in episode.agent_returns.items():
            add_agent(agent_id, count, [total])
    for (agent_ids, module_ids), rows in joint.items():
        columns = np.array(rows).T.tolist()
        for module_id, values in zip(module_ids, columns, strict=True):
            lives[module_id] += values
        for agent_id, values in list(zip(agent_ids, columns, strict=True))[-REMEMBERED_AGENTS:]:
            add_agent(agent_id, len(values), values)
    for module_id, values in lives.items():
        by_module[module_id].merge(Returns.of(values))
    whole = Returns.of([episode.episode_return for episode in episodes]) if episodes else Returns()
    return {
        "episode_return_mean": whole.mean,
        "episode_return_min": whole.lowest if episodes else math.nan,
        "episode_return_max": whole.highest if episodes else math.nan,
        "episode_len_mean": float(np.mean([episode.length for episode in episodes])) if episodes else math.nan,
        "num_episodes": len(episodes),
        "module_episode_returns": {
            module_id: {
                "mean": returns.mean,
                "std": returns.std,
                "min": returns.lowest,
                "max": returns.highest,
                "num_episodes": returns.count,
            }
            for module_id, returns in sorted(by_module.items())
        },
        "agent_episode_returns_mean": {
            agent_id: math.fsum(totals) / count
            for agent_id, (count, totals) in list(by_agent.items())[-REMEMBERED_AGENTS:]
        },
    }
