"""The kinds of functions that say which modules are updated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def reads_batches(function: Callable[..., Any]) -> bool:
    """Whether a ``policies_to_train`` function accepts the batch as its second argument."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 1
