"""What recorded episodes hold: agents, modules, spaces, steps, returns and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.offline.episode_reader import EpisodeReader, Record, whole_chains
from marl_connectors.offline.recorded_sample import RecordedSample
from marl_connectors.typing import AgentID


def summarize(reader: EpisodeReader) -> dict[str, Any]:
    """Returns what the data of a reader are. The position of the reader stays as it is.

    Args:
        reader: A reader with ``complete_episodes=False``. Make it with ``check_all=True`` to find all damage.

    Returns:
        ``files``, ``bytes``, ``samples``, ``chunks``, ``env_steps``, ``agent_steps``, ``whole_episodes`` (from the
        beginning to the end), ``lengths`` and ``returns`` of these, ``agents`` and ``damages``. ``agents`` has for each
        agent the spaces, the agent steps by module, the columns, whose actions they are (of ``action_units.ALL``), and
        the returns in whole episodes. Returns are all that the environment paid, including rewards that belong to no
        action.
    """
    agents: dict[AgentID, dict[str, Any]] = {}
    returns_of: dict[int, np.ndarray] = {}
    samples = reader.samples()
    for sample in samples:
        returns_of[id(sample)] = _chunk_returns(sample)
        _add_agents(agents, sample)
    records = [record for record in reader.records() if id(record.sample) in returns_of]
    wholes, _ = whole_chains(records)
    lengths, returns = [], []
    for chain in wholes:
        lengths.append(sum(int(r.sample.env_steps[r.number]) for r in chain))
        by_agent = _returns_by_agent(chain, returns_of)
        returns.append(sum(by_agent.values()))
        for agent_id in agents.keys() & by_agent.keys():
            agents[agent_id]["returns"].append(by_agent[agent_id])
    return {
        "files": [str(file) for file in reader.files],
        "bytes": sum(file.stat().st_size for file in reader.files),
        "samples": len(samples),
        "chunks": len(records),
        "env_steps": sum(int(sample.env_steps.sum()) for sample in samples),
        "agent_steps": sum(int(sample.agent_steps.sum()) for sample in samples),
        "whole_episodes": len(wholes),
        "lengths": _statistics(lengths),
        "returns": _statistics(returns),
        "all_returns": returns,
        "all_lengths": lengths,
        "agents": {agent_id: {**own, "returns": _statistics(own["returns"])} for agent_id, own in agents.items()},
        "damages": [str(damage) for damage in reader.damages],
    }


def _chunk_returns(sample: RecordedSample) -> np.ndarray:
    """Returns ``[N]``, the sum of the rewards of each agent's episode in a sample."""
    found = np.zeros(len(sample.agent_table["rollout"]))
    for number, rollout in enumerate(sample.rollouts):
        rewards = np.concatenate([[0.0], np.cumsum(np.asarray(rollout.read(Columns.REWARDS, slice(None)), np.float64))])
        own = np.flatnonzero(sample.agent_table["rollout"] == number)
        found[own] = rewards[sample.agent_table["stop_row"][own]] - rewards[sample.agent_table["start_row"][own]]
    for number, notes in sample.agent_notes.items():
        found[number] += notes.uncredited_reward
    return found


def _add_agents(agents: dict[AgentID, dict[str, Any]], sample: RecordedSample) -> None:
    """Adds the agents of a sample, with their steps by module."""
    chunks = sample.agent_table
    steps = chunks["stop_row"] - chunks["start_row"]
    kinds = zip(*(chunks[name].tolist() for name in ("agent", "module", "rollout")), strict=True)
    for agent, module, rollout in dict.fromkeys(kinds):
        members = (chunks["agent"] == agent) & (chunks["module"] == module) & (chunks["rollout"] == rollout)
        observation_space, action_space = sample.state.rollouts[rollout].spaces()
        own = agents.setdefault(
            sample.state.agents[agent],
            {
                "observation_space": None if observation_space is None else spaces.describe(observation_space),
                "action_space": None if action_space is None else spaces.describe(action_space),
                "steps_by_module": {},
                "columns": [],
                "action_units": [],
                "returns": [],
            },
        )
        module_id = sample.state.modules[module]
        counts = own["steps_by_module"]
        counts[module_id] = counts.get(module_id, 0) + int(steps[members].sum())
        recorded = sample.rollouts[rollout]
        own["columns"] = list(dict.fromkeys([*own["columns"], *recorded.columns]))
        own["action_units"] = list(dict.fromkeys([*own["action_units"], recorded.action_units]))


def _returns_by_agent(chain: Sequence[Record], returns_of: dict[int, np.ndarray]) -> dict[AgentID, float]:
    found: dict[AgentID, float] = {}
    for record in chain:
        sample = record.sample
        for i in sample.agent_numbers(record.number):
            agent_id = sample.state.agents[sample.agent_table["agent"][i]]
            found[agent_id] = found.get(agent_id, 0.0) + float(returns_of[id(record.sample)][i])
        for agent_id, reward in sample.unclaimed(record.number).items():
            found[agent_id] = found.get(agent_id, 0.0) + reward
    return found


def _statistics(values: Iterable[float]) -> dict[str, float] | None:
    """Returns mean, standard deviation, least and greatest value; None if there are no values."""
    array = np.array(list(values), np.float64)
    if not len(array):
        return None
    return {
        "mean": float(array.mean()),
        "std": float(array.std()),
        "min": float(array.min()),
        "max": float(array.max()),
    }
