"""Buckets: modules of one architecture whose parameters live stacked, so that they run as one batched computation.

Their rows are stacked, too, and filled up where modules have different numbers of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.sequences import PaddedColumns
from marl_connectors.rl_module.architecture import fits_a_row, is_stackable, modules_that_share, same_architecture
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.transfers import all_moved, moved
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

_PARTS = 64
"""How many different selections of members a bucket remembers."""
SPARE_ROWS = 1024
"""So many rows of padding cost about as much as running a module by itself."""
_FEW = 3
"""Fewer modules run faster one after another than filling up their rows takes."""


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


class MemberRow(NamedTuple):
    """What a member has of the bucket's matrices.

    Attributes:
        values: ``[P]``, all of its parameters.
        gradients: ``[P]``.
        slices: Where each of its parameters stands in these.
    """

    values: Tensor
    gradients: Tensor
    slices: Mapping[Tensor, ParameterSlice]


class Bucket:
    """``M`` modules of one architecture, their ``P`` parameters each in one row of a matrix.

    Every module stays an ordinary one: its parameters and their gradients are views of its row. The *twin* is a copy of
    the module whose parameters are views of all rows at once, with an extra first axis ``M``; it computes all members
    in one go.

    Attributes:
        module_ids: The members, in order.
        members: The same, without an order.
        parameters: ``[M, P]``.
        gradients: ``[M, P]``.
        slices: Which columns of the matrices are which parameter.
        twin: Runs all members on ``[M, B, ...]`` columns; with one member, that member, on ``[B, ...]``.
    """

    def __init__(self, modules: Mapping[ModuleID, RLModule]):
        """Moves the parameters of ``modules``, at least one and all of one architecture, into one matrix."""
        self.modules = dict(modules)
        self.module_ids = tuple(modules)
        self.members = frozenset(modules)
        self._held = [list(module.parameters()) for module in modules.values()]
        self.slices: list[ParameterSlice] = []
        begin = 0
        for name, parameter in self._first.named_parameters():
            end = begin + parameter.numel()
            self.slices.append(ParameterSlice(name, begin, end, parameter.shape, parameter.requires_grad))
            begin = end
        like = self._held[0][0]
        self.parameters = torch.empty(len(modules), begin, dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.parameters)
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
        for i, held in enumerate(self._held):
            for part, parameter in zip(self.slices, held, strict=True):
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
        for held in self._held:
            for parameter, part in zip(held, self.slices, strict=True):
                if parameter.data_ptr() != home or parameter.requires_grad is not part.requires_grad:
                    return False
                if (parameter.grad is None) is part.requires_grad:
                    return False
                home += (part.end - part.begin) * size
        return True

    @property
    def is_current(self) -> bool:
        """Whether parameters are of the shapes and kind, and those frozen, that the bucket was made for."""
        kind = self.parameters.dtype, self.parameters.device
        wanted = [(part.shape, *kind, part.requires_grad) for part in self.slices]
        return all([(p.shape, p.dtype, p.device, p.requires_grad) for p in held] == wanted for held in self._held)

    def row(self, module_id: ModuleID) -> MemberRow:
        """A member's parameters and where they stand."""
        i = self.module_ids.index(module_id)
        return MemberRow(self.parameters[i], self.gradients[i], dict(zip(self._held[i], self.slices, strict=True)))

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
        self._unstored: Tensor | None = None
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

    def bound_gradients(self) -> dict[Tensor, Tensor | None]:
        """Memory for the gradient of each parameter of the twin, to be written to before ``store``; frozen ones: None.

        What belongs to parameters that nobody writes to is 0.
        """
        bucket, count = self.bucket, len(self.module_ids)
        if self.is_whole:
            matrix = bucket.gradients
        elif count == 1:
            at = bucket.module_ids.index(self.module_ids[0])
            matrix = bucket.gradients[at : at + 1]
        else:
            matrix = self._unstored = torch.zeros_like(self._memory)
        matrix.zero_()
        lead = () if count == 1 else (count,)
        parameters = self._stacked or list(self.twin.parameters())
        return {
            parameter: matrix[:, part.begin : part.end].view(*lead, *part.shape) if part.requires_grad else None
            for parameter, part in zip(parameters, bucket.slices, strict=True)
        }

    def store(self) -> None:
        """Brings what was written to ``bound_gradients`` to the members."""
        if self._unstored is not None:
            self.bucket.gradients.index_copy_(0, self.index, self._unstored)

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


def sort_into_buckets(modules: Mapping[ModuleID, RLModule]) -> list[Bucket]:
    """All stackable modules in buckets, in order of first appearance.

    Those that share parameters with another one are in none, and those whose parameters are of several kinds.
    """
    families: list[dict[ModuleID, RLModule]] = []
    sharing = modules_that_share(modules)
    for module_id, module in modules.items():
        if not is_stackable(module) or module_id in sharing or not fits_a_row(module):
            continue
        for family in families:
            if same_architecture(next(iter(family.values())), module):
                family[module_id] = module
                break
        else:
            families.append({module_id: module})
    return [Bucket(family) for family in families]


class Stacking:
    """Which row of a group (or sequence, of stateful modules in a train batch) stands where in a bucket's stack.

    Attributes:
        lead: ``(M, L)``: all members, and rows of the longest module (or sequences).
        index: ``[M * L]`` the row that each place is filled with; None if rows stand as they are wanted.
        back: ``[B]`` the place of each row.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Looks at a group whose modules all are members of the bucket."""
        splits = group.splits if group.sequences is None else group.sequences.splits
        counts, begins = np.diff(splits), np.minimum(splits[:-1], splits[-1] - 1)
        members = np.array([bucket.module_ids.index(m) for m in group.module_ids])
        longest = max(int(counts.max()), 1)
        within = np.arange(longest) < counts[:, None]
        index = np.zeros((len(bucket.module_ids), longest), np.int64)
        index[members] = np.where(within, begins[:, None] + np.arange(longest), begins[:, None])
        self.lead = index.shape
        self.rows = index.reshape(-1)
        self.places = np.flatnonzero(within) + np.repeat((members - np.arange(len(members))) * longest, counts)
        self.stands_so = bool((self.rows == np.arange(self.rows.size)).all())
        self.back = torch.from_numpy(self.places)
        self.index = None if self.stands_so else torch.from_numpy(self.rows)

    @property
    def arrays(self) -> list[np.ndarray]:
        """What a device has to be told."""
        return [self.places] if self.stands_so else [self.places, self.rows]

    def with_tensors(self, arrays: Sequence[Tensor]) -> Stacking:
        """Takes ``arrays`` as they are on the device."""
        self.back, *index = arrays
        self.index = index[0] if index else None
        return self

    def on(self, device: torch.device) -> Stacking:
        """The same, for columns on a device."""
        if self.back.device == device:
            return self
        return self.with_tensors(all_moved(self.arrays, device))


def is_whole(bucket: Bucket, group: ColumnGroup) -> bool:
    """Whether all members of a bucket, and no others, have equally many rows in a group."""
    return group.rows_per_module is not None and group.module_ids == bucket.module_ids


def stacking_of(rl_module: Any, group: ColumnGroup) -> Stacking | None:
    """What a forward pass of a MultiRLModule has to know to stack a group's rows; None if it needs no indices."""
    bucket = rl_module.bucket_of(group.module_ids) if hasattr(rl_module, "bucket_of") else None
    if bucket is None or not StackedRows.pays(bucket, group):
        return None
    return None if group.sequences is None and is_whole(bucket, group) else Stacking(bucket, group)


class StackedRows(Mapping[str, Any]):
    """The columns of a group as the twin of a bucket takes them: ``[M, L, ...]``, of sequences ``[M, S, T, ...]``.

    ``L`` is the longest module's number of rows (``S``: of sequences). What is missing, also for members without rows,
    stands for itself with copies of other rows, so whatever is computed of it is thrown away by ``unstacked``.
    A column is only filled up when somebody asks for it.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Looks at a group whose modules all are members of the bucket."""
        self._sequences = group.sequences
        self._stacking = Stacking(bucket, group) if group.stacking is None else group.stacking
        self._columns: Mapping[str, Any] = group
        if self._sequences is not None:
            self._columns = PaddedColumns(group, self._sequences, 0, self._stacking.rows)

    @staticmethod
    def pays(bucket: Bucket, group: ColumnGroup) -> bool:
        """Whether running a group's modules together costs less than running one after another."""
        sequences, number, members = group.sequences, len(group.module_ids), len(bucket.module_ids)
        if number < 2 or 2 * number < members:
            return False
        if sequences is None:
            if number < _FEW and group.rows_per_module is None:
                return False
            counts, each = np.diff(group.splits), 1
        else:
            if len(set(sequences.max_lens)) > 1:
                return False
            counts, each = np.diff(sequences.splits), sequences.max_lens[0]
        padding = (members * int(counts.max()) - int(counts.sum())) * each
        return bool(counts.any()) and padding <= SPARE_ROWS * len(counts)

    def unstacked(self, column: Any) -> Any:
        """``[B, ...]`` (of sequences ``[S, ...]``) of what the twin gave, ``[M, L, ...]``, in the group's order."""
        return each_leaf(column, lambda leaf: leaf.flatten(0, 1).index_select(0, self._stacking.on(leaf.device).back))

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if self._sequences is not None or self._stacking.stands_so:
            return each_leaf(column, self._unflat)
        return each_leaf(column, self._gathered)

    def _gathered(self, leaf: Tensor) -> Tensor:
        index = self._stacking.on(leaf.device).index
        assert index is not None
        return self._unflat(leaf.index_select(0, index))

    def _unflat(self, leaf: Tensor) -> Tensor:
        return leaf.unflatten(0, self._stacking.lead)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def run_stacked(bucket: Bucket, group: ColumnGroup, method: str, **kwargs: Any) -> dict[str, Any]:
    """A forward pass of a group's rows by the bucket's twin, as ``[B, ...]`` columns. A hot path."""
    if is_whole(bucket, group) and group.rows_per_module is not None:  # spares the indices
        return bucket.unstack(getattr(bucket.twin, method)(bucket.stack(group, group.rows_per_module), **kwargs))
    rows = StackedRows(bucket, group)
    outputs = getattr(bucket.twin, method)(rows, **kwargs)
    return {name: rows.unstacked(column) for name, column in outputs.items()}
