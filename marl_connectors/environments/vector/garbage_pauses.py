"""Pauses the garbage collector while many objects are made that will be kept."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_collections(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Pauses automatic garbage collection while a function runs that makes thousands of objects for later use.

    Every few hundred new objects start a collection, and each hundredth collection visits all objects of the process,
    which takes longer than making the new ones. Reference counting frees the objects when they are not needed any more.
    """

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return wrapper
