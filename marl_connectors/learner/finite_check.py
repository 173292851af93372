"""Stops an update before a step that is NaN or infinite, and says where that comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.errors import LearnerError
from marl_connectors.learner.figures import GRADIENT_NORM, TOTAL_LOSS, Figures, NotFinite
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves
from marl_connectors.typing import SHARED

if TYPE_CHECKING:
    from marl_connectors.rl_module.multi_rl_module import MultiRLModule

_MAY_BE_INFINITE = (Columns.ACTION_DIST_INPUTS,)
"""Logits of impossible actions are -inf."""

_OF_MODULES = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)


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


def not_finite_error(figures: Figures, module: MultiRLModule, batch: ColumnBatch, num_updates: int) -> LearnerError:
    """The error that names the module, the minibatch and the term, and what that comes from."""
    bad = figures.first_not_finite()
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
