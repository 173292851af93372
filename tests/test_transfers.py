"""Packed copies, from CPU memory to CPU memory: what goes over is what arrives, in one copy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from marl_connectors.transfers import PackedTransfer, all_moved, all_on_host, packed, transfer

CPU = torch.device("cpu")
DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        elements=st.floats(width=32) if dtype is np.float64 else None,
    )
)


@given(st.lists(arrays, max_size=8))
def test_arrays_arrive_as_they_were_in_one_copy(given_arrays):
    way = PackedTransfer(CPU)
    tensors = way.to_device(given_arrays)
    assert way.num_to_device == any(array.size for array in given_arrays)
    for array, tensor in zip(given_arrays, tensors, strict=True):
        narrow = array.astype(np.float32) if array.dtype == np.float64 else array
        assert tensor.numpy().dtype == narrow.dtype and tuple(tensor.shape) == array.shape
        np.testing.assert_array_equal(tensor.numpy(), narrow)


@given(st.lists(arrays, max_size=8))
def test_tensors_come_back_as_they_were_in_one_copy(given_arrays):
    way = PackedTransfer(CPU)
    tensors = [torch.from_numpy(array) for array in given_arrays]
    found = way.to_host(tensors)
    assert way.num_to_host == any(array.size for array in given_arrays)
    for tensor, back in zip(tensors, found, strict=True):
        assert back.dtype == tensor.dtype and back.shape == tensor.shape
        torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)


def test_what_is_no_block_of_memory_goes_over_too():
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    way = PackedTransfer(CPU)
    np.testing.assert_array_equal(way.to_device([grid[::2, ::-1].T])[0], grid[::2, ::-1].T)
    np.testing.assert_array_equal(way.to_host([torch.from_numpy(grid).T[1:]])[0], grid.T[1:])


def test_half_precision_without_a_numpy_type_comes_back():
    values = torch.randn(5, generator=torch.Generator().manual_seed(0)).bfloat16()
    (back, count) = PackedTransfer(CPU).to_host([values, torch.tensor(3)])
    assert back.dtype is torch.bfloat16 and torch.equal(back, values) and count == 3


def test_what_has_gradients_comes_back_without():
    (back,) = all_on_host([torch.ones(2, requires_grad=True)])
    assert not back.requires_grad


def test_each_part_stands_where_kernels_read_fastest():
    parts, size = packed([(torch.bool, (3,)), (torch.float32, (2, 2)), (torch.int64, ()), (torch.uint8, (0, 4))])
    assert [(part.begin, part.end) for part in parts] == [(0, 3), (16, 32), (32, 40), (0, 0)]
    assert size == 40


def test_a_later_copy_leaves_earlier_ones_alone():
    way = PackedTransfer(CPU)
    (first,) = way.to_device([np.zeros(4, np.float32)])
    kept = way.to_host([first])
    (second,) = way.to_device([np.ones(4, np.float32)])
    way.to_host([second])
    assert (first == 0).all() and (kept[0] == 0).all() and (second == 1).all()


def test_a_buffer_grows_when_it_has_to():
    way = PackedTransfer(CPU)
    for count in (1, 1000, 10, 5000):
        np.testing.assert_array_equal(way.to_device([np.arange(count)])[0], np.arange(count))


def test_shapes_and_types_are_known_on_a_device_without_memory():
    tensors = PackedTransfer(torch.device("meta")).to_device([np.zeros((2, 3), bool), np.zeros(4)])
    assert [(t.device.type, t.dtype, tuple(t.shape)) for t in tensors] == [
        ("meta", torch.bool, (2, 3)),
        ("meta", torch.float32, (4,)),
    ]


def test_on_the_cpu_nothing_is_copied():
    array, tensor = np.zeros(3, np.float32), torch.zeros(3)
    assert all_moved([array], CPU)[0].data_ptr() == array.__array_interface__["data"][0]
    assert all_on_host([tensor])[0].data_ptr() == tensor.data_ptr()


def test_there_is_one_way_to_a_device():
    assert transfer(torch.device("meta")) is transfer(torch.device("meta"))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([np.datetime64("2000-01-01")])])
def test_what_no_tensor_can_hold_is_refused(array):
    with pytest.raises(TypeError, match="convert"):
        PackedTransfer(CPU).to_device([array])
