"""Modules with different numbers of rows run as one computation, and give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors import Columns, MultiRLModule, SingleAgentEpisode
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.rl_module.stacking import StackedRows

OBS, ACT = spaces.Box(-9.0, 9.0, (4,), np.float32), spaces.Discrete(3)


class Counted(DefaultPPORLModule):
    stackable = True
    calls = 0

    def _forward(self, batch, **kwargs):
        type(self).calls += 1
        return super()._forward(batch, **kwargs)


def modules(*ids):
    multi = MultiRLModule()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for module_id in ids:
            multi.add_module(
                module_id,
                Counted(observation_space=OBS, action_space=ACT, model_config={"fcnet_hiddens": (6,)}),
            )
    return multi


def group_of(counts):
    episodes = [
        SingleAgentEpisode(
            observations=[np.zeros(4, np.float32)] * count,
            actions=[0] * (count - 1),
            rewards=[0.0] * (count - 1),
            module_id=module_id,
            len_lookback_buffer=0,
        )
        for module_id, count in counts.items()
    ]
    group = ColumnGroup(rows_of_episodes(episodes, list(counts)))
    rng = np.random.default_rng(0)
    group[Columns.OBS] = torch.from_numpy(rng.standard_normal((sum(counts.values()), 4)).astype(np.float32))
    group[Columns.ACTION_MASK] = torch.from_numpy(rng.random((sum(counts.values()), 3)) < 0.7)
    return group


@pytest.mark.parametrize(
    "counts",
    [
        {"a": 5, "b": 2, "c": 9},
        {"a": 4, "b": 4, "c": 4},
        {"c": 3, "a": 7},
        {"b": 3, "c": 3},
        {"b": 3},
        {"a": 2000, "b": 2, "c": 2},
    ],
    ids=str,
)
def test_each_module_gets_its_own_rows_and_nobody_elses(counts):
    multi, group = modules("a", "b", "c"), group_of(counts)
    Counted.calls = 0
    (found,) = multi.forward_exploration(ColumnBatch([group], Phase.TENSORS)).groups
    together = max(counts.values()) < 100 and (len(counts) == 3 or list(counts.values()) == [3, 3])
    assert Counted.calls == (1 if together else len(counts))
    begin = 0
    for module_id, count in counts.items():
        own = {name: column[begin : begin + count] for name, column in group.items()}
        for name, expected in multi[module_id].forward_exploration(own).items():
            torch.testing.assert_close(found[name][begin : begin + count], expected, atol=1e-6, rtol=0)
        begin += count


def test_few_of_many_modules_run_one_after_another():
    multi = modules(*(f"m{i}" for i in range(10)))
    (bucket,) = multi.buckets
    assert StackedRows.is_worthwhile(bucket, group_of({f"m{i}": 3 for i in range(5)}))
    assert not StackedRows.is_worthwhile(bucket, group_of({f"m{i}": 3 for i in range(4)}))


def test_a_module_whose_rows_were_all_dropped_gets_none():
    multi, group = modules("a", "b", "c"), group_of({"a": 3, "b": 2})
    group.module_ids, group.splits = ("a", "b", "c"), (0, 3, 5, 5)
    rows = StackedRows(multi.buckets[0], group)
    assert rows[Columns.OBS].shape == (3, 3, 4)
    assert torch.equal(rows.unstacked(rows[Columns.OBS]), group[Columns.OBS])
    group.splits = (0, 0, 0, 0)
    assert not StackedRows.is_worthwhile(multi.buckets[0], group)


def test_columns_that_stand_as_a_stack_already_are_not_copied():
    multi, group = modules("a", "b"), group_of({"a": 3, "b": 3})
    rows = StackedRows(multi.buckets[0], group)
    assert rows[Columns.OBS].data_ptr() == group[Columns.OBS].data_ptr()
    assert set(rows) == set(group) and len(rows) == 2 and Columns.OBS in rows and "nothing" not in rows


def test_sequences_of_different_lengths_are_not_stacked():
    multi = modules("a", "b")
    (bucket,) = multi.buckets
    group = group_of({"a": 5, "b": 5})
    for lengths, pays in (((3, 3), True), ((3, 5), False)):
        group.sequences = Sequences.of_rows(group.rows.counts, tuple(group.splits), lengths)
        assert StackedRows.is_worthwhile(bucket, group) is pays


@pytest.mark.parametrize("members", [("a", "c"), ("b",), ("a", "b", "c")])
def test_changed_gradients_reach_the_members_and_nobody_else(members):
    (bucket,) = modules("a", "b", "c").buckets
    bucket.gradients.fill_(4.0)
    stack = bucket.stack_of(members)
    gradients = stack.gradients()
    gradients.mul_(0.5)
    stack.set_gradients(gradients)
    found = {m: {float(v) for p in bucket.modules[m].parameters() for v in p.grad.flatten()} for m in bucket.modules}
    assert found == {m: {2.0} if m in members else {4.0} for m in bucket.modules}


def test_gradients_that_are_written_for_some_members_reach_these_only():
    (bucket,) = modules("a", "b", "c").buckets
    bucket.gradients.fill_(4.0)
    stack = bucket.stack_of(("a", "c"))
    for gradient in stack.bound_gradients().values():
        gradient.fill_(2.0)
    stack.store()
    found = {m: {float(v) for p in bucket.modules[m].parameters() for v in p.grad.flatten()} for m in bucket.modules}
    assert found == {"a": {2.0}, "b": {4.0}, "c": {2.0}}
