"""Loss statistics: the terms of the losses of an update, and where a term that is not finite comes from.

A step whose loss or gradient is not finite is not taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves
from marl_connectors.typing import SHARED, ModuleID

TOTAL_LOSS = "total_loss"
GRADIENT_NORM = "gradients_global_norm"
_MAY_BE_INFINITE = (Columns.ACTION_DIST_INPUTS,)
"""Columns that may be infinite: the logits of impossible actions are -inf."""
_OF_MODULES = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)
_DERIVED = (Columns.ADVANTAGES, Columns.VALUE_TARGETS)
"""Columns that are computed from other columns."""


class MinibatchTerms(NamedTuple):
    """Loss statistics of one minibatch.

    Attributes:
        epoch: The number of the epoch, counted from 0.
        minibatch: The number of the minibatch in its epoch, counted from 0.
        module_ids: The modules that the minibatch belongs to.
        names: The names of the terms.
        values: ``[K, A]``, a row for each name and a column for each module.
        has_rows: Whether the minibatch has rows of these modules. Modules without rows in it only have gradients.
    """

    epoch: int
    minibatch: int
    module_ids: tuple[ModuleID, ...]
    names: tuple[str, ...]
    values: Tensor
    has_rows: bool = True


class RankTerms(NamedTuple):
    """Loss statistics of one minibatch that one of several ranks has computed from its own rows.

    Attributes:
        epoch: The number of the epoch, counted from 0.
        minibatch: The number of the minibatch in its epoch, counted from 0.
        module_ids: The modules that the rank has rows of.
        names: The names of the terms.
        values: ``[K, A]``, a row for each name and a column for each module.
        sizes: ``[A]``, the number of these rows.
    """

    epoch: int
    minibatch: int
    module_ids: tuple[ModuleID, ...]
    names: tuple[str, ...]
    values: np.ndarray
    sizes: np.ndarray


class NotFinite(NamedTuple):
    """The first term of an update that is NaN or infinite.

    Attributes:
        epoch: The number of the epoch, counted from 0.
        minibatch: The number of the minibatch in its epoch, or among the module's minibatches of the epoch.
        module_id: The module.
        name: The name of the term.
        value: Its value.
    """

    epoch: int
    minibatch: int
    module_id: ModuleID
    name: str
    value: float


class LossStatistics:
    """The loss statistics of one update. They stay on the device until they are read."""

    def __init__(self) -> None:
        self._logged: list[MinibatchTerms] = []
        self._at = (0, -1)
        self._begin = 0
        self._logged_total: tuple[Tensor, int] | None = None
        self._sizes: dict[tuple[int, int], Mapping[ModuleID, int]] = {}

    def begin_minibatch(self, epoch: int, own_sizes: Mapping[ModuleID, int] | None = None) -> None:
        """Begins the next minibatch, to which the terms that are logged from now on belong.

        Args:
            epoch: The number of the epoch.
            own_sizes: The number of rows of each module that this rank has in the minibatch; None without other ranks.
        """
        self._at = (epoch, self._at[1] + 1 if epoch == self._at[0] else 0)
        self._begin = len(self._logged)
        self._logged_total = None
        if own_sizes is not None:
            self._sizes[self._at] = own_sizes

    def log(self, module_ids: tuple[ModuleID, ...], terms: Mapping[str, Tensor]) -> None:
        """Logs terms of the minibatch's losses, each a scalar or ``[A]``."""
        number = len(module_ids)
        if not all(isinstance(term, Tensor) and term.numel() == number for term in terms.values()):
            raise _not_loss_terms(module_ids, terms)
        with torch.no_grad():
            found = list(terms.values())
            alike = len({term.shape for term in found}) == 1
            values = torch.stack(found if alike else [term.reshape(-1) for term in found])
        self.log_table(module_ids, tuple(terms), values.view(len(found), number))
        total = terms.get(TOTAL_LOSS)
        self._logged_total = None if total is None else (total, total._version)

    def log_table(self, module_ids: tuple[ModuleID, ...], names: tuple[str, ...], values: Tensor) -> None:
        """Logs terms of the minibatch's losses, ``[K, A]``: a row for each name and a column for each module."""
        self._logged.append(MinibatchTerms(*self._at, module_ids, names, values))
        self._logged_total = None

    def log_gradient_norms(self, module_ids: tuple[ModuleID, ...], norms: Tensor, *, has_rows: bool = True) -> None:
        """Logs ``[A]`` norms of the minibatch's gradients."""
        self._logged.append(MinibatchTerms(*self._at, module_ids, (GRADIENT_NORM,), norms.unsqueeze(0), has_rows))

    def log_total(self, module_ids: tuple[ModuleID, ...], losses: Tensor) -> None:
        """Logs the losses that are minimised.

        They replace a total that was logged for the minibatch before a user's code added another term to it.
        """
        if self._logged_total is not None:
            total, version = self._logged_total
            if losses is total and losses._version == version:  # nothing was added, in place or otherwise
                return
        logged = [m for m in self._logged[self._begin :] if TOTAL_LOSS in m.names and m.module_ids == module_ids]
        for terms in logged:
            terms.values[terms.names.index(TOTAL_LOSS)] = losses.detach().reshape(-1)
        if not logged:
            self.log(module_ids, {TOTAL_LOSS: losses})

    def to_host(self) -> None:
        """Copies all terms to the CPU in one transfer. Waits for the device."""
        found = all_on_host([terms.values for terms in self._logged])
        self._logged = [terms._replace(values=values) for terms, values in zip(self._logged, found, strict=True)]

    def of_this_rank(self) -> list[RankTerms]:
        """Returns the terms that this rank has computed from its own rows."""
        self.to_host()
        return [
            RankTerms(
                *terms[:4],
                terms.values.double().numpy(),
                np.array([self._sizes[terms.epoch, terms.minibatch].get(m, 1) for m in terms.module_ids]),
            )
            for terms in self._logged
            if terms.names != (GRADIENT_NORM,)
        ]

    def combine(self, of_ranks: Iterable[Sequence[RankTerms]]) -> None:
        """Replaces all terms but the gradient norms by their means over the rows of all ranks.

        Args:
            of_ranks: What ``of_this_rank`` returned on each rank.
        """
        alike: dict[tuple[int, int, tuple[str, ...]], list[RankTerms]] = {}
        for terms in itertools.chain.from_iterable(of_ranks):
            alike.setdefault((terms.epoch, terms.minibatch, terms.names), []).append(terms)
        norms = [terms for terms in self._logged if terms.names == (GRADIENT_NORM,)]
        self._logged = []
        for (epoch, minibatch, names), found in alike.items():
            ids = tuple(dict.fromkeys(m for terms in found for m in terms.module_ids))
            index = {module_id: i for i, module_id in enumerate(ids)}
            sums, sizes = np.zeros((len(names), len(ids))), np.zeros(len(ids))
            for terms in found:
                columns = [index[m] for m in terms.module_ids]
                sums[:, columns] += terms.values * terms.sizes
                sizes[columns] += terms.sizes
            means = torch.from_numpy(sums / np.maximum(sizes, 1))
            self._logged.append(MinibatchTerms(epoch, minibatch, ids, names, means))
        self._logged = sorted([*self._logged, *norms], key=lambda terms: terms[:2])

    def means(self) -> dict[ModuleID, dict[str, float]]:
        """Returns the mean of each term over the minibatches that a module had rows in."""
        alike: dict[tuple[tuple[ModuleID, ...], tuple[str, ...]], list[Tensor]] = {}
        for terms in self._logged:
            if terms.has_rows:
                alike.setdefault((terms.module_ids, terms.names), []).append(terms.values)
        sums: dict[ModuleID, dict[str, tuple[float, int]]] = {}
        for (module_ids, names), values in alike.items():
            table = (values[0].double() if len(values) == 1 else torch.stack(values).double().sum(0)).tolist()
            for name, row in zip(names, table, strict=True):
                for module_id, value in zip(module_ids, row, strict=True):
                    own = sums.setdefault(module_id, {})
                    total, count = own.get(name, (0.0, 0))
                    own[name] = (total + value, count + len(values))
        return {m: {name: total / count for name, (total, count) in own.items()} for m, own in sums.items()}

    def last(self, name: str) -> dict[ModuleID, float]:
        """Returns each module's term of that name in the last minibatch that the module took part in."""
        found: dict[ModuleID, float] = {}
        for terms in reversed(self._logged):
            if name in terms.names and not all(m in found for m in terms.module_ids):
                values = terms.values[terms.names.index(name)].tolist()
                for module_id, value in zip(terms.module_ids, values, strict=True):
                    found.setdefault(module_id, value)
        return found

    def first_not_finite(self) -> NotFinite | None:
        """Returns a term of the first minibatch that has one: a single term rather than the sum or the gradient."""
        self.to_host()
        found: list[NotFinite] = []
        for bad in self._not_finite():
            if found and (bad.epoch, bad.minibatch) != (found[0].epoch, found[0].minibatch):
                break
            found.append(bad)
        worst = min(found, key=_rank, default=None)
        return worst if worst is None else worst._replace(minibatch=self._number_of(worst))

    def _number_of(self, bad: NotFinite) -> int:
        """Returns the minibatch's number among the module's minibatches of the epoch."""
        own = [terms for terms in self._logged if terms.epoch == bad.epoch and bad.module_id in terms.module_ids]
        return len({terms.minibatch for terms in own if terms.minibatch < bad.minibatch})

    def _not_finite(self) -> Iterator[NotFinite]:
        for terms in self._logged:
            values = terms.values.double().numpy()
            for k, a in np.argwhere(~np.isfinite(values)).tolist():
                yield NotFinite(terms.epoch, terms.minibatch, terms.module_ids[a], terms.names[k], float(values[k, a]))


def _not_loss_terms(module_ids: tuple[ModuleID, ...], terms: Mapping[str, Any]) -> LearnerError:
    """Returns the error that names the term that is not one number for each of these modules."""
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
    """Orders terms before their sum, and the sum before the gradient."""
    later = (TOTAL_LOSS, GRADIENT_NORM)
    return later.index(bad.name) + 1 if bad.name in later else 0


class FiniteCheck:
    """Checks whether all steps of an update so far were finite.

    On the CPU the check reads one number before each step, and a step that is not finite is never taken. On a GPU,
    reading a number would wait for the device. There the check keeps a flag on the device, which makes the optimizers
    skip that step and all later ones, and the flag is read at the end of the update.

    Attributes:
        is_lazy: Whether the check keeps the flag.
        skip: The flag as ``torch.optim`` expects it (``found_inf``), 1.0 from the first bad step on; None if not lazy.
    """

    def __init__(self, *, is_lazy: bool):
        self.is_lazy = is_lazy
        self.skip: Tensor | None = None

    def holds(self, loss: Tensor, norms: Tensor) -> bool:
        """Whether a step may be taken; always True if lazy.

        Args:
            loss: The scalar whose gradients were computed.
            norms: ``[A]`` Euclidean norms of these gradients.
        """
        if not self.is_lazy:
            return math.isfinite(loss.item() + norms.sum().item())
        bad = (loss.detach() + norms.sum()).isfinite().logical_not().float()
        self.skip = bad if self.skip is None else torch.maximum(self.skip, bad)
        return True

    def all_finite(self) -> bool:
        """Whether all steps of the update were finite. Waits for the device."""
        return self.skip is None or not bool(all_on_host([self.skip])[0])


def not_finite_error(
    statistics: LossStatistics,
    module: MultiRLModule,
    batch: ColumnBatch,
    num_updates: int,
    gather: Callable[[Any], list[Any]],
) -> LearnerError:
    """Returns the error that names the module, the minibatch, the term and its probable cause.

    Args:
        statistics: The loss statistics of the update.
        module: The modules.
        batch: The train batch.
        num_updates: The number of updates before this one.
        gather: ``OneRank.gather``: the rows of the minibatch may be on another rank. All ranks get the same error.
    """
    bad = statistics.first_not_finite()
    if bad is None:
        own = f"Learner: a loss or gradient is not finite in update {num_updates + 1}. No such step was taken."
        return LearnerError(min(gather((9, 9, own)))[2])
    order, cause = _cause(bad, module, batch)
    rule = "That step was not taken, and the last checkpoint is intact."
    who = "the shared layers" if bad.module_id == SHARED else f"module {bad.module_id!r}"
    own = (
        f"Learner: {bad.name} of {who} is {bad.value} in update {num_updates + 1}, epoch "
        f"{bad.epoch + 1}, minibatch {bad.minibatch + 1}. {rule} {cause}"
    )
    return LearnerError(min(gather((order, _rank(bad), own)))[2])


def _cause(bad: NotFinite, module: MultiRLModule, batch: ColumnBatch) -> tuple[int, str]:
    """Returns the probable cause, and a number that is smaller the more is known of it."""
    whole = module if bad.module_id == SHARED else module[bad.module_id]
    for name, parameter in whole.named_parameters():
        if not parameter.isfinite().all():
            return 0, f"The parameter {name!r} is not finite itself: something has written to it."
    for group in batch.groups:
        if bad.module_id in group.module_ids:
            i = group.module_ids.index(bad.module_id)
            for name, number, rows in _bad_columns(group, group.splits[i], group.splits[i + 1]):
                of_module = "the module when it acted" if name in _OF_MODULES else "the environment"
                return (
                    1 + (name in _DERIVED),
                    f"The column {name!r} is not finite in {number} of the module's {rows} rows: look at what makes "
                    f"it, {of_module} or a connector piece.",
                )
    return 3, _advice(bad)


def _advice(bad: NotFinite) -> str:
    if bad.name == GRADIENT_NORM:
        return "The loss itself is finite: look for roots and logarithms near 0, or set vf_clip_param or a lower lr."
    if bad.name == TOTAL_LOSS:
        return (
            "All columns and all logged terms are finite: look at the other terms of the loss. Terms that are passed "
            "to log_terms are named here."
        )
    return "All columns are finite. Lower the learning rate, set grad_clip, or look for extreme rewards."


def _bad_columns(group: ColumnGroup, begin: int, end: int) -> Iterable[tuple[str, int, int]]:
    for name in sorted(group, key=lambda name: (name != Columns.OBS, name in _DERIVED)):
        for leaf in leaves(slice_tree(group[name], begin, end)):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            bad = leaf.isnan() if name in _MAY_BE_INFINITE else leaf.isfinite().logical_not()
            if bad.any():
                yield name, int(bad.flatten(1).any(1).sum() if bad.dim() > 1 else bad.sum()), end - begin
