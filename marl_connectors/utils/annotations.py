"""RLlib's decorator of methods that override another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])


def override(parent_cls: type) -> Callable[[_Method], _Method]:
    """Returns a decorator that leaves a method unchanged, and checks that the class has one of that name.

    Args:
        parent_cls: The class whose method is overridden.
    """

    def decorator(method: _Method) -> _Method:
        if not hasattr(parent_cls, method.__name__):
            raise NameError(f"override: {parent_cls.__name__} has no method {method.__name__!r}. Check its spelling.")
        return method

    return decorator
