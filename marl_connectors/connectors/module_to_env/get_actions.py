"""Samples actions, or takes the most likely ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.device_columns import columns_to_host
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.episodes.episode_rows import EpisodeRows
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.module_columns import put_together, unlike_outputs
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.states import is_single
from marl_connectors.spaces import describe
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from gymnasium import Space

ACTION_NOISE = "action_noise"
"""Key in ``shared_data`` of the runner's ActionNoise, from which actions are sampled with the run's seed."""


class _Choice(NamedTuple):
    """How the modules of some rows choose actions.

    Attributes:
        asked: ``explore`` and the ``holders`` of the columns for which this holds.
        dist_cls: The distribution class of all modules; None if they differ.
        defers_logp: Whether log-probabilities are deferred. False where modules with other distribution classes may
            act.
    """

    asked: tuple[bool | None, Mapping[str, frozenset[ModuleID]]]
    dist_cls: type[Distribution] | None
    defers_logp: bool


class GetActions(ConnectorV2):
    """Adds ``actions`` and ``action_logp``, unless the module has output ``actions`` itself.

    Some modules of a batch may output ``actions``, as rules do, while others do not.

    Reads ``action_dist_inputs``, the parameters of the module's exploration or inference distribution. If ``explore``
    is True, or the distribution has ``always_samples``, it samples from the distribution, else it takes the most likely
    action. Writes ``actions`` (``[B, ...]``) and ``action_logp`` (``[B]``) to the batch. Keeps no state.

    The outputs of modules on a GPU are first moved to the CPU, all in one copy, since the trajectories need them there,
    and actions are sampled on the CPU.

    Args:
        defer_logp: Whether, in columns, the runner computes ``action_logp`` once for a whole fragment, from the
            recorded inputs and actions. No later piece may change either of them.
    """

    belongs_in = (MODULE_TO_ENV,)

    phase_after = Phase.TENSORS
    defer_logp: bool = argument(default=False)

    def begin(self) -> None:
        super().begin()
        self._known = RowMemory()

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Moves all groups to the CPU at once, if they are on another device."""
        columns_to_host(groups)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Makes one distribution for all modules of a group if they have the same class, else one for each module.

        Raises:
            ModuleError: If a module has output neither ``actions`` nor ``action_dist_inputs``, or has output inputs
                that do not fit its distribution.
        """
        if Columns.ACTIONS in c and Columns.ACTIONS not in c.holders:
            return
        rl_module = dict.fromkeys(c.module_ids, c.rl_module) if is_single(c.rl_module) else c.rl_module
        choice = self._common_choice(rl_module, c, c.explore)
        dist_cls = choice.dist_cls
        source = c.shared_data.get(ACTION_NOISE)
        if dist_cls is None or Columns.ACTIONS in c:
            self._module_by_module(rl_module, c, c.explore, source)
            return
        distribution = dist_cls.from_logits(c[Columns.ACTION_DIST_INPUTS])
        if samples(dist_cls, c.explore):
            noise = _noise(source, c, dist_cls)
            with source.torch_stream() if source is not None and noise is None else nullcontext():
                c[Columns.ACTIONS] = distribution.sample(noise)
        else:
            c[Columns.ACTIONS] = distribution.to_deterministic()
        if choice.defers_logp:
            c.action_dist_cls = dist_cls
        else:
            c[Columns.ACTION_LOGP] = distribution.logp(c[Columns.ACTIONS])

    def bound_dist_cls(
        self, rl_module: Any, module_ids: Sequence[ModuleID], action_space: Space, explore: bool, num_inputs: int
    ) -> tuple[type[Distribution], bool] | None:
        """Returns the distribution class of modules that output ``[B, num_inputs]``, and whether logp is deferred.

        It returns None if the modules have several classes, or one that samples without noise or needs another number
        of inputs.
        """
        classes = {_dist_cls(m, rl_module[m], explore) for m in module_ids}
        if len(classes) > 1:
            return None
        (dist_cls,) = classes
        space = rl_module[module_ids[0]].action_space
        if not issubclass(dist_cls, Distribution) or space is None:
            return None
        if dist_cls.required_input_dim(space) != num_inputs:
            return None
        if samples(dist_cls, explore) and not dist_cls.draws_from_noise(num_inputs):
            return None
        return dist_cls, self.defer_logp and self._is_common(dist_cls, rl_module, action_space, explore)

    def _is_common(self, dist_cls: Any, rl_module: Any, action_space: Space | None, explore: bool | None) -> bool:
        """Whether all modules with an action space have the same distribution class, also those that act later."""
        peers = {
            _dist_cls(m, module, explore) for m, module in rl_module.items() if module.action_space == action_space
        }
        return len(peers | {dist_cls}) == 1

    def _common_choice(self, rl_module: Any, columns: ColumnGroup, explore: bool | None) -> _Choice:
        """Returns how the modules of a group choose actions; cached by rows."""
        known = self._known.get(columns.rows)
        if known is None or known.asked != (explore, columns.holders):
            choosing = [m for m in columns.module_ids if not columns.has_column(m, Columns.ACTIONS)]
            classes = {_dist_cls(m, rl_module[m], explore) for m in choosing}
            for module_id in choosing:
                if not columns.has_column(module_id, Columns.ACTION_DIST_INPUTS):
                    raise _no_actions(module_id, [name for name in columns if columns.has_column(module_id, name)])
            _check_inputs(choosing[0], rl_module[choosing[0]], explore, columns)
            common, space = classes.pop() if len(classes) == 1 else None, columns.rows.action_space
            defers = self.defer_logp and self._is_common(common, rl_module, space, explore)
            known = self._known[columns.rows] = _Choice((explore, columns.holders), common, defers)
        return known

    def _module_by_module(self, rl_module: Any, columns: ColumnGroup, explore: bool | None, source: Any) -> None:
        """Adds actions where some modules output them, or where modules have distributions of several classes."""
        found: dict[ModuleID, dict[str, Any]] = {}
        with source.torch_stream() if source is not None else nullcontext():
            for (module_id, part), (begin, end) in zip(columns.module_columns(), pairwise(columns.splits), strict=True):
                own = dict(part)
                if Columns.ACTIONS not in own:
                    dist_cls = _dist_cls(module_id, rl_module[module_id], explore)
                    distribution = dist_cls.from_logits(_inputs(module_id, own))
                    if samples(dist_cls, explore):
                        noise = _noise(source, columns, dist_cls)
                        own[Columns.ACTIONS] = distribution.sample(None if noise is None else noise[begin:end])
                    else:
                        own[Columns.ACTIONS] = distribution.to_deterministic()
                    own[Columns.ACTION_LOGP] = distribution.logp(own[Columns.ACTIONS])
                found[module_id] = {name: own[name] for name in (Columns.ACTIONS, Columns.ACTION_LOGP) if name in own}
        _check_dtypes({module_id: own[Columns.ACTIONS] for module_id, own in found.items()})
        try:
            put_together(columns, list(found.values()))
        except (RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise unlike_outputs(found, error) from error


def _check_dtypes(actions: Mapping[ModuleID, Any]) -> None:
    """Checks that modules do not mix integer and float actions, since joining them would make all floats."""
    dtypes = {m: own.dtype for m, own in actions.items() if isinstance(own, (torch.Tensor, np.ndarray))}
    floats = [m for m, dtype in dtypes.items() if "float" in str(dtype)]
    if 0 < len(floats) < len(dtypes):
        raise ModuleError(
            f"GetActions: module {floats[0]!r} output 'actions' as {dtypes[floats[0]]}, other modules for agents with "
            f"like spaces as whole numbers. Return them as torch.int64."
        )


def samples(dist_cls: type[Distribution], explore: bool | None) -> bool:
    """Whether actions of a distribution class are sampled, and not the most likely ones."""
    return bool(explore) or getattr(dist_cls, "always_samples", False)


def _noise(source: Any, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
    """Returns the noise for all rows of a group; None to draw from torch's generator.

    Args:
        source: The runner's ActionNoise; None without one.
        columns: The group. ActionNoise knows the rows of runners only.
        dist_cls: The distribution class.
    """
    if source is None or isinstance(columns.rows, EpisodeRows) or not issubclass(dist_cls, Distribution):
        return None
    noise = source.for_rows(columns, dist_cls)
    if noise is not None and columns[Columns.ACTION_DIST_INPUTS].ndim > noise.ndim:
        return noise.unsqueeze(1)  # for a stateful module's time axis of length 1
    return noise


def _dist_cls(module_id: ModuleID, module: RLModule, explore: bool | None) -> type[Distribution]:
    dist_cls = module.get_exploration_action_dist_cls() if explore else module.get_inference_action_dist_cls()
    if not hasattr(dist_cls, "from_logits"):
        raise ModuleError(
            f"GetActions: expected the action distribution of module {module_id!r} to be a subclass of Distribution, "
            f"got {dist_cls!r}. Return one from its get_..._action_dist_cls methods."
        )
    return dist_cls


def _check_inputs(module_id: ModuleID, module: RLModule, explore: bool | None, columns: Mapping[str, Any]) -> None:
    """Checks that a module's outputs fit its distribution."""
    dist_cls, space = _dist_cls(module_id, module, explore), module.action_space
    inputs = _inputs(module_id, columns)
    if space is None or not issubclass(dist_cls, Distribution):
        return
    wanted = dist_cls.required_input_dim(space)
    found = tuple(getattr(inputs, "shape", ()))
    rows = columns.splits[-1] if isinstance(columns, ColumnGroup) else None
    if found and rows is not None and found[0] != rows:
        raise ModuleError(
            f"GetActions: module {module_id!r} output 'action_dist_inputs' of shape {found} for {rows} rows. Return "
            f"one row for each input row, in the same order."
        )
    if not found or found[-1] != wanted:
        raise ModuleError(
            f"GetActions: module {module_id!r} output 'action_dist_inputs' of shape {found}, but {dist_cls.__name__} "
            f"needs {wanted} numbers in each row for actions of {describe(space)}. Give the last layer of its policy "
            f"{wanted} outputs."
        )


def _inputs(module_id: ModuleID, columns: Mapping[str, Any]) -> torch.Tensor:
    if Columns.ACTION_DIST_INPUTS not in columns:
        raise _no_actions(module_id, columns)
    return columns[Columns.ACTION_DIST_INPUTS]


def _no_actions(module_id: ModuleID, names: Iterable[str]) -> ModuleError:
    return ModuleError(
        f"GetActions: module {module_id!r} output {sorted(names)}, but neither 'actions' nor 'action_dist_inputs'. "
        f"Return one of them from its _forward."
    )
