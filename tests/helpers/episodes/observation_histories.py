"""Random multi-agent histories with observations and actions of any space, and both forms of a piece run on them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key, unstack
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes

AGENTS = ("a", "b", "c", "d")
MODULES = ("red", "green", "blue")
LOOKBACK = 4
MAPPINGS = st.fixed_dictionaries({agent: st.sampled_from(MODULES) for agent in AGENTS})
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "absent": st.sets(st.sampled_from(AGENTS), max_size=2),
            "ends": st.dictionaries(st.sampled_from(AGENTS), st.booleans(), max_size=1),
        }
    ),
    min_size=1,
    max_size=6,
)
HISTORIES = st.lists(STEPS, min_size=1, max_size=3)

VECTOR = spaces.Box(-50.0, 50.0, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "z": spaces.Box(-9.0, 9.0, (2, 2), np.float64),
        "a": spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 4])]),
        "m": spaces.MultiBinary(2),
    }
)
IMAGE = spaces.Box(0, 255, (4, 3, 2), np.uint8)


def play(
    histories: list[list[dict[str, Any]]],
    mapping: dict[str, str],
    observation_space: Any = VECTOR,
    action_space: Any = None,
    *,
    cut: bool = False,
) -> list[MultiAgentEpisode]:
    """Episodes with random observations, actions and rewards. Agents pause, die, and come back in a new life.

    Args:
        histories: For each episode what happens.
        mapping: Agents' modules.
        observation_space: Of all agents.
        action_space: Of all agents; Discrete(4) if None.
        cut: Whether each episode is cut before its last step, so that it is a chunk with lookback.
    """
    observation_space, action_space = copy.deepcopy((observation_space, action_space or spaces.Discrete(4)))
    observation_space.seed(3)
    action_space.seed(5)
    rng = np.random.default_rng(7)
    episodes = []
    for number, history in enumerate(histories):
        episode = MultiAgentEpisode(
            id_=f"e{number}",
            observation_space=dict.fromkeys(AGENTS, observation_space),
            action_space=dict.fromkeys(AGENTS, action_space),
            agent_to_module_mapping_fn=lambda agent, episode: mapping[agent],
        )
        episode.add_env_reset(observations={agent: observation_space.sample() for agent in AGENTS[:3]})
        for t, step in enumerate(history, 1):
            if cut and t == len(history):
                episode = episode.cut(len_lookback_buffer=LOOKBACK)
            acting = sorted(episode.get_agents_to_act())
            episode.add_env_step(
                {agent: observation_space.sample() for agent in AGENTS if agent not in step["absent"]},
                {agent: action_space.sample() for agent in acting},
                {agent: float(rng.integers(-8, 8)) for agent in acting},
                terminateds={agent: True for agent, terminated in step["ends"].items() if terminated},
                truncateds={agent: True for agent, terminated in step["ends"].items() if not terminated},
            )
        episodes.append(episode)
    return episodes


def as_spaces(observation_space: Any = VECTOR, action_space: Any = None) -> tuple[spaces.Dict, spaces.Dict]:
    """The spaces of all agents."""
    action_space = action_space or spaces.Discrete(4)
    return spaces.Dict(dict.fromkeys(AGENTS, observation_space)), spaces.Dict(dict.fromkeys(AGENTS, action_space))


def acting(episodes: list) -> list:
    """The episodes of agents that are to act, and have done so before: others cannot be packed into columns."""
    return [e for e in ConnectorV2.single_agent_episode_iterator(episodes) if len(e) or e.storage.lookback]


def newest(episodes: list) -> ColumnGroup | None:
    """Columns for the newest observations of the acting agents, with all of their history behind them."""
    own = acting(episodes)
    if not own:
        return None
    rows = rows_of_episodes(own, MODULES, last_only=True)
    rows.acted = None
    return ColumnGroup(rows)


def train(episodes: list) -> ColumnGroup | None:
    """Columns for all steps, and each episode's last observation."""
    own = [e for e in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False) if len(e)]
    return ColumnGroup(rows_of_episodes(own, MODULES)) if own else None


def assert_same(one: Any, other: Any, *, atol: float = 0.0) -> None:
    """Both trees have the same structure, shapes, dtypes and numbers."""
    if isinstance(one, (dict, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key], atol=atol)
        return
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def assert_newest_same(make_piece: Any, episodes: list, *, atol: float = 0.0, batch_too: bool = False) -> int:
    """Runs both forms of a piece on the newest observations; how many there were."""
    on_items = copy.deepcopy(acting(episodes))
    group = newest(episodes)
    if group is None:
        return 0
    piece = make_piece()
    piece.columns(group, ARRAYS)
    batch = make_piece()(rl_module=None, batch={}, episodes=on_items)
    by_key = {item_key(e): e for e in on_items}
    found = unstack(group["obs"]) if batch_too else None
    assert batch_too or not batch
    for i, episode in enumerate(group.rows.episodes):
        if batch_too:
            (item,) = batch["obs"][item_key(episode)]
            assert_same(item, found[i], atol=atol)
        else:
            twin = by_key[item_key(episode)]
            assert_same(twin.get_observations(-1), episode.get_observations(-1), atol=atol)
    return len(group.rows)


def assert_train_same(make_piece: Any, episodes: list, *, atol: float = 0.0) -> int:
    """Runs both forms of a learner piece that writes to the batch; how many steps there were."""
    on_items = copy.deepcopy(episodes)
    group = train(episodes)
    if group is None:
        return 0
    make_piece().columns(group, ARRAYS)
    batch = make_piece()(rl_module=None, batch={}, episodes=on_items)
    rest = {key: list(items) for key, items in batch["obs"].items()}
    found, begin = unstack(group["obs"]), 0
    for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
        own = rest[item_key(episode)]
        for item in found[begin : begin + count - 1]:
            assert_same(own.pop(0), item, atol=atol)
        begin += count
    assert not any(rest.values())
    return begin
