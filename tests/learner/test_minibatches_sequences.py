"""An epoch of a stateful module: whole sequences, every step once, in minibatches of about one size."""

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
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.learner.minibatches import CountedRows, GroupRows, minibatches_of_epoch

FEW = examples(60)
MODULES = ("m0", "m1", "m2")

chunk_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=6)
"""How many steps each chunk of one module has."""


def group_of(lengths, max_seq_lens, dropped=True, masked=()):
    """A train batch of hand-made chunks, the rows of their last observations dropped or masked.

    Column ``step`` numbers the real steps of all modules from 1, ``chunk`` the chunks; both are negative where a row is
    a last observation. Steps in ``masked`` do not count.
    """
    ids = MODULES[: len(lengths)]
    episodes = [
        SingleAgentEpisode(
            observations=[np.zeros(1, np.float32)] * (steps + 1),
            actions=[0] * steps,
            rewards=[0.0] * steps,
            module_id=module_id,
            len_lookback_buffer=0,
        )
        for module_id, chunks in zip(ids, lengths, strict=True)
        for steps in chunks
    ]
    group = ColumnGroup(rows_of_episodes(episodes, ids))
    acted, counts = group.rows.acted, group.rows.counts
    step = torch.from_numpy(np.where(acted, np.cumsum(acted), -1))
    chunk = torch.from_numpy(np.where(acted, np.repeat(np.arange(len(counts)), counts), -1))
    states = {"h": torch.from_numpy(np.where(acted, np.cumsum(acted), -1)[:, None])}
    sequences = Sequences.of_rows(counts, group.splits, max_seq_lens)
    sequences.to_column = torch.from_numpy
    sequences = sequences.with_states({"h": states["h"][torch.from_numpy(sequences.starts)]})
    counted = torch.from_numpy(acted.copy()) & ~torch.isin(step, torch.tensor([*masked], dtype=torch.int64))
    if dropped:
        sequences = sequences.without(acted)
        step, chunk, counted = step[acted], chunk[acted], counted[acted]
        group.splits = tuple(np.concatenate([[0], np.cumsum(acted)])[list(group.splits)].tolist())
    group.update({"step": step, "chunk": chunk})
    if masked or not dropped:
        group["loss_mask"] = counted
    group.sequences = sequences
    return group


def shuffled(seed=0):
    return lambda module_id, number: np.random.default_rng([seed, int(module_id[1:])]).permutation(number)


def epoch_of(group, size=None, shuffle=None):
    """``{module_id: [minibatch]}``; sizes may differ by module."""
    found = {}
    size_of = size.__getitem__ if isinstance(size, dict) else lambda module_id: size
    for minibatch in minibatches_of_epoch(GroupRows.of(group), size_of=size_of, shuffle=shuffle):
        (module_id,) = minibatch.module_ids
        assert not minibatch.is_stacked
        found.setdefault(module_id, []).append(minibatch)
    return found


def sequences_in(minibatch):
    """The steps of each sequence, those in the padding left out."""
    columns = minibatch.columns
    lengths = columns["seq_lens"].tolist()
    return [row[:length].tolist() for row, length in zip(columns["step"], lengths, strict=True)]


def expected_sequences(lengths, max_seq_lens):
    """``{module_id: [steps of each sequence]}`` by the plainest of loops."""
    found, step = {}, 1
    for module_id, chunks, longest in zip(MODULES, lengths, max_seq_lens, strict=False):
        found[module_id] = own = []
        for steps in chunks:
            numbers = list(range(step, step + steps))
            own += [numbers[i : i + longest] for i in range(0, steps, longest)]
            step += steps
    return found


@FEW
@given(st.data())
def test_every_step_is_once_in_an_epoch_in_a_whole_sequence_and_in_minibatches_of_about_one_size(data):
    lengths = data.draw(st.lists(chunk_lengths, min_size=1, max_size=3))
    max_seq_lens = tuple(data.draw(st.integers(1, 15)) for _ in lengths)
    sizes = {m: data.draw(st.none() | st.integers(1, 40)) for m in MODULES}
    shuffle = data.draw(st.sampled_from([None, shuffled(1)]))
    group = group_of(lengths, max_seq_lens)
    expected = expected_sequences(lengths, max_seq_lens)
    found = epoch_of(group, sizes, shuffle)
    assert list(found) == list(expected)
    for (module_id, minibatches), longest in zip(found.items(), max_seq_lens, strict=True):
        per_minibatch = [sequences_in(minibatch) for minibatch in minibatches]
        together = [sequence for several in per_minibatch for sequence in several]
        assert sorted(together) == expected[module_id], "every sequence once, and whole"
        assert together == expected[module_id] or shuffle is not None
        total, size = sum(map(len, together)), sizes[module_id]
        number = min(math.ceil(total / size) if size else 1, len(together))
        assert len(minibatches) == number
        for minibatch, several in zip(minibatches, per_minibatch, strict=True):
            assert minibatch.size == sum(map(len, several)) > 0
            assert abs(minibatch.size - total / number) <= max(map(len, together))
            for name in ("step", "chunk", "loss_mask"):
                assert minibatch.columns[name].shape == (len(several), longest)


@FEW
@given(st.data())
def test_without_their_last_rows_sequences_are_those_of_shorter_chunks(data):
    lengths = data.draw(st.lists(chunk_lengths, min_size=1, max_size=3))
    max_seq_lens = tuple(data.draw(st.integers(1, 5)) for _ in lengths)
    left = group_of(lengths, max_seq_lens).sequences
    splits = tuple(np.cumsum([0, *map(sum, lengths)]).tolist())
    shorter = Sequences.of_rows([steps for chunks in lengths for steps in chunks], splits, max_seq_lens)
    for name in ("starts", "lengths", "counts"):
        np.testing.assert_array_equal(getattr(left, name), getattr(shorter, name))
    assert left.splits == shorter.splits
    assert len(left) == len(left.state_in["h"]) == sum(map(len, expected_sequences(lengths, max_seq_lens).values()))


@FEW
@given(st.data())
def test_sequences_stay_beside_their_states_masks_and_chunks(data):
    lengths = [data.draw(chunk_lengths)]
    group = group_of(lengths, (data.draw(st.integers(1, 5)),))
    for minibatch in epoch_of(group, data.draw(st.integers(1, 20)), shuffled(2))["m0"]:
        columns = minibatch.columns
        within = torch.arange(columns["step"].shape[1]) < columns["seq_lens"][:, None]
        assert torch.equal(columns["loss_mask"], within)
        assert torch.equal(columns["state_in"]["h"][:, 0], columns["step"][:, 0]), "states are numbered by first steps"
        assert not columns["step"][~within].any() and not columns["chunk"][~within].any(), "zeros behind the end"
        assert (columns["chunk"].max(1).values == columns["chunk"][:, 0]).all(), "no sequence reaches over a seam"
        assert set(columns) == {"step", "chunk", "loss_mask", "seq_lens", "state_in"}
        assert len(columns) == 5 and "state_in" in columns and "obs" not in columns


@FEW
@given(st.data())
def test_steps_that_do_not_count_count_for_nothing(data):
    lengths = data.draw(st.lists(chunk_lengths, min_size=1, max_size=2))
    max_seq_lens = tuple(data.draw(st.integers(1, 6)) for _ in lengths)
    total = sum(map(sum, lengths))
    masked = data.draw(st.sets(st.integers(1, total)))
    dropped = data.draw(st.booleans())
    group = group_of(lengths, max_seq_lens, dropped, masked)
    size = data.draw(st.none() | st.integers(1, 20))
    found = epoch_of(group, size, shuffled(3))
    for module_id, sequences in expected_sequences(lengths, max_seq_lens).items():
        counting = [sequence for sequence in sequences if not set(sequence) <= masked]
        minibatches = found.get(module_id, [])
        together = [
            [step for step in sequence if step > 0] for minibatch in minibatches for sequence in sequences_in(minibatch)
        ]
        assert sorted(together) == counting, "sequences of which nothing counts are left out"
        steps = sum(len(set(sequence) - masked) for sequence in counting)
        assert sum(minibatch.size for minibatch in minibatches) == steps
        number = min(math.ceil(steps / size) if size else 1, len(counting))
        assert len(minibatches) == number
        for minibatch in minibatches:
            counted = minibatch.columns["step"][minibatch.columns["loss_mask"]].tolist()
            assert len(counted) == minibatch.size > 0
            assert masked.isdisjoint(counted) and min(counted) > 0


@pytest.mark.parametrize(
    ("lengths", "max_seq_len", "size", "expected"),
    [
        ([7], 20, 3, [7]),
        ([3, 4], 20, 1, [3, 4]),
        ([9], 3, 3, [3, 3, 3]),
        ([1], 1, 1, [1]),
        ([10, 10, 10, 10], 5, 20, [20, 20]),
        ([10, 10, 10, 10], 5, None, [40]),
        ([10, 10, 10, 10], 5, 1000, [40]),
        ([20, 1, 1, 1, 1], 20, 12, [20, 4]),
        ([1, 1, 1, 1, 20], 20, 12, [4, 20]),
        ([4, 4, 4, 4, 4], 4, 11, [8, 12]),  # shares of 10: the first bound lies as near to 8 as to 12
    ],
)
def test_sizes_by_hand(lengths, max_seq_len, size, expected):
    found = epoch_of(group_of([lengths], (max_seq_len,)), size)["m0"]
    assert [minibatch.size for minibatch in found] == expected


def test_sequences_of_one_length_are_dealt_out_as_evenly_as_rows_are():
    for number in range(1, 30):
        group = group_of([[4] * number], (4,))
        for size in range(1, 4 * number + 2):
            found = [minibatch.size // 4 for minibatch in epoch_of(group, size)["m0"]]
            assert max(found) - min(found) <= 1, (number, size)


def test_an_order_is_repeatable_and_each_module_has_its_own():
    group = group_of([[12] * 6, [12] * 6], (3, 3))

    def order(seed):
        return {
            m: [step for minibatch in minibatches for sequence in sequences_in(minibatch) for step in sequence]
            for m, minibatches in epoch_of(group, 10, shuffled(seed)).items()
        }

    first = order(1)
    assert first == order(1) != order(2)
    assert first["m0"] != sorted(first["m0"])
    assert [step + 72 for step in first["m0"]] != first["m1"]


def test_a_module_has_its_own_size():
    found = epoch_of(group_of([[12] * 4, [12] * 4], (3, 4)), {"m0": 12, "m1": None})
    assert [minibatch.size for minibatch in found["m0"]] == [12] * 4
    assert [minibatch.size for minibatch in found["m1"]] == [48]


def test_a_column_that_is_missing_is_named():
    (minibatch,) = epoch_of(group_of([[3]], (2,)))["m0"]
    with pytest.raises(KeyError, match="'advantages'"):
        minibatch.columns["advantages"]


def test_a_shuffled_learner_epoch_permutes_sequences_only_as_many_as_count():
    asked = []

    def shuffle(module_id, number):
        asked.append((module_id, number))
        return np.arange(number)[::-1]

    (minibatch,) = epoch_of(group_of([[4, 3]], (2,), masked={3, 4}), None, shuffle)["m0"]
    assert asked == [("m0", 3)]
    assert sequences_in(minibatch) == [[7], [5, 6], [1, 2]]


def test_means_of_a_stack_are_those_of_each_modules_own_steps():
    counted = CountedRows.of_mask(np.array([[True, False, False], [True, True, False]]), stacked=2)
    values = counted.pick(torch.tensor([[1.0, 9.0, 9.0], [2.0, 4.0, 9.0]]))
    assert counted.mean(values).tolist() == [1.0, 3.0]
