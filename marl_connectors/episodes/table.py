"""A multi-agent episode as a table: who did what when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_connectors.episodes.storage import T

if TYPE_CHECKING:
    from marl_connectors.episodes.multi_agent_access import MultiAgentAccess

LEGEND = "x observed and acted, o observed, T terminated, / truncated, . nothing"


def table(episode: MultiAgentAccess, max_columns: int = 40) -> str:
    """One row an agent, one column an env step, the lookback included.

    Args:
        episode: Whose agents.
        max_columns: Of longer episodes, only so many newest env steps are shown.
    """
    first = max(episode.env_t_started - episode.env_lookback, episode.env_t + 1 - max_columns)
    steps = range(first, episode.env_t + 1)
    names = {agent_id: str(agent_id) for agent_id in episode.agent_episodes}
    width = max([len("env step"), *map(len, names.values())])
    cell = max(3, len(str(episode.env_t)))
    lines = [f"{'env step':<{width}} " + " ".join(f"{t:>{cell}}" for t in steps)]
    past = episode.past_lives()
    for agent_id, newest in episode.agent_episodes.items():
        marks: dict[int, str] = {}
        for life in [*past.get(agent_id, ()), newest]:
            observed = [int(t) for t in life.storage.column(T)]
            marks.update(dict.fromkeys(observed, "x"))
            if observed and life.storage.pending() is None:
                marks[observed[-1]] = "T" if life.is_terminated else "/" if life.is_truncated else "o"
        lines.append(f"{names[agent_id]:<{width}} " + " ".join(f"{marks.get(t, '.'):>{cell}}" for t in steps))
    return "\n".join([*lines, LEGEND])
