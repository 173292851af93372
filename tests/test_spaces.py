"""Spaces: what they make of items, and what is left of them after a way through JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.random_spaces import assert_identical, in_another_form, random_item, random_space, stacked
from marl_connectors import MultiAgentEpisode, SingleAgentEpisode
from marl_connectors.episodes.items import owned
from marl_connectors.spaces import (
    byte_scale,
    fits,
    from_json,
    in_dtype,
    in_key_order,
    misfit,
    same,
    sort_key,
    stack,
    to_json,
)

PAIR = spaces.Tuple((spaces.Box(0, 100, (2,)),))


# Stacking ------------------------------------------------------------------------------------------------------------


def check_stacking(seed):
    rng = np.random.default_rng(seed)
    space = random_space(rng, 3)
    items = [random_item(rng, space) for _ in range(rng.integers(1, 5))]
    given = [in_another_form(rng, space, item) for item in items]
    assert_identical(stack(given, space), stacked(space, items))
    for item, same_item in zip(items, given, strict=True):
        assert fits(space, same_item)
        assert_identical(stack([owned(same_item, space)], space), stacked(space, [item]))


@pytest.mark.parametrize("seed", range(60))
def test_items_in_whatever_form_are_stacked_as_their_space_says(seed):
    check_stacking(seed)


@pytest.mark.slow
def test_items_in_whatever_form_are_stacked_as_their_space_says_in_many_spaces():
    for_fresh_seeds(check_stacking, 1000)


def for_fresh_seeds(check, count):
    first = int(np.random.SeedSequence().entropy) % 2**40
    for seed in range(first, first + count):
        try:
            check(seed)
        except BaseException:
            print(f"seed {seed}")
            raise


@pytest.mark.parametrize("form", [tuple, list, np.array])
def test_parts_that_are_no_arrays_stay_each_agents_own(form):
    (column,) = stack([(form([0.0, 10.0]),), (form([1.0, 20.0]),)], PAIR)
    assert column.tolist() == [[0, 10], [1, 20]] and column.dtype == np.float32


@pytest.mark.parametrize("item", [[1, 2], (1, 2), np.array([1, 2]), (np.int8(1), np.array(2))])
def test_parts_of_a_tuple_may_stand_in_anything_with_as_many(item):
    space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(5)))
    first, second = stack([item, (0, 4)], space)
    assert first.tolist() == [1, 0] and second.tolist() == [2, 4]


WRONG = [
    (PAIR, ((1.0,),)),
    (PAIR, (1.0, 2.0)),
    (PAIR, {0: (1.0, 2.0)}),
    (PAIR, 3.0),
    (spaces.Dict(a=spaces.Discrete(2)), {"a": 1, "b": 1}),
    (spaces.Dict(a=spaces.Discrete(2)), {}),
    (spaces.Dict(a=spaces.Discrete(2)), [1]),
    (spaces.Box(0, 1, (3,)), 0.5),
    (spaces.Box(0, 1, (3,)), [0.5]),
    (spaces.Box(0, 1, (3,)), ["0", "1", "2"]),
    (spaces.Box(0, 1, (1,)), None),
    (spaces.Discrete(3), [1]),
]


@pytest.mark.parametrize(("space", "item"), WRONG)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_items_with_other_parts_or_shapes_are_refused(space, item, count):
    with pytest.raises((ValueError, TypeError)):
        stack([item] * count, space)
    assert not fits(space, item) and misfit(space, item)


@pytest.mark.parametrize(
    ("space", "item"),
    [
        (spaces.Box(0, 255, (1,), np.uint8), [300]),
        (spaces.Box(0, 255, (1,), np.uint8), [-1]),
        (spaces.Box(0, 9, (1,), np.int64), [1.5]),
        (spaces.Box(-9, 9, (1,), np.int32), [np.nan]),
        (spaces.Box(0, 1, (1,), np.bool_), [2]),
        (spaces.Discrete(3), 1.25),
    ],
)
def test_numbers_that_a_dtype_cannot_hold_are_refused(space, item):
    with pytest.raises(ValueError, match="hold"):
        stack([item], space)
    assert misfit(space, item)


def test_floats_are_rounded_to_a_float_dtype():
    assert in_dtype(np.array([1 / 3]), np.float32).tolist() == [float(np.float32(1 / 3))]


def test_large_numbers_of_several_dtypes_keep_their_last_bit():
    space = spaces.Box(0, 2**64 - 1, (1,), np.uint64)
    given = [np.array([2**64 - 1], np.uint64), [2**53 + 1], np.array([2**62 + 1])]
    assert stack(given, space).ravel().tolist() == [2**64 - 1, 2**53 + 1, 2**62 + 1]


def test_without_a_space_lists_are_values_and_tuples_have_parts():
    first, second = stack([([1, 2], 3), ([4, 5], 6)])
    assert first.tolist() == [[1, 2], [4, 5]] and second.tolist() == [3, 6]
    with pytest.raises(ValueError, match="keys"):
        stack([{"a": 1}, {"b": 1}])
    with pytest.raises(ValueError, match="parts"):
        stack([(1, 2), (1,)])


# Episodes made by hand -----------------------------------------------------------------------------------------------


def check_episode(seed):
    rng = np.random.default_rng(seed)
    seen, done = (spaces.Dict([("rest", random_space(rng)), ("n", spaces.Discrete(4))]) for _ in range(2))
    items = [random_item(rng, seen) for _ in range(4)]
    actions = [random_item(rng, done) for _ in range(3)]
    given = [in_another_form(rng, seen, item) for item in items]
    acts = [in_another_form(rng, done, action) for action in actions]
    alone = SingleAgentEpisode(observation_space=seen, action_space=done)
    alone.add_env_reset(given[0])
    whole = SingleAgentEpisode(
        observation_space=seen,
        action_space=done,
        observations=given,
        actions=acts,
        rewards=[0.0] * 3,
        len_lookback_buffer=0,
    )
    several = MultiAgentEpisode(observation_space={"x": seen}, action_space={"x": done})
    several.add_env_reset(observations={"x": given[0]})
    for t in range(3):
        alone.add_env_step(given[t + 1], acts[t], 0.0)
        several.add_env_step({"x": given[t + 1]}, {"x": acts[t]}, {"x": 0.0})
    state = json.loads(json.dumps(several.get_state(), default=lambda array: array.tolist()))["agent_episodes"][0]
    assert same(from_json(state["observation_space"]), seen) and same(from_json(state["action_space"]), done)
    for episode in (whole, alone, several.agent_episodes["x"], SingleAgentEpisode.from_state(alone.get_state())):
        found = [episode.get_observations(t) for t in range(4)], [episode.get_actions(t) for t in range(3)]
        assert_identical(stack(found[0], seen), stacked(seen, items))
        episode.set_observations(new_data=given[2], at_indices=1)
        episode.set_actions(new_data=[acts[2], acts[0]], at_indices=[0, 1])
        episode.to_numpy()
        changed = [items[0], items[2], items[2], items[3]]
        assert_identical(in_dtypes(seen, episode.get_observations()), stacked(seen, changed))
        assert_identical(in_dtypes(done, episode.get_actions()), stacked(done, [actions[2], actions[0], actions[2]]))


def in_dtypes(space, column):
    """Without a difference of dtypes: Python's and wider numbers are kept where an episode has them."""
    if isinstance(space, spaces.Dict):
        return {key: in_dtypes(space[key], part) for key, part in column.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_dtypes(part, own) for part, own in zip(space.spaces, column, strict=True))
    return np.asarray(column).astype(space.dtype)


@pytest.mark.parametrize("seed", range(30))
def test_episodes_made_by_hand_hold_items_as_their_space_says(seed):
    check_episode(seed)


@pytest.mark.slow
def test_episodes_made_by_hand_hold_items_as_their_space_says_in_many_spaces():
    for_fresh_seeds(check_episode, 1000)


def test_a_flat_vector_written_in_the_place_of_a_tuple_stays_flat():
    space = spaces.Tuple((spaces.Box(0, 1, ()), spaces.Box(0, 1, ())))
    episode = SingleAgentEpisode(observation_space=space, observations=[(0.0, 1.0)])
    flat = np.array([0.25, 0.5], np.float32)
    episode.set_observations(new_data=flat, at_indices=-1)
    assert episode.get_observations(-1).tolist() == [0.25, 0.5]


def test_nobody_can_write_to_what_an_episode_holds():
    episode = SingleAgentEpisode()
    given = ([1, 2], {"a": [3]}, np.array([4]))
    episode.add_env_reset(given)
    given[0][0] = given[1]["a"][0] = given[2][0] = 9
    assert episode.get_observations(-1) == ([1, 2], {"a": [3]}, np.array([4]))


# JSON ----------------------------------------------------------------------------------------------------------------


def check_json(seed):
    rng = np.random.default_rng(seed)
    space = random_space(rng, 3)
    found = from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))
    assert same(found, space) and found == space
    assert json.dumps(to_json(found)) == json.dumps(to_json(space))
    assert str(found) == str(space)


@pytest.mark.parametrize("seed", range(100))
def test_a_space_comes_back_from_json_as_it_was(seed):
    check_json(seed)


@pytest.mark.slow
def test_a_space_comes_back_from_json_as_it_was_in_many_spaces():
    for_fresh_seeds(check_json, 2000)


def test_keys_come_back_in_their_order():
    space = spaces.Dict(
        zeta=spaces.Discrete(2), alpha=spaces.Dict([(2, spaces.Discrete(2)), ("1", spaces.Discrete(2))])
    )
    found = from_json(json.loads(json.dumps(to_json(space))))
    assert list(found.spaces) == ["zeta", "alpha"] and list(found["alpha"].spaces) == [2, "1"]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_an_unbounded_box_of_whole_numbers_comes_back_unbounded(dtype):
    space = spaces.Box(-np.inf, np.inf, (2,), dtype)
    found = from_json(json.loads(json.dumps(to_json(space))))
    assert found.high.tolist() == [np.iinfo(dtype).max] * 2 == space.high.tolist()
    assert found.low.tolist() == space.low.tolist()
    assert not found.is_bounded("below") and not found.is_bounded("above")


def test_bounds_keep_their_last_bit():
    low = np.array([-0.0, 0.0, 5e-324, -np.inf, 1 / 3])
    space = spaces.Box(low, np.full(5, np.inf), dtype=np.float64)
    found = from_json(json.loads(json.dumps(to_json(space))))
    assert found.low.tobytes() == low.tobytes()
    whole = spaces.Box(np.array([2**53 + 1, 0], np.uint64), np.array([2**64 - 1, 1], np.uint64), dtype=np.uint64)
    found = from_json(json.loads(json.dumps(to_json(whole))))
    assert found.low.tolist() == [2**53 + 1, 0] and found.high.tolist() == [2**64 - 1, 1]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({}),
        spaces.Tuple(()),
        spaces.Box(0, 1, ()),
        spaces.Box(0, 1, (0,)),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.MultiBinary(3),
        spaces.MultiBinary([3]),
        spaces.MultiBinary([2, 3]),
        spaces.Discrete(2**62, start=-(2**61)),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, -4]], dtype=np.int8),
    ],
    ids=str,
)
def test_all_kinds_come_back(space):
    found = from_json(json.loads(json.dumps(to_json(space))))
    assert found == space and same(found, space) and found.dtype == space.dtype


def test_data_that_were_written_by_hand_are_read():
    box = {"type": "Box", "low": 0.0, "high": ["inf", 2.0], "shape": [2], "dtype": "float32"}
    assert from_json(box) == spaces.Box(np.zeros(2, np.float32), np.array([np.inf, 2], np.float32))
    whole = {"type": "Box", "low": -(2**63), "high": 2**63 - 1, "shape": [1], "dtype": "int64"}
    assert from_json(whole).high.tolist() == [2**63 - 1]
    pairs = {"type": "Dict", "spaces": [["b", {"type": "MultiBinary", "n": 2}], ["a", {"type": "MultiBinary", "n": 1}]]}
    assert list(from_json(pairs).spaces) == ["b", "a"]


# Comparing -----------------------------------------------------------------------------------------------------------


def test_spaces_that_differ_by_rounding_or_order_are_not_the_same():
    assert not same(spaces.Box(0, 1e-9), spaces.Box(0, 3e-9))
    one = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    other = spaces.Dict([("a", spaces.Discrete(3)), ("b", spaces.Discrete(2))])
    assert one == other and not same(one, other) and same(one, other, ordered=False)
    assert not same(spaces.Tuple([one]), spaces.Tuple([other])) and not same(one, spaces.Dict(a=spaces.Discrete(3)))


def test_keys_that_cannot_be_compared_keep_their_order():
    parts = [("b", spaces.Discrete(2)), ("a", spaces.Discrete(2))]
    assert list(in_key_order(parts).spaces) == ["a", "b"]
    assert list(in_key_order([*parts, (0, spaces.Discrete(2))]).spaces) == ["b", "a", 0]


# Order ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_spaces_have_equal_sort_keys_where_they_are_the_same(seed):
    rng = np.random.default_rng(seed)
    one, other = random_space(rng, 3), random_space(rng, 3)
    again = from_json(json.loads(json.dumps(to_json(one))))
    assert sort_key(one) == sort_key(again)
    assert (sort_key(one) == sort_key(other)) == same(one, other, ordered=False)


def test_sort_keys_do_not_depend_on_the_order_of_parts_but_on_bounds():
    parts = [("b", spaces.Discrete(2)), ("a", spaces.Box(0.0, 1.0, (2,)))]
    assert sort_key(spaces.Dict(parts)) == sort_key(spaces.Dict(parts[::-1]))
    assert sort_key(spaces.Box(0.0, 1.0, (2,))) < sort_key(spaces.Box(0.0, 1.0, (3,)))
    assert sort_key(spaces.Box(0.0, 1.0, (2,))) != sort_key(spaces.Box(0.0, 2.0, (2,)))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (3,), np.uint8), 1 / 255),
        (spaces.Box(0, np.array([2, 4]), (2,), np.uint8), 1 / 4),
        (spaces.Box(0, 0, (3,), np.uint8), 1.0),
        (spaces.Box(0, 4, (3,), np.float32), None),
    ],
)
def test_bytes_are_scaled_by_their_greatest_bound(space, expected):
    assert byte_scale(space) == expected
