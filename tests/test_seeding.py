"""Seeds that are named by what they are for."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from marl_connectors.seeding import StreamGenerator, derived_seed, derived_seeds


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**64 + 5, 2**128, 2**200 + 1])
def test_many_seeds_are_the_same_as_one_by_one(seed):
    rng = np.random.default_rng(0)
    for parts in range(1, 4):
        numbers = [np.append(rng.integers(0, 2**32, 20), [0, 2**32 - 1]) for _ in range(parts)]
        found = derived_seeds(seed, "env", *numbers)
        assert found.tolist() == [derived_seed(seed, "env", *map(int, name)) for name in zip(*numbers, strict=True)]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 2**64 + 5, 2**200 + 1])
def test_a_seed_is_that_of_numpys_seed_sequence(seed):
    rng = np.random.default_rng(1)
    for _ in range(50):
        numbers = [int(rng.integers(0, 2 ** int(rng.integers(1, 40)))) for _ in range(int(rng.integers(0, 4)))]
        sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(b"env"), *numbers))
        assert derived_seed(seed, "env", *numbers) == int(sequence.generate_state(1)[0] >> 1)


def test_later_draws_of_a_stream_go_on_where_earlier_ones_stopped():
    words = np.array([3, 2**63 + 1], np.uint64)
    whole, parts = StreamGenerator(words).random((2, 6)), StreamGenerator(words)
    drawn = [parts.random((2, number)) for number in (1, 3, 2)]
    assert np.concatenate(drawn, axis=1).tolist() == whole.tolist()
    assert len(set(whole.ravel().tolist())) == 12
