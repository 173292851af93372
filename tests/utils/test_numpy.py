import numpy as np
import pytest
import torch

from marl_connectors.utils.numpy import convert_to_numpy, one_hot, softmax


def test_tensors_in_a_tree_become_arrays_and_all_else_stays():
    tree = {"a": torch.tensor([1.5, 2.5], requires_grad=True), "b": [(torch.tensor(3), None), "text"]}
    converted = convert_to_numpy(tree)
    assert type(converted["a"]) is np.ndarray and converted["a"].tolist() == [1.5, 2.5]
    assert converted["b"] == [(3, None), "text"]


@pytest.mark.parametrize(("reduce_type", "dtypes"), [(True, ["float32", "int32"]), (False, ["float64", "int64"])])
def test_wide_numbers_become_half_as_wide_if_asked(reduce_type, dtypes):
    wide = [np.array([0.5]), torch.tensor([7])]
    converted = convert_to_numpy(wide, reduce_type=reduce_type)
    assert [array.dtype.name for array in converted] == dtypes
    assert [array.tolist() for array in converted] == [[0.5], [7]]


def test_one_hot_vectors_have_a_last_axis_of_the_depth():
    assert one_hot(1, 3).tolist() == [0.0, 1.0, 0.0]
    assert one_hot(np.array([[1], [0]]), 2, on_value=5, off_value=-1).tolist() == [[[-1.0, 5.0]], [[5.0, -1.0]]]
    assert one_hot([0, 2]).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]  # 2 is the greatest integer
    assert one_hot(0, 2).dtype == np.float32 and one_hot(0, 2, dtype=np.int8).dtype == np.int8


def test_softmax_is_proportional_to_the_powers():
    assert softmax([0.0, np.log(3.0)]) == pytest.approx([0.25, 0.75])
    assert softmax(np.array([[0.0], [np.log(3.0)]]), axis=0).tolist() == pytest.approx(np.array([[0.25], [0.75]]))
    assert softmax(np.array([1000.0, 1000.0])).tolist() == [0.5, 0.5]  # whose powers would overflow
