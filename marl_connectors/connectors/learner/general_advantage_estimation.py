"""Adds advantages and value targets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.batch import RANKS, ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.sequences import unpadded
from marl_connectors.errors import ConnectorError, ModuleError
from marl_connectors.ops.discounting import compute_gae_of_episodes
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.calls import call_module, check_observations, checked_values, values_batch
from marl_connectors.rl_module.stacking import StackedRows
from marl_connectors.transfers import all_moved, all_on_host
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID

_OF_SEQUENCES = (Columns.STATE_IN, Columns.SEQ_LENS)
_UNSTANDARDIZED = "unstandardized_advantages"
"""Key in ``shared_data``: the advantages of groups, if they are standardised with those of other learners."""


class GeneralAdvantageEstimation(ConnectorV2):
    """Adds ``advantages`` and ``value_targets``, and drops the rows of last observations, used to bootstrap.

    Reads ``obs``, ``rewards`` and the episodes' ends; calls each module's ``compute_values`` (ValueFunctionAPI). The
    value after the last action of a terminated episode is 0. After a truncated episode, or a chunk that was cut, it is
    the value of the last observation. Advantages are standardised (mean 0, standard deviation 1) for each module, over
    its real rows. If several learners update the modules together, these are the rows of all learners.

    Steps for which a user's piece has set ``loss_mask`` to False count in the advantages of other steps, but not in the
    mean or in the loss, and their rows are dropped too. In the sequences of a stateful module these rows stay, and so
    does ``loss_mask``. Writes both columns to the batch, ``[B]`` float32. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        gamma: float = 0.99,
        lambda_: float = 1.0,
        standardize: bool = True,
        module_settings: dict[str, dict[str, float]] | None = None,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            gamma: Discount per agent step, in [0, 1].
            lambda_: Bias/variance trade-off, in [0, 1].
            standardize: Whether to standardise the advantages.
            module_settings: ``{module_id: {"gamma": ..., "lambda_": ...}}`` for modules with other settings.
        """
        super().__init__(input_observation_space, input_action_space)
        self.gamma = gamma
        self.lambda_ = lambda_
        self.standardize = standardize
        self.module_settings = module_settings or {}

    def _setting(self, name: str, module_id: str) -> Any:
        return self.module_settings.get(module_id, {}).get(name, getattr(self, name))

    def _settings_of_episodes(self, rows: Rows) -> tuple[Any, Any]:
        """Returns gamma and lambda: one number each, or ``[E]``, one for each episode, if modules differ."""
        own = {m: (self._setting("gamma", m), self._setting("lambda_", m)) for m in rows.module_ids}
        if len(set(own.values())) == 1:
            return next(iter(own.values()))
        found = np.array([own[chunk.module_id or DEFAULT_MODULE_ID] for chunk in rows.chunks])
        return found[:, 0], found[:, 1]

    def on_columns(
        self, *, rl_module: Any, columns: ColumnGroup, shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Works on all episodes of all modules of a group at once.

        If several learners update the modules together, ``after_columns`` standardises the advantages.

        Raises:
            ConnectorError: If an earlier piece has dropped the rows of last observations.
            ModuleError: If a module has no value function.
        """
        rows = columns.rows
        if rows.acted is not None and rows.acted.all() and len(rows):
            raise ConnectorError(
                "an earlier piece has dropped the rows of last observations, whose values the last steps' advantages "
                "need. Put that piece after this one."
            )
        check_observations(columns, rl_module, train=True)
        device = columns[Columns.REWARDS].device
        wanted = [compute_values(rl_module, columns), columns[Columns.REWARDS]]
        wanted += [columns.pop(Columns.LOSS_MASK)] if Columns.LOSS_MASK in columns else []
        values, rewards, *masks = (tensor.numpy() for tensor in all_on_host(wanted))
        gamma, lambda_ = self._settings_of_episodes(rows)
        advantages = compute_gae_of_episodes(
            rewards,
            values,
            np.array(rows.counts),
            np.array([chunk.is_terminated for chunk in rows.chunks], bool),
            gamma=gamma,
            lambda_=lambda_,
        )
        acted = np.ones(len(rows), bool) if rows.acted is None else rows.acted
        counted = acted & masks[0].astype(bool) if masks else acted
        # A stateful module must step through the masked steps of its sequences, so they stay.
        real = np.flatnonzero(counted if columns.sequences is None else acted)
        counted = counted[real]
        splits = np.searchsorted(real, columns.splits)
        advantages = advantages[real]
        targets = advantages + values[real]
        if self.standardize and shared_data is not None and RANKS in shared_data:
            waiting = _Advantages(columns, advantages, counted, splits)
            shared_data.setdefault(_UNSTANDARDIZED, []).append(waiting)
        elif self.standardize:
            for begin, end in itertools.pairwise(splits):
                advantages[begin:end] = standardized(advantages[begin:end], counted[begin:end])
        estimates = (advantages.astype(np.float32), targets.astype(np.float32))
        index, *found = all_moved([real, *estimates, *([] if counted.all() else [counted])], device)
        for name, column in columns.items():
            columns[name] = _rows(column, index)
        columns.update(zip((Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.LOSS_MASK), found, strict=False))
        if columns.sequences is not None:
            columns.sequences = columns.sequences.without(acted)
        columns.rows, columns.stacking = rows.kept(real), None
        columns.splits, columns.rows_per_module = columns.rows.splits, columns.rows.rows_per_module

    def after_columns(self, groups: Sequence[ColumnGroup], shared_data: dict[str, Any]) -> None:
        """Standardises the advantages of each module with the mean and standard deviation over all learners' rows."""
        if not self.standardize or RANKS not in shared_data:
            return
        waiting: list[_Advantages] = shared_data.pop(_UNSTANDARDIZED, [])
        own = {module_id: _moments(values[counted]) for one in waiting for module_id, values, counted in one.parts()}
        of_all = shared_data[RANKS].gather(own)
        for one in waiting:
            for module_id, values, _ in one.parts():
                mean, deviation = _mean_and_deviation([own[module_id] for own in of_all if module_id in own])
                values[:] = (values - mean) / max(deviation, 1e-4)
            device = one.columns[Columns.ADVANTAGES].device
            (one.columns[Columns.ADVANTAGES],) = all_moved([one.advantages.astype(np.float32)], device)


class _Advantages(NamedTuple):
    """The advantages of a group before they are standardised.

    Attributes:
        columns: The group.
        advantages: ``[B]`` float64.
        counted: ``[B]`` bool, whether a row counts in the mean.
        splits: Module ``i`` of the group has rows ``splits[i]:splits[i + 1]``.
    """

    columns: ColumnGroup
    advantages: np.ndarray
    counted: np.ndarray
    splits: np.ndarray

    def parts(self) -> list[tuple[ModuleID, np.ndarray, np.ndarray]]:
        """Returns each module with views of its advantages and of ``counted``."""
        bounds = zip(self.columns.module_ids, itertools.pairwise(self.splits), strict=True)
        return [(m, self.advantages[begin:end], self.counted[begin:end]) for m, (begin, end) in bounds]


def _moments(values: np.ndarray) -> tuple[int, float, float]:
    """Returns the number of values, their mean, and the sum of their squared distances from it."""
    if not len(values):
        return 0, 0.0, 0.0
    mean = float(values.mean())
    return len(values), mean, float(np.square(values - mean).sum())


def _mean_and_deviation(moments: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Returns the mean and standard deviation of several sets of values together; 0 and 1 if there are no values."""
    counts, means, squares = np.array(moments, np.float64).T
    if not counts.sum():
        return 0.0, 1.0
    mean = (counts * means).sum() / counts.sum()
    return mean, np.sqrt((squares + counts * np.square(means - mean)).sum() / counts.sum())


def _rows(column: Any, index: torch.Tensor) -> Any:
    """Returns some rows of a tensor, a tree of tensors, or a list of info dicts."""
    return tree_map(lambda leaf: leaf.index_select(0, index.to(leaf.device)), column)


def standardized(values: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
    """Returns values with mean 0 and standard deviation 1 over those where ``counted`` is True."""
    own = values if counted is None else values[counted]
    return (values - own.mean()) / max(own.std(), 1e-4) if len(own) else values


def compute_values(rl_module: Any, columns: ColumnGroup) -> torch.Tensor:
    """Returns ``[B]`` values of all rows of a group, without gradients; a bucket's modules are called at once."""
    with torch.no_grad():
        bucket = rl_module.bucket_of(columns.module_ids)
        if bucket is not None and StackedRows.is_worthwhile(bucket, columns):
            _with_values(rl_module, columns.module_ids[0])
            rows = StackedRows(bucket, columns)
            values = checked_values(
                columns.module_ids[0],
                call_module(bucket.stacked_module, bucket.stacked_module.compute_values, rows),
                _lead(rows),
            )
            values = rows.unstacked(values)
            return values if columns.sequences is None else _unpadded(values, columns)
        given = dict(columns.module_columns())
        outputs = rl_module.forward_train(given) if rl_module.has_own_forward else {}
        parts = [checked_values(m, _values(rl_module, m, part, outputs), _lead(part)) for m, part in given.items()]
        if columns.sequences is not None:
            parts = [unpadded(part, columns.sequences.within(i)) for i, part in enumerate(parts)]
        return torch.cat(parts)


def _lead(columns: Any) -> tuple[int, ...]:
    """Returns the leading axes of a batch, before those of a row."""
    return tuple(columns[Columns.REWARDS].shape)


def _unpadded(values: torch.Tensor, columns: ColumnGroup) -> torch.Tensor:
    """Turns ``[S, T]`` values into ``[B]``, for sequences of several modules with one length."""
    sequences = columns.sequences
    assert sequences is not None
    return values[torch.cat([sequences.within(i) for i in range(len(columns.module_ids))])]


def _values(rl_module: Any, module_id: str, columns: Any, outputs: dict[str, Any]) -> torch.Tensor:
    """Returns a module's values, computed from its embeddings if ``outputs`` has some."""
    module = _with_values(rl_module, module_id)
    if module_id not in outputs:
        return call_module(module, module.compute_values, columns)
    own = outputs[module_id]
    return call_module(
        module, module.compute_values, values_batch(own, columns), embeddings=own.get(Columns.EMBEDDINGS)
    )


def _with_values(rl_module: Any, module_id: str) -> Any:
    module = rl_module[module_id]
    if not isinstance(module, ValueFunctionAPI):
        raise ModuleError(
            f"GeneralAdvantageEstimation: module {module_id!r} ({type(module).__name__}) has no value function. Derive "
            f"it from ValueFunctionAPI and implement compute_values(batch), or set use_critic=False."
        )
    return module
