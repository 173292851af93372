"""NormalizeRewards against a loop over single steps."""

from __future__ import annotations

import copy
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from helpers.episodes.multi_agent_histories import EPISODES, MAPPINGS, agent_episodes, columns_of, make_modules, play
from helpers.examples import examples
from marl_connectors import ConfigError, PPOConfig
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.item_adapter import to_items
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards
from marl_connectors.episodes.batch import RANKS, ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.ops.moments import Moments
from marl_connectors.state import decode_state, encode_state

MODULES = make_modules()
REWARDS = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=12)


def chunk(id_, rewards, t=0, *, terminated=False, truncated=False, module_id=None):
    return SingleAgentEpisode(
        id_,
        observations=[np.zeros(2, np.float32)] * (len(rewards) + 1),
        actions=[0] * len(rewards),
        rewards=rewards,
        t_started=t,
        terminated=terminated,
        truncated=truncated,
        module_id=module_id,
        len_lookback_buffer=0,
    )


def run(piece, episodes, *, form="columns", before=()):
    """Normalised rewards of all real steps, in order."""
    pieces = [AddOneTsToEpisodesAndTruncate(), *before, piece]
    if form == "items":
        batch = LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=episodes)
        return [r for e, r in zip_rewards(batch, episodes)]
    module_ids = list(dict.fromkeys(e.module_id or "default_policy" for e in episodes))
    batch = ColumnBatch([ColumnGroup(rows_of_episodes(episodes, module_ids))])
    (group,) = LearnerConnectorPipeline(connectors=pieces).run(batch, rl_module=None, episodes=episodes).groups
    return group["rewards"][group.rows.acted].tolist()


def groups_of(episodes):
    return [ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))] if episodes else []


def zip_rewards(batch, episodes):
    begins = {}
    for episode in episodes:
        key, steps = (episode.id_,), len(episode)
        begin = begins.get(key, 0)
        begins[key] = begin + steps + 1
        for reward in batch["rewards"][key][begin : begin + steps]:
            yield episode, float(reward)


def returns_of(rewards, gamma):
    total, found = 0.0, []
    for reward in rewards:
        total = gamma * total + reward
        found.append(total)
    return found


@pytest.mark.parametrize("form", ["items", "columns"])
def test_rewards_are_divided_by_the_deviation_of_the_running_return(form):
    """gamma 1/2: the returns are 2, 5, 6.5 and, of the other episode, 8."""
    piece = NormalizeRewards(gamma=0.5, clip=None)
    found = run(piece, [chunk("x", [2.0, 4.0, 4.0]), chunk("y", [8.0])], form=form)
    deviation = np.std([2.0, 5.0, 6.5, 8.0])
    np.testing.assert_allclose(found, np.array([2.0, 4.0, 4.0, 8.0]) / deviation, rtol=1e-6)
    assert piece.standard_deviations() == {"default_policy": pytest.approx(deviation)}


@examples(40)
@given(REWARDS, st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["items", "columns"]), st.booleans())
def test_the_return_goes_on_through_the_chunks_of_an_episode(rewards, cuts, form, together):
    """In one batch or in several, the statistics are those of the whole episode."""
    bounds = sorted({0, len(rewards), *(cut for cut in cuts if cut < len(rewards))})
    chunks = [chunk("x", rewards[a:b], a) for a, b in itertools.pairwise(bounds)]
    piece = NormalizeRewards(gamma=0.9)
    for batch in [chunks] if together else [[part] for part in chunks]:
        run(piece, batch, form=form)
    returns = returns_of(rewards, 0.9)
    count, mean, squares = astuple(piece.get_state().new["default_policy"])
    assert count == len(returns)
    np.testing.assert_allclose([mean, squares], [np.mean(returns), np.var(returns) * count], rtol=1e-9, atol=1e-9)
    assert piece.get_state().ongoing["default_policy"] == {"x": (len(rewards), pytest.approx(returns[-1]))}


@examples(20)
@given(EPISODES, MAPPINGS, st.booleans())
def test_items_and_columns_give_the_same(histories, mapping, after_columns):
    episodes = play(histories, mapping)
    if not agent_episodes(episodes, stepped_only=False):
        return
    pieces = [NormalizeRewards(gamma=0.9), NormalizeRewards(gamma=0.9)]
    found = []
    for piece, episodes_ in zip(pieces, [copy.deepcopy(episodes), episodes], strict=True):
        before = [AddColumnsFromEpisodesToTrainBatch()] if after_columns else []
        pipeline = LearnerConnectorPipeline(connectors=[AddOneTsToEpisodesAndTruncate(), *before, piece])
        if piece is pieces[0]:
            found.append(pipeline(rl_module=None, batch={}, episodes=episodes_))
        else:
            batch = pipeline.run(columns_of(episodes_, train=True), rl_module=MODULES, episodes=episodes_)
            found.append(to_items(batch))
    assert set(found[0]["rewards"]) == set(found[1]["rewards"])
    for key, rewards in found[0]["rewards"].items():
        np.testing.assert_allclose(rewards, found[1]["rewards"][key], rtol=1e-5, atol=1e-5)
    one, other = (piece.get_state() for piece in pieces)
    assert set(one.new) == set(other.new)
    for module_id, moments in one.new.items():
        np.testing.assert_allclose(astuple(moments), astuple(other.new[module_id]), rtol=1e-9, atol=1e-9)
    assert set(one.ongoing) == set(other.ongoing)
    for module_id, saved in one.ongoing.items():
        assert set(other.ongoing[module_id]) == set(saved)
        for id_, (t, total) in saved.items():
            assert other.ongoing[module_id][id_] == (t, pytest.approx(total))


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_an_episode_that_has_ended_is_forgotten(how):
    piece = NormalizeRewards()
    run(piece, [chunk("x", [1.0]), chunk("y", [1.0])])
    assert list(piece.get_state().ongoing["default_policy"]) == ["x", "y"]
    run(piece, [chunk("x", [1.0], 1, **{how: True})])
    assert list(piece.get_state().ongoing["default_policy"]) == ["y"]


def test_a_chunk_that_does_not_follow_begins_anew():
    piece = NormalizeRewards(gamma=1.0)
    run(piece, [chunk("x", [8.0])])
    run(piece, [chunk("x", [1.0], t=5)])
    assert piece.get_state().ongoing["default_policy"] == {"x": (6, 1.0)}


def test_episodes_that_nobody_finishes_do_not_pile_up():
    piece = NormalizeRewards()
    for i in range(1000):
        run(piece, [chunk(f"x{i}", [1.0]), chunk("goes on", [1.0], i)])
    kept = list(piece.get_state().ongoing["default_policy"])
    assert len(kept) == 256
    assert kept[-2:] == ["x999", "goes on"]
    many = [chunk(f"y{i}", [1.0]) for i in range(500)]
    run(piece, many)
    assert len(piece.get_state().ongoing["default_policy"]) == 756, "four for each of the batch's"


def test_each_module_has_its_own_statistics():
    piece = NormalizeRewards(gamma=0.0, clip=None)
    episodes = [chunk("x", [1.0, 3.0], module_id="red"), chunk("y", [10.0, 30.0, 50.0], module_id="blue")]
    found = run(piece, episodes)
    assert found == pytest.approx(
        [1.0, 3.0, 10 / np.std([10, 30, 50]), 30 / np.std([10, 30, 50]), 50 / np.std([10, 30, 50])]
    )


@pytest.mark.parametrize("form", ["items", "columns"])
def test_normalised_rewards_are_clipped(form):
    piece = NormalizeRewards(gamma=0.0, clip=1.5)
    assert run(piece, [chunk("x", [1.0, -1.0, 4.0, 0.0])], form=form)[2] == 1.5


@pytest.mark.parametrize("form", ["items", "columns"])
def test_without_updates_the_statistics_stay(form):
    piece = NormalizeRewards(gamma=0.0, clip=None)
    run(piece, [chunk("x", [0.0, 4.0])], form=form)
    fixed = NormalizeRewards(gamma=0.0, clip=None, update_stats=False)
    fixed.set_state(piece.get_state())
    before = str(fixed.get_state())
    assert run(fixed, [chunk("y", [2.0, 100.0])], form=form) == pytest.approx([1.0, 50.0])
    assert str(fixed.get_state()) == before
    assert run(NormalizeRewards(update_stats=False), [chunk("y", [2.0])], form=form) == pytest.approx([2.0])


def test_episodes_keep_their_rewards():
    episode = chunk("x", [5.0, -5.0])
    run(NormalizeRewards(), [episode])
    assert list(episode.get_rewards()) == [5.0, -5.0]


@examples(40)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=8), min_size=1, max_size=4))
def test_merged_moments_are_those_of_all_numbers(parts):
    merged = Moments()
    for numbers in parts:
        if numbers:
            merged = merged.merged(Moments(len(numbers), np.mean(numbers), np.var(numbers) * len(numbers)))
    everything = np.concatenate(parts)
    if not len(everything):
        assert merged == Moments()
        assert merged.variance == 1.0
        return
    assert merged.count == len(everything)
    scale = 1 + np.abs(everything).max()
    assert abs(merged.mean - everything.mean()) < 1e-12 * scale
    assert abs(merged.variance - everything.var()) < 1e-12 * scale * scale


def test_merged_states_are_that_of_one_piece_that_has_seen_everything():
    rng = np.random.default_rng(3)
    batches = [[chunk(f"{i}{k}", rng.normal(i, 1 + k, 7).tolist()) for k in range(3)] for i in range(4)]
    whole, copies = NormalizeRewards(), [NormalizeRewards() for _ in batches]
    for piece, batch in zip(copies, batches, strict=True):
        run(piece, batch)
        run(whole, batch)
    merged = NormalizeRewards().merge_states([piece.get_state() for piece in copies])
    found, expected = merged.merged["default_policy"], whole.get_state().new["default_policy"]
    assert np.allclose(astuple(found), astuple(expected), rtol=1e-12, atol=0)
    assert list(merged.ongoing["default_policy"]) == list(whole.get_state().ongoing["default_policy"])


@pytest.mark.parametrize("newest", [0, 1])
def test_of_an_episode_in_several_states_the_newest_return_is_kept(newest):
    """The return is 1 after one step, and 0.5 * 1 + 3 = 3.5 after two."""
    pieces = [NormalizeRewards(gamma=0.5) for _ in range(2)]
    for piece in pieces:
        run(piece, [chunk("x", [1.0])])
    run(pieces[newest], [chunk("x", [3.0], 1)])
    (kept,) = NormalizeRewards().merge_states([piece.get_state() for piece in pieces]).ongoing.values()
    assert kept == {"x": (2, 3.5)}


def moments_of(returns):
    return len(returns), np.mean(returns), np.var(returns) * len(returns)


def test_what_copies_of_a_piece_have_in_common_counts_once_when_their_states_are_merged():
    """With gamma 0, returns are rewards: 2 and 4 are in both copies, 8 and 16 in one each."""
    first = NormalizeRewards(gamma=0.0)
    run(first, [chunk("x", [2.0, 4.0], terminated=True)])
    common = NormalizeRewards().merge_states([first.get_state()])
    assert (common.new, common.merged["default_policy"]) == ({}, Moments(2.0, 3.0, 2.0))
    copies = [NormalizeRewards(gamma=0.0) for _ in range(2)]
    for piece, reward in zip(copies, (8.0, 16.0), strict=True):
        piece.set_state(common)
        run(piece, [chunk("y", [reward], terminated=True)])
    states = [piece.get_state() for piece in copies]
    merged = NormalizeRewards().merge_states(states)
    assert astuple(merged.merged["default_policy"]) == pytest.approx(moments_of([2.0, 4.0, 8.0, 16.0]))
    assert merged == NormalizeRewards().merge_states([merged, merged]) == NormalizeRewards().merge_states(states)


def test_a_piece_that_is_alone_merges_its_own_state_as_merge_states_does():
    pieces = [NormalizeRewards(gamma=0.5) for _ in range(2)]
    for i in range(3):
        for piece in pieces:
            run(piece, [chunk("x", [1.0, 5.0 - i], 2 * i), chunk("y", [3.0], i, module_id="red")])
        pieces[0].merge_own_state()
        pieces[1].set_state(pieces[1].merge_states([pieces[1].get_state()]))
        assert str(pieces[0].get_state()) == str(pieces[1].get_state())
        assert pieces[0].get_state().new == {}


@examples(20)
@given(st.lists(st.lists(REWARDS, max_size=3), min_size=1, max_size=3))
def test_learners_that_gather_their_moments_divide_as_one_that_has_the_whole_batch(parts):
    """Each learner has a part of each of two batches, which may be empty."""
    whole = NormalizeRewards(gamma=0.9, clip=None)
    learners = [NormalizeRewards(gamma=0.9, clip=None) for _ in parts]
    for batch in range(2):
        chunks = [
            [chunk(f"{i} {k} {batch}", rewards, terminated=True) for k, rewards in enumerate(part)]
            for i, part in enumerate(parts)
        ]
        if not any(chunks):
            return
        groups = [groups_of(part) for part in copy.deepcopy(chunks)]
        expected = run(whole, copy.deepcopy([episode for part in chunks for episode in part]))
        whole.merge_own_state()
        for piece, own in zip(learners, groups, strict=True):
            piece.before_columns(own, None)
        gathered = [copy.deepcopy(piece.get_state().new) for piece in learners]
        found = []
        for piece, own, mine in zip(learners, groups, copy.deepcopy(gathered), strict=True):

            def gather(again, mine=mine, gathered=gathered):
                assert again == mine
                return gathered

            shared = {RANKS: SimpleNamespace(gather=gather)}
            for columns in own:
                piece.columns(columns.within(shared_data=shared), ARRAYS)
            piece.after_columns(own, shared)
            found += [reward for columns in own for reward in columns["rewards"][columns.rows.acted]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    states = [piece.get_state().merged["default_policy"] for piece in learners]
    assert all(state == states[0] for state in states)
    merged = NormalizeRewards().merge_states([piece.get_state() for piece in learners])
    assert merged.merged["default_policy"] == states[0], "what all learners have counted counts once"
    expected = astuple(whole.get_state().merged["default_policy"])
    np.testing.assert_allclose(astuple(states[0]), expected, rtol=1e-9, atol=1e-9)


def test_a_state_survives_json_and_gives_the_same_afterwards():
    one, other = NormalizeRewards(), NormalizeRewards()
    run(one, [chunk("x", [1.0, 5.0]), chunk("y", [3.0], module_id="red")])
    state = one.get_state()
    other.set_state(decode_state(json.loads(json.dumps(encode_state(state, (), {}))), {}))
    following = [chunk("x", [2.0, 9.0], 2)]
    assert run(other, following) == run(one, following)
    assert str(other.get_state()) == str(one.get_state())
    other.reset_state()
    assert other.get_state() == NormalizeRewards().get_state()


def test_tensors_are_an_error():
    episode = chunk("x", [1.0])
    batch = {"default_policy": {"rewards": torch.ones(1)}}
    with pytest.raises(ConnectorError, match=r"(?s)NormalizeRewards.*already"):
        NormalizeRewards()(batch=batch, episodes=[episode], rl_module=None)
    group = ColumnGroup(rows_of_episodes([episode], ["default_policy"]))
    group["rewards"] = torch.zeros(2)
    with pytest.raises(ConnectorError, match=r"(?s)NormalizeRewards.*already"):
        NormalizeRewards().columns(group, ARRAYS)


@pytest.mark.parametrize(
    "setting", [{"gamma": 2.0}, {"gamma": "x"}, {"clip": 0.0}, {"clip": "x"}, {"epsilon": -1.0}, {"epsilon": None}]
)
def test_a_wrong_setting_is_an_error(setting):
    with pytest.raises(ConfigError, match=f"(?s)NormalizeRewards.*{next(iter(setting))}"):
        NormalizeRewards(**setting)


def test_a_run_that_is_stopped_and_resumed_normalises_as_one_that_is_not(tmp_path):
    def config():
        return (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(rollout_fragment_length=20)
            .training(train_batch_size_per_learner=20, num_epochs=1, minibatch_size=20)
            .learners(learner_connector=lambda obs, act: NormalizeRewards(gamma=0.9))
            .rl_module(model_config={"fcnet_hiddens": [4]})
            .debugging(seed=2)
        )

    whole, first = config().build_algo(), config().build_algo()
    for _ in range(2):
        whole.train()
    first.train()
    first.save_to_path(tmp_path / "checkpoint")
    resumed = config().build_algo()
    resumed.restore_from_path(tmp_path / "checkpoint")
    resumed.train()
    one, other = (a.learner.pipeline["NormalizeRewards"].get_state() for a in (whole, resumed))
    assert one.merged["default_policy"].count == 40
    assert str(one) == str(other)
    for algo in (whole, first, resumed):
        algo.stop()
