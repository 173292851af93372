"""Arrays to a device and tensors back: packed into one buffer, so that it is one copy each way for all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Parts begin at multiples of so many bytes: any type can be viewed there, and kernels may load as many at once."""
_ON_DEVICE_AS = {np.dtype(np.float64): np.dtype(np.float32)}
_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {}


class Part(NamedTuple):
    """Where one array stands in a buffer of bytes.

    Attributes:
        begin: Its first byte.
        end: One behind its last.
        dtype: Of its elements.
        shape: Its own.
    """

    begin: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def of(self, buffer: Tensor) -> Tensor:
        """The part as a view of a buffer."""
        return buffer[self.begin : self.end].view(self.dtype).view(self.shape)


def packed(kinds: Sequence[tuple[torch.dtype, Sequence[int]]]) -> tuple[list[Part], int]:
    """The places of arrays of those types and shapes, one after another, and how many bytes they take in all."""
    parts, end = [], 0
    for dtype, shape in kinds:
        size = math.prod(shape) * dtype.itemsize
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT if size else 0
        parts.append(Part(begin, begin + size, dtype, tuple(shape)))
        end = begin + size if size else end
    return parts, end


class PackedTransfer:
    """The way to one device and back. Every copy between it and the host is one of these.

    To a GPU, a copy starts from pinned memory that is used again and again, and the CPU goes on meanwhile.

    Attributes:
        device: Which one.
        num_to_device: Copies so far to the device.
        num_to_host: Copies so far from it.
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
        """Tensors on the device, in memory of their own. float64 becomes float32. A hot path."""
        parts, size = packed([(_torch_dtype(array.dtype), array.shape) for array in arrays])
        if self._sent is not None:  # the copy before this one may still read the buffer
            self._sent.synchronize()
        self._outbound = self._with_room(self._outbound, size)
        host = self._outbound[:size]
        for part, array in zip(parts, arrays, strict=True):
            np.copyto(part.of(host).numpy(), array, casting="same_kind")
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        if size:
            there.copy_(host, non_blocking=self._on_gpu)
            self.num_to_device += 1
            if self._on_gpu:
                self._sent = self._sent or torch.cuda.Event()
                self._sent.record(torch.cuda.current_stream(self.device))
        return [part.of(there) for part in parts]

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same on the CPU, without gradients, in memory of their own. Waits for the device. A hot path."""
        parts, size = packed([(tensor.dtype, tensor.shape) for tensor in tensors])
        here = torch.empty(size, dtype=torch.uint8)
        if size:
            there = torch.cat(self._pieces(parts, tensors))
            self.num_to_host += 1
            if self._on_gpu:
                self._inbound = self._with_room(self._inbound, size)
                self._inbound[:size].copy_(there, non_blocking=True)
                torch.cuda.current_stream(self.device).synchronize()
                here.copy_(self._inbound[:size])
            else:
                here.copy_(there)
        return [part.of(here) for part in parts]

    def _pieces(self, parts: Sequence[Part], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Bytes of tensors, and what lies between them."""
        if self._zeros is None:
            self._zeros = torch.zeros(_ALIGNMENT, dtype=torch.uint8, device=self.device)
        pieces, end = [], 0
        for part, tensor in zip(parts, tensors, strict=True):
            if part.begin == part.end:
                continue
            if part.begin > end:
                pieces.append(self._zeros[: part.begin - end])
            pieces.append(tensor.detach().contiguous().view(-1).view(torch.uint8))
            end = part.end
        return pieces

    def _with_room(self, buffer: Tensor, size: int) -> Tensor:
        """The buffer, or a larger one; pinned for a GPU."""
        if size <= len(buffer):
            return buffer
        return torch.empty(max(size, 2 * len(buffer)), dtype=torch.uint8, pin_memory=self._on_gpu)


_of_this_thread = threading.local()


def transfer(device: torch.device) -> PackedTransfer:
    """The way to a device, always the same one in a thread."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    ways: dict[torch.device, PackedTransfer] = _of_this_thread.__dict__.setdefault("ways", {})
    way = ways.get(device)
    if way is None:
        way = ways[device] = PackedTransfer(device)
    return way


def moved(array: np.ndarray, device: torch.device) -> Tensor:
    """One array on a device: on the CPU the same memory, elsewhere by ``transfer``."""
    return torch.from_numpy(array) if device.type == "cpu" else transfer(device).to_device([array])[0]


def all_moved(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Several arrays on a device, likewise, in one copy."""
    return list(map(torch.from_numpy, arrays)) if device.type == "cpu" else transfer(device).to_device(arrays)


def all_on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the CPU, without gradients: one copy from each device they are on, none of what is there already."""
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
    """What an array's elements become."""
    if dtype not in _TORCH_DTYPES:
        _TORCH_DTYPES[dtype] = torch.from_numpy(np.empty(0, _ON_DEVICE_AS.get(dtype, dtype))).dtype
    return _TORCH_DTYPES[dtype]
