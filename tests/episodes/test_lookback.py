import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.episodes.lookback import OUTSIDE, gather, one_hot, resolve
from marl_connectors.errors import EpisodeError

DATA = [4, 5, 6, 7, 8, 9]  # 4, 5, 6 are lookback, 7 is t=0


def pick(indices, column=None, **options):
    fill = options.pop("fill", None)
    neg = options.pop("neg_index_as_lookback", False)
    where = resolve(indices, 3, 3, neg_index_as_lookback=neg, fill=fill is not None)
    return gather(DATA if column is None else column, where, fill=fill, **options)


CASES = [
    (None, {}, [7, 8, 9]),
    (0, {}, 7),
    (-1, {}, 9),
    (-6, {}, 4),
    (-1, {"neg_index_as_lookback": True}, 6),
    ([0, -1, -4], {}, [7, 9, 6]),
    ([-3, 2], {"neg_index_as_lookback": True}, [4, 9]),
    (slice(None, 2), {}, [7, 8]),
    (slice(-2, None), {}, [8, 9]),
    (slice(-2, 1), {"neg_index_as_lookback": True}, [5, 6, 7]),
    (slice(-100, 100), {}, [4, 5, 6, 7, 8, 9]),
    (slice(None, None, -1), {}, [9, 8, 7]),
    (slice(-6, None, 2), {}, [4, 6, 8]),
    (slice(5, 7), {}, []),
    (slice(-8, -4), {"fill": 0}, [0, 0, 4, 5]),
    (slice(1, 5), {"fill": 0}, [8, 9, 0, 0]),
    (slice(-9, -7), {"fill": 0}, [0, 0]),
    (slice(4, 1, -1), {"fill": 0}, [0, 0, 9]),
    ([-7, 3, 0], {"fill": 1}, [1, 1, 7]),
    (3, {"fill": 2}, 2),
    (-4, {"neg_index_as_lookback": True, "fill": 2}, 2),
]


@pytest.mark.parametrize(("indices", "options", "expected"), CASES)
def test_lists_and_arrays_give_what_was_worked_out_by_hand(indices, options, expected):
    assert pick(indices, **options) == expected
    from_array = pick(indices, np.array(DATA), **options)
    np.testing.assert_array_equal(from_array, np.array(expected))
    assert isinstance(from_array, (np.ndarray, np.generic))
    tree = pick(indices, {"a": np.array(DATA), "b": (np.array(DATA) * 10,)}, **options)
    np.testing.assert_array_equal(tree["a"], np.array(expected))


@pytest.mark.parametrize("index", [3, -7, [0, 3], [-7]])
@pytest.mark.parametrize("column", [DATA, np.array(DATA)])
def test_an_index_out_of_range_raises_for_lists_and_arrays_alike(index, column):
    with pytest.raises(IndexError, match=r"\b3 item"):
        pick(index, column)


def test_an_index_beyond_the_lookback_does_not_wrap_around():
    with pytest.raises(IndexError, match="t=0"):
        pick(-4, np.array(DATA), neg_index_as_lookback=True)


def test_what_is_no_index_is_refused():
    with pytest.raises(TypeError, match="'a'"):
        pick("a")
    with pytest.raises(EpisodeError, match=r"than 0\b"):
        pick(slice(None, None, 0))


def test_fill_has_the_shape_and_dtype_of_the_space():
    box = spaces.Box(0, 255, (2,), np.uint8)
    for column in ([np.array([1, 2], np.uint8)], np.array([[1, 2]], np.uint8)):
        where = resolve([-2, -1], 1, 0, fill=True)
        items = gather(column, where, fill=0.0, space=box)
        assert [list(item) for item in items] == [[0, 0], [1, 2]]
        assert items[0].dtype == np.uint8
    where = resolve(0, 0, 0, fill=True)
    np.testing.assert_array_equal(gather([], where, fill=3, space=box), [3, 3])


def test_a_fill_that_the_dtype_cannot_hold_is_not_wrapped():
    where = resolve([-2, -1], 1, 0, fill=True)
    np.testing.assert_array_equal(gather(np.array([7], np.uint8), where, fill=-1), [-1, 7])
    np.testing.assert_array_equal(gather(np.array([7], np.uint8), where, fill=0.5), [0.5, 7])


def test_one_hot_respects_the_first_value_of_a_space():
    np.testing.assert_array_equal(one_hot(np.array([3, 5]), spaces.Discrete(3, start=3)), [[1, 0, 0], [0, 0, 1]])
    multi = spaces.MultiDiscrete([2, 3])
    np.testing.assert_array_equal(one_hot(np.array([1, 2]), multi), [0, 1, 0, 0, 1])
    with pytest.raises(EpisodeError, match="outside"):
        one_hot(np.array([2]), spaces.Discrete(3, start=3))


def test_a_filled_one_hot_item_is_all_zeros_and_the_rest_of_it_is_filled():
    space = spaces.Dict({"d": spaces.Discrete(2), "x": spaces.Box(-1, 1, (1,))})
    items = [{"d": 1, "x": np.array([0.5], np.float32)}]
    arrays = {"d": np.array([1]), "x": np.array([[0.5]], np.float32)}
    where = resolve([-2, -1], 1, 0, fill=True)
    assert where == [OUTSIDE, 0]
    missing, given = gather(items, where, fill=9, space=space, one_hot_discrete=True)
    assert missing["d"].tolist() == [0, 0] and missing["x"].tolist() == [9]
    assert given["d"].tolist() == [0, 1] and given["x"].tolist() == [0.5]
    both = gather(arrays, where, fill=9, space=space, one_hot_discrete=True)
    assert both["d"].tolist() == [[0, 0], [0, 1]] and both["x"].tolist() == [[9], [0.5]]
    assert gather(arrays, 0, space=space, one_hot_discrete=True)["d"].tolist() == [0, 1]
    with pytest.raises(EpisodeError, match="space"):
        gather(items, 0, one_hot_discrete=True)
