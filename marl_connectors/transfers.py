"""Copies arrays to a device and tensors back. All of them are packed into one buffer, so that there is one copy."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Parts begin at multiples of this many bytes, so that any dtype can be viewed there and kernels can use wide loads."""
_ON_DEVICE_AS = {np.dtype(np.float64): np.dtype(np.float32)}
_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {}


class BufferSlice(NamedTuple):
    """The place of one array in a buffer of bytes.

    Attributes:
        begin: The index of its first byte.
        end: The index after its last byte.
        dtype: The dtype of its elements.
        shape: Its shape.
    """

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def of(self, buffer: Tensor) -> Tensor:
        """Returns the part as a view of a buffer."""
        return buffer[self.begin : self.end].view(self.dtype).view(self.shape)


def packed(kinds: Sequence[tuple[torch.dtype, Sequence[int]]]) -> tuple[list[BufferSlice], int]:
    """Returns the places of arrays of these dtypes and shapes in a buffer, and the size of the buffer in bytes."""
    slices, end = [], 0
    for dtype, shape in kinds:
        size = math.prod(shape) * dtype.itemsize
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT if size else 0
        slices.append(BufferSlice(begin, begin + size, dtype, tuple(shape)))
        end = begin + size if size else end
    return slices, end


class PackedTransfer:
    """Copies data to one device and back.

    Copies to a GPU start from pinned memory, which is reused, and the CPU continues during the copy.

    Attributes:
        device: The device.
        num_to_device: The number of copies to the device so far.
        num_to_host: The number of copies from the device so far.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.num_to_device = 0
        self.num_to_host = 0
        self._on_gpu = device.type == "cuda"
        self._outbound = self._inbound = torch.empty(0, dtype=torch.uint8)
        self._sent: torch.cuda.Event | None = None
        self._zeros: Tensor | None = None

    def to_device(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """Returns copies of the arrays as tensors on the device. float64 becomes float32."""
        slices, size = packed([(_torch_dtype(array.dtype), array.shape) for array in arrays])
        if self._sent is not None:  # the copy before this one may still read the buffer
            self._sent.synchronize()
        self._outbound = self._with_room(self._outbound, size)
        host = self._outbound[:size]
        for part, array in zip(slices, arrays, strict=True):
            np.copyto(part.of(host).numpy(), array, casting="same_kind")
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        if size:
            there.copy_(host, non_blocking=self._on_gpu)
            self.num_to_device += 1
            if self._on_gpu:
                self._sent = self._sent or torch.cuda.Event()
                self._sent.record(torch.cuda.current_stream(self.device))
        return [part.of(there) for part in slices]

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns copies of the tensors on the CPU, without gradients. It waits for the device."""
        slices, size = packed([(tensor.dtype, tensor.shape) for tensor in tensors])
        here = torch.empty(size, dtype=torch.uint8)
        if size:
            there = torch.cat(self._pieces(slices, tensors))
            self.num_to_host += 1
            if self._on_gpu:
                self._inbound = self._with_room(self._inbound, size)
                self._inbound[:size].copy_(there, non_blocking=True)
                torch.cuda.current_stream(self.device).synchronize()
                here.copy_(self._inbound[:size])
            else:
                here.copy_(there)
        return [part.of(here) for part in slices]

    def _pieces(self, slices: Sequence[BufferSlice], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the bytes of the tensors and of the gaps between them."""
        if self._zeros is None:
            self._zeros = torch.zeros(_ALIGNMENT, dtype=torch.uint8, device=self.device)
        pieces, end = [], 0
        for part, tensor in zip(slices, tensors, strict=True):
            if part.begin == part.end:
                continue
            if part.begin > end:
                pieces.append(self._zeros[: part.begin - end])
            pieces.append(tensor.detach().contiguous().view(-1).view(torch.uint8))
            end = part.end
        return pieces

    def _with_room(self, buffer: Tensor, size: int) -> Tensor:
        """Returns the buffer if it is large enough, or a larger one, which is pinned for a GPU."""
        if size <= len(buffer):
            return buffer
        return torch.empty(max(size, 2 * len(buffer)), dtype=torch.uint8, pin_memory=self._on_gpu)


_of_this_thread = threading.local()


def transfer(device: torch.device) -> PackedTransfer:
    """Returns the PackedTransfer of a device. There is one for each device and thread."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    ways: dict[torch.device, PackedTransfer] = _of_this_thread.__dict__.setdefault("ways", {})
    way = ways.get(device)
    if way is None:
        way = ways[device] = PackedTransfer(device)
    return way


def moved(array: np.ndarray, device: torch.device) -> Tensor:
    """Returns one array as a tensor on a device. On the CPU it shares the array's memory."""
    return torch.from_numpy(array) if device.type == "cpu" else transfer(device).to_device([array])[0]


def all_moved(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Returns several arrays as tensors on a device, in one copy. On the CPU they share the arrays' memory."""
    return list(map(torch.from_numpy, arrays)) if device.type == "cpu" else transfer(device).to_device(arrays)


def all_on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors on the CPU, without gradients. There is one copy from each device, and none of CPU tensors."""
    found = [tensor.detach() for tensor in tensors]
    elsewhere: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(found):
        if not tensor.is_cpu:
            elsewhere.setdefault(tensor.device, []).append(i)
    for device, places in elsewhere.items():
        for i, tensor in zip(places, transfer(device).to_host([found[i] for i in places]), strict=True):
            found[i] = tensor
    return found


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Returns the torch dtype to which arrays of a numpy dtype are converted."""
    if dtype not in _TORCH_DTYPES:
        _TORCH_DTYPES[dtype] = torch.from_numpy(np.empty(0, _ON_DEVICE_AS.get(dtype, dtype))).dtype
    return _TORCH_DTYPES[dtype]
