"""The forms in which masks come, against what ``space.sample(mask)`` takes them for."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.connectors.action_masks import draw, flat_masks, free_where_nothing_is_left, wanted_mask

SEVERAL, MATRIX, BITS = (
    spaces.MultiDiscrete([2, 3], start=[0, 4]),
    spaces.MultiDiscrete([[2], [1]]),
    spaces.MultiBinary((2, 2)),
)


def flat(space, *masks):
    stacked = tuple(map(np.stack, zip(*masks, strict=True))) if isinstance(masks[0], tuple) else np.stack(masks)
    found = flat_masks(space, stacked)
    return None if found is None else found.astype(int).tolist()


def test_masks_of_all_forms_become_one_vector():
    assert flat(spaces.Discrete(3), np.array([0, 2, 1], np.int8)) == [[0, 1, 1]]
    assert flat(None, np.array([True, False])) == [[1, 0]]
    assert flat(SEVERAL, np.array([1, 0, 0, 1, 1])) == [[1, 0, 0, 1, 1]]
    assert flat(SEVERAL, (np.array([1, 0]), np.array([0, 1, 1])), (np.ones(2), np.zeros(3))) == [
        [1, 0, 0, 1, 1],
        [1, 1, 0, 0, 0],
    ]
    nested = ((np.array([[1, 0]]),), (np.array([[1]]),))  # Gymnasium has nvec's own nesting
    assert flat_masks(MATRIX, nested).astype(int).tolist() == [[1, 0, 1]]
    assert flat(BITS, np.array([[0, 1], [2, 2]], np.int8)) == [[1, 0, 0, 1, 1, 1, 1, 1]]
    assert flat(BITS, np.array([1, 0, 0, 1, 1, 1, 0, 0])) == [[1, 0, 0, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (spaces.Discrete(3), np.ones(2)),
        (spaces.Discrete(3), (np.ones(3),)),
        (spaces.Discrete(3), np.array(["a", "b", "c"])),
        (SEVERAL, np.ones(4)),
        (SEVERAL, (np.ones(3), np.ones(2))),
        (SEVERAL, np.ones((2, 3))),
        (BITS, np.ones(4)),
    ],
)
def test_masks_that_do_not_fit_are_none(space, mask):
    assert flat(space, mask) is None
    assert wanted_mask(space)


def test_what_bits_gymnasium_samples_for_a_mask_is_what_the_flat_mask_allows():
    rng = np.random.default_rng(0)
    BITS.seed(0)
    for _ in range(50):
        mask = rng.integers(0, 3, (2, 2)).astype(np.int8)
        allowed = flat_masks(BITS, mask[None]).reshape(4, 2)
        sample = BITS.sample(mask).ravel()
        assert allowed[np.arange(4), sample].all()
        assert (allowed.sum(1) == np.where(mask.ravel() == 2, 2, 1)).all()


def test_a_choice_without_anything_left_is_free_and_the_others_stay():
    masks = np.array([[0, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]], bool)
    found = free_where_nothing_is_left(SEVERAL, masks).astype(int).tolist()
    assert found == [[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [1] * 5, [0, 1, 1, 0, 0]]
    assert free_where_nothing_is_left(spaces.Discrete(2), np.array([[0, 0], [0, 1]], bool)).tolist() == [[1, 1], [0, 1]]


def test_drawn_actions_are_allowed_and_even():
    masks = np.tile(np.array([True, True, False, True, True]), (4000, 1))
    drawn = draw(SEVERAL, masks, np.random.default_rng(0))
    # Four standard errors: 4 * sqrt(0.25 / 4000) = 0.032.
    assert abs((drawn[:, 0] == 1).mean() - 0.5) < 0.032
    assert set(drawn[:, 1]) == {1, 2} and abs((drawn[:, 1] == 1).mean() - 0.5) < 0.032
    assert draw(spaces.Discrete(3), np.array([[False, True, False]]), np.random.default_rng(0)).tolist() == [1]
