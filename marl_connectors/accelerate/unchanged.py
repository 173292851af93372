"""Whether an accelerator applies: whether what it takes the place of is as the library wrote it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import nn

NEVER_CALLED = frozenset(
    {
        "__init__",
        "setup",
        "get_initial_state",
        "get_inference_action_dist_cls",
        "get_exploration_action_dist_cls",
        "get_train_action_dist_cls",
        "get_non_inference_attributes",
        "get_state",
        "set_state",
        "extra_repr",
        "__repr__",
    }
)
"""Methods of modules that no forward pass calls, or that accelerators call, too."""


def is_unchanged(
    thing: Any, base: type, *, methods: frozenset[str] | None = None, free: frozenset[str] = frozenset()
) -> bool:
    """Whether an object, or a class, computes what a class of the library computes, and nobody watches it.

    This is so if it is of that class, if neither a subclass nor the object has replaced a method, and if a layer has no
    hooks.

    Args:
        thing: The object or class.
        base: The class of the library.
        methods: The methods that matter; None for all of them.
        free: Methods that do not matter.
    """
    is_class = isinstance(thing, type)
    cls = thing if is_class else type(thing)
    if cls is not base:
        if not issubclass(cls, base):
            return False
        known = _methods(base, free) if methods is None else methods
        if any(not known.isdisjoint(vars(each)) for each in cls.__mro__[: cls.__mro__.index(base)]):
            return False
    if is_class:
        return True
    own = vars(thing)
    if not (_methods(cls) if methods is None else methods).isdisjoint(own):
        return False
    return not (isinstance(thing, nn.Module) and _has_hooks(own))


def _has_hooks(own: dict[str, Any]) -> bool:
    return bool(
        own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    )


def class_that_says(thing: Any, method: str) -> type:
    """Returns the class from which an object has a method. What the method says applies to what that class computes."""
    return next(cls for cls in type(thing).__mro__ if method in vars(cls))


@lru_cache(256)
def _methods(cls: type, free: frozenset[str] = frozenset()) -> frozenset[str]:
    found = frozenset(name for name in dir(cls) if callable(getattr(cls, name, None)))
    return found - {"__class__", "__doc__"} - free
