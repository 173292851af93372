"""Returns and lengths of episodes: they are summed up while episodes are ongoing, and summarized after their end."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS
from marl_connectors.state import ID, Bools, Count, Floats, Ints, State
from marl_connectors.typing import AgentID, ModuleID


class Returns(State):
    """Statistics of returns in bounded memory: the single returns are not kept.

    Attributes:
        count: The number of returns.
        total: The sum of the returns.
        squares: The sum of the squared differences from the mean.
        lowest: The lowest return; infinity if there is none.
        highest: The highest return; minus infinity if there is none.
        steps: The number of agent steps in which the returns were earned.
    """

    count: Count = 0
    total: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    steps: Count = 0

    @classmethod
    def of(cls, values: Sequence[float], steps: int = 0) -> Returns:
        """Returns the statistics of at least one return. The order of ``values`` does not even affect rounding."""
        array = np.sort(values)
        squares = float(np.square(array - array.mean()).sum())
        return cls(len(array), float(array.sum()), squares, float(array.min()), float(array.max()), steps)

    @property
    def mean(self) -> float:
        """The mean of the returns; NaN if there is none."""
        return self.total / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the returns, with divisor ``count``; NaN if there is none."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan

    def add(self, value: float, steps: int) -> None:
        """Adds a return that was earned in ``steps`` agent steps."""
        if self.count:
            gap = value - self.mean
            self.squares += gap * gap * self.count / (self.count + 1)
        self.count += 1
        self.total += value
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        self.steps += steps

    def merge(self, other: Returns) -> None:
        """Adds other returns. The formula for ``squares`` is that of Chan, Golub and LeVeque (1979)."""
        if self.count and other.count:
            gap = other.mean - self.mean
            self.squares += gap * gap * self.count * other.count / (self.count + other.count)
        self.count += other.count
        self.total += other.total
        self.squares += other.squares
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.steps += other.steps


class EndedAgent(State):
    """The returns and lengths of an agent's lives in an episode. The newest life has ended.

    Attributes:
        module_id: The module that chose the agent's actions in the newest life.
        life_return: The return of the newest life. It still changes if the agent gets a reward after its end.
        is_truncated: Whether the newest life was truncated.
        life_steps: The number of agent steps of the newest life.
        earlier_lives: The number of earlier lives in the same episode.
        earlier_returns: The sum of the returns of the earlier lives.
        earlier_steps: The number of agent steps of all earlier lives.
    """

    module_id: ModuleID
    life_return: float
    is_truncated: bool
    life_steps: Count
    earlier_lives: Count = 0
    earlier_returns: float = 0.0
    earlier_steps: Count = 0


class EndedTogether(State):
    """The agents of an episode that all ended in the same step, each after one life.

    Attributes:
        is_truncated: Whether any agent ended by truncation.
        agent_ids: The agents.
        module_ids: The module of each agent.
        returns: ``[num_agents]``, the return of each agent.
        truncated: ``[num_agents]`` bool, whether each agent ended by truncation.
        steps: ``[num_agents]`` int64, the number of steps of each agent.
    """

    is_truncated: bool
    agent_ids: tuple[ID, ...]
    module_ids: tuple[ModuleID, ...]
    returns: Floats
    truncated: Bools
    steps: Ints

    def __post_init__(self) -> None:
        lengths = {len(own) for own in (self.agent_ids, self.module_ids, self.returns, self.truncated, self.steps)}
        if len(lengths) > 1:
            raise ValueError(f"Expected a module, a return, a flag and steps for each agent, got {sorted(lengths)}")


class EpisodeSummary(State):
    """The returns and the length of an episode in bounded memory.

    They are kept agent by agent, or in columns if all agents ended together.

    Attributes:
        length: The number of env steps, once the episode has ended.
        episode_return: The sum of the rewards of all agents. While the episode is ongoing, the rewards of live agents
            are not included.
        together: All agents, if they ended in the same step, and no agent ended or got a reward while absent before.
            ``agents`` and ``settled`` are empty then.
        agents: The ``REMEMBERED_AGENTS`` agents that ended last, the last one at the end.
        settled: Module id to the returns of all other lives that have ended.
        any_settled_truncated: Whether an agent that is no longer in ``agents`` ended by truncation.
        advances: The rewards of agents that have not ended yet, but belong to none of their actions. They count for
            the life that ends next.
    """

    length: Count = 0
    episode_return: float = 0.0
    together: EndedTogether | None = None
    agents: dict[ID, EndedAgent] = {}
    settled: dict[ModuleID, Returns] = {}
    any_settled_truncated: bool = False
    advances: dict[ID, float] = {}

    def copy(self) -> EpisodeSummary:
        """Returns a summary that does not change with this one."""
        return msgspec.structs.replace(
            self,
            agents={agent_id: copy.copy(own) for agent_id, own in self.agents.items()},
            settled={module_id: copy.copy(own) for module_id, own in self.settled.items()},
            advances=dict(self.advances),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no agent has ended yet, and no absent agent got a reward."""
        return not (self.agents or self.settled or self.advances or self.together)

    @property
    def is_truncated(self) -> bool:
        """Whether the newest life of any agent ended by truncation."""
        if self.together is not None:
            return self.together.is_truncated
        return self.any_settled_truncated or any(agent.is_truncated for agent in self.agents.values())

    def end_life(
        self, agent_id: AgentID, module_id: ModuleID, life_return: float, is_truncated: bool, life_steps: int
    ) -> None:
        """Adds the life of an agent that has ended.

        Args:
            agent_id: The agent.
            module_id: The module that chose its actions.
            life_return: The sum of the rewards of the agent's actions in this life.
            is_truncated: Whether the life was truncated.
            life_steps: The number of agent steps of the life.
        """
        self.take_apart()
        self.episode_return += life_return
        life_return += self.advances.pop(agent_id, 0.0)
        agents = self.agents
        former = agents.pop(agent_id, None)
        if former is None:
            agents[agent_id] = EndedAgent(module_id, life_return, is_truncated, life_steps)
            if len(agents) > REMEMBERED_AGENTS:
                oldest = agents.pop(next(iter(agents)))
                self._settle(oldest)
                self.any_settled_truncated |= oldest.is_truncated
        else:
            self._settle(former)
            lives, returns = former.earlier_lives + 1, former.earlier_returns + former.life_return
            steps = former.earlier_steps + former.life_steps
            agents[agent_id] = EndedAgent(module_id, life_return, is_truncated, life_steps, lives, returns, steps)

    def credit_absent_agent(self, agent_id: AgentID, reward: float) -> None:
        """Adds a reward of an absent agent: one after its end, or before its first action."""
        self.take_apart()
        reward = float(reward)
        self.episode_return += reward
        agent = self.agents.get(agent_id)
        if agent is not None:
            agent.life_return += reward
        else:
            self.advances[agent_id] = self.advances.get(agent_id, 0.0) + reward

    def _settle(self, agent: EndedAgent) -> None:
        self.settled.setdefault(agent.module_id, Returns()).add(agent.life_return, agent.life_steps)

    def end_together(self, total: float, ended: EndedTogether) -> None:
        """Adds the last agents, which have ended in the same step.

        Args:
            total: The sum of their returns.
            ended: The agents.
        """
        if self.is_empty:
            self.episode_return, self.together = total, ended
        else:
            self._end_each(ended)

    def take_apart(self) -> None:
        """Moves agents that have ended together to ``agents``, as if they had ended one by one."""
        if self.together is not None:
            ended, self.together, total = self.together, None, self.episode_return
            self._end_each(ended)
            self.episode_return = total

    def _end_each(self, ended: EndedTogether) -> None:
        columns = (column.tolist() for column in (ended.returns, ended.truncated, ended.steps))
        for life in zip(ended.agent_ids, ended.module_ids, *columns, strict=True):
            self.end_life(*life)

    @property
    def agent_totals(self) -> dict[AgentID, tuple[int, float, int]]:
        """Maps each remembered agent to the number of its ended lives, and the sums of their returns and steps."""
        self.take_apart()
        return {
            a: (e.earlier_lives + 1, e.earlier_returns + e.life_return, e.earlier_steps + e.life_steps)
            for a, e in self.agents.items()
        }


def end_together(
    summaries: Sequence[EpisodeSummary],
    lengths: Sequence[int],
    agent_ids: Sequence[tuple[AgentID, ...]],
    module_ids: Sequence[tuple[ModuleID, ...]],
    returns: np.ndarray,
    truncated: np.ndarray,
    steps: np.ndarray,
    begins: np.ndarray,
) -> None:
    """Adds the last agents of several episodes to their summaries.

    Args:
        summaries: The summary of each episode.
        lengths: The number of env steps of each episode.
        agent_ids: The agents of each episode.
        module_ids: The modules of these agents.
        returns: ``[N]``, the returns of the agents of all episodes, episode after episode.
        truncated: ``[N]`` bool, whether each agent ended by truncation.
        steps: ``[N]`` int64, the number of steps of each agent.
        begins: The index of each episode's first agent among the ``N`` agents.
    """
    totals = np.add.reduceat(returns, begins).tolist()
    any_truncated = np.logical_or.reduceat(truncated, begins).tolist()
    bounds = pairwise([*begins.tolist(), len(returns)])
    episodes = zip(summaries, lengths, totals, any_truncated, agent_ids, module_ids, bounds, strict=True)
    for summary, length, total, is_truncated, agents, modules, (begin, end) in episodes:
        columns = returns[begin:end], truncated[begin:end], steps[begin:end]
        summary.length = length
        summary.end_together(total, EndedTogether(is_truncated, agents, modules, *columns))


class _Totals:
    """Returns and steps of finished episodes, by module and by agent.

    Attributes:
        by_module: The returns of the agents of each module.
        by_agent: The number of episodes, the returns and the steps of each agent.
    """

    def __init__(self, episodes: Collection[EpisodeSummary]):
        self.by_module: dict[ModuleID, Returns] = defaultdict(Returns)
        self.by_agent: dict[AgentID, tuple[int, list[float], int]] = {}
        self._lives: dict[ModuleID, list[float]] = defaultdict(list)
        self._steps: dict[ModuleID, int] = defaultdict(int)
        joint: dict[tuple[tuple[AgentID, ...], tuple[ModuleID, ...]], list[EndedTogether]] = defaultdict(list)
        for episode in episodes:
            if episode.together is None:
                self._add_episode(episode)
                continue
            agent_ids, module_ids = episode.together.agent_ids, episode.together.module_ids
            parts = joint[agent_ids, module_ids]
            if not parts:
                for agent_id in agent_ids[-REMEMBERED_AGENTS:]:
                    self.by_agent.setdefault(agent_id, (0, [], 0))  # keeps the order of the episodes
            parts.append(episode.together)
        for (agent_ids, module_ids), parts in joint.items():
            self._add_joint(agent_ids, module_ids, parts)
        for module_id, values in self._lives.items():
            self.by_module[module_id].merge(Returns.of(values, self._steps[module_id]))

    def _add_episode(self, episode: EpisodeSummary) -> None:
        for agent in episode.agents.values():
            self._lives[agent.module_id].append(agent.life_return)
            self._steps[agent.module_id] += agent.life_steps
        for module_id, returns in episode.settled.items():
            self.by_module[module_id].merge(returns)
        for agent_id, (count, total, length) in episode.agent_totals.items():
            self._add_agent(agent_id, count, [total], length)

    def _add_joint(
        self, agent_ids: Sequence[AgentID], module_ids: Sequence[ModuleID], parts: Sequence[EndedTogether]
    ) -> None:
        """Adds episodes with the same agents and modules, in which all agents end together."""
        columns = np.array([part.returns for part in parts]).T.tolist()
        lengths = np.sum([part.steps for part in parts], axis=0).tolist()
        for module_id, values, length in zip(module_ids, columns, lengths, strict=True):
            self._lives[module_id] += values
            self._steps[module_id] += length
        for agent_id, values, length in list(zip(agent_ids, columns, lengths, strict=True))[-REMEMBERED_AGENTS:]:
            self._add_agent(agent_id, len(values), values, length)

    def _add_agent(self, agent_id: AgentID, count: int, totals: list[float], length: int) -> None:
        earlier_count, earlier, earlier_length = self.by_agent.get(agent_id, (0, [], 0))
        self.by_agent[agent_id] = earlier_count + count, earlier + totals, earlier_length + length


def summarize(episodes: Collection[EpisodeSummary]) -> dict[str, Any]:
    """Summarizes finished episodes.

    Args:
        episodes: The summaries of the episodes.

    Returns:
        ``episode_return_mean/min/max`` (a multi-agent episode's return is the sum of its agents' rewards),
        ``episode_len_mean/min/max`` (in env steps), ``num_episodes``, ``module_episode_returns`` (``{module_id: {mean,
        std, min, max, num_episodes}}`` over the returns of the module's agents), ``module_steps`` (the mean number of
        agent steps of these agents), ``agent_episode_returns_mean`` and ``agent_steps`` (the mean returns and lengths
        of at most ``REMEMBERED_AGENTS`` agents). Means, minima and maxima of no episodes are NaN.
    """
    totals = _Totals(episodes)
    by_module = sorted(totals.by_module.items())
    newest_agents = list(totals.by_agent.items())[-REMEMBERED_AGENTS:]
    whole = Returns.of([episode.episode_return for episode in episodes]) if episodes else Returns()
    env_steps = [episode.length for episode in episodes] or [math.nan]
    return {
        "episode_return_mean": whole.mean,
        "episode_return_min": whole.lowest if episodes else math.nan,
        "episode_return_max": whole.highest if episodes else math.nan,
        "episode_len_mean": float(np.mean(env_steps)),
        "episode_len_min": min(env_steps),
        "episode_len_max": max(env_steps),
        "num_episodes": len(episodes),
        "module_episode_returns": {
            module_id: {
                "mean": returns.mean,
                "std": returns.std,
                "min": returns.lowest,
                "max": returns.highest,
                "num_episodes": returns.count,
            }
            for module_id, returns in by_module
        },
        "module_steps": {module_id: returns.steps / returns.count for module_id, returns in by_module},
        "agent_episode_returns_mean": {a: math.fsum(values) / count for a, (count, values, _) in newest_agents},
        "agent_steps": {agent_id: length / count for agent_id, (count, _, length) in newest_agents},
    }


@dataclass(slots=True)
class SamplingTimes:
    """The durations of the parts of sampling, in seconds.

    ``sample`` is more than the sum of the other times. The rest is the time to record the environments' data and to run
    callbacks.

    Attributes:
        sample: The whole of ``EnvRunner.sample``.
        env_step: Stepping environments, and resetting those whose episode has ended.
        env_reset: Resets at the start of a sample, and resets that had to wait for callbacks.
        rlmodule_inference: Forward passes.
        env_to_module: The env-to-module pipeline.
        module_to_env: The module-to-env pipeline, and recording actions and module outputs in the columns.
    """

    sample: float = 0.0
    env_step: float = 0.0
    env_reset: float = 0.0
    rlmodule_inference: float = 0.0
    env_to_module: float = 0.0
    module_to_env: float = 0.0

    def as_results(self) -> dict[str, float]:
        """Returns all times but ``sample`` under RLlib's names."""
        return {
            "env_step_timer": self.env_step,
            "env_reset_timer": self.env_reset,
            "rlmodule_inference_timer": self.rlmodule_inference,
            "env_to_module_connector": self.env_to_module,
            "module_to_env_connector": self.module_to_env,
        }
