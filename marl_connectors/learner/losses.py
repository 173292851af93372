"""Losses: which one of a module is minimised, the statistics of its terms, and where one that is not finite comes from.

A step whose loss or gradient is not finite is not taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.apis import SelfSupervisedLossAPI
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves
from marl_connectors.typing import SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.multi_rl_module import MultiRLModule

TOTAL_LOSS = "total_loss"
GRADIENT_NORM = "gradients_global_norm"
_MAY_BE_INFINITE = (Columns.ACTION_DIST_INPUTS,)
"""Logits of impossible actions are -inf."""
_OF_MODULES = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)


def has_self_supervised_loss(learner: Learner, module_id: ModuleID) -> bool:
    """Whether a module brings its loss."""
    return isinstance(learner.module[module_id].unwrapped(), SelfSupervisedLossAPI)


def loss_function(learner: Learner, module_id: ModuleID) -> Any:
    """What takes the arguments of ``Learner.compute_loss_for_module`` for a module."""
    if not has_self_supervised_loss(learner, module_id):
        return learner.compute_loss_for_module
    module: Any = learner.module[module_id].unwrapped()
    return partial(module.compute_self_supervised_loss, learner=learner)


def who_computes(learner: Learner, module_id: ModuleID) -> str:
    """The class and the method, for messages."""
    if not has_self_supervised_loss(learner, module_id):
        return f"{type(learner).__name__}: its compute_loss_for_module"
    return f"{type(learner.module[module_id].unwrapped()).__name__}: its compute_self_supervised_loss"


def checked_losses(losses: Any, module_ids: Sequence[ModuleID], learner: Any) -> Tensor:
    """A scalar of one module, ``[M]`` losses of several. A hot path.

    Raises:
        LearnerError: If it is something else.
    """
    wanted = () if len(module_ids) == 1 else (len(module_ids),)
    if isinstance(losses, Tensor) and losses.shape == wanted:
        return losses
    if isinstance(losses, Tensor) and not wanted and losses.numel() == 1:
        return losses.reshape(())
    came = f"a tensor of the shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else _described(losses)
    if wanted:
        raise LearnerError(
            f"{type(learner).__name__}: its compute_loss_for_stacked_modules gave {came} for modules "
            f"{', '.join(map(repr, module_ids))}, expected a tensor of the shape {wanted}: a loss for each. Reduce "
            f"the axes behind the first one only."
        )
    fix = "Take its mean." if isinstance(losses, Tensor) else "Return the loss; log_terms takes other loss statistics."
    raise LearnerError(
        f"{who_computes(learner, module_ids[0])} gave {came} for module {module_ids[0]!r}, expected a scalar "
        f"tensor. {fix}"
    )


def _described(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"


class Note(NamedTuple):
    """Loss statistics of one minibatch.

    Attributes:
        epoch: Counted from 0.
        minibatch: Likewise, in its epoch.
        module_ids: Whose rows were in it.
        names: Of the terms.
        values: ``[K, A]``, a row for each name and a column for each module.
        is_result: Whether the modules had rows in it. Others only have gradients.
    """

    epoch: int
    minibatch: int
    module_ids: tuple[ModuleID, ...]
    names: tuple[str, ...]
    values: Tensor
    is_result: bool = True


class NotFinite(NamedTuple):
    """The first term of an update that is NaN or infinite; its minibatch as in ``Note``, or of the module's own."""

    epoch: int
    minibatch: int
    module_id: ModuleID
    name: str
    value: float


class LossStatistics:
    """Notes of one update. They stay on the device until somebody asks."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._at = (0, -1)
        self._begin = 0
        self._noted_total: tuple[Tensor, int] | None = None

    def begin_minibatch(self, epoch: int) -> None:
        """What is noted from now on is of the next minibatch."""
        self._at = (epoch, self._at[1] + 1 if epoch == self._at[0] else 0)
        self._begin = len(self._notes)
        self._noted_total = None

    def note(self, module_ids: tuple[ModuleID, ...], terms: Mapping[str, Tensor]) -> None:
        """Keeps terms of the minibatch's losses, scalars or ``[A]``. A hot path."""
        number = len(module_ids)
        if not all(isinstance(term, Tensor) and term.numel() == number for term in terms.values()):
            raise _not_loss_terms(module_ids, terms)
        with torch.no_grad():
            found = list(terms.values())
            alike = len({term.shape for term in found}) == 1
            values = torch.stack(found if alike else [term.reshape(-1) for term in found])
        self._notes.append(Note(*self._at, module_ids, tuple(terms), values.view(len(found), number)))
        total = terms.get(TOTAL_LOSS)
        self._noted_total = None if total is None else (total, total._version)

    def note_gradient_norms(self, module_ids: tuple[ModuleID, ...], norms: Tensor, *, is_result: bool = True) -> None:
        """The same for ``[A]`` norms. A hot path."""
        self._notes.append(Note(*self._at, module_ids, (GRADIENT_NORM,), norms.unsqueeze(0), is_result))

    def note_total(self, module_ids: tuple[ModuleID, ...], losses: Tensor) -> None:
        """Keeps what is minimised, in place of a total that was noted for the minibatch before more was added to it."""
        if self._noted_total is not None:
            total, version = self._noted_total
            if losses is total and losses._version == version:  # nothing was added, in place or otherwise
                return
        noted = [n for n in self._notes[self._begin :] if TOTAL_LOSS in n.names and n.module_ids == module_ids]
        for note in noted:
            note.values[note.names.index(TOTAL_LOSS)] = losses.detach().reshape(-1)
        if not noted:
            self.note(module_ids, {TOTAL_LOSS: losses})

    def to_host(self) -> None:
        """Brings all notes to the CPU, in one copy. Waits for the device."""
        found = all_on_host([note.values for note in self._notes])
        self._notes = [note._replace(values=values) for note, values in zip(self._notes, found, strict=True)]

    def means(self) -> dict[ModuleID, dict[str, float]]:
        """The mean of each term over the minibatches that a module took part in."""
        alike: dict[tuple[tuple[ModuleID, ...], tuple[str, ...]], list[Tensor]] = {}
        for note in self._notes:
            if note.is_result:
                alike.setdefault((note.module_ids, note.names), []).append(note.values)
        sums: dict[ModuleID, dict[str, tuple[float, int]]] = {}
        for (module_ids, names), values in alike.items():
            table = torch.stack(values).double().sum(0).tolist()
            for name, row in zip(names, table, strict=True):
                for module_id, value in zip(module_ids, row, strict=True):
                    own = sums.setdefault(module_id, {})
                    total, count = own.get(name, (0.0, 0))
                    own[name] = (total + value, count + len(values))
        return {m: {name: total / count for name, (total, count) in own.items()} for m, own in sums.items()}

    def last(self, name: str) -> dict[ModuleID, float]:
        """Each module's term of that name in the last minibatch that it took part in."""
        found: dict[ModuleID, float] = {}
        for note in reversed(self._notes):
            if name in note.names and not all(m in found for m in note.module_ids):
                values = note.values[note.names.index(name)].tolist()
                for module_id, value in zip(note.module_ids, values, strict=True):
                    found.setdefault(module_id, value)
        return found

    def first_not_finite(self) -> NotFinite | None:
        """The culprit: in the first minibatch in which there is one, a term rather than the sum or the gradient."""
        self.to_host()
        found: list[NotFinite] = []
        for bad in self._not_finite():
            if found and (bad.epoch, bad.minibatch) != (found[0].epoch, found[0].minibatch):
                break
            found.append(bad)
        worst = min(found, key=_rank, default=None)
        return worst if worst is None else worst._replace(minibatch=self._number_of(worst))

    def _number_of(self, bad: NotFinite) -> int:
        """Which of the module's own minibatches of the epoch it is."""
        notes = [note for note in self._notes if note.epoch == bad.epoch and bad.module_id in note.module_ids]
        return len({note.minibatch for note in notes if note.minibatch < bad.minibatch})

    def _not_finite(self) -> Iterator[NotFinite]:
        for note in self._notes:
            values = note.values.double().numpy()
            for k, a in np.argwhere(~np.isfinite(values)).tolist():
                yield NotFinite(note.epoch, note.minibatch, note.module_ids[a], note.names[k], float(values[k, a]))


def _not_loss_terms(module_ids: tuple[ModuleID, ...], terms: Mapping[str, Any]) -> LearnerError:
    """The error that names the term which is not one number for each of these modules."""
    counts = {name: value.numel() if isinstance(value, Tensor) else None for name, value in terms.items()}
    name = next(name for name, count in counts.items() if count != len(module_ids))
    value = terms[name]
    came = f"has the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"is a {type(value).__name__}"
    wanted = "a scalar tensor" if len(module_ids) == 1 else f"a tensor of the shape ({len(module_ids)},), one for each"
    return LearnerError(
        f"Learner.log_terms: {name!r} of {', '.join(map(repr, module_ids))} {came}, expected {wanted}. Pass its mean, "
        f"as a tensor, or leave it out."
    )


def _rank(bad: NotFinite) -> int:
    """Terms come before their sum, and that before the gradient."""
    later = (TOTAL_LOSS, GRADIENT_NORM)
    return later.index(bad.name) + 1 if bad.name in later else 0


class FiniteCheck:
    """Whether all steps of an update so far were finite.

    On the CPU, a step that is not is never taken: one number is looked at. On a GPU, looking would wait for the device;
    there a flag goes along, from which the optimizers skip that step and all that follow, and the end of the update
    looks at it.

    Attributes:
        is_lazy: Whether it is the flag.
        skip: The flag as ``torch.optim`` knows it (``found_inf``), 1.0 from the first bad step on; None if not lazy.
    """

    def __init__(self, *, is_lazy: bool):
        self.is_lazy = is_lazy
        self.skip: Tensor | None = None

    def holds(self, loss: Tensor, norms: Tensor) -> bool:
        """Whether a step may be taken; if lazy, always True. A hot path.

        Args:
            loss: The scalar whose gradients were computed.
            norms: ``[A]`` Euclidean norms of these gradients.
        """
        if not self.is_lazy:
            return math.isfinite(loss.item() + norms.sum().item())
        bad = (loss.detach() + norms.sum()).isfinite().logical_not().float()
        self.skip = bad if self.skip is None else torch.maximum(self.skip, bad)
        return True

    def held(self) -> bool:
        """Whether all steps of the update were taken. Waits for the device."""
        return self.skip is None or not bool(all_on_host([self.skip])[0])


def not_finite_error(
    statistics: LossStatistics, module: MultiRLModule, batch: ColumnBatch, num_updates: int
) -> LearnerError:
    """The error that names the module, the minibatch and the term, and what that comes from."""
    bad = statistics.first_not_finite()
    if bad is None:
        return LearnerError(
            f"Learner: a loss or gradient is not finite in update {num_updates + 1}. No such step was taken."
        )
    rule = "That step was not taken, and the last checkpoint is intact."
    who = "the shared layers" if bad.module_id == SHARED else f"module {bad.module_id!r}"
    return LearnerError(
        f"Learner: {bad.name} of {who} is {bad.value} in update {num_updates + 1}, epoch "
        f"{bad.epoch + 1}, minibatch {bad.minibatch + 1}. {rule} {_cause(bad, module, batch)}"
    )


def _cause(bad: NotFinite, module: MultiRLModule, batch: ColumnBatch) -> str:
    whole = module if bad.module_id == SHARED else module[bad.module_id]
    for name, parameter in whole.named_parameters():
        if not parameter.isfinite().all():
            return f"The parameter {name!r} is not finite itself: something has written to it."
    for group in batch.groups:
        if bad.module_id in group.module_ids:
            i = group.module_ids.index(bad.module_id)
            for name, number, rows in _bad_columns(group, group.splits[i], group.splits[i + 1]):
                of_module = "the module when it acted" if name in _OF_MODULES else "the environment"
                return (
                    f"The column {name!r} is not finite in {number} of the module's {rows} rows: look at what makes "
                    f"it, {of_module} or a connector piece."
                )
    if bad.name == GRADIENT_NORM:
        return "The loss itself is finite: look for roots and logarithms near 0, or set vf_clip_param or a lower lr."
    if bad.name == TOTAL_LOSS:
        return (
            "All columns and all terms that were logged are finite: look at what else the loss is made of. A term that "
            "log_terms is given is named here."
        )
    return "All columns are finite. Lower the learning rate, set grad_clip, or look for extreme rewards."


def _bad_columns(group: ColumnGroup, begin: int, end: int) -> Iterable[tuple[str, int, int]]:
    for name in sorted(
        group, key=lambda name: (name != Columns.OBS, name in (Columns.ADVANTAGES, Columns.VALUE_TARGETS))
    ):
        for leaf in leaves(slice_tree(group[name], begin, end)):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            bad = leaf.isnan() if name in _MAY_BE_INFINITE else leaf.isfinite().logical_not()
            if bad.any():
                yield name, int(bad.flatten(1).any(1).sum() if bad.dim() > 1 else bad.sum()), end - begin
