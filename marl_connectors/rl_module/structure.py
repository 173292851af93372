"""What modules are made of now, to see later that somebody has changed it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, ValuesView
from itertools import chain
from typing import Any

from torch import Tensor, nn

_LAYERS = ("_parameters", "_modules")
_END = object()
_ADDED = ("_buffers", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Structure:
    """The layers and parameters of a module, and all other attributes of those parts that are to stay alike.

    It knows the objects, not their values: a parameter that is written to is the same, one that is put in its place is
    not.
    """

    def __init__(self, module: nn.Module, alike: Iterable[nn.Module]):
        """Looks at what there is.

        Args:
            module: All of it.
            alike: Modules in it whose attributes, buffers and hooks matter, too.
        """
        whole = {id(part): part for one in alike for part in one.modules()}
        self._views = [view for part in module.modules() for view in _contents(part, whole=id(part) in whole)]
        self._held = [*chain.from_iterable(self._views), _END]
        self._versions = [
            (value, value._version)
            for part in whole.values()
            for value in vars(part).values()
            if isinstance(value, Tensor) and not value.is_inference()
        ]

    @property
    def is_current(self) -> bool:
        """Whether everything is still the same. A hot path: thousands of objects, so no Python for each."""
        now = chain(chain.from_iterable(self._views), (_END,))
        return all(map(operator.is_, now, self._held)) and all(
            tensor._version == version for tensor, version in self._versions
        )


def _contents(part: nn.Module, *, whole: bool) -> Iterator[ValuesView[Any]]:
    """Views, which show what there is whenever they are looked at."""
    attributes = vars(part)
    if whole:
        yield attributes.values()
    for name in (*_LAYERS, *_ADDED) if whole else _LAYERS:
        yield attributes[name].values()
