"""Built-in pieces called by hand, on items, against the most obvious way: one agent episode after another."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import optree
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.multi_agent_histories import EPISODES, MAPPINGS, columns_of, make_modules, play
from helpers.examples import examples
from marl_connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    ComputeReturnsToGo,
    ConnectorError,
    FrameStacking,
    GeneralAdvantageEstimation,
    ScaleRewards,
)
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key
from marl_connectors.connectors.defaults import learner_pipeline
from marl_connectors.connectors.item_adapter import to_columns, to_items

few = examples(20)
many = examples(400)


def agents(episodes, *, train):
    """The agent episodes in the order in which pieces on items see them; for a train batch those with steps."""
    own = list(ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=not train))
    return [episode for episode in own if len(episode)] if train else own


def by_key(episodes, items_of):
    found = {}
    for episode in episodes:
        found.setdefault(item_key(episode), []).extend(items_of(episode))
    return found


def newest_observations(episodes):
    return by_key(agents(episodes, train=False), lambda episode: [episode.get_observations(-1)])


def train_observations(episodes):
    return by_key(
        agents(episodes, train=True), lambda episode: [episode.get_observations(t) for t in range(len(episode))]
    )


def next_observations(episodes):
    return by_key(
        agents(episodes, train=True), lambda episode: [episode.get_observations(t + 1) for t in range(len(episode))]
    )


def infos(episodes):
    return by_key(agents(episodes, train=True), lambda episode: [episode.get_infos(t) for t in range(len(episode))])


def train_columns(episodes):
    own = agents(episodes, train=True)
    found = {
        "actions": by_key(own, lambda e: [e.get_actions(t) for t in range(len(e))]),
        "rewards": by_key(own, lambda e: [np.float32(e.get_rewards(t)) for t in range(len(e))]),
        "terminateds": by_key(own, lambda e: [False] * (len(e) - 1) + [e.is_terminated]),
        "truncateds": by_key(own, lambda e: [False] * (len(e) - 1) + [e.is_truncated]),
    }
    for name in dict.fromkeys(key for e in own for key in e.storage.extra_keys()):
        having = [e for e in own if name in e.storage.extra_keys()]
        found[name] = by_key(having, lambda e, name=name: [e.get_extra_model_outputs(name, t) for t in range(len(e))])
    return found


def returns_to_go(episodes, gamma):
    def of(episode):
        total, found = 0.0, []
        for reward in reversed([float(np.float32(r)) for r in episode.get_rewards()]):
            total = reward + gamma * total
            found.insert(0, np.float32(total))
        return found

    return by_key(agents(episodes, train=True), of)


def stacked_frames(episodes, n, *, train):
    """Of flat observations."""

    def of(episode):
        steps = range(len(episode)) if train else [len(episode)]
        return [np.concatenate([_seen(episode, t - i) for i in reversed(range(n))]) for t in steps]

    return by_key(agents(episodes, train=train), of)


def _seen(episode, t):
    """The observation at a step, zeros before the first."""
    if t < -episode.storage.lookback:
        return np.zeros_like(episode.get_observations(0))
    return episode.get_observations(t, neg_index_as_lookback=True)


def advantages(episode, values, last_value, gamma, lambda_):
    """Of one agent episode, not standardised."""
    rewards, steps = [float(r) for r in episode.get_rewards()], len(episode)
    following = [*values[1:], 0.0 if episode.is_terminated else last_value]
    total, found = 0.0, []
    for t in reversed(range(steps)):
        total = rewards[t] + gamma * following[t] - values[t] + gamma * lambda_ * total
        found.insert(0, total)
    return found


def assert_same(found, expected):
    """The same items under the same keys, in the same order."""
    assert list(found) == list(expected)
    for key, items in expected.items():
        assert len(found[key]) == len(items), key
        for item, other in zip(found[key], items, strict=True):
            assert item == other if isinstance(other, dict) else np.array_equal(item, other), key


def check_all(histories, mapping):
    """Every piece that adds one or a few columns."""
    gamma, frames = 0.9, 3
    pieces = {
        AddObservationsFromEpisodesToBatch(): {"obs": newest_observations},
        AddObservationsFromEpisodesToBatch(as_learner_connector=True): {"obs": train_observations},
        AddNextObservationsFromEpisodesToTrainBatch(): {"new_obs": next_observations},
        AddInfosFromEpisodesToTrainBatch(): {"infos": infos},
        ComputeReturnsToGo(gamma=gamma): {"returns_to_go": lambda episodes: returns_to_go(episodes, gamma)},
        FrameStacking(num_frames=frames): {"obs": lambda e: stacked_frames(e, frames, train=False)},
        FrameStacking(num_frames=frames, as_learner_connector=True): {
            "obs": lambda e: stacked_frames(e, frames, train=True)
        },
        ScaleRewards(scale=2.0, shift=1.0): {
            "rewards": lambda e: by_key(
                agents(e, train=True), lambda e: [np.float32(2 * r + 1) for r in e.get_rewards()]
            )
        },
    }
    for piece, columns in pieces.items():
        episodes = play(histories, mapping)
        expected = {name: reference(episodes) for name, reference in columns.items()}
        found = piece(rl_module=None, batch={}, episodes=episodes)
        assert set(found) == {name for name, column in expected.items() if column}, piece
        for name, column in found.items():
            assert_same(column, expected[name])
    episodes = play(histories, mapping)
    found = AddColumnsFromEpisodesToTrainBatch()(rl_module=None, batch={}, episodes=episodes)
    for name, column in train_columns(episodes).items():
        assert_same(found.pop(name, {}), column)
    assert not found


@few
@given(EPISODES, MAPPINGS)
def test_pieces_called_by_hand_give_what_the_episodes_hold(histories, mapping):
    check_all(histories, mapping)


@pytest.mark.slow
@many
@given(EPISODES, MAPPINGS)
def test_pieces_called_by_hand_give_what_the_episodes_hold_in_many_games(histories, mapping):
    check_all(histories, mapping)


@few
@given(EPISODES, MAPPINGS, st.booleans())
def test_advantages_by_hand_are_those_of_each_agents_episode(histories, mapping, step_more):
    modules, episodes = make_modules(), play(histories, mapping)
    if not agents(episodes, train=True):
        return
    pipeline = learner_pipeline(multi_agent=True)
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8, standardize=False))
    if not step_more:
        pipeline.remove("AddOneTsToEpisodesAndTruncate")
    batch = pipeline(rl_module=modules, batch={}, episodes=list(episodes))

    def value(episode, t):
        observation = torch.as_tensor(episode.get_observations(t))[None]
        with torch.no_grad():
            module: Any = modules[episode.module_id]
            return float(module.compute_values({"obs": observation}))

    expected = {}
    for episode in agents(episodes, train=True):
        values = [value(episode, t) for t in range(len(episode) + 1)]
        found = advantages(episode, values[:-1], values[-1], 0.9, 0.8)
        for t, advantage in enumerate(found):
            expected[(episode.module_id, *episode.get_observations(t).tolist())] = advantage
    rows = {
        (module_id, *observation.tolist()): float(advantage)
        for module_id, columns in batch.items()
        for observation, advantage in zip(columns["obs"], columns["advantages"], strict=True)
    }
    assert rows.keys() == expected.keys()
    for key, advantage in expected.items():
        assert rows[key] == pytest.approx(advantage, abs=1e-4)


def test_what_a_piece_has_not_set_stays_as_it_is():
    episodes = play([[{"absent": set(), "ends": {}, "rewards": {}}]], dict.fromkeys("abcd", "red"))
    mine = {item_key(episode): ["anything"] for episode in agents(episodes, train=False)}
    batch = {"note": mine, "of others": {("elsewhere", "z", "red"): [1, 2, 3]}}
    found = AddObservationsFromEpisodesToBatch()(rl_module=None, batch=batch, episodes=episodes)
    assert found is batch
    assert found["note"] is mine
    assert found["of others"] == {("elsewhere", "z", "red"): [1, 2, 3]}
    assert list(found["obs"]) == list(mine)


def test_columns_with_and_without_an_item_for_the_last_observation_stay_so():
    episodes = play([[{"absent": set(), "ends": {}, "rewards": {"a": 2}}] * 2], dict.fromkeys("abcd", "red"))
    own = agents(episodes, train=True)
    long = by_key(own, lambda e: [e.get_observations(t) for t in range(len(e) + 1)])
    short = by_key(own, lambda e: [np.float32(reward) for reward in e.get_rewards()])
    found = ScaleRewards(scale=2.0)(rl_module=None, batch={"obs": long, "rewards": short}, episodes=episodes)
    assert found["obs"] is long
    assert_same(found["rewards"], {key: [2 * reward for reward in rewards] for key, rewards in short.items()})


@pytest.mark.parametrize(("given", "wanted"), [(1, 2), (4, 2)])
def test_other_numbers_of_items_than_steps_are_an_error(given, wanted):
    episodes = play([[{"absent": set(), "ends": {}, "rewards": {}}] * 2], dict.fromkeys("abcd", "red"))
    rewards = by_key(agents(episodes, train=True)[:1], lambda e: [0.0] * given)
    with pytest.raises(ConnectorError, match=f"(?s){given}.*'rewards'.*{wanted}"):
        ScaleRewards(scale=2.0)(rl_module=None, batch={"rewards": rewards}, episodes=episodes)


# Items are made of a column when somebody looks at it.


def two_columns():
    episodes = play([[{"absent": set(), "ends": {}, "rewards": {}}]], dict.fromkeys("abcd", "red"))
    batch = columns_of(episodes, train=False)
    (group,) = batch.groups
    group["one"], group["two"] = np.arange(4.0), np.arange(8.0).reshape(4, 2)
    return batch


def test_a_column_that_nobody_has_looked_at_comes_back_itself():
    batch = two_columns()
    items = to_items(batch)
    items["one"] = {key: [item[0] + 1] for key, item in items["one"].items()}
    (found,) = to_columns(items, batch).groups
    assert found["two"] is batch.groups[0]["two"]
    assert found["one"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "copied",
    [
        dict,
        copy.copy,
        copy.deepcopy,
        lambda batch: {**batch},
        lambda batch: batch | {},
        lambda batch: {} | batch,
        lambda batch: batch.copy(),
        lambda batch: dict(batch.items()),
        lambda batch: dict(zip(batch.keys(), batch.values(), strict=True)),
        lambda batch: {name: batch.get(name) for name in batch},
        lambda batch: {name: batch.setdefault(name, None) for name in batch},
        lambda batch: {name: batch.pop(name) for name in list(batch)},
        lambda batch: dict(reversed([batch.popitem(), batch.popitem()])),
    ],
)
def test_a_batch_of_items_is_a_dict_however_it_is_read(copied):
    keys = [("e0", agent, "red") for agent in "abcd"]
    expected = {
        "one": {key: [float(i)] for i, key in enumerate(keys)},
        "two": {key: [[2.0 * i, 2.0 * i + 1]] for i, key in enumerate(keys)},
    }
    batch = to_items(two_columns())
    assert isinstance(batch, dict) and len(batch) == 2 and "one" in batch and list(batch) == ["one", "two"]
    found = copied(batch)
    assert type(found) is dict and list(found) == ["one", "two"]
    for name, column in expected.items():
        assert_same(found[name], column)


def test_tree_functions_see_an_ordinary_dict():
    batch: Any = to_items(two_columns())
    doubled = optree.tree_map(lambda leaf: leaf * 2, batch)
    assert doubled["one"]["e0", "c", "red"] == [4.0]
    assert repr(batch) == repr(dict(batch)) and batch == dict(batch) and batch != {}


def test_columns_can_be_taken_out_and_put_in():
    batch = two_columns()
    items = to_items(batch)
    del items["one"]
    items["three"] = {key: [1] for key in items["two"]}
    (found,) = to_columns(items, batch).groups
    assert list(found) == ["two", "three"]


class Shares(ConnectorV2):
    """Notes what is shared before its columns. Keeps no state."""

    def before_columns(self, groups, rl_module):
        self.seen = [(group.shared_data["note"], group.explore, group.rl_module) for group in groups]

    def columns(self, c, xp):
        pass


def test_a_piece_knows_what_is_shared_before_its_columns():
    episodes, piece = play([[{"absent": set(), "ends": {}, "rewards": {}}]], dict.fromkeys("abcd", "red")), Shares()
    piece(rl_module="modules", batch={}, episodes=episodes, explore=False, shared_data={"note": 7})
    assert set(piece.seen) == {(7, False, "modules")}
