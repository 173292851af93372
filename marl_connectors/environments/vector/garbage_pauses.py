"""Keeps the garbage collector from looking through objects that are no garbage."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_collections(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Holds automatic garbage collections off while a function runs that makes thousands of objects for later use.

    Each few hundred new objects start a collection, and each hundredth one of these looks at everything there is, which
    takes longer than making the objects. Reference counts free them when they are not needed any more.
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
