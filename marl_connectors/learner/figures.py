"""What an update's losses were made of: figures of each minibatch, and what they say where one is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.errors import LearnerError
from marl_connectors.transfers import all_on_host
from marl_connectors.typing import ModuleID

TOTAL_LOSS = "total_loss"
GRADIENT_NORM = "gradients_global_norm"


class Note(NamedTuple):
    """Figures of one minibatch.

    Attributes:
        epoch: Counted from 0.
        minibatch: Likewise, in its epoch.
        module_ids: Whose rows were in it.
        names: Of the figures.
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
    """The first figure of an update that is NaN or infinite; its minibatch as in ``Note``, or of the module's own."""

    epoch: int
    minibatch: int
    module_id: ModuleID
    name: str
    value: float


class Figures:
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
        """Keeps figures of the minibatch, scalars or ``[A]``. A hot path."""
        number = len(module_ids)
        if not all(isinstance(term, Tensor) and term.numel() == number for term in terms.values()):
            raise _not_figures(module_ids, terms)
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
        """The mean of each figure over the minibatches that a module took part in."""
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
        """Each module's figure in the last minibatch that it took part in."""
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


def _not_figures(module_ids: tuple[ModuleID, ...], terms: Mapping[str, Any]) -> LearnerError:
    """The error that names the term which is no figure of these modules."""
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
