"""Calls of the methods that users write for their modules, with errors that name the module and what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from marl_connectors.errors import MarlConnectorsError, ModuleError
from marl_connectors.spaces import describe
from marl_connectors.trees import tree_map

_AS_THEY_ARE = (MarlConnectorsError, NotImplementedError, torch.OutOfMemoryError)


def called(module: Any, method: Callable[..., Any], batch: Mapping[str, Any], **kwargs: Any) -> Any:
    """What a method makes of a batch. A hot path.

    Args:
        module: An RLModule; ``module.known_as`` is its id.
        method: One of its methods.
        batch: Columns.
        **kwargs: For the method.

    Raises:
        ModuleError: If the method raises; names the module, the error and the shapes of the columns.
    """
    try:
        return method(batch, **kwargs)
    except Exception as error:
        _fail(module, method, batch, error)


def called_for_columns(
    module: Any, method: Callable[..., Any], batch: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The same for a forward pass, which has to give columns. A hot path.

    Raises:
        ModuleError: Also if it gives anything else.
    """
    outputs = called(module, method, batch, **kwargs)
    if type(outputs) is not dict and not isinstance(outputs, Mapping):
        raise ModuleError(
            f"{_who(module)}: its {method.__name__} gave {type(outputs).__name__}, expected a dict of columns. Return "
            f"{{Columns.ACTION_DIST_INPUTS: ...}}."
        )
    return outputs  # type: ignore[return-value]


def _fail(module: Any, method: Callable[..., Any], batch: Mapping[str, Any], error: Exception) -> NoReturn:
    if isinstance(error, _AS_THEY_ARE):
        raise error
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(key, str) and key.isidentifier() and key not in batch:
        raise ModuleError(
            f"{_who(module)}: its {method.__name__} found no {key!r} (a KeyError). The batch has the columns "
            f"{sorted(batch)}: if it was looked for there, read one of these, or add the connector piece that makes "
            f"{key!r}."
        ) from error
    shapes = {name: tree_map(lambda leaf: tuple(getattr(leaf, "shape", ())), batch[name]) for name in sorted(batch)}
    space = getattr(module, "observation_space", None)
    built = "" if space is None else f" It was built for observations of {describe(space)}."
    said = key if isinstance(key, str) else error
    raise ModuleError(
        f"{_who(module)}: its {method.__name__} raised {type(error).__name__}: {said}. It was given columns of the "
        f"shapes {shapes}.{built}"
    ) from error


def _who(module: Any) -> str:
    name, known_as = type(module).__name__, getattr(module, "known_as", None)
    return name if known_as is None else f"module {known_as!r} ({name})"
