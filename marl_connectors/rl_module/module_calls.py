"""Calls of the methods that users write for their modules: what these are given, and whether what they give is of use.

Errors name the module and what it was given.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from gymnasium import Space, spaces
from torch import Tensor

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


class ModuleOutputs(dict[str, Any]):
    """What a module put out in training.

    Attributes:
        given: The columns that it was given, and behind them those of the batch.
    """

    __slots__ = ("given",)

    def __init__(self, outputs: Mapping[str, Any], given: Mapping[str, Any]):
        super().__init__(outputs)
        self.given = given


def values_batch(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a module's ``compute_values`` is to be called with: what ``forward_train`` saw. A hot path."""
    return outputs.given if type(outputs) is ModuleOutputs else batch


@contextmanager
def noting(modules: Iterable[RLModule]) -> Iterator[dict[ModuleID, Mapping[str, Any]]]:
    """Meanwhile, with what ``forward_train`` of each module is called."""
    given: dict[ModuleID, Mapping[str, Any]] = {}
    members = list(modules)
    for module in members:
        module.__dict__["_notes_given"] = given
    try:
        yield given
    finally:
        for module in members:
            module.__dict__.pop("_notes_given", None)


def with_given(
    outputs: Mapping[ModuleID, Mapping[str, Any]],
    given: Mapping[ModuleID, Mapping[str, Any]],
    batch: Mapping[ModuleID, Mapping[str, Any]],
) -> dict[ModuleID, ModuleOutputs]:
    """The outputs of modules, with what they were given; what was added to ``batch`` itself counts, too."""
    found = {}
    for module_id, own in outputs.items():
        columns = batch.get(module_id, {})
        seen = given.get(module_id, columns)
        found[module_id] = ModuleOutputs(own, seen if seen is columns else ChainMap(seen, columns))  # type: ignore[arg-type]
    return found


def checked_inputs(module_id: ModuleID, module: RLModule, fwd_out: Mapping[str, Any], lead: tuple[int, ...]) -> Tensor:
    """The ``action_dist_inputs`` that a module's ``forward_train`` gave. A hot path.

    Args:
        module_id: For messages; of stacked modules, any of them.
        module: The module.
        fwd_out: What it put out.
        lead: The axes before those of a row: ``(B,)``, or what else the batch's columns begin with.

    Raises:
        ModuleError: If there are none, or not as many rows and numbers as actions need.
    """
    inputs = fwd_out.get(Columns.ACTION_DIST_INPUTS)
    dist_cls, space = module.get_train_action_dist_cls(), module.action_space
    knows_size = space is not None and issubclass(dist_cls, Distribution)
    wanted = dist_cls.required_input_dim(space) if knows_size and space is not None else None
    if not isinstance(inputs, Tensor):
        raise ModuleError(
            f"module {module_id!r}: its forward_train put out {sorted(fwd_out)}, but no 'action_dist_inputs'. Return "
            f"them from its _forward_train (or _forward)."
        )
    found = tuple(inputs.shape)
    if found[:-1] != lead or (wanted is not None and found[-1] != wanted):
        numbers = "any number of" if wanted is None else wanted
        actions = "" if space is None else f" for actions of {describe(space)}"
        raise ModuleError(
            f"module {module_id!r}: its forward_train put out 'action_dist_inputs' of shape {found}, but "
            f"{dist_cls.__name__} needs {numbers} numbers in each of the rows {lead}{actions}. Give every row of the "
            f"batch one that goes out, and the last layer of its policy so many outputs."
        )
    return inputs


def checked_values(module_id: ModuleID, values: Any, lead: tuple[int, ...]) -> Tensor:
    """What a module's ``compute_values`` gave, in single precision at least. A hot path.

    Raises:
        ModuleError: If it is not one number for each row.
    """
    if not isinstance(values, Tensor) or tuple(values.shape) != lead:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ModuleError(
            f"compute_values of module {module_id!r} gave {found}, expected a tensor of shape {lead}: one number for "
            f"each row, without a last axis (.squeeze(-1))."
        )
    return in_full(values)


def in_full(values: Tensor) -> Tensor:
    """In single precision at least: half precision has too few digits for the ratios of a loss."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def check_observations(group: ColumnGroup, rl_module: Any, *, train: bool) -> None:
    """Holds the ``obs`` of a group against the spaces and devices of its modules.

    Where a MultiRLModule has a ``_forward`` of its own, that decides what the modules see, so spaces are left out.

    Args:
        group: In tensors or arrays.
        rl_module: The modules.
        train: Whether the learner pipeline has made it, or the env-to-module pipeline.

    Raises:
        ModuleError: If a shape or a part differs; names the module, the pipeline and both shapes. If they are on
            another device than the module.
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
                "A piece that changes observations in the batch only, such as FrameStacking, has to stand in both "
                "pipelines."
                if train
                else "A connector piece that changes observations must say so in recompute_output_observation_space."
            )
            raise ModuleError(
                f"module {module_id!r}: it was built for {describe(space)}, but the {pipeline} pipeline gives it "
                f"observations of shape {shape}. {hint}"
            )
        _check_device(module_id, rl_module[module_id], observations, pipeline)


def _fits(space: Space, values: Any, lead: int) -> bool:
    """Whether a batch has a space's parts and shapes; of spaces without a fixed shape everything has."""
    if isinstance(space, spaces.Dict):
        return isinstance(values, dict) and all(
            key in values and _fits(part, values[key], lead) for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        same_length = isinstance(values, tuple) and len(values) == len(space.spaces)
        return same_length and all(_fits(part, value, lead) for part, value in zip(space.spaces, values, strict=True))
    shape = getattr(values, "shape", None)
    return shape is None or space.shape is None or tuple(shape)[lead:] == space.shape


def _check_device(module_id: str, module: Any, observations: Any, pipeline: str) -> None:
    parameter = next(module.parameters(), None) if isinstance(module, torch.nn.Module) else None
    for leaf in leaves(observations):
        if parameter is not None and isinstance(leaf, torch.Tensor) and leaf.device != parameter.device:
            raise ModuleError(
                f"module {module_id!r}: its parameters are on {parameter.device}, but the {pipeline} pipeline gives it "
                f"observations on {leaf.device}. Leave modules where the algorithm puts them, or give NumpyToTensor "
                f"their device."
            )
