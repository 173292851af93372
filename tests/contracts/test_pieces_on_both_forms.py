"""Pieces that write back what they are given, translate actions or preprocess do the same on items and on columns."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.observation_histories import (
    HISTORIES,
    IMAGE,
    MAPPINGS,
    NESTED,
    VECTOR,
    acting,
    assert_newest_same,
    assert_same,
    newest,
    play,
)
from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import item_key, unstack
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.trees import tree_map

BOX = partial(spaces.Box, dtype=np.float32)
FROM_3 = spaces.Discrete(4, start=3)


class ByName(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        return observation * ord(episode.agent_id) + len(episode)


class MinusTheMean(MultiAgentObservationPreprocessor):
    """What each agent sees depends on all others."""

    def preprocess(self, observations, episode):
        mean = sum(observations.values()) / len(observations)
        return {agent_id: observation - mean for agent_id, observation in observations.items() if agent_id != "c"}


@examples(15)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_one_agents_observations_are_preprocessed_alike(histories, mapping, cut):
    assert_newest_same(ByName, play(histories, mapping, VECTOR, cut=cut))


@examples(15)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_a_pipeline_preprocesses_all_agents_observations_alike(histories, mapping, cut):
    episodes = play(histories, mapping, VECTOR, cut=cut)
    group = newest(episodes)
    if group is None or len(acting(episodes)) != sum(len(e.get_agents_to_act()) for e in episodes):
        return  # agents that have never acted cannot be packed into columns
    on_items = copy.deepcopy(episodes)
    EnvToModulePipeline(connectors=[MinusTheMean()])(rl_module=None, batch={}, episodes=on_items)
    EnvToModulePipeline(connectors=[MinusTheMean()]).run(ColumnBatch([group]), rl_module=None, episodes=episodes)
    for one, other in zip(on_items, episodes, strict=True):
        for agent_id, part in one.agent_episodes.items():
            assert_same(part.get_observations(-1), other.agent_episodes[agent_id].get_observations(-1))


@pytest.mark.parametrize("observation_space", [VECTOR, NESTED, IMAGE])
@examples(15)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_what_is_in_the_batch_is_written_back_alike(observation_space, histories, mapping, cut):
    episodes = play(histories, mapping, observation_space, cut=cut)
    on_items, group = copy.deepcopy(acting(episodes)), newest(episodes)
    if group is None:
        return
    observations = tree_map(lambda leaf: (leaf * 2 + 1).astype(leaf.dtype), group.rows.get(Columns.OBS))
    items = unstack(observations)
    by_key = {item_key(e): [item] for e, item in zip(group.rows.episodes, items, strict=True)}
    group[Columns.OBS] = observations
    WriteObservationsToEpisodes().columns(group, ARRAYS)
    WriteObservationsToEpisodes()(rl_module=None, batch={Columns.OBS: by_key}, episodes=on_items)
    twins = {item_key(e): e for e in on_items}
    for episode, item in zip(group.rows.episodes, items, strict=True):
        for written in (episode, twins[item_key(episode)]):
            assert_same(written.get_observations(-1), item)


@pytest.mark.parametrize(
    "action_space",
    [
        BOX(-2.0, 6.0, (2,)),
        BOX(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 3.0], np.float32)),
        spaces.Box(-1.0, 2.0, (2, 2), np.float64),
        FROM_3,
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([2, 3], start=[0, 4]),
        spaces.MultiBinary(2),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"normalize_actions": False, "clip_actions": True}])
@examples(6)
@given(histories=HISTORIES, mapping=MAPPINGS, seed=st.integers(0, 99))
def test_actions_are_translated_alike(action_space, arguments, histories, mapping, seed):
    group = newest(play(histories, mapping, VECTOR, action_space))
    if group is None:
        return
    rng, shape = np.random.default_rng(seed), (len(group.rows), *action_space.shape)
    if isinstance(action_space, spaces.Box):
        actions = rng.normal(0.0, 3.0, shape).astype(np.float32)
    else:
        actions = rng.integers(0, 2, shape)
    group[Columns.ACTIONS] = actions
    episodes = list(group.rows.episodes)
    batch = {Columns.ACTIONS: {item_key(e): [action] for e, action in zip(episodes, unstack(actions), strict=True)}}
    NormalizeAndClipActions(**arguments).columns(group, ARRAYS)
    batch = NormalizeAndClipActions(**arguments)(rl_module=None, batch=batch, episodes=episodes)
    assert (Columns.ACTIONS_FOR_ENV in batch) == (Columns.ACTIONS_FOR_ENV in group)
    others = isinstance(action_space, (spaces.Box, spaces.MultiBinary)) or np.any(getattr(action_space, "start", 0))
    assert (Columns.ACTIONS_FOR_ENV in batch) == others  # bits in another dtype
    if Columns.ACTIONS_FOR_ENV in batch:
        for episode, action in zip(episodes, unstack(group[Columns.ACTIONS_FOR_ENV]), strict=True):
            assert_same(batch[Columns.ACTIONS_FOR_ENV][item_key(episode)][0], action)
