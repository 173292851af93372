"""Returns and lengths of finished episodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_connectors.typing import AgentID, ModuleID


@dataclass(slots=True)
class FinishedEpisode:
    """What is worth knowing of an episode once it is over.

    Attributes:
        length: Env steps.
        agent_returns: ``(agent_id, module_id, return)`` of every agent episode in it.
    """

    length: int
    agent_returns: list[tuple[AgentID, ModuleID, float]] = field(default_factory=list)


def summarize(episodes: list[FinishedEpisode]) -> dict[str, Any]:
    """Means over finished episodes; NaN where there are none.

    Returns:
        ``episode_return_mean/min/max`` (a multi-agent episode's return is the sum over its agents),
        ``episode_len_mean``, ``num_episodes``, ``module_episode_returns`` (``{module_id: {mean, std, min, max,
        num_episodes}}`` over the returns of the module's agents) and ``agent_episode_returns_mean``.
    """
    totals = np.array([sum(r for _, _, r in episode.agent_returns) for episode in episodes])
    by_module: dict[ModuleID, list[float]] = defaultdict(list)
    by_agent: dict[AgentID, list[float]] = defaultdict(list)
    for episode in episodes:
        for agent_id, module_id, episode_return in episode.agent_returns:
            by_module[module_id].append(episode_return)
            by_agent[agent_id].append(episode_return)
    none = float("nan")
    return {
        "episode_return_mean": float(totals.mean()) if len(totals) else none,
        "episode_return_min": float(totals.min()) if len(totals) else none,
        "episode_return_max": float(totals.max()) if len(totals) else none,
        "episode_len_mean": float(np.mean([e.length for e in episodes])) if episodes else none,
        "num_episodes": len(episodes),
        "module_episode_returns": {
            module_id: {
                "mean": float(np.mean(returns)),
                "std": float(np.std(returns)),
                "min": float(np.min(returns)),
                "max": float(np.max(returns)),
                "num_episodes": len(returns),
            }
            for module_id, returns in sorted(by_module.items())
        },
        "agent_episode_returns_mean": {agent_id: float(np.mean(returns)) for agent_id, returns in by_agent.items()},
    }
