"""Random multi-agent histories, modules for them, and the way from episodes to a batch in columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from hypothesis import strategies as st

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.connectors.connector_v2 import ConnectorV2, unstack
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.rl_module.multi_rl_module import MultiRLModule

OBS_SPACE = spaces.Box(-100.0, 100.0, (3,), np.float32)
ACT_SPACE = spaces.Discrete(4)
AGENTS = ("a", "b", "c", "d")
MODULES = ("red", "green", "blue")

MAPPINGS = st.fixed_dictionaries({agent: st.sampled_from(MODULES) for agent in AGENTS})
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "absent": st.sets(st.sampled_from(AGENTS), max_size=2),
            "ends": st.dictionaries(st.sampled_from(AGENTS), st.booleans(), max_size=1),
            "rewards": st.dictionaries(st.sampled_from(AGENTS), st.integers(-8, 8)),
        }
    ),
    min_size=1,
    max_size=6,
)
EPISODES = st.lists(STEPS, min_size=1, max_size=3)


def make_modules(seed: int = 0, module_ids: tuple[str, ...] = MODULES) -> MultiRLModule:
    """Small default modules of one architecture."""
    modules = MultiRLModule()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module_id in module_ids:
            modules.add_module(
                module_id,
                DefaultPPORLModule(
                    observation_space=OBS_SPACE, action_space=ACT_SPACE, model_config={"fcnet_hiddens": [5]}
                ),
            )
    return modules


def observation(episode: int, agent: str, t: int) -> np.ndarray:
    """An observation that no other agent, step or episode has."""
    return np.array([episode, AGENTS.index(agent), t], np.float32)


def play(histories: list[list[dict[str, Any]]], mapping: dict[str, str]) -> list[MultiAgentEpisode]:
    """Episodes with the module outputs that PPO keeps. Agents pause, die, and come back in a new life."""
    episodes = []
    for number, history in enumerate(histories):
        episode = MultiAgentEpisode(
            id_=f"e{number}",
            observation_space=dict.fromkeys(AGENTS, OBS_SPACE),
            action_space=dict.fromkeys(AGENTS, ACT_SPACE),
            agent_to_module_mapping_fn=lambda agent, episode: mapping[agent],
        )
        episode.add_env_reset(observations={agent: observation(number, agent, 0) for agent in AGENTS[:3]})
        for t, step in enumerate(history, 1):
            acting = sorted(episode.get_agents_to_act())
            actions = {agent: (t + AGENTS.index(agent)) % 4 for agent in acting}
            outputs = {
                agent: {
                    "action_logp": np.float32(-t - AGENTS.index(agent) / 8),
                    "action_dist_inputs": np.array([t, AGENTS.index(agent), 0, number], np.float32),
                }
                for agent in acting
            }
            episode.add_env_step(
                {agent: observation(number, agent, t) for agent in AGENTS if agent not in step["absent"]},
                actions,
                {agent: float(step["rewards"].get(agent, 0)) for agent in acting},
                terminateds={agent: True for agent, terminated in step["ends"].items() if terminated},
                truncateds={agent: True for agent, terminated in step["ends"].items() if not terminated},
                extra_model_outputs=outputs,
            )
        episodes.append(episode)
    return episodes


def agent_episodes(episodes: list, *, stepped_only: bool) -> list:
    """The agent episodes that have rows in a batch."""
    parts = ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=stepped_only)
    return [episode for episode in parts if stepped_only or len(episode)]


def columns_of(episodes: list, *, train: bool, module_ids: tuple[str, ...] = MODULES) -> ColumnBatch:
    """The empty batch in columns for all steps (``train``) or for the newest observations."""
    own = agent_episodes(episodes, stepped_only=not train)
    if not own:
        return ColumnBatch([])
    if train:
        return ColumnBatch([ColumnGroup(rows_of_episodes(own, module_ids))])
    own.sort(key=lambda episode: module_ids.index(episode.module_id))
    rollout = Rollout(OBS_SPACE, ACT_SPACE, num_rows=1, num_lanes=len(own))
    rollout.observe(slice(0, len(own)), np.stack([episode.get_observations(-1) for episode in own]), 0)
    here = np.arange(len(own))
    present = [m for m in module_ids if any(episode.module_id == m for episode in own)]
    splits = [sum(module_ids.index(e.module_id) < module_ids.index(m) for e in own) for m in present]
    rows = Rows(
        (RowPart(rollout, slice(0, len(own)), here, here),),
        module_ids=tuple(present),
        splits=(*splits, len(own)),
        episodes=own,
        counts=[1] * len(own),
    )
    return ColumnBatch([ColumnGroup(rows)])


def real_rows(batch: ColumnBatch) -> dict[str, dict[str, list]]:
    """``{module: {column: items}}`` without the rows of last observations, whatever has been dropped before."""
    found: dict[str, dict[str, list]] = {}
    for group in batch.groups:
        for module_id, columns in group.module_columns():
            begin, end = bounds(group.rows.module_ids, group.rows.splits)[module_id]
            acted = group.rows.acted
            keep = None
            if acted is not None and group.splits == group.rows.splits:
                keep = np.flatnonzero(acted[begin:end])
            found[module_id] = {
                name: unstack(column if keep is None else slice_tree(column, 0, end - begin))
                for name, column in columns.items()
            }
            if keep is not None:
                found[module_id] = {name: [items[i] for i in keep] for name, items in found[module_id].items()}
    return found


def bounds(module_ids: tuple[str, ...], splits: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Each module's first row and the one after its last."""
    return {m: (begin, end) for m, begin, end in zip(module_ids, splits, splits[1:], strict=False)}


def sorted_by_observation(batch: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """An agent's two lives share a key, so they stand together among items, but not among columns."""
    found = {}
    for module_id, columns in batch.items():
        order = np.lexsort(_array(columns["obs"]).T[::-1])
        found[module_id] = {name: _array(items)[order] for name, items in columns.items()}
    return found


def assert_same_batch(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], *, atol: float = 0.0) -> None:
    """Both have the same modules, columns and items, in the same order."""
    assert list(one) == list(other)
    for module_id in one:
        assert set(one[module_id]) == set(other[module_id]), module_id
        for name in one[module_id]:
            np.testing.assert_allclose(
                _array(one[module_id][name]), _array(other[module_id][name]), atol=atol, err_msg=f"{module_id} {name}"
            )


def _array(values: Any) -> np.ndarray:
    return np.array([np.asarray(item) for item in values])
