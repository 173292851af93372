"""Adds advantages and value targets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RANKS, ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.sequences import unpadded
from marl_connectors.errors import ConnectorError, LearnerError, ModuleError
from marl_connectors.flat_action_masks import leaves_a_choice
from marl_connectors.ops.discounting import compute_gae_of_episodes
from marl_connectors.ops.moments import Moments
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.calls import call_module, check_observations, checked_values, values_batch
from marl_connectors.rl_module.stacking import StackedRows
from marl_connectors.state import State, read_state
from marl_connectors.transfers import all_moved, all_on_host
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID

_ESTIMATES = "unfinished_estimates"
"""Key in ``shared_data``: the estimates of groups, if they are completed with the moments of all learners' rows."""
_LEAST_VARIANCE = 1e-2
"""The smallest variance that values are normalised with, as in the code of Yu et al. (2022)."""


class GeneralAdvantageEstimationState(State):
    """The state of a GeneralAdvantageEstimation.

    Attributes:
        value_targets: The moments of the targets of modules with normalised values. Updates are weighted.
    """

    value_targets: dict[ModuleID, Moments] = {}


class GeneralAdvantageEstimation(ConnectorV2):
    """Adds ``advantages`` and ``value_targets``, and drops the rows of last observations, used to bootstrap.

    Reads ``obs``, ``rewards`` and the episodes' ends; calls each module's ``compute_values`` (ValueFunctionAPI). The
    value after the last action of a terminated episode is 0. After a truncated episode, or a chunk that was cut, it is
    the value of the last observation. Advantages are standardised (mean 0, standard deviation 1) for each module, over
    its real rows. If several learners update the modules together, these are the rows of all learners. Rows whose
    action mask leaves a single action do not count in mean and deviation, and have an advantage of 0 then.

    Steps for which a user's piece has set ``loss_mask`` to False count in the advantages of other steps, but not in the
    mean or in the loss, and their rows are dropped too. In the sequences of a stateful module these rows stay, and so
    does ``loss_mask``. Writes both columns to the batch, ``[B]`` float32.

    With ``normalize_values``, the value function predicts normalised returns, and ``value_targets`` are normalised: the
    mean of a module's targets is subtracted, and the result is divided by their standard deviation. Advantages are
    computed from values in the units of returns. This is the value normalisation of MAPPO, Yu et al. (2022),
    arXiv:2103.01955, with exponential means over updates, corrected for their beginning. Before the first update, the
    mean counts as 0 and the standard deviation as 1.

    State: these means for each module with ``normalize_values``.

    Args:
        gamma: Discount per agent step, in [0, 1].
        lambda_: Bias/variance trade-off, in [0, 1].
        standardize: Whether to standardise the advantages.
        module_settings: ``{module_id: {"gamma": ..., "lambda_": ...}}`` for modules with other settings;
            ``normalize_values`` and ``value_norm_beta`` may be among them.
        normalize_values: Whether the value function predicts normalised returns.
        value_norm_beta: The weight that the statistics of earlier updates keep in an update, in [0, 1]: 1 for the
            mean over all updates, 0 for the statistics of the newest one.
    """

    belongs_in = (LEARNER,)
    gamma: float = argument(default=0.99)
    lambda_: float = argument(default=1.0)
    standardize: bool = argument(default=True)
    module_settings: dict[str, dict[str, Any]] = argument(default=None)
    normalize_values: bool = argument(default=False)
    value_norm_beta: float = argument(default=0.99999)

    def begin(self) -> None:
        super().begin()
        self.module_settings = dict(self.module_settings or {})
        self._moments_of_targets: dict[ModuleID, Moments] = {}

    @property
    def needs_all_rows(self) -> bool:
        """Whether the estimates of a row depend on the rows of all learners."""
        settings = self.module_settings.values()
        return self.standardize or self.normalize_values or any(own.get("normalize_values") for own in settings)

    def _setting(self, name: str, module_id: str) -> Any:
        return self.module_settings.get(module_id, {}).get(name, getattr(self, name))

    def _settings_of_episodes(self, rows: Rows) -> tuple[Any, Any]:
        """Returns gamma and lambda: one number each, or ``[E]``, one for each episode, if modules differ."""
        own = {m: (self._setting("gamma", m), self._setting("lambda_", m)) for m in rows.module_ids}
        if len(set(own.values())) == 1:
            return next(iter(own.values()))
        found = np.array([own[chunk.module_id or DEFAULT_MODULE_ID] for chunk in rows.chunks])
        return found[:, 0], found[:, 1]

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Works on all episodes of all modules of a group at once.

        If several learners update the modules together, ``after_columns`` standardises the advantages and normalises
        the targets.

        Raises:
            ConnectorError: If an earlier piece has dropped the rows of last observations.
            ModuleError: If a module has no value function.
        """
        rows = c.rows
        if rows.acted is not None and rows.acted.all() and len(rows):
            raise ConnectorError(
                "an earlier piece has dropped the rows of last observations, whose values the last steps' advantages "
                "need. Put that piece after this one."
            )
        rl_module = self.critics_of(c.rl_module)
        check_observations(c, rl_module, train=True)
        device = c[Columns.REWARDS].device
        wanted = [compute_values(rl_module, c), c[Columns.REWARDS]]
        wanted += [c.pop(Columns.LOSS_MASK)] if Columns.LOSS_MASK in c else []
        wanted += [c[Columns.ACTION_MASK]] if Columns.ACTION_MASK in c else []
        values, rewards, *masks = (tensor.numpy() for tensor in all_on_host(wanted))
        legal = masks.pop() if Columns.ACTION_MASK in c else None
        values = self._in_units_of_returns(values, c)
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
        real = np.flatnonzero(counted if c.sequences is None else acted)
        counted = counted[real]
        free = None if legal is None else leaves_a_choice(rows.action_space, legal[real])
        splits = np.searchsorted(real, c.splits)
        advantages = advantages[real]
        estimates = _Estimates(c, advantages, advantages + values[real], counted, free, splits)
        if RANKS in c.shared_data and self.needs_all_rows:
            c.shared_data.setdefault(_ESTIMATES, []).append(estimates)
        else:
            if self.standardize:
                for _, part in estimates.parts():
                    advantages[part] = standardized(advantages[part], estimates.chosen[part])
                estimates.clear_forced()
            self._normalize_targets([estimates], [self._moments_of(estimates)])
        both = (advantages.astype(np.float32), estimates.targets.astype(np.float32))
        index, *found = all_moved([real, *both, *([] if counted.all() else [counted])], device)
        for name, column in c.items():
            c[name] = _rows(column, index)
        c.update(zip((Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.LOSS_MASK), found, strict=False))
        if c.sequences is not None:
            c.sequences = c.sequences.without(acted)
        c.rows, c.stacking = rows.kept(real), None
        c.splits, c.rows_per_module = c.rows.splits, c.rows.rows_per_module

    def critics_of(self, rl_module: Any) -> Any:
        """Returns the modules whose values are computed."""
        return rl_module

    def after_columns(self, groups: Sequence[ColumnGroup], shared_data: dict[str, Any]) -> None:
        """Standardises advantages and normalises targets by the moments of the rows of all learners."""
        if RANKS not in shared_data or not self.needs_all_rows:
            return
        waiting: list[_Estimates] = shared_data.pop(_ESTIMATES, [])
        own_targets = {m: moments for one in waiting for m, moments in self._moments_of(one).items()}
        own_advantages = {}
        if self.standardize:
            own_advantages = {
                m: Moments.of(one.advantages[part][one.chosen[part]]) for one in waiting for m, part in one.parts()
            }
        gathered = shared_data[RANKS].gather((own_advantages, own_targets))
        of_all = [advantages for advantages, _ in gathered]
        for one in waiting if self.standardize else ():
            for module_id, part in one.parts():
                moments = _merged(of_all, module_id)
                one.advantages[part] = (one.advantages[part] - moments.mean) / max(np.sqrt(moments.variance), 1e-4)
            one.clear_forced()
        self._normalize_targets(waiting, [targets for _, targets in gathered])
        for one in waiting:
            both = [one.advantages.astype(np.float32), one.targets.astype(np.float32)]
            found = all_moved(both, one.columns[Columns.ADVANTAGES].device)
            one.columns.update(zip((Columns.ADVANTAGES, Columns.VALUE_TARGETS), found, strict=True))

    def check_can_be_divided(self) -> None:
        """Checks that nobody has overridden ``columns``, which does not have the rows of all learners.

        Raises:
            LearnerError: If somebody has, and the piece needs these rows.
        """
        is_own = type(self).columns.__module__.partition(".")[0] != __name__.partition(".")[0]
        if self.needs_all_rows and is_own:
            raise LearnerError(
                f"{type(self).__name__}: it overrides columns of GeneralAdvantageEstimation, but with several "
                f"learners the advantages are standardised and the targets normalised after columns, over the rows "
                f"of all learners. Use a piece of your own behind it, standardize=False without normalize_values, or "
                f"num_learners=0."
            )

    # Normalised values.

    def value_statistics(self, module_id: ModuleID) -> tuple[float, float]:
        """Returns the mean and the standard deviation of returns that a module's values are normalised with.

        A value in the units of returns is ``mean + deviation * compute_values(batch)``. They are 0 and 1 if the values
        of the module are not normalised, and before its first update.
        """
        moments = self._moments_of_targets.get(module_id)
        if moments is None or not self._setting("normalize_values", module_id):
            return 0.0, 1.0
        return moments.mean, float(np.sqrt(max(moments.variance, _LEAST_VARIANCE)))

    def _in_units_of_returns(self, values: np.ndarray, columns: ColumnGroup) -> np.ndarray:
        """Returns ``[B]`` values of a group in the units of returns."""
        if not any(self._setting("normalize_values", module_id) for module_id in columns.module_ids):
            return values
        counts = np.diff(columns.splits)
        means, deviations = np.array([self.value_statistics(module_id) for module_id in columns.module_ids]).T
        return np.repeat(means, counts) + np.repeat(deviations, counts) * values

    def _moments_of(self, estimates: _Estimates) -> dict[ModuleID, Moments]:
        """Returns the moments of the targets of each module whose values are normalised."""
        return {
            module_id: Moments.of(estimates.targets[part][estimates.counted[part]])
            for module_id, part in estimates.parts()
            if self._setting("normalize_values", module_id)
        }

    def _normalize_targets(
        self, estimates: Sequence[_Estimates], of_learners: Sequence[Mapping[ModuleID, Moments]]
    ) -> None:
        """Adds the moments of the newest targets to the statistics, and normalises the targets in place.

        Args:
            estimates: The estimates of this learner.
            of_learners: The moments of the targets of each learner. An update counts as one number, whatever its size.
        """
        for module_id in dict.fromkeys(module_id for own in of_learners for module_id in own):
            newest = _merged(of_learners, module_id)
            if newest.count and np.isfinite(newest.squares):  # if it is not, the update raises an error
                earlier = self._moments_of_targets.get(module_id, Moments())
                earlier = earlier.weighted(self._setting("value_norm_beta", module_id))
                self._moments_of_targets[module_id] = earlier.merged(newest.weighted(1.0 / newest.count))
        for one in estimates:
            for module_id, part in one.parts():
                if self._setting("normalize_values", module_id):
                    mean, deviation = self.value_statistics(module_id)
                    one.targets[part] = (one.targets[part] - mean) / deviation

    def forget_module(self, module_id: ModuleID) -> None:
        """Removes the settings and statistics of a module."""
        self.module_settings.pop(module_id, None)
        self._moments_of_targets.pop(module_id, None)

    def get_state(self) -> GeneralAdvantageEstimationState:
        """Returns the statistics of value targets."""
        return GeneralAdvantageEstimationState(value_targets=dict(self._moments_of_targets))

    def set_state(self, state: Any) -> None:
        """Sets a state that ``get_state`` has returned."""
        self._moments_of_targets = dict(read_state(GeneralAdvantageEstimationState, state).value_targets)

    def reset_state(self) -> None:
        """Forgets all statistics."""
        self._moments_of_targets = {}


class _Estimates(NamedTuple):
    """The advantages and targets of a group, before they are standardised and normalised in place.

    Attributes:
        columns: The group.
        advantages: ``[B]`` float64.
        targets: ``[B]`` float64, in the units of returns.
        counted: ``[B]`` bool, whether a row counts in the moments of targets.
        free: ``[B]`` bool, whether the action mask leaves more than one action; None without masks.
        splits: Module ``i`` of the group has rows ``splits[i]:splits[i + 1]``.
    """

    columns: ColumnGroup
    advantages: np.ndarray
    targets: np.ndarray
    counted: np.ndarray
    free: np.ndarray | None
    splits: np.ndarray

    @property
    def chosen(self) -> np.ndarray:
        """``[B]`` bool, whether a row counts in the moments of advantages."""
        return self.counted if self.free is None else self.counted & self.free

    def clear_forced(self) -> None:
        """Sets the advantages of actions without an alternative to 0."""
        if self.free is not None:
            self.advantages[~self.free] = 0.0

    def parts(self) -> list[tuple[ModuleID, slice]]:
        """Returns each module with the slice of its rows."""
        bounds = itertools.pairwise(self.splits.tolist())
        return [(m, slice(*bound)) for m, bound in zip(self.columns.module_ids, bounds, strict=True)]


def _merged(of_learners: Sequence[Mapping[ModuleID, Moments]], module_id: ModuleID) -> Moments:
    """Returns the moments of a module over the rows of all learners."""
    return reduce(Moments.merged, [own[module_id] for own in of_learners if module_id in own])


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
            f"it from ValueFunctionAPI and implement compute_values(batch), or train it without a critic: with "
            f"use_critic=False (PPO) or beta=0 (MARWIL)."
        )
    return module
