"""The minibatches of all ranks together are those of one learner: the plan, without processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors import SingleAgentEpisode
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.errors import LearnerError
from marl_connectors.learner.minibatches import GroupRows, minibatches_of_epoch
from marl_connectors.learner.ranks import rows_of_all_ranks

IDS = ("m0", "m1", "m2")


class Gathered(Exception):
    """Ends a rank's work when it would wait for the others."""


class FakeRanks:
    """The connection of a rank to others in the same process, which have sent their values before."""

    def __init__(self, rank, values=None):
        self.rank, self.values = rank, values

    def gather(self, value):
        if self.values is None:
            raise Gathered(value)
        return self.values


def episodes_of(lengths):
    """An episode for each pair of a module and a length; observations number the steps of all of them."""
    found, step = [], 0
    for module_id, length in lengths:
        observations = np.arange(step, step + length + 1, dtype=np.float32)[:, None]
        step += length + 1
        found.append(
            SingleAgentEpisode(
                observations=list(observations),
                actions=[0] * length,
                rewards=[0.0] * length,
                module_id=module_id,
                len_lookback_buffer=0,
            )
        )
    return found


def batch_of(episodes, max_len):
    """The train batch of some episodes; rows of last observations and every third step do not count."""
    if not episodes:
        return ColumnBatch([])
    group = ColumnGroup(rows_of_episodes(episodes, IDS))
    observations = group.rows.get("obs")[:, 0]
    group["row"] = torch.from_numpy(observations.astype(np.int64))
    group["loss_mask"] = torch.from_numpy(group.rows.acted & (observations % 3 != 0))
    if max_len:
        lens = tuple(max_len for _ in group.module_ids)
        group.sequences = Sequences.of_rows(group.rows.counts, group.splits, lens)
    return ColumnBatch([group])


def rows_of_ranks(episodes, ranks, number, max_len, facts=None):
    """The rows that each rank knows of, when episode ``i`` is on rank ``ranks[i]``."""
    owned = [[i for i, own in enumerate(ranks) if own == rank] for rank in range(number)]
    own = [[episodes[i] for i in positions] for positions in owned]
    batches = [batch_of(part, max_len) for part in own]

    def run(rank, values=None):
        return rows_of_all_ranks(
            FakeRanks(rank, values),
            batches[rank],
            [IDS],
            episodes=own[rank],
            positions=owned[rank],
            facts={} if facts is None else facts[rank],
        )

    sent = []
    for rank in range(number):
        with pytest.raises(Gathered) as gathered:
            run(rank)
        sent.append(gathered.value.args[0])
    return [run(rank, sent) for rank in range(number)]


def counted(minibatch):
    """The rows of a minibatch that count, by module."""
    if not minibatch.module_ids:
        return {}
    number = len(minibatch.module_ids)
    rows = minibatch.columns["row"].reshape(number, -1)
    mask = torch.ones_like(rows, dtype=torch.bool)
    if "loss_mask" in minibatch.columns:
        mask = minibatch.columns["loss_mask"].reshape(number, -1) & (rows % 3 != 0)
    return {m: own[real].tolist() for m, own, real in zip(minibatch.module_ids, rows, mask, strict=True)}


@examples(40)
@given(st.data())
def test_ranks_have_the_minibatches_of_one_learner_together(data):
    lengths = data.draw(st.lists(st.tuples(st.sampled_from(IDS), st.integers(1, 12)), min_size=1, max_size=8))
    number = data.draw(st.integers(1, 4))
    ranks = [data.draw(st.integers(0, number - 1)) for _ in lengths]
    max_len = data.draw(st.sampled_from([0, 1, 3]))
    sizes = {m: data.draw(st.none() | st.integers(1, 9)) for m in IDS}
    shuffle = data.draw(st.sampled_from([None, lambda m, n: np.random.default_rng(int(m[1:])).permutation(n)]))
    stacks = [IDS] if data.draw(st.booleans()) else []
    plan = {"size_of": sizes.__getitem__, "shuffle": shuffle}
    (group,) = batch_of(episodes_of(lengths), max_len).groups
    expected = list(minibatches_of_epoch(GroupRows.of(group), stacks, **plan))
    found = []
    for rows in rows_of_ranks(episodes_of(lengths), ranks, number, max_len):
        (own,) = rows
        assert own.module_ids == group.module_ids
        found.append(list(minibatches_of_epoch(own, stacks, **plan)))
    assert {len(own) for own in found} == {len(expected)}
    for i, whole in enumerate(expected):
        parts = [own[i] for own in found]
        for part in parts:
            assert dict(part.of_all) == dict(zip(whole.module_ids, whole.sizes, strict=True))
            assert list(map(len, counted(part).values())) == list(part.sizes)
        for module_id, rows in counted(whole).items():
            assert sorted(row for part in parts for row in counted(part).get(module_id, [])) == sorted(rows)
            weights = [dict(zip(p.module_ids, p.weights or [1.0] * len(p.sizes), strict=True)) for p in parts]
            assert sum(own.get(module_id, 0.0) for own in weights) == pytest.approx(1.0)


def test_a_rank_without_rows_knows_all_minibatches():
    rows = rows_of_ranks(episodes_of([("m1", 5), ("m0", 4)]), [1, 1], 2, 0)
    none = list(minibatches_of_epoch(rows[0][0], size_of=lambda m: 2, shuffle=None))
    assert [(m.module_ids, m.sizes, dict(m.of_all)) for m in none] == [
        ((), (), {"m0": 2}),
        ((), (), {"m1": 1}),
        ((), (), {"m1": 2}),
    ]


def test_ranks_that_differ_are_named():
    with pytest.raises(LearnerError, match=r"(?s)rank 1.*rank 0.*\(4 and 3\)"):
        rows_of_ranks(episodes_of([("m0", 4), ("m0", 4)]), [0, 1], 2, 0, [{"seeds": 3}, {"seeds": 4}])


def test_each_episode_needs_a_position():
    with pytest.raises(LearnerError, match=r"(?s)\b1\b.*\b0\b"):
        rows_of_all_ranks(
            FakeRanks(0), batch_of([], 0), [IDS], episodes=episodes_of([("m0", 4)]), positions=[], facts={}
        )
