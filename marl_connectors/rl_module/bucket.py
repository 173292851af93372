"""Buckets: modules of one architecture whose parameters live stacked, so that they run as one batched computation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.module_columns import concatenated
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID


class Bucket:
    """``M`` modules of one architecture, their ``P`` parameters each in one row of a matrix.

    Every module stays an ordinary one: its parameters and their gradients are views of its row. The *twin* is a copy of
    the module whose parameters are views of all rows at once, with an extra first axis ``M``; it computes all members
    in one go. An elementwise optimizer (Adam, SGD, ...) works on ``rows``, one flat tensor a module.

    Attributes:
        module_ids: The members, in order.
        parameters: ``[M, P]``.
        gradients: ``[M, P]``.
        rows: For each member a ``[P]`` leaf tensor over its parameters, with ``grad`` over its gradients.
        twin: Runs all members on ``[M, B, ...]`` columns; with one member, that member, on ``[B, ...]``.
    """

    def __init__(self, modules: Mapping[ModuleID, RLModule], rows: Mapping[ModuleID, Tensor] | None = None):
        """Moves the parameters of ``modules`` into one matrix.

        Args:
            modules: At least one, all of one architecture.
            rows: Row tensors of members that were in a bucket before; they are kept (and re-pointed), so that
                optimizers that hold them go on.
        """
        self.modules = dict(modules)
        self.module_ids = tuple(modules)
        self._names = [name for name, _ in self._first.named_parameters()]
        size = sum(p.numel() for p in self._first.parameters())
        like = next(self._first.parameters())
        self.parameters = torch.empty(len(modules), size, dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.parameters)
        self.rows: list[Tensor] = []
        for i, module_id in enumerate(self.module_ids):
            row = (rows or {}).get(module_id)
            if row is None:
                row = torch.empty(0, device=like.device).requires_grad_()
            row.data, row.grad = self.parameters[i], self.gradients[i]
            self.rows.append(row)
        self.twin = self._first if len(modules) == 1 else copy.deepcopy(self._first)
        self.bind()

    @property
    def _first(self) -> RLModule:
        return self.modules[self.module_ids[0]]

    def bind(self) -> None:
        """Makes all parameters and gradients views of the matrices (again).

        Whatever replaced them since (``.to()``, ``param.data = ...``, ``zero_grad(set_to_none=True)``) is copied in.
        """
        begin = 0
        for name in self._names:
            first = self._first.get_parameter(name)
            shape, end = first.shape, begin + first.numel()
            for i, module in enumerate(self.modules.values()):
                parameter = module.get_parameter(name)
                home = self.parameters[i, begin:end].view(shape)
                if parameter.data_ptr() != home.data_ptr():
                    home.copy_(parameter.detach())
                    parameter.data = home
                parameter.grad = self.gradients[i, begin:end].view(shape)
            if len(self.modules) > 1:
                stacked = nn.Parameter(self.parameters[:, begin:end].view(len(self.modules), *shape))
                stacked.grad = self.gradients[:, begin:end].view(stacked.shape)
                path, _, leaf = name.rpartition(".")
                self.twin.get_submodule(path)._parameters[leaf] = stacked
            begin = end

    @property
    def is_bound(self) -> bool:
        """Whether all parameters still are views of the matrix and all gradients of theirs."""
        home, size = self.parameters.data_ptr(), self.parameters.element_size()
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter.data_ptr() != home or parameter.grad is None:
                    return False
                home += parameter.numel() * size
        return True

    def stack(self, columns: Mapping[str, Tensor], rows_per_module: int) -> dict[str, Tensor]:
        """``[M * B, ...]`` columns as the twin takes them, ``[M, B, ...]``; views."""
        if len(self.modules) == 1:
            return dict(columns)
        lead = len(self.modules), rows_per_module
        return {
            name: _each(column, lambda leaf: leaf.reshape(*lead, *leaf.shape[1:])) for name, column in columns.items()
        }

    def unstack(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the twin gave, ``[M, B, ...]``, as ``[M * B, ...]`` columns."""
        if len(self.modules) == 1:
            return dict(columns)
        return {name: _each(column, lambda leaf: leaf.flatten(0, 1)) for name, column in columns.items()}

    def gradient_norms(self) -> Tensor:
        """``[M]`` Euclidean norms of the members' gradients."""
        return torch.linalg.vector_norm(self.gradients, dim=1)

    def clip_gradients(self, max_norm: float, norms: Tensor) -> None:
        """Scales each member's gradient down to ``max_norm`` where its norm is larger."""
        self.gradients.mul_((max_norm / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1))


def _each(column: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """``fn`` of a column's tensor or, in a nested column, of each of its tensors. A hot path."""
    return fn(column) if type(column) is Tensor else tree_map(fn, column)


def same_architecture(a: RLModule, b: RLModule) -> bool:
    """Whether two modules may share a bucket: stackable, and alike in class, spaces, settings and parameters."""
    if not (a.stackable and b.stackable) or type(a) is not type(b):
        return False
    return (
        a.observation_space == b.observation_space
        and a.action_space == b.action_space
        and a.model_config == b.model_config
        and a.training == b.training
        and not any(True for _ in a.buffers())
        and [(n, p.shape, p.dtype, p.device, p.requires_grad) for n, p in a.named_parameters()]
        == [(n, p.shape, p.dtype, p.device, p.requires_grad) for n, p in b.named_parameters()]
    )


def sort_into_buckets(
    modules: Mapping[ModuleID, RLModule], rows: Mapping[ModuleID, Tensor] | None = None
) -> list[Bucket]:
    """All stackable modules in buckets, in order of first appearance."""
    families: list[dict[ModuleID, RLModule]] = []
    for module_id, module in modules.items():
        if not module.stackable or next(module.parameters(), None) is None:
            continue
        for family in families:
            if same_architecture(next(iter(family.values())), module):
                family[module_id] = module
                break
        else:
            families.append({module_id: module})
    return [Bucket(family, rows) for family in families]


def concatenate(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The columns of several modules as one, for the names that all of them have."""
    names = [name for name in outputs[0] if all(name in output for output in outputs)]
    return {name: concatenated([output[name] for output in outputs]) for name in names}


def unlike_outputs(outputs: Mapping[ModuleID, Mapping[str, Any]], error: Exception) -> ModuleError:
    """The error for outputs of several modules that do not go into one column."""
    first, *others = outputs
    for name, column in outputs[first].items():
        here = _shapes(column)
        for other in others:
            if name in outputs[other] and _shapes(outputs[other][name]) != here:
                return ModuleError(
                    f"modules {first!r} and {other!r} act for agents with like spaces, but the one puts out {name!r} "
                    f"with shapes {here}, the other {_shapes(outputs[other][name])} (rows left out), so they do not go "
                    f"into one column. Let _forward of both give the same keys and shapes."
                )
    return ModuleError(f"the outputs of modules {', '.join(map(repr, outputs))} do not go into one column: {error}")


def _shapes(column: Any) -> Any:
    """The shapes without rows."""
    return tree_map(lambda leaf: tuple(getattr(leaf, "shape", ()))[1:], column)
