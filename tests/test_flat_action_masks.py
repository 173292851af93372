"""The forms in which masks come, against what ``space.sample(mask)`` takes them for."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.flat_action_masks import (
    draw,
    flat_masks,
    free_where_nothing_is_left,
    leaves_a_choice,
    mask_of,
    mask_of_one_row,
    wanted_mask,
)

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


PARTS = spaces.Dict({"b": BITS, "box": spaces.Box(0, 1, (2,)), "d": spaces.Discrete(2), "t": spaces.Tuple([SEVERAL])})


def test_masks_of_parts_stand_one_after_another_and_what_is_not_there_allows_all():
    bits, choice, several = np.array([[0, 1], [2, 2]]), np.array([1, 0]), np.array([1, 0, 0, 1, 1])
    full = {"b": bits[None], "d": choice[None], "t": (several[None],)}
    expected = [1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1]
    assert flat_masks(PARTS, full).astype(int).tolist() == [expected]
    for nothing in (None, np.zeros((1, 0)), np.array([None])):
        assert flat_masks(PARTS, {**full, "box": nothing}).astype(int).tolist() == [expected]
        assert flat_masks(PARTS, {**full, "d": nothing})[0, 8:10].all()
    assert flat_masks(PARTS, {"d": np.array([[0, 1], [1, 0]])}).shape == (2, 15)
    assert flat_masks(PARTS, {}).tolist() == [[True] * 15]
    pair = spaces.Tuple([spaces.Box(0, 1), spaces.Discrete(2)])
    assert flat_masks(pair, (np.zeros((3, 0)), np.eye(2)[[0, 1, 1]])).astype(int).tolist() == [[1, 0], [0, 1], [0, 1]]
    one = mask_of_one_row({"b": bits.tolist(), "d": [1, 0], "t": ((np.array([1, 0]), [0, 1, 1]),), "box": None})
    assert flat_masks(PARTS, one).astype(int).tolist() == [expected]
    assert "'d' 2 numbers" in wanted_mask(PARTS) and "box" not in wanted_mask(PARTS)


def test_parts_of_actions_are_drawn_by_their_masks():
    masks = flat_masks(PARTS, {"d": np.eye(2)[np.arange(60) % 2], "t": (np.array([[1, 0, 0, 0, 1]] * 60),)})
    drawn = draw(PARTS, masks, np.random.default_rng(0))
    assert list(drawn) == list(PARTS.spaces)
    assert drawn["d"].tolist() == [0, 1] * 30
    assert (drawn["t"][0] == [0, 2]).all()
    assert drawn["box"].shape == (60, 2) and len(np.unique(drawn["box"])) == 120
    assert set(drawn["b"].ravel().tolist()) == {0, 1} and drawn["b"].shape == (60, 2, 2)


@pytest.mark.parametrize(
    ("space", "masks"),
    [
        (PARTS, np.ones(15)),
        (PARTS, {"e": np.ones((1, 2))}),
        (PARTS, {"box": np.ones((1, 2))}),
        (PARTS, {"d": np.ones((1, 3))}),
        (PARTS, {"d": (np.ones((1, 2)),)}),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]), (np.ones((1, 2)),)),
        (spaces.Tuple([spaces.Discrete(2)]), {0: np.ones((1, 2))}),
    ],
)
def test_masks_of_parts_that_do_not_fit_are_none(space, masks):
    assert flat_masks(space, masks) is None


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


def test_the_mask_of_an_observation_takes_precedence_over_that_of_its_info():
    seen, told = {"observation": 0.5, "action_mask": [1, 0]}, {"action_mask": [0, 1]}
    assert mask_of(seen, told).tolist() == [1, 0]
    assert mask_of({"observation": 0.5}, told).tolist() == mask_of(np.zeros(2), told).tolist() == [0, 1]
    assert mask_of(seen, None).tolist() == [1, 0]
    assert mask_of(seen, told, "legal") is None


def test_a_mask_leaves_a_choice_unless_each_part_of_the_action_has_one_value():
    discrete, several = np.array([[0, 1, 0], [1, 0, 1]], bool), np.array([[0, 1, 1, 0, 0], [0, 1, 1, 0, 1]], bool)
    assert leaves_a_choice(spaces.Discrete(3), discrete).tolist() == [False, True]
    assert leaves_a_choice(SEVERAL, several).tolist() == [False, True]
    both = spaces.Dict({"go": spaces.Discrete(3), "at": spaces.Tuple([SEVERAL])})
    assert leaves_a_choice(both, np.hstack([several, discrete])).tolist() == [False, True]
    with_a_box = spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,))])
    assert leaves_a_choice(with_a_box, discrete).tolist() == [True, True]
    assert leaves_a_choice(None, discrete).tolist() == [False, True]
