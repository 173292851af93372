"""Minibatches of modules that go stacked: each has its own number of them, and copies that fill up count nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors import SingleAgentEpisode
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.learner.minibatches import CountedRows, GroupRows, minibatches_of_epoch

IDS = tuple(f"m{i}" for i in range(5))


def group_of(counts, masked=()):
    """A train batch whose column ``row`` numbers all rows from 0; those in ``masked`` do not count."""
    ids = IDS[: len(counts)]
    episodes = [
        SingleAgentEpisode(
            observations=[np.zeros(1, np.float32)] * (count + 1),
            actions=[0] * count,
            rewards=[0.0] * count,
            module_id=module_id,
            len_lookback_buffer=0,
        )
        for module_id, count in zip(ids, counts, strict=True)
    ]
    group = ColumnGroup(rows_of_episodes(episodes, ids))
    total = sum(counts)
    group.splits = tuple(np.cumsum([0, *counts]).tolist())
    group.rows_per_module = None
    group["row"] = torch.arange(total)
    if masked:
        group["loss_mask"] = ~torch.isin(group["row"], torch.tensor(sorted(masked)))
    return group


def shuffled(module_id, rows):
    return np.random.default_rng(int(module_id[1:])).permutation(rows)


@examples(80)
@given(st.data())
def test_every_row_that_counts_is_once_in_an_epoch_whatever_the_others_have(data):
    counts = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    ids = IDS[: len(counts)]
    sizes = {m: data.draw(st.none() | st.integers(1, 20)) for m in ids}
    masked = data.draw(st.sets(st.integers(0, sum(counts) - 1), max_size=20))
    shuffle = data.draw(st.sampled_from([None, shuffled]))
    group = group_of(counts, masked)
    found = {m: [] for m in ids}
    for minibatch in minibatches_of_epoch(GroupRows.of(group), [ids], size_of=sizes.__getitem__, shuffle=shuffle):
        rows, stacked = minibatch.columns["row"], len(minibatch.module_ids)
        assert minibatch.is_stacked == (stacked > 1) == (rows.dim() == 2)
        rows = rows.reshape(stacked, -1)
        mask = torch.ones_like(rows, dtype=torch.bool)
        if "loss_mask" in minibatch.columns:
            mask = minibatch.columns["loss_mask"].reshape(stacked, -1)
        counted = minibatch.columns.counted_rows
        expected = [own[real].double().mean() for own, real in zip(rows, mask, strict=True)]
        mean = counted.mean(counted.pick(minibatch.columns["row"].double()))
        torch.testing.assert_close(mean.reshape(-1), torch.stack(expected), rtol=1e-6, atol=1e-6)
        for i, module_id in enumerate(minibatch.module_ids):
            own = rows[i][mask[i]].tolist()
            assert len(own) == minibatch.sizes[i] > 0
            begin, end = group.splits[ids.index(module_id)], group.splits[ids.index(module_id) + 1]
            assert all(begin <= row < end for row in rows[i].tolist()), "copies are of the module's own rows"
            found[module_id].append(own)
    alone = {m: [] for m in ids}
    for minibatch in minibatches_of_epoch(GroupRows.of(group), size_of=sizes.__getitem__, shuffle=shuffle):
        alone[minibatch.module_ids[0]].append(minibatch.columns["row"].tolist())
    assert found == alone, "stacked or not, a module goes through the same minibatches"
    for i, (module_id, count) in enumerate(zip(ids, counts, strict=True)):
        own = [row for row in range(group.splits[i], group.splits[i] + count) if row not in masked]
        assert sorted(row for part in found[module_id] for row in part) == own
        size = sizes[module_id]
        number = 0 if not own else math.ceil(len(own) / size) if size else 1
        assert len(found[module_id]) == number, "nobody is trained more often because another has more rows"


def test_half_the_rows_are_half_the_steps_and_who_is_through_takes_no_part():
    taken = [
        (minibatch.module_ids, minibatch.sizes)
        for minibatch in minibatches_of_epoch(
            GroupRows.of(group_of([20, 10])), [IDS[:2]], size_of=lambda m: 5, shuffle=None
        )
    ]
    assert taken == [(IDS[:2], (5, 5))] * 2 + [(("m0",), (5,))] * 2


def test_a_module_with_very_many_rows_is_not_padded_to():
    counts = [6000, 10, 12, 5900]
    stacks = [
        minibatch.module_ids
        for minibatch in minibatches_of_epoch(
            GroupRows.of(group_of(counts)), [IDS[:4]], size_of=lambda m: None, shuffle=None
        )
    ]
    assert stacks == [("m0", "m3"), ("m1", "m2")]


def test_modules_that_may_not_go_stacked_go_alone():
    stacks = [
        minibatch.module_ids
        for minibatch in minibatches_of_epoch(
            GroupRows.of(group_of([4, 4, 4, 4])),
            [("m0", "m2")],
            size_of=lambda m: None,
            shuffle=None,
            only=["m0", "m2", "m3"],
        )
    ]
    assert stacks == [("m0", "m2"), ("m3",)]


@pytest.mark.parametrize("stacked", [0, 2])
def test_masked_values_reach_no_mean_and_no_gradient(stacked):
    mask = np.array([[True, True, False, False], [False, True, False, False]])
    values = torch.tensor([[1.0, 3.0, float("nan"), 1e30], [float("inf"), 5.0, 7.0, 9.0]], requires_grad=True)
    rows = CountedRows.of_mask(mask, stacked=stacked)
    mean = rows.mean(rows.pick(values).square())
    mean.sum().backward()
    if stacked:
        assert mean.tolist() == [5.0, 25.0]
        assert values.grad.tolist() == [[1.0, 3.0, 0.0, 0.0], [0.0, 10.0, 0.0, 0.0]]
    else:
        assert mean.item() == pytest.approx(35 / 3)
        torch.testing.assert_close(values.grad, torch.tensor([[2 / 3, 2.0, 0, 0], [0, 10 / 3, 0, 0]]))


def test_info_dicts_stand_by_module():
    group = group_of([3, 2])
    group["infos"] = InfoColumn([{"n": i} for i in range(5)])
    (minibatch,) = minibatches_of_epoch(GroupRows.of(group), [IDS[:2]], size_of=lambda m: None, shuffle=None)
    assert [[info["n"] for info in own] for own in minibatch.columns["infos"]] == [[0, 1, 2], [3, 4, 3]]
    first, second = minibatches_of_epoch(GroupRows.of(group), size_of=lambda m: None, shuffle=None)
    assert first.columns["infos"] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert second.columns["infos"] == [{"n": 3}, {"n": 4}]


@pytest.mark.parametrize("shuffle", [None, shuffled])
def test_a_loss_may_write_to_its_minibatch(shuffle):
    group = group_of([5, 5])
    (minibatch,) = minibatches_of_epoch(GroupRows.of(group), [IDS[:2]], size_of=lambda _: None, shuffle=shuffle)
    minibatch.columns["row"].zero_()
    assert group["row"].tolist() == list(range(10))
    (again,) = minibatches_of_epoch(GroupRows.of(group), [IDS[:2]], size_of=lambda _: None, shuffle=None)
    assert again.columns["row"].tolist() == [list(range(5)), list(range(5, 10))]
