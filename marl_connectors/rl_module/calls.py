"""Calls of the methods that users write for their modules, and checks of their arguments and results.

Errors name the module and the shapes of its inputs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnGroup, NoColumn
from marl_connectors.errors import MarlConnectorsError, ModuleError, describe_error
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.spaces import describe
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.rl_module.rl_module import RLModule

_AS_THEY_ARE = (MarlConnectorsError, NotImplementedError, torch.OutOfMemoryError)


def call_module(module: RLModule, method: Callable[..., Any], batch: Mapping[str, Any], **kwargs: Any) -> Any:
    """Calls a user's method with a batch; errors name the module and the input shapes.

    Args:
        module: An RLModule; ``module.known_as`` is its id.
        method: One of its methods.
        batch: Columns.
        **kwargs: Further arguments for the method.

    Raises:
        ModuleError: If the method raises. The error names the module, the exception and the shapes of the columns.
    """
    try:
        return method(batch, **kwargs)
    except Exception as error:
        _fail(module, method, batch, error)


def call_for_columns(
    module: RLModule, method: Callable[..., Any], batch: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Calls a forward pass as ``call_module`` does, and checks that it returns columns.

    Raises:
        ModuleError: If the method raises, or returns anything but columns.
    """
    outputs = call_module(module, method, batch, **kwargs)
    if type(outputs) is not dict and not isinstance(outputs, Mapping):
        raise ModuleError(
            f"{_who(module)}: its {method.__name__} returned {type(outputs).__name__}, expected a dict of columns. "
            f"Return {{Columns.ACTION_DIST_INPUTS: ...}}."
        )
    return outputs  # type: ignore[return-value]


def call_multi_module(
    module: RLModule, purpose: str, batch: Mapping[ModuleID, Mapping[str, Any]], kwargs: Mapping[str, Any]
) -> dict[ModuleID, Any]:
    """Calls a forward pass of a MultiRLModule that a user has written.

    Args:
        module: The MultiRLModule.
        purpose: ``"inference"``, ``"exploration"`` or ``"train"``.
        batch: Columns by module.
        kwargs: Further arguments for the method.

    Raises:
        ModuleError: If the method raises, or returns anything but a dict by module id. The error names the class and
            the purpose.
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
            f"{_asked(module, purpose)} returned {came if isinstance(came, dict) else type(came).__name__}, expected "
            f"columns by module. Return {{module_id: {{Columns.ACTION_DIST_INPUTS: ...}}}}."
        )
    missing = [module_id for module_id in batch if module_id not in outputs]
    if missing:
        raise ModuleError(
            f"{_asked(module, purpose)} returned columns of {list(outputs)}, but none for module {missing[0]!r}, whose "
            f"batch it got. Return an entry for each module that has a batch."
        )
    return outputs  # type: ignore[return-value]


def _asked(module: RLModule, purpose: str) -> str:
    """Returns the name of the method that the user has written, with the purpose of the call."""
    cls = next(c for c in type(module).__mro__ if f"_forward_{purpose}" in vars(c) or "_forward" in vars(c))
    own = f"_forward_{purpose}" in vars(cls)
    return f"{type(module).__name__}: its {f'_forward_{purpose}' if own else f'_forward, called for {purpose},'}"


def _shapes(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tree_map(lambda leaf: tuple(getattr(leaf, "shape", ())), columns[name]) for name in sorted(columns)}


def _fail(module: RLModule, method: Callable[..., Any], batch: Mapping[str, Any], error: Exception) -> NoReturn:
    if isinstance(error, _AS_THEY_ARE):
        raise error
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(error, NoColumn):
        key = error.column
    if isinstance(key, str) and key.isidentifier() and key not in batch:
        raise ModuleError(
            f"{_who(module)}: its {method.__name__} found no {key!r} (a KeyError). The batch has the columns "
            f"{sorted(batch)}: read one of these, or add the connector piece that makes {key!r}."
        ) from error
    space = getattr(module, "observation_space", None)
    built = "" if space is None else f" It was built for observations of {describe(space)}."
    raise ModuleError(
        f"{_who(module)}: its {method.__name__} raised {describe_error(error)}. It was given columns of the "
        f"shapes {_shapes(batch)}.{built}{_other_precision(module, batch)}"
    ) from error


def _other_precision(module: RLModule, batch: Mapping[str, Any]) -> str:
    """Returns a sentence for the error if parameters and observations have different dtypes."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()} if hasattr(module, "parameters") else set()
    seen = {x.dtype for x in leaves(batch.get("obs")) if isinstance(x, torch.Tensor) and x.is_floating_point()}
    if not kinds or not seen or seen <= kinds:
        return ""
    ours, theirs = (", ".join(sorted(str(kind) for kind in own)) for own in (kinds, seen))
    return (
        f" Its parameters are {ours}, its observations {theirs}: convert these in its forward pass. For updates in "
        f"half precision leave parameters in float32, and set .learners(autocast_dtype='bfloat16')."
    )


def _who(module: RLModule) -> str:
    name, known_as = type(module).__name__, getattr(module, "known_as", None)
    return name if known_as is None else f"module {known_as!r} ({name})"


class ModuleOutputs(dict[str, Any]):
    """The outputs of a module in training.

    Attributes:
        inputs: The columns that ``forward_train`` was called with, and after them the other columns of the batch.
    """

    __slots__ = ("inputs",)

    def __init__(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]):
        super().__init__(outputs)
        self.inputs = inputs


def values_batch(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns to call a module's ``compute_values`` with: those that ``forward_train`` was called with."""
    return outputs.inputs if type(outputs) is ModuleOutputs else batch


@contextmanager
def recorded_inputs(modules: Iterable[nn.Module]) -> Iterator[dict[ModuleID, Mapping[str, Any]]]:
    """Records the columns that ``forward_train`` of each RLModule is called with inside the ``with`` block."""
    inputs: dict[ModuleID, Mapping[str, Any]] = {}
    members = list(modules)
    for module in members:
        module.__dict__["_recorded_inputs"] = inputs
    try:
        yield inputs
    finally:
        for module in members:
            module.__dict__.pop("_recorded_inputs", None)


def with_inputs(
    outputs: Mapping[ModuleID, Mapping[str, Any]],
    inputs: Mapping[ModuleID, Mapping[str, Any]],
    batch: Mapping[ModuleID, Mapping[str, Any]],
) -> dict[ModuleID, ModuleOutputs]:
    """The outputs of modules together with their inputs, which include the columns that were added to ``batch``."""
    found = {}
    for module_id, own in outputs.items():
        columns = batch.get(module_id, {})
        seen = inputs.get(module_id, columns)
        found[module_id] = ModuleOutputs(own, seen if seen is columns else ChainMap(seen, columns))  # type: ignore[arg-type]
    return found


def checked_inputs(
    module_id: ModuleID,
    fwd_out: Mapping[str, Any],
    lead: tuple[int, ...],
    *,
    dist_cls: type[Distribution],
    action_space: Space | None,
) -> Tensor:
    """Returns the ``action_dist_inputs`` among the outputs of a module's ``forward_train``.

    Args:
        module_id: The module to name in an error; any of them if several are stacked.
        fwd_out: The outputs.
        lead: The axes before those of a row: ``(B,)``, or the other axes with which the batch's columns begin.
        dist_cls: The module's action distribution.
        action_space: The module's action space.

    Raises:
        ModuleError: If they are missing, or do not have the rows and numbers that the actions need.
    """
    inputs = fwd_out.get(Columns.ACTION_DIST_INPUTS)
    space = action_space
    wanted = dist_cls.required_input_dim(space) if space is not None and issubclass(dist_cls, Distribution) else None
    if not isinstance(inputs, Tensor):
        raise ModuleError(
            f"module {module_id!r}: its forward_train returned {sorted(fwd_out)}, but no 'action_dist_inputs'. Return "
            f"them from its _forward_train (or _forward)."
        )
    found = tuple(inputs.shape)
    if found[:-1] != lead or (wanted is not None and found[-1] != wanted):
        numbers = "any number of" if wanted is None else wanted
        actions = "" if space is None else f" for actions of {describe(space)}"
        raise ModuleError(
            f"module {module_id!r}: its forward_train returned 'action_dist_inputs' of shape {found}, but "
            f"{dist_cls.__name__} needs {numbers} numbers in each of the rows {lead}{actions}. Return one row for each "
            f"row of the batch, and give the last layer of the policy this number of outputs."
        )
    return inputs


def checked_values(module_id: ModuleID, values: Any, lead: tuple[int, ...]) -> Tensor:
    """Returns the values that a module's ``compute_values`` returned, in single precision at least.

    Raises:
        ModuleError: If they are not one number for each row.
    """
    if not isinstance(values, Tensor) or tuple(values.shape) != lead:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ModuleError(
            f"compute_values of module {module_id!r} returned {found}, expected a tensor of shape {lead}: one number "
            f"for each row, without a last axis (.squeeze(-1))."
        )
    return in_full(values)


def in_full(values: Tensor) -> Tensor:
    """Returns values in single precision at least: half precision has too few digits for the ratios of a loss."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def check_observations(group: ColumnGroup, rl_module: Any, *, train: bool) -> None:
    """Checks the ``obs`` of a group against the spaces and devices of its modules.

    If a MultiRLModule overrides ``_forward``, that method decides what the modules see, so spaces are not checked.

    Args:
        group: Columns of tensors or arrays.
        rl_module: The modules.
        train: Whether the columns come from the learner pipeline, or from the env-to-module pipeline.

    Raises:
        ModuleError: If a shape or a part differs; the error names the module, the pipeline and both shapes. Also if the
            observations are on another device than the module.
    """
    if Columns.OBS not in group:
        return
    observations = group[Columns.OBS]
    lead = 2 if Columns.STATE_IN in group else 1  # rows and, when acting, time
    pipeline = "learner" if train else "env-to-module"
    sees_as_given = not getattr(rl_module, "has_own_forward", False)
    for module_id in group.module_ids:
        space = getattr(rl_module[module_id], "observation_space", None)
        if sees_as_given and space is not None and not _fits(space, observations, lead):
            shape = tree_map(lambda leaf: tuple(leaf.shape)[lead:], observations)
            hint = (
                "A piece that changes observations in the batch only, such as FrameStacking, must be in both pipelines."
                if train
                else "A connector piece that changes observations must return their space from "
                "recompute_output_observation_space."
            )
            raise ModuleError(
                f"module {module_id!r}: it was built for {describe(space)}, but the {pipeline} pipeline gives it "
                f"observations of shape {shape}. {hint}"
            )
        _check_device(module_id, rl_module[module_id], observations, pipeline)


def _fits(space: Space, values: Any, lead: int) -> bool:
    """Whether a batch has a space's parts and shapes. Every batch fits a space without a fixed shape."""
    if isinstance(space, spaces.Dict):
        return isinstance(values, dict) and all(
            key in values and _fits(part, values[key], lead) for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        same_length = isinstance(values, tuple) and len(values) == len(space.spaces)
        return same_length and all(_fits(part, value, lead) for part, value in zip(space.spaces, values, strict=True))
    shape = getattr(values, "shape", None)
    return shape is None or space.shape is None or tuple(shape)[lead:] == space.shape


def _check_device(module_id: str, module: RLModule, observations: Any, pipeline: str) -> None:
    parameter = next(module.parameters(), None) if isinstance(module, torch.nn.Module) else None
    for leaf in leaves(observations):
        if parameter is not None and isinstance(leaf, torch.Tensor) and leaf.device != parameter.device:
            raise ModuleError(
                f"module {module_id!r}: its parameters are on {parameter.device}, but the {pipeline} pipeline gives it "
                f"observations on {leaf.device}. Leave modules where the algorithm puts them, or give NumpyToTensor "
                f"their device."
            )
