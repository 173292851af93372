import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.utils.torch_utils import (
    FLOAT_MAX,
    FLOAT_MIN,
    convert_to_torch_tensor,
    explained_variance,
    global_norm,
    one_hot,
)


def test_leaves_become_tensors_and_float64_becomes_float32():
    frozen = np.array([True])
    frozen.flags.writeable = False
    tree = {"a": np.array([1, 2]), "b": [(0.5, None), frozen], "c": torch.zeros(1, dtype=torch.float64)}
    converted = convert_to_torch_tensor(tree, device="cpu")
    assert converted["a"].dtype == torch.int64 and converted["a"].tolist() == [1, 2]
    (number, nothing), flags = converted["b"]
    assert number.dtype == torch.float32 and number.item() == 0.5 and nothing is None
    assert flags.dtype == torch.bool and flags.tolist() == [True]
    assert converted["c"].dtype == torch.float32


def test_texts_and_objects_are_not_converted():
    objects = np.array([{}, None], dtype=object)
    converted = convert_to_torch_tensor({"text": "a", "objects": objects})
    assert converted["text"] == "a" and converted["objects"] is objects


def test_explained_variance_is_1_for_a_perfect_prediction_and_at_least_minus_1():
    y = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(y, y + 5.0).item() == 1.0  # a constant offset has no variance
    assert explained_variance(y, torch.tensor([1.0, 2.0, 4.0])).item() == pytest.approx(2 / 3)
    assert explained_variance(y, -9.0 * y).item() == -1.0


def test_one_hot_vectors_of_a_space():
    assert one_hot(torch.tensor([[0, 2]]), spaces.Discrete(3)).tolist() == [[[1, 0, 0], [0, 0, 1]]]
    assert one_hot(torch.tensor([[0, 1]]), spaces.MultiDiscrete([2, 3])).tolist() == [[1, 0, 0, 1, 0]]
    with pytest.raises(ValueError, match=r"(?s)one_hot.*Discrete.*MultiDiscrete.*MultiBinary"):
        one_hot(torch.tensor([0]), spaces.MultiBinary(1))


def test_the_norm_is_that_of_all_tensors_together():
    assert global_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]).item() == 5.0


def test_logits_can_be_added_to_the_least_and_greatest_float():
    limits = torch.tensor([FLOAT_MIN, FLOAT_MAX])
    assert torch.isfinite(limits + torch.tensor([-1e6, 1e6])).all()
    assert torch.softmax(torch.tensor([1.0, FLOAT_MIN]), 0).tolist() == [1.0, 0.0]
