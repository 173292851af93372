"""Buckets: modules of one architecture with stacked parameters, which run as one batched computation.

Their rows are stacked, too, and padded if modules have different numbers of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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

_MAX_STACKS = 64
"""The number of selections of members for which a bucket keeps a stack."""
SPARE_ROWS = 1024
"""The number of rows of padding that costs about as much as running a module alone."""
_FEW = 3
"""Fewer modules than this run faster one after another than with padded rows."""


class ParameterSlice(NamedTuple):
    """The columns of the bucket's matrices that hold one parameter of each member.

    Attributes:
        name: The parameter's name in ``named_parameters``.
        begin: Its first column.
        end: The column after its last one.
        shape: Its shape in one member.
        requires_grad: False for a frozen parameter, which no update changes.
    """

    name: str
    begin: int
    end: int
    shape: torch.Size
    requires_grad: bool


class MemberRow(NamedTuple):
    """A member's row of the bucket's matrices.

    Attributes:
        values: ``[P]``, all of its parameters.
        gradients: ``[P]``, their gradients.
        slices: The columns of each of its parameters.
    """

    values: Tensor
    gradients: Tensor
    slices: Mapping[Tensor, ParameterSlice]


class Bucket:
    """``M`` modules of one architecture, their ``P`` parameters each in one row of a matrix.

    Every module remains an ordinary module: its parameters and their gradients are views of its row. The *stacked
    module* is a copy of a member whose parameters are views of all rows at once, with an additional first axis ``M``.
    It computes all members in one call.

    Attributes:
        modules: The members by id, in order.
        module_ids: The ids of the members, in order.
        members: The same ids as a set.
        parameters: ``[M, P]``.
        gradients: ``[M, P]``.
        slices: The columns of each parameter.
        stacked_module: Runs all members on ``[M, B, ...]`` columns. If there is one member, it is that member, which
            runs on ``[B, ...]`` columns.
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
        of_first = dict(zip(self._held[0], self.slices, strict=True))
        self._names = {name: of_first[p] for name, p in self._first.named_parameters(remove_duplicate=False)}
        like = self._held[0][0]
        self.parameters = torch.empty(len(modules), begin, dtype=like.dtype, device=like.device)
        self.gradients = torch.zeros_like(self.parameters)
        self.stacked_module = self._first if len(modules) == 1 else copy.deepcopy(self._first)
        self._stacks: dict[tuple[ModuleID, ...], MemberStack] = {}
        self._scratch: tuple[RLModule, Tensor] | None = None
        self.bind()

    @property
    def _first(self) -> RLModule:
        return self.modules[self.module_ids[0]]

    def bind(self) -> None:
        """Makes all parameters and gradients views of the matrices (again). Frozen parameters have no gradient.

        If parameters were replaced since (``.to()``, ``param.data = ...``), their values are copied into the matrices.
        """
        for i, held in enumerate(self._held):
            for own, parameter in zip(self.slices, held, strict=True):
                home = self.parameters[i, own.begin : own.end].view(own.shape)
                if parameter.data_ptr() != home.data_ptr():
                    home.copy_(parameter.detach())
                    parameter.data = home
                gradient = self.gradients[i, own.begin : own.end].view(own.shape)
                parameter.grad = gradient if own.requires_grad else None
        if len(self.modules) > 1:
            self.lay_out(self.stacked_module, self._stacked(self.parameters))
        self._stacks.clear()

    def _stacked(self, matrix: Tensor) -> list[nn.Parameter]:
        """The parameters of some members, ``[A, *shape]`` views of ``[A, P]``."""
        return [
            nn.Parameter(matrix[:, own.begin : own.end].view(len(matrix), *own.shape), own.requires_grad)
            for own in self.slices
        ]

    def lay_out(self, stacked_module: RLModule, stacked: Sequence[nn.Parameter]) -> None:
        """Gives a stacked module its parameters."""
        for own, parameter in zip(self.slices, stacked, strict=True):
            path, _, leaf = own.name.rpartition(".")
            stacked_module.get_submodule(path)._parameters[leaf] = parameter

    @property
    def is_bound(self) -> bool:
        """Whether all parameters and gradients still are views of the matrices, and the same parameters are frozen."""
        home, size = self.parameters.data_ptr(), self.parameters.element_size()
        for held in self._held:
            for parameter, own in zip(held, self.slices, strict=True):
                if parameter.data_ptr() != home or parameter.requires_grad is not own.requires_grad:
                    return False
                if (parameter.grad is None) is own.requires_grad:
                    return False
                home += (own.end - own.begin) * size
        return True

    @property
    def is_current(self) -> bool:
        """Whether the parameters have the shapes, dtypes, devices and frozen flags that the bucket was made for."""
        kind = self.parameters.dtype, self.parameters.device
        wanted = [(own.shape, *kind, own.requires_grad) for own in self.slices]
        return all([(p.shape, p.dtype, p.device, p.requires_grad) for p in held] == wanted for held in self._held)

    @property
    def has_plain_states(self) -> bool:
        """Whether the states of the members are their parameters, which is so unless a class has its own get_state."""
        return type(self._first).get_state is RLModule.get_state

    def states_of(self, parameters: Tensor) -> Iterator[tuple[ModuleID, dict[str, Tensor]]]:
        """Yields each of several members, which have no buffers, and its state with ``[M, P]`` parameters."""
        for module_id, row in zip(self.module_ids, parameters.cpu(), strict=True):
            yield module_id, {name: row[own.begin : own.end].view(own.shape) for name, own in self._names.items()}

    def row(self, module_id: ModuleID) -> MemberRow:
        """Returns a member's row of the matrices."""
        i = self.module_ids.index(module_id)
        return MemberRow(self.parameters[i], self.gradients[i], dict(zip(self._held[i], self.slices, strict=True)))

    def stack_of(self, module_ids: Sequence[ModuleID]) -> MemberStack:
        """Returns some of the members as one computation with gradients."""
        key = tuple(module_ids)
        if key not in self._stacks:
            if len(self._stacks) >= _MAX_STACKS:
                self._stacks.clear()
            self._stacks[key] = MemberStack(self, key)
        return self._stacks[key]

    def scratch(self) -> tuple[RLModule, Tensor]:
        """Returns a stacked module and ``[M, P]`` memory, which all stacks of only some members share."""
        if self._scratch is None:
            self._scratch = copy.deepcopy(self._first), torch.empty_like(self.parameters)
        return self._scratch

    def stack_columns(self, columns: Mapping[str, Tensor], rows_per_module: int) -> dict[str, Tensor]:
        """Returns ``[M * B, ...]`` columns as ``[M, B, ...]`` views, which the stacked module accepts."""
        if len(self.modules) == 1:
            return dict(columns)
        lead = len(self.modules), rows_per_module
        return {
            name: each_leaf(column, lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]))
            for name, column in columns.items()
        }

    def unstack_columns(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the stacked module's ``[M, B, ...]`` outputs as ``[M * B, ...]`` columns."""
        if len(self.modules) == 1:
            return dict(columns)
        return {name: each_leaf(column, lambda leaf: leaf.flatten(0, 1)) for name, column in columns.items()}


class MemberStack:
    """``A`` members of a bucket, all of them or some, which are updated as one batched computation.

    The parameters of all members, or of one, are views of the bucket's matrix. Those of several but not all members are
    copies in memory that all such stacks share, so ``load`` must be called before each use.

    Attributes:
        bucket: The bucket.
        module_ids: The ids of the members, in the bucket's order.
        index: ``[A]`` their rows in the bucket's matrices.
        is_whole: Whether these are all members.
        stacked_module: Runs the members on ``[A, B, ...]`` columns. One member runs itself on ``[B, ...]`` columns.
        parameters: The trainable parameters of the stacked module.
        bound: What accelerators have bound to the members, by their own keys. If layers, parameters, hooks or
            attributes of the members change, ``bind_buckets`` makes other stacks, for which it is bound anew.
    """

    def __init__(self, bucket: Bucket, module_ids: tuple[ModuleID, ...]):
        self.bucket = bucket
        self.module_ids = module_ids
        self.index = moved(np.array([bucket.module_ids.index(m) for m in module_ids]), bucket.parameters.device)
        self.is_whole = module_ids == bucket.module_ids
        self._stacked: list[nn.Parameter] = []
        self._unstored: Tensor | None = None
        self.bound: dict[Hashable, Any] = {}
        if self.is_whole:
            self.stacked_module = bucket.stacked_module
        elif len(module_ids) == 1:
            self.stacked_module = bucket.modules[module_ids[0]]
        else:
            self.stacked_module, memory = bucket.scratch()
            self._memory = memory[: len(module_ids)]
            self._stacked = bucket._stacked(self._memory)
        own = self._stacked or list(self.stacked_module.parameters())
        self.parameters = [p for p, where in zip(own, bucket.slices, strict=True) if where.requires_grad]

    def load(self) -> RLModule:
        """Returns the stacked module with the current parameters of the members."""
        if self._stacked:
            torch.index_select(self.bucket.parameters, 0, self.index, out=self._memory)
            self.bucket.lay_out(self.stacked_module, self._stacked)
        return self.stacked_module

    def compute_gradients(self, loss: Tensor) -> None:
        """Writes the gradients of a loss into the bucket's matrix. Those of other members do not change."""
        bucket, count = self.bucket, len(self.module_ids)
        found = iter(torch.autograd.grad(loss, self.parameters, allow_unused=True))
        columns = []
        for own in bucket.slices:
            gradient = next(found) if own.requires_grad else None
            if gradient is None:
                columns.append(bucket.gradients.new_zeros(count, own.end - own.begin))
            else:
                columns.append(gradient.reshape(count, -1))
        if self.is_whole:
            torch.cat(columns, 1, out=bucket.gradients)
        else:
            bucket.gradients.index_copy_(0, self.index, torch.cat(columns, 1))

    def bound_gradients(self) -> dict[Tensor, Tensor | None]:
        """Returns memory for the gradient of each parameter of the stacked module; None for a frozen parameter.

        The memory holds zeros. ``store`` copies what was written to it to the members.
        """
        bucket, count = self.bucket, len(self.module_ids)
        if self.is_whole:
            matrix = bucket.gradients
        elif count == 1:
            at = bucket.module_ids.index(self.module_ids[0])
            matrix = bucket.gradients[at : at + 1]
        else:
            if self._unstored is None:
                self._unstored = torch.empty_like(self._memory)
            matrix = self._unstored
        matrix.zero_()
        lead = () if count == 1 else (count,)
        parameters = self._stacked or list(self.stacked_module.parameters())
        return {
            parameter: matrix[:, own.begin : own.end].view(*lead, *own.shape) if own.requires_grad else None
            for parameter, own in zip(parameters, bucket.slices, strict=True)
        }

    def store(self) -> None:
        """Copies the values in ``bound_gradients`` to the members."""
        if self._unstored is not None:
            self.bucket.gradients.index_copy_(0, self.index, self._unstored)

    def gradients(self) -> Tensor:
        """Returns ``[A, P]`` gradients: the bucket's own matrix if these are all members, else a copy."""
        return self.bucket.gradients if self.is_whole else self.bucket.gradients.index_select(0, self.index)

    def set_gradients(self, gradients: Tensor) -> None:
        """Writes ``[A, P]`` gradients back, unless they are the bucket's own matrix, which was changed in place."""
        if gradients is not self.bucket.gradients:
            self.bucket.gradients.index_copy_(0, self.index, gradients)


def each_leaf(column: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Applies ``fn`` to a column's tensor or, in a nested column, to each of its tensors."""
    return fn(column) if type(column) is Tensor else tree_map(fn, column)


def sort_into_buckets(modules: Mapping[ModuleID, RLModule]) -> list[Bucket]:
    """Sorts all stackable modules into buckets, in order of first appearance.

    Modules that share parameters with another module, or whose parameters have several dtypes or devices, are in none.
    """
    module_groups: list[dict[ModuleID, RLModule]] = []
    sharing = modules_that_share(modules)
    for module_id, module in modules.items():
        if not is_stackable(module) or module_id in sharing or not fits_a_row(module):
            continue
        for members in module_groups:
            if same_architecture(next(iter(members.values())), module):
                members[module_id] = module
                break
        else:
            module_groups.append({module_id: module})
    return [Bucket(members) for members in module_groups]


class Stacking:
    """Maps the rows of a group to the ``[M, L]`` positions of a bucket's stack, and back.

    For stateful modules in a train batch it maps sequences instead of rows.

    Attributes:
        lead: ``(M, L)``: the number of members, and the rows (or sequences) of the module with the most.
        rows: ``[M * L]`` the row at each position, as an array.
        places: ``[B]`` the position of each row, as an array.
        is_identity: Whether the rows already stand in the order of the positions.
        index: ``rows`` as a tensor; None if ``is_identity``.
        back: ``places`` as a tensor.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Computes the positions of a group's rows. All modules of the group must be members of the bucket."""
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
        self.is_identity = bool((self.rows == np.arange(self.rows.size)).all())
        self.back = torch.from_numpy(self.places)
        self.index = None if self.is_identity else torch.from_numpy(self.rows)

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays that must be moved to a device."""
        return [self.places] if self.is_identity else [self.places, self.rows]

    def with_tensors(self, arrays: Sequence[Tensor]) -> Stacking:
        """Sets ``arrays`` that were moved to a device."""
        self.back, *index = arrays
        self.index = index[0] if index else None
        return self

    def on(self, device: torch.device) -> Stacking:
        """Returns the mapping with its tensors on a device."""
        if self.back.device == device:
            return self
        return self.with_tensors(all_moved(self.arrays, device))


def is_whole(bucket: Bucket, group: ColumnGroup) -> bool:
    """Whether all members of a bucket, and no others, have equally many rows in a group."""
    return group.rows_per_module is not None and group.module_ids == bucket.module_ids


def stacking_of(rl_module: Any, group: ColumnGroup) -> Stacking | None:
    """Returns the mapping by which a MultiRLModule stacks a group's rows; None if it needs none."""
    bucket = rl_module.bucket_of(group.module_ids) if hasattr(rl_module, "bucket_of") else None
    if bucket is None or not StackedRows.is_worthwhile(bucket, group):
        return None
    return None if group.sequences is None and is_whole(bucket, group) else Stacking(bucket, group)


class StackedRows(Mapping[str, Any]):
    """A group's columns as the stacked module accepts them: ``[M, L, ...]``, or ``[M, S, T, ...]`` for sequences.

    ``L`` is the largest number of rows of a module (``S``: of sequences). Modules with fewer rows are padded with
    copies of rows, and ``unstacked`` drops the results of the padding. A column is padded when it is first read.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Wraps a group. All of its modules must be members of the bucket."""
        self._sequences = group.sequences
        self._stacking = Stacking(bucket, group) if group.stacking is None else group.stacking
        self._columns: Mapping[str, Any] = group
        if self._sequences is not None:
            self._columns = PaddedColumns(group, self._sequences, 0, self._stacking.rows)

    @staticmethod
    def is_worthwhile(bucket: Bucket, group: ColumnGroup) -> bool:
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
        """Returns ``[M, L, ...]`` outputs as ``[B, ...]`` (of sequences ``[S, ...]``), in the group's order."""
        return each_leaf(column, lambda leaf: leaf.flatten(0, 1).index_select(0, self._stacking.on(leaf.device).back))

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if self._sequences is not None or self._stacking.is_identity:
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
    """Runs a group's rows through the bucket's stacked module, and returns ``[B, ...]`` columns."""
    if is_whole(bucket, group) and group.rows_per_module is not None:  # needs no indices
        columns = bucket.stack_columns(group, group.rows_per_module)
        return bucket.unstack_columns(getattr(bucket.stacked_module, method)(columns, **kwargs))
    rows = StackedRows(bucket, group)
    outputs = getattr(bucket.stacked_module, method)(rows, **kwargs)
    return {name: rows.unstacked(column) for name, column in outputs.items()}
