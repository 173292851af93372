"""Tensors in the namespace of tensors give what arrays give in that of arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_connectors import tensor_namespace
from marl_connectors.array_namespace import ARRAYS, _EarlierNumpy

COMPUTATIONS = {
    "astype": lambda xp, x: xp.astype(x, xp.float32),
    "astype of numpy": lambda xp, x: xp.astype(x, np.dtype(np.int64)),
    "asarray": lambda xp, x: x + xp.asarray(np.arange(3.0)),
    "concat": lambda xp, x: xp.concat([x, x], axis=1),
    "maximum of a number": lambda xp, x: xp.minimum(xp.maximum(x, -0.5), 0.5),
    "maximum of arrays": lambda xp, x: xp.maximum(xp.minimum(x, 2 * x), x / 2),
    "where": lambda xp, x: xp.where(x > 0, x, -x),
    "moveaxis": lambda xp, x: xp.ascontiguousarray(xp.moveaxis(x[..., None], -1, 1)),
    "bools": lambda xp, x: xp.any(xp.ones((2, 2), dtype=xp.bool), axis=1),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_tensors_give_what_arrays_give(name):
    values = np.random.default_rng(0).normal(size=(4, 3))
    arrays = COMPUTATIONS[name](ARRAYS, values)
    tensors = COMPUTATIONS[name](tensor_namespace, torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(arrays, tensors)
    assert arrays.dtype == tensors.dtype
    np.testing.assert_array_equal(COMPUTATIONS[name](_EarlierNumpy(), values), arrays)
