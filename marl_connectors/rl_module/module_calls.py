"""Calls of the methods that users write for their modules, with errors that name the module and what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from marl_connectors.episodes.column_batch import NoColumn
from marl_connectors.errors import MarlConnectorsError, ModuleError, describe_error
from marl_connectors.spaces import describe
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import ModuleID

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


def called_for_modules(
    module: Any, purpose: str, batch: Mapping[ModuleID, Mapping[str, Any]], kwargs: Mapping[str, Any]
) -> dict[ModuleID, Any]:
    """What the forward pass of a MultiRLModule gives that the user has written.

    Args:
        module: The MultiRLModule.
        purpose: ``"inference"``, ``"exploration"`` or ``"train"``.
        batch: Columns by module.
        kwargs: For the method.

    Raises:
        ModuleError: If it raises, or gives anything but a dict by module id; names the class and what it was asked for.
    """
    method = getattr(module, f"_forward_{purpose}")
    try:
        outputs = method(batch, **kwargs)
    except _AS_THEY_ARE:
        raise
    except Exception as error:
        raise ModuleError(
            f"{_asked(module, purpose)} raised {describe_error(error)}. It was given "
            f"{ {module_id: _shapes(columns) for module_id, columns in batch.items()} }."
        ) from error
    if not isinstance(outputs, Mapping) or not all(isinstance(own, Mapping) for own in outputs.values()):
        came = {m: type(own).__name__ for m, own in outputs.items()} if isinstance(outputs, Mapping) else outputs
        raise ModuleError(
            f"{_asked(module, purpose)} gave {came if isinstance(came, dict) else type(came).__name__}, expected "
            f"columns by module. Return {{module_id: {{Columns.ACTION_DIST_INPUTS: ...}}}}."
        )
    missing = [module_id for module_id in batch if module_id not in outputs]
    if missing:
        raise ModuleError(
            f"{_asked(module, purpose)} gave columns of {list(outputs)}, but nothing for module {missing[0]!r}, whose "
            f"batch it got. Return an entry for each module that has one."
        )
    return outputs  # type: ignore[return-value]


def _asked(module: Any, purpose: str) -> str:
    """The method as the user has written it, and what for it was called."""
    cls = next(c for c in type(module).__mro__ if f"_forward_{purpose}" in vars(c) or "_forward" in vars(c))
    own = f"_forward_{purpose}" in vars(cls)
    return f"{type(module).__name__}: its {f'_forward_{purpose}' if own else f'_forward, asked for {purpose},'}"


def _shapes(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tree_map(lambda leaf: tuple(getattr(leaf, "shape", ())), columns[name]) for name in sorted(columns)}


def _fail(module: Any, method: Callable[..., Any], batch: Mapping[str, Any], error: Exception) -> NoReturn:
    if isinstance(error, _AS_THEY_ARE):
        raise error
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(error, NoColumn):
        key = error.column
    if isinstance(key, str) and key.isidentifier() and key not in batch:
        raise ModuleError(
            f"{_who(module)}: its {method.__name__} found no {key!r} (a KeyError). The batch has the columns "
            f"{sorted(batch)}: if it was looked for there, read one of these, or add the connector piece that makes "
            f"{key!r}."
        ) from error
    space = getattr(module, "observation_space", None)
    built = "" if space is None else f" It was built for observations of {describe(space)}."
    raise ModuleError(
        f"{_who(module)}: its {method.__name__} raised {describe_error(error)}. It was given columns of the "
        f"shapes {_shapes(batch)}.{built}{_other_precision(module, batch)}"
    ) from error


def _other_precision(module: Any, batch: Mapping[str, Any]) -> str:
    """A sentence, where parameters and observations are numbers of different kinds."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()} if hasattr(module, "parameters") else set()
    seen = {x.dtype for x in leaves(batch.get("obs")) if isinstance(x, torch.Tensor) and x.is_floating_point()}
    if not kinds or not seen or seen <= kinds:
        return ""
    ours, theirs = (", ".join(sorted(str(kind) for kind in own)) for own in (kinds, seen))
    return (
        f" Its parameters are {ours}, its observations {theirs}: convert these in its forward pass. For updates in "
        f"half precision leave parameters in float32, and set .learners(autocast_dtype='bfloat16')."
    )


def _who(module: Any) -> str:
    name, known_as = type(module).__name__, getattr(module, "known_as", None)
    return name if known_as is None else f"module {known_as!r} ({name})"
