"""Comparisons of modules: which have the same architecture, and whether a module has changed."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import same
from marl_connectors.typing import ModuleID

_OF_ANY_MODULE = frozenset(vars(nn.Module()))
"""The attributes of every torch module. Of these, layers, hooks and train mode are compared separately."""
_OF_EVERY_CLASS = {
    "__abstractmethods__",
    "__annotations__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__qualname__",
    "__static_attributes__",
    "_abc_impl",
}
"""The attributes of a class whose body is empty but for a docstring."""


_LAYERS = ("_parameters", "_modules")
_END = object()
_ADDED = ("_buffers", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_stackable(module: RLModule) -> bool:
    """Whether the module's class sets ``stackable`` to True.

    A subclass inherits it only if its body is empty, as it may compute something else otherwise.
    """
    if not module.stackable:
        return False
    for cls in type(module).__mro__:
        if "stackable" in vars(cls):
            return True
        if not vars(cls).keys() <= _OF_EVERY_CLASS:
            return False
    return False


def fits_a_row(module: RLModule) -> bool:
    """Whether the module has parameters, all of one dtype, device and layout, so that a matrix row can hold them."""
    kinds = {(p.dtype, p.device, p.layout) if not is_lazy(p) else None for p in module.parameters()}
    return len(kinds) == 1 and None not in kinds


def same_architecture(a: RLModule, b: RLModule) -> bool:
    """Whether two modules differ only in parameters, so that they can be stacked.

    They must have one stackable class, and equal spaces, settings, layers and other attributes. They must not have
    anything that cannot be stacked: hooks, buffers, or torch's own layers, whose weights have no additional axis.
    """
    if type(a) is not type(b) or not (is_stackable(a) and is_stackable(b)):
        return False
    if not (_same_space(a.observation_space, b.observation_space) and _same_space(a.action_space, b.action_space)):
        return False
    if _parameters(a) != _parameters(b) or _stands_alone(a) or _stands_alone(b):
        return False
    return _Comparison(a)._same_modules(a, b)


def _same_space(one: Space | None, other: Space | None) -> bool:
    """Compares also the order of keys, which is the order of a module's outputs."""
    return one is other or (one is not None and other is not None and same(one, other))


def _has_hooks(part: nn.Module) -> bool:
    """Whether the layer has hooks for its forward or backward pass."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def modules_that_share(modules: Mapping[ModuleID, RLModule]) -> list[ModuleID]:
    """Returns the modules that share a parameter with another module."""
    held = {m: [id(parameter) for parameter in module.parameters()] for m, module in modules.items()}
    owners = Counter(key for keys in held.values() for key in keys)
    return [m for m, keys in held.items() if any(owners[key] > 1 for key in keys)]


def _parameters(module: RLModule) -> list[tuple[Any, ...]]:
    named = module.named_parameters(remove_duplicate=False)
    return [(name, p.shape, p.dtype, p.device, p.requires_grad) for name, p in named]


def _stands_alone(module: RLModule) -> bool:
    if any(True for _ in module.buffers()):
        return True
    if len(list(module.parameters())) < len(_parameters(module)):  # a parameter under two names
        return True
    return any(_has_hooks(part) or _is_torch_layer(part) for part in module.modules())


def _is_torch_layer(part: nn.Module) -> bool:
    """Whether it has parameters and a forward pass of torch, which does not accept stacked parameters."""
    forward = type(part).forward
    is_torchs = forward is not nn.Module.forward and forward.__module__.startswith("torch.")
    return is_torchs and any(p is not None for p in part._parameters.values())


class _Comparison:
    """Compares the attributes of two modules other than their parameters."""

    def __init__(self, a: RLModule):
        self._layers = {id(part) for part in a.modules()}
        self._seen: set[tuple[int, int]] = set()

    def _same_modules(self, a: nn.Module, b: nn.Module) -> bool:
        if a.training != b.training or [*a._modules] != [*b._modules]:
            return False
        if id(a) not in self._layers and any(True for _ in a.parameters()):  # unknown to its module
            return False
        left_out = _OF_ANY_MODULE | getattr(type(a), "_cached_attributes", frozenset())
        mine, others = ({k: v for k, v in vars(part).items() if k not in left_out} for part in (a, b))
        return self._same(a._modules, b._modules) and self._same_items(mine, others)

    def _same_items(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
        return a.keys() == b.keys() and all(self._same(value, b[key]) for key, value in a.items())

    def _same(self, a: Any, b: Any) -> bool:
        if a is b:
            return True
        if type(a) is not type(b):
            return False
        if (id(a), id(b)) in self._seen:  # they hold themselves
            return True
        self._seen.add((id(a), id(b)))
        match a:
            case nn.Module():
                return self._same_modules(a, b)
            case Tensor():
                fixed = not (a.requires_grad or b.requires_grad)
                return fixed and a.dtype == b.dtype and torch.equal(a.detach().cpu(), b.detach().cpu())
            case np.ndarray():
                return a.dtype == b.dtype and np.array_equal(a, b)
            case Mapping():
                return self._same_items(a, b)
            case list() | tuple():
                return len(a) == len(b) and all(map(self._same, a, b))
            case FunctionType():
                return a.__code__ is b.__code__ and a.__defaults__ == b.__defaults__ and self._same_cells(a, b)
            case MethodType():
                return a.__func__ is b.__func__ and self._same(a.__self__, b.__self__)
            case partial():
                return self._same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        if type(a).__eq__ is not object.__eq__:
            return _equal(a, b)
        return hasattr(a, "__dict__") and self._same_items(vars(a), vars(b))

    def _same_cells(self, a: FunctionType, b: FunctionType) -> bool:
        """Compares closures. Functions that hold a layer always differ, as each uses the layer of one module."""
        mine, others = ([cell.cell_contents for cell in f.__closure__ or ()] for f in (a, b))
        if any(isinstance(value, nn.Module | Tensor) for value in mine):
            return False
        return self._same(mine, others)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # objects that cannot be compared count as different
        return False


class Structure:
    """The layers and parameters of a module at one time, to find out later whether the module has changed.

    It compares objects, not values: a parameter that was written to is the same, a new parameter is not.
    """

    def __init__(self, module: nn.Module, alike: Iterable[nn.Module]):
        """Records the structure of a module.

        Args:
            module: The module.
            alike: Modules in it whose attributes, buffers and hooks are compared, too.
        """
        whole = {id(part): part for one in alike for part in one.modules()}
        contents = [own for part in module.modules() for own in _contents(part, whole=id(part) in whole)]
        self._empty = [own for own in contents if not own]
        self._views = [own.values() for own in contents if own]  # which always show the current contents
        self._held = [*chain.from_iterable(self._views), _END]
        self._versions = [
            (value, value._version)
            for part in whole.values()
            for value in vars(part).values()
            if isinstance(value, Tensor) and not value.is_inference()
        ]

    @property
    def is_current(self) -> bool:
        """Whether the module's structure is unchanged since it was recorded."""
        # There may be thousands of objects, so no Python code runs for each of them.
        now = chain(chain.from_iterable(self._views), (_END,))
        is_same = not any(self._empty) and all(map(operator.is_, now, self._held))
        return is_same and all(tensor._version == version for tensor, version in self._versions)


def _contents(part: nn.Module, *, whole: bool) -> Iterator[Mapping[str, Any]]:
    """Yields the dicts that hold the contents of a layer."""
    attributes = vars(part)
    if whole:
        yield attributes
    for name in (*_LAYERS, *_ADDED) if whole else _LAYERS:
        yield attributes[name]
