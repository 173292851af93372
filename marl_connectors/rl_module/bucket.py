"""Buckets: modules of one architecture whose parameters live stacked, so that they run as one batched computation."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.transfers import moved
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

_PARTS = 64
"""How many different selections of members a bucket remembers."""


class ParameterSlice(NamedTuple):
    """Where one parameter of each member stands in the bucket's matrices.

    Attributes:
        name: As in ``named_parameters``.
        begin: Its first column.
        end: One behind its last column.
        shape: In one member.
        requires_grad: False for a frozen parameter, which no update changes.
    """

    name: str
    begin: int
    end: int
    shape: torch.Size
    requires_grad: bool


class Bucket:
    """``M`` modules of one architecture, their ``P`` parameters each in one row of a matrix.

    Every module stays an ordinary one: its parameters and their gradients are views of its row. The *twin* is a copy of
    the module whose parameters are views of all rows at once, with an extra first axis ``M``; it computes all members
    in one go. An elementwise optimizer (Adam, SGD, ...) works on ``rows``, one flat tensor a module.

    Attributes:
        module_ids: The members, in order.
        members: The same, without an order.
        parameters: ``[M, P]``.
        gradients: ``[M, P]``.
        rows: For each member a ``[P]`` leaf tensor over its parameters, with ``grad`` over its gradients.
        slices: Which columns of the matrices are which parameter.
        has_frozen: Whether some parameters are frozen, in all members.
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
        self.members = frozenset(modules)
        self.slices: list[ParameterSlice] = []
        begin = 0
        for name, parameter in self._first.named_parameters():
            end = begin + parameter.numel()
            self.slices.append(ParameterSlice(name, begin, end, parameter.shape, parameter.requires_grad))
            begin = end
        self.has_frozen = not all(part.requires_grad for part in self.slices)
        like = next(self._first.parameters())
        self.parameters = torch.empty(len(modules), begin, dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.parameters)
        self.rows: list[Tensor] = []
        for i, module_id in enumerate(self.module_ids):
            row = (rows or {}).get(module_id)
            if row is None:
                row = torch.empty(0, device=like.device).requires_grad_()
            row.data, row.grad = self.parameters[i], self.gradients[i]
            self.rows.append(row)
        self.twin = self._first if len(modules) == 1 else copy.deepcopy(self._first)
        self._parts: dict[tuple[ModuleID, ...], BucketPart] = {}
        self._room: tuple[RLModule, Tensor] | None = None
        self.bind()

    @property
    def _first(self) -> RLModule:
        return self.modules[self.module_ids[0]]

    def bind(self) -> None:
        """Makes all parameters and gradients views of the matrices (again). Frozen parameters have no gradient.

        Whatever replaced them since (``.to()``, ``param.data = ...``, ``zero_grad(set_to_none=True)``) is copied in.
        """
        for part in self.slices:
            for i, module in enumerate(self.modules.values()):
                parameter = module.get_parameter(part.name)
                home = self.parameters[i, part.begin : part.end].view(part.shape)
                if parameter.data_ptr() != home.data_ptr():
                    home.copy_(parameter.detach())
                    parameter.data = home
                gradient = self.gradients[i, part.begin : part.end].view(part.shape)
                parameter.grad = gradient if part.requires_grad else None
        if len(self.modules) > 1:
            self.lay_out(self.twin, self._stacked(self.parameters))
        self._parts.clear()

    def _stacked(self, matrix: Tensor) -> list[nn.Parameter]:
        """The parameters of some members, ``[A, *shape]`` views of ``[A, P]``."""
        return [
            nn.Parameter(matrix[:, part.begin : part.end].view(len(matrix), *part.shape), part.requires_grad)
            for part in self.slices
        ]

    def lay_out(self, twin: RLModule, stacked: Sequence[nn.Parameter]) -> None:
        """Gives a twin its parameters."""
        for part, parameter in zip(self.slices, stacked, strict=True):
            path, _, leaf = part.name.rpartition(".")
            twin.get_submodule(path)._parameters[leaf] = parameter

    @property
    def is_bound(self) -> bool:
        """Whether all parameters still are views of the matrix, all gradients of theirs, and the same ones frozen."""
        home, size = self.parameters.data_ptr(), self.parameters.element_size()
        for module in self.modules.values():
            for parameter, part in zip(module.parameters(), self.slices, strict=True):
                if parameter.data_ptr() != home or parameter.requires_grad is not part.requires_grad:
                    return False
                if (parameter.grad is None) is part.requires_grad:
                    return False
                home += parameter.numel() * size
        return True

    @property
    def is_current(self) -> bool:
        """Whether the same parameters are frozen as when the bucket was made, in every member."""
        frozen = [part.requires_grad for part in self.slices]
        return all([p.requires_grad for p in module.parameters()] == frozen for module in self.modules.values())

    def part(self, module_ids: Sequence[ModuleID]) -> BucketPart:
        """Some of the members as one computation with gradients."""
        key = tuple(module_ids)
        if key not in self._parts:
            if len(self._parts) >= _PARTS:
                self._parts.clear()
            self._parts[key] = BucketPart(self, key)
        return self._parts[key]

    def room(self) -> tuple[RLModule, Tensor]:
        """A twin and ``[M, P]`` memory for those parts that are not the whole bucket: one for all of them."""
        if self._room is None:
            self._room = copy.deepcopy(self._first), torch.empty_like(self.parameters)
        return self._room

    def stack(self, columns: Mapping[str, Tensor], rows_per_module: int) -> dict[str, Tensor]:
        """``[M * B, ...]`` columns as the twin takes them, ``[M, B, ...]``; views."""
        if len(self.modules) == 1:
            return dict(columns)
        lead = len(self.modules), rows_per_module
        return {
            name: each_leaf(column, lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]))
            for name, column in columns.items()
        }

    def unstack(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the twin gave, ``[M, B, ...]``, as ``[M * B, ...]`` columns."""
        if len(self.modules) == 1:
            return dict(columns)
        return {name: each_leaf(column, lambda leaf: leaf.flatten(0, 1)) for name, column in columns.items()}


class BucketPart:
    """``A`` members of a bucket, all of them or some, that are updated as one batched computation.

    The parameters of all members, or of one, are views of the bucket's. Those of some are copies in memory that all
    such parts share, so ``load`` comes before each use.

    Attributes:
        bucket: Whose members these are.
        module_ids: Which, in the bucket's order.
        twin: Runs them on ``[A, B, ...]`` columns; one member runs itself, on ``[B, ...]``.
        parameters: Those of the twin that gradients are wanted of.
    """

    def __init__(self, bucket: Bucket, module_ids: tuple[ModuleID, ...]):
        self.bucket = bucket
        self.module_ids = module_ids
        self.index = moved(np.array([bucket.module_ids.index(m) for m in module_ids]), bucket.parameters.device)
        self.is_whole = module_ids == bucket.module_ids
        self._stacked: list[nn.Parameter] = []
        if self.is_whole:
            self.twin = bucket.twin
        elif len(module_ids) == 1:
            self.twin = bucket.modules[module_ids[0]]
        else:
            self.twin, room = bucket.room()
            self._memory = room[: len(module_ids)]
            self._stacked = bucket._stacked(self._memory)
        own = self._stacked or list(self.twin.parameters())
        self.parameters = [p for p, where in zip(own, bucket.slices, strict=True) if where.requires_grad]

    def load(self) -> RLModule:
        """The twin, with the members' parameters as they are now."""
        if self._stacked:
            torch.index_select(self.bucket.parameters, 0, self.index, out=self._memory)
            self.bucket.lay_out(self.twin, self._stacked)
        return self.twin

    def compute_gradients(self, loss: Tensor) -> None:
        """Writes the gradients of the members into the bucket's matrix; those of other members stay as they are."""
        bucket, count = self.bucket, len(self.module_ids)
        found = iter(torch.autograd.grad(loss, self.parameters, allow_unused=True))
        columns = []
        for part in bucket.slices:
            gradient = next(found) if part.requires_grad else None
            if gradient is None:
                columns.append(bucket.gradients.new_zeros(count, part.end - part.begin))
            else:
                columns.append(gradient.reshape(count, -1))
        if self.is_whole:
            torch.cat(columns, 1, out=bucket.gradients)
        else:
            bucket.gradients.index_copy_(0, self.index, torch.cat(columns, 1))

    def gradients(self) -> Tensor:
        """``[A, P]``: the bucket's own matrix if these are all members, else a copy."""
        return self.bucket.gradients if self.is_whole else self.bucket.gradients.index_select(0, self.index)

    def set_gradients(self, gradients: Tensor) -> None:
        """Writes ``[A, P]`` back. Nothing to do if it is the bucket's own matrix, changed in place."""
        if gradients is not self.bucket.gradients:
            self.bucket.gradients.index_copy_(0, self.index, gradients)


def each_leaf(column: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """``fn`` of a column's tensor or, in a nested column, of each of its tensors. A hot path."""
    return fn(column) if type(column) is Tensor else tree_map(fn, column)


def is_stackable(module: RLModule) -> bool:
    """Whether the module's own class says so. It is not inherited: a subclass may compute something else."""
    return module.stackable and "stackable" in vars(type(module))


def same_architecture(a: RLModule, b: RLModule) -> bool:
    """Whether two modules may share a bucket: stackable, and alike in class, spaces, settings and parameters."""
    if type(a) is not type(b) or not (is_stackable(a) and is_stackable(b)):
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


def modules_that_share(modules: Mapping[ModuleID, RLModule]) -> list[ModuleID]:
    """Those with a parameter that another one has, too."""
    held = {m: [id(parameter) for parameter in module.parameters()] for m, module in modules.items()}
    owners = Counter(key for keys in held.values() for key in keys)
    return [m for m, keys in held.items() if any(owners[key] > 1 for key in keys)]


def sort_into_buckets(
    modules: Mapping[ModuleID, RLModule], rows: Mapping[ModuleID, Tensor] | None = None
) -> list[Bucket]:
    """All stackable modules in buckets, in order of first appearance; but none that shares parameters with another."""
    families: list[dict[ModuleID, RLModule]] = []
    sharing = modules_that_share(modules)
    for module_id, module in modules.items():
        if not is_stackable(module) or module_id in sharing or next(module.parameters(), None) is None:
            continue
        for family in families:
            if same_architecture(next(iter(family.values())), module):
                family[module_id] = module
                break
        else:
            families.append({module_id: module})
    return [Bucket(family, rows) for family in families]
