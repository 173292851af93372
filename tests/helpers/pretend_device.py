"""A second device without hardware: its tensors are on the CPU, but torch takes them for tensors of another device.

Whatever mixes tensors of both is refused, as a GPU refuses it, and every copy between them is written down. Torch keeps
what ``install`` does for good, so this belongs into a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
_copies: list[str] = []


class PretendTensor(torch.Tensor):
    """A tensor "on" the device.

    Attributes:
        here: The tensor on the CPU that has its numbers.
    """

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
        )
        made.here = here
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.here})"

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> PretendTensor:
        if id(self) not in memo:
            copied = PretendTensor(self.here.detach().clone())
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: PretendTensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.here = value.here

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler at the first call, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _is_there(value: Any) -> bool:
    return isinstance(value, PretendTensor)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    aten = torch.ops.aten
    given: list[torch.Tensor] = []

    def note_and_unwrap(value: torch.Tensor) -> torch.Tensor:
        given.append(value)
        return value.here if isinstance(value, PretendTensor) else value

    args, kwargs = _map_tensors(note_and_unwrap, (args, kwargs))
    is_there = any(map(_is_there, given))
    makes_there = is_there
    if kwargs.get("device") is not None:
        makes_there = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func is aten.copy_.default:
        makes_there, from_there = _is_there(given[0]), _is_there(given[1])
        _note(from_there, makes_there)
    elif func is aten._to_copy.default:
        _note(is_there, makes_there)
    elif func is aten._local_scalar_dense.default:
        _note(is_there, False)
    elif is_there and any(value.dim() and not _is_there(value) for value in given):
        raise RuntimeError(f"{func}: expected all tensors on one device")
    result = func(*args, **kwargs)
    if not makes_there:
        return result
    known = {id(value.here): value for value in given if isinstance(value, PretendTensor)}
    return _map_tensors(lambda value: known[id(value)] if id(value) in known else PretendTensor(value), result)


def _map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map_tensors(function, each) for each in value])
    return {key: _map_tensors(function, each) for key, each in value.items()} if isinstance(value, dict) else value


def _note(from_there: bool, to_there: bool) -> None:
    if from_there != to_there:
        _copies.append("to_device" if to_there else "to_host")


def install() -> torch.device:
    """The device. ``device`` arguments work everywhere from now on."""
    _setup_privateuseone_for_python_backend(NAME)
    _Mode().__enter__()
    return torch.device(NAME, 0)


@contextmanager
def counted_copies() -> Iterator[dict[str, int]]:
    """How many copies go to the device and from it in the block; known at its end."""
    _copies.clear()
    counts: dict[str, int] = {}
    yield counts
    counts.update({way: _copies.count(way) for way in ("to_device", "to_host")})
