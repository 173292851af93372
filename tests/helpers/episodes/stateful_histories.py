"""Random multi-agent histories of stateful and stateless modules, and the way from them to batches in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from hypothesis import strategies as st

from helpers.modules.recurrent_modules import CounterModule, StatelessModule, StepwiseGRU, StepwiseLSTM
from marl_connectors import Columns, MultiRLModule
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.rl_module.states import state_kind
from marl_connectors.spaces import stack
from marl_connectors.trees import leaves, tree_map

BOX = spaces.Box(-100.0, 100.0, (3,), np.float32)
DICT = spaces.Dict({"where": spaces.Box(-100.0, 100.0, (2,), np.float32), "when": spaces.Box(0, 99, (1,), np.float32)})
ACT_SPACE = spaces.Discrete(4)
AGENTS = ("a", "b", "c", "d")
CLASSES = {
    "gru": StepwiseGRU,
    "gru2": StepwiseGRU,
    "plain": StatelessModule,
    "lstm": StepwiseLSTM,
    "count": CounterModule,
}
"""Two modules with like states, a stateless one, one with a nested state, and one with whole numbers in its state."""

MAPPINGS = st.fixed_dictionaries({agent: st.sampled_from(list(CLASSES)) for agent in AGENTS})
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "absent": st.sets(st.sampled_from(AGENTS), max_size=2),
            "ends": st.dictionaries(st.sampled_from(AGENTS), st.booleans(), max_size=1),
            "rewards": st.dictionaries(st.sampled_from(AGENTS), st.integers(-8, 8)),
            "cut": st.integers(0, 4),
        }
    ),
    min_size=1,
    max_size=7,
)
EPISODES = st.lists(STEPS, min_size=1, max_size=2)
LENGTHS = st.sampled_from([1, 2, 3, 20])


def make_modules(max_seq_len: int = 3, space: spaces.Space = BOX) -> MultiRLModule:
    """One of each of ``CLASSES``; those of one class differ in their weights."""
    modules = MultiRLModule()
    for number, (module_id, cls) in enumerate(CLASSES.items()):
        config = {"max_seq_len": max_seq_len, "seed": number, "first": 5}
        modules.add_module(module_id, cls(observation_space=space, action_space=ACT_SPACE, model_config=config))
    return modules


def observation(episode: int, agent: str, t: int, space: spaces.Space = BOX) -> Any:
    """An observation that no other agent, step or episode has."""
    values = np.array([episode + 1, AGENTS.index(agent), t], np.float32)
    return values if space is BOX else {"where": values[:2], "when": values[2:]}


def numbers_of(observations: Any) -> np.ndarray:
    """``[N, 3]`` what is in observations."""
    if isinstance(observations, dict):
        return np.concatenate([np.asarray(observations["where"]), np.asarray(observations["when"])], axis=-1)
    return np.asarray(observations)


def state_after(module: Any, episode: int, agent: str, t: int) -> Any:
    """A state like the module's, that no other agent, step or episode has."""
    number = 1 + t + 100 * AGENTS.index(agent) + 1000 * episode
    return tree_map(
        lambda leaf: (number + np.arange(leaf.size) / 8).reshape(leaf.shape).astype(leaf.dtype),
        tree_map(np.asarray, module.get_initial_state()),
    )


def newest_state(episode: SingleAgentEpisode) -> Any:
    """The state after an episode's newest step, which may be one before the chunk."""
    return episode.get_extra_model_outputs(Columns.STATE_OUT, len(episode) - 1, neg_index_as_lookback=True)


def next_state(module: Any, episode: SingleAgentEpisode) -> Any:
    """The state that the module itself comes to at an episode's newest observation."""
    before = module.get_initial_state()
    if len(episode) or episode.storage.lookback:
        before = newest_state(episode)
    batch = {
        Columns.OBS: tree_map(lambda leaf: torch.tensor(leaf)[None, None], episode.get_observations(-1)),
        Columns.STATE_IN: tree_map(lambda leaf: torch.tensor(leaf)[None], before),
    }
    return tree_map(lambda leaf: leaf[0].numpy(), module.forward_exploration(batch)[Columns.STATE_OUT])


def play(
    histories: list[list[dict[str, Any]]],
    mapping: dict[str, str],
    modules: MultiRLModule,
    space: spaces.Space = BOX,
    *,
    own_states: bool = False,
    known: dict[tuple[int, int, int], Any] | None = None,
) -> list[MultiAgentEpisode]:
    """Chunks of episodes with all module outputs. Agents pause, die, and come back; a "cut" of 3 or more cuts.

    The states are those that the modules would have come to (``own_states``), or ones that tell agents and steps apart.
    ``known`` is told the state in which each observation was made, by what is in it; None for a life's first one.
    """
    chunks = []
    for number, history in enumerate(histories):
        episode = MultiAgentEpisode(
            id_=f"e{number}",
            observation_space=dict.fromkeys(AGENTS, space),
            action_space=dict.fromkeys(AGENTS, ACT_SPACE),
            agent_to_module_mapping_fn=lambda agent, episode: mapping[agent],
        )
        episode.add_env_reset(observations={agent: observation(number, agent, 0, space) for agent in AGENTS[:3]})
        memory: dict[str, Any] = {}
        for t, step in enumerate(history, 1):
            acting = sorted(episode.get_agents_to_act())
            outputs: dict[str, dict[str, Any]] = {}
            for agent in acting:
                outputs[agent] = {
                    "action_logp": np.float32(-t - AGENTS.index(agent) / 8),
                    "action_dist_inputs": np.array([t, AGENTS.index(agent), 0, number], np.float32),
                }
                module = modules[mapping[agent]]
                if module.is_stateful():
                    outputs[agent]["state_out"] = (
                        next_state(module, episode.agent_episodes[agent])
                        if own_states
                        else state_after(module, number, agent, t)
                    )
            episode.add_env_step(
                {agent: observation(number, agent, t, space) for agent in AGENTS if agent not in step["absent"]},
                {agent: (t + AGENTS.index(agent)) % 4 for agent in acting},
                {agent: float(step["rewards"].get(agent, 0)) for agent in acting},
                terminateds={agent: True for agent, terminated in step["ends"].items() if terminated},
                truncateds={agent: True for agent, terminated in step["ends"].items() if not terminated},
                extra_model_outputs=outputs,
            )
            memory |= {agent: output.get("state_out") for agent, output in outputs.items()}
            for agent in set(AGENTS) - step["absent"] if known is not None else ():
                known[number + 1, AGENTS.index(agent), t] = memory.get(agent)
            memory = {agent: state for agent, state in memory.items() if agent not in step["ends"]}
            if episode.is_done:
                break
            if step["cut"] > 2:
                chunks.append(episode)
                episode = episode.cut(len_lookback_buffer=step["cut"] - 2)
        chunks.append(episode)
    return chunks


def agent_episodes(episodes: Sequence[Any], *, stepped_only: bool) -> list[SingleAgentEpisode]:
    """The agent episodes that have rows in a batch."""
    parts = ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=stepped_only)
    return [episode for episode in parts if stepped_only or len(episode)]


def families(own: Sequence[SingleAgentEpisode], modules: MultiRLModule) -> list[list[str]]:
    """The modules of these episodes, those with like states together."""
    found: dict[Any, list[str]] = {}
    for module_id in modules:
        if any((episode.module_id or module_id) == module_id for episode in own):
            found.setdefault(state_kind(modules[module_id]), []).append(module_id)
    return list(found.values())


def train_columns(episodes: Sequence[Any], modules: MultiRLModule) -> ColumnBatch:
    """The empty train batch in columns for all steps. Episodes that stand in lists are packed, that is: changed."""
    own = agent_episodes(episodes, stepped_only=False)
    groups = []
    for family in families(own, modules):
        of_family = [e for e in own if (e.module_id or family[0]) in family]
        groups.append(ColumnGroup(rows_of_episodes(of_family, family)))
    return ColumnBatch(groups)


def acting_columns(episodes: Sequence[Any], modules: MultiRLModule) -> ColumnBatch:
    """The empty batch in columns for the newest observations, over a little rollout with the step before."""
    own = agent_episodes(episodes, stepped_only=True)
    groups = []
    for family in families(own, modules):
        rows = [e for module_id in family for e in own if e.module_id == module_id]
        count = len(rows)
        rollout = Rollout(rows[0].observation_space, ACT_SPACE, num_rows=2, num_lanes=count)
        here = count + np.arange(count)
        rollout.observe(here, stack([e.get_observations(-1) for e in rows], rollout.observation_space), 1)
        goes_on = np.array([bool(len(e) + e.storage.lookback) for e in rows])
        for i in np.flatnonzero(goes_on).tolist():
            if Columns.STATE_OUT in rows[i].storage.extra_keys():
                before = newest_state(rows[i])
                rollout.record(np.array([i]), {Columns.STATE_OUT: tree_map(lambda leaf: np.array([leaf]), before)})
        splits = [0, *np.cumsum([sum(e.module_id == m for e in rows) for m in family]).tolist()]
        part = RowPart(rollout, here, np.where(goes_on, here - count, here), here)
        groups.append(
            ColumnGroup(
                Rows((part,), module_ids=tuple(family), splits=tuple(splits), episodes=rows, counts=[1] * count)
            )
        )
    return ColumnBatch(groups)


def by_module(batch: ColumnBatch) -> dict[str, dict[str, Any]]:
    """``{module: {column: ...}}``, as the modules get it."""
    return {m: dict(columns) for group in batch.groups for m, columns in group.module_columns()}


def in_order(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns as arrays, their rows or sequences by their (first) observation, which is unique."""
    first = numbers_of(columns[Columns.OBS])
    if Columns.SEQ_LENS in columns:
        first = first[:, 0]
    order = np.lexsort(first.T[::-1])
    return {name: tree_map(lambda leaf: np.asarray(leaf)[order], column) for name, column in columns.items()}


def assert_same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], *, atol: float = 0.0) -> None:
    """Both have the same modules, columns, trees and numbers, in the same order; the order of names aside."""
    assert set(one) == set(other)
    for module_id in one:
        assert set(one[module_id]) == set(other[module_id]), module_id
        for name, column in one[module_id].items():
            here, there = leaves(column), leaves(other[module_id][name])
            assert len(here) == len(there), name
            for a, b in zip(here, there, strict=True):
                assert np.asarray(a).shape == np.asarray(b).shape, (module_id, name)
                np.testing.assert_allclose(
                    np.asarray(a), np.asarray(b), atol=atol, rtol=1e-5, err_msg=f"{module_id} {name}"
                )
