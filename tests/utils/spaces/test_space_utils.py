import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.utils.spaces.space_utils import (
    clip_action,
    flatten_space,
    flatten_to_single_ndarray,
    get_base_struct_from_space,
    normalize_action,
    unbatch,
    unsquash_action,
)

BOX = spaces.Box(-2.0, 4.0, (2,), np.float32)
HALF = spaces.Box(0.0, np.inf, (1,), np.float32)
CHOICE = spaces.Discrete(3)
INTEGERS = spaces.Box(0, 9, (2,), np.int32)
NESTED = spaces.Dict({"b": BOX, "a": spaces.Tuple([CHOICE, HALF]), "i": INTEGERS})
BASE = {"a": (CHOICE, HALF), "b": BOX, "i": INTEGERS}
either_form = pytest.mark.parametrize("space", [NESTED, BASE], ids=["space", "base_struct"])


def plain(action):
    if isinstance(action, dict):
        return {key: plain(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(map(plain, action))
    return action.tolist() if isinstance(action, np.ndarray) else action


def test_a_space_is_flattened_to_its_parts_in_their_order():
    assert flatten_space(NESTED) == [CHOICE, HALF, BOX, INTEGERS]
    assert flatten_space(BOX) == [BOX]


def test_the_base_struct_has_dicts_and_tuples_for_spaces_with_parts():
    assert get_base_struct_from_space(NESTED) == BASE
    assert get_base_struct_from_space(BOX) is BOX


@either_form
def test_boxes_of_an_action_are_clipped_to_their_bounds(space):
    action = {"a": (2, np.array([-3.0])), "b": np.array([-9.0, 9.0]), "i": np.array([1, 20])}
    assert plain(clip_action(action, space)) == {"a": (2, [0.0]), "b": [-2.0, 4.0], "i": [1, 9]}


@either_form
def test_bounded_boxes_of_an_action_are_scaled_from_minus_1_to_1_and_back(space):
    rest = {"a": (2, np.array([-3.0])), "i": np.array([1, 20])}
    squashed, scaled = np.array([-1.0, 0.5]), np.array([-2.0, 2.5])
    assert plain(unsquash_action({**rest, "b": squashed}, space)) == plain({**rest, "b": scaled})
    assert plain(normalize_action({**rest, "b": scaled}, space)) == plain({**rest, "b": squashed})
    assert plain(unsquash_action({**rest, "b": np.array([-1.5, 1.5])}, space)) == plain(
        {**rest, "b": np.array([-2.0, 4.0])}
    )


def test_arrays_are_joined_to_one_axis():
    assert flatten_to_single_ndarray([np.array([[1.0, 2.0]]), np.array([7, 8])]).tolist() == [1.0, 2.0, 7.0, 8.0]
    assert flatten_to_single_ndarray(np.array([[3]])).tolist() == [[3]]


def test_a_batch_is_divided_into_items():
    assert unbatch({"a": np.array([1, 2]), "b": (np.array([3, 4]), torch.tensor([5, 6]))}) == [
        {"a": 1, "b": (3, 5)},
        {"a": 2, "b": (4, 6)},
    ]
