"""Chooses actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import MODULE_TO_ENV, ConnectorV2
from marl_connectors.connectors.device_columns import columns_to_host
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.episodes.episode_rows import EpisodeRows
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.module_columns import put_together, unlike_outputs
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe
from marl_connectors.typing import ModuleID

ACTION_NOISE = "action_noise"
"""Key in ``shared_data``: the runner's ActionNoise, so that sampled actions follow from the run's seed."""


class GetActions(ConnectorV2):
    """Adds ``actions`` and ``action_logp``, unless the module put out ``actions`` itself.

    Some modules may put out ``actions``, as rules do, and others beside them not.
    Reads ``action_dist_inputs``, as parameters of the module's exploration (or inference) distribution; samples when
    exploring, else takes the most likely action. Keeps no state.

    What modules put out on a GPU is wanted by the trajectories, on the CPU, in any case. So it is brought there first,
    in one copy whatever the number of columns and modules, and actions are chosen there.
    """

    belongs_in = (MODULE_TO_ENV,)

    phase_after = Phase.TENSORS

    def __init__(self, input_observation_space=None, input_action_space=None, *, defer_logp: bool = False):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            defer_logp: In columns, leave ``action_logp`` to be computed once for a whole fragment, from the recorded
                inputs and actions. Only where no later piece changes either.
        """
        super().__init__(input_observation_space, input_action_space)
        self._defer_logp = defer_logp
        self._defers_now = False  # and not for a fragment in which modules of different classes may act
        self._asked: tuple[Any, bool | None, Any] | None = None
        self._common: type[Distribution] | None = None

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Brings all groups at once, where they are on a device."""
        columns_to_host(groups)

    def on_columns(
        self,
        *,
        rl_module: Any,
        columns: ColumnGroup,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A hot path: one distribution for all modules of a group, if they agree on its class."""
        if Columns.ACTIONS in columns and Columns.ACTIONS not in columns.holders:
            return
        if isinstance(rl_module, RLModule):
            rl_module = dict.fromkeys(columns.module_ids, rl_module)
        dist_cls = self._common_dist_cls(rl_module, columns, explore)
        source = shared_data.get(ACTION_NOISE) if shared_data and explore else None
        noise = None
        if source is not None and dist_cls is not None and not isinstance(columns.rows, EpisodeRows):
            noise = source.for_rows(columns, dist_cls)  # of a runner's rows
        if noise is not None and columns[Columns.ACTION_DIST_INPUTS].ndim > noise.ndim:
            noise = noise.unsqueeze(1)  # for a stateful module's time axis of length 1
        with source.torch_stream() if source is not None and noise is None else nullcontext():
            if dist_cls is None or Columns.ACTIONS in columns:
                self._module_by_module(rl_module, columns, explore, noise)
                return
            distribution = dist_cls.from_logits(columns[Columns.ACTION_DIST_INPUTS])
            columns[Columns.ACTIONS] = distribution.sample(noise) if explore else distribution.to_deterministic()
        if self._defers_now:
            columns.action_dist_cls = dist_cls
        else:
            columns[Columns.ACTION_LOGP] = distribution.logp(columns[Columns.ACTIONS])

    def bound_dist_cls(
        self, rl_module: Any, module_ids: Sequence[ModuleID], action_space: Any, explore: bool, num_inputs: int
    ) -> tuple[type[Distribution], bool] | None:
        """The distribution class of modules that put out ``[B, num_inputs]``, and whether logp is left for later.

        None if they have several, or one that draws without noise, or that takes another number of inputs.
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
        if explore and not dist_cls.draws_from_noise(num_inputs):
            return None
        return dist_cls, self._defer_logp and self._is_common(dist_cls, rl_module, action_space, explore)

    def _is_common(self, dist_cls: Any, rl_module: Any, action_space: Any, explore: bool | None) -> bool:
        """Whether all modules for an action space choose by one distribution class, whoever acts later."""
        peers = {
            _dist_cls(m, module, explore) for m, module in rl_module.items() if module.action_space == action_space
        }
        return len(peers | {dist_cls}) == 1

    def _common_dist_cls(self, rl_module: Any, columns: ColumnGroup, explore: bool | None) -> type[Distribution] | None:
        """The distribution class of all modules of a group that choose by one, asked for once; None if they differ."""
        asked = (columns.rows, explore, columns.holders)
        if self._asked is None or self._asked[0] is not asked[0] or self._asked[1:] != asked[1:]:
            choosing = [m for m in columns.module_ids if not columns.is_of(m, Columns.ACTIONS)]
            classes = {_dist_cls(m, rl_module[m], explore) for m in choosing}
            for module_id in choosing:
                if not columns.is_of(module_id, Columns.ACTION_DIST_INPUTS):
                    raise _no_actions(module_id, [name for name in columns if columns.is_of(module_id, name)])
            _check_inputs(choosing[0], rl_module[choosing[0]], explore, columns)
            self._asked = asked
            self._common = classes.pop() if len(classes) == 1 else None
            space = columns.rows.action_space
            self._defers_now = self._defer_logp and self._is_common(self._common, rl_module, space, explore)
        return self._common

    def _module_by_module(
        self, rl_module: Any, columns: ColumnGroup, explore: bool | None, noise: torch.Tensor | None
    ) -> None:
        """For modules that put out actions themselves beside others, or whose distributions are of several classes."""
        found: dict[ModuleID, dict[str, Any]] = {}
        for (module_id, part), (begin, end) in zip(columns.module_columns(), pairwise(columns.splits), strict=True):
            own = dict(part)
            if Columns.ACTIONS not in own:
                _add_actions(module_id, rl_module[module_id], own, explore, None if noise is None else noise[begin:end])
            found[module_id] = {name: own[name] for name in (Columns.ACTIONS, Columns.ACTION_LOGP) if name in own}
        _check_kinds({module_id: own[Columns.ACTIONS] for module_id, own in found.items()})
        try:
            put_together(columns, list(found.values()))
        except (RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise unlike_outputs(found, error) from error


def _check_kinds(actions: Mapping[ModuleID, Any]) -> None:
    """Whole numbers of one module would become floats beside another one's."""
    kinds = {m: own.dtype for m, own in actions.items() if isinstance(own, (torch.Tensor, np.ndarray))}
    floats = [m for m, kind in kinds.items() if "float" in str(kind)]
    if 0 < len(floats) < len(kinds):
        raise ModuleError(
            f"GetActions: module {floats[0]!r} put out 'actions' as {kinds[floats[0]]}, other modules for agents with "
            f"like spaces as whole numbers. Give them as torch.int64."
        )


def _add_actions(
    module_id: ModuleID,
    module: RLModule,
    columns: dict[str, Any],
    explore: bool | None,
    noise: torch.Tensor | None = None,
) -> None:
    distribution = _dist_cls(module_id, module, explore).from_logits(_inputs(module_id, columns))
    columns[Columns.ACTIONS] = distribution.sample(noise) if explore else distribution.to_deterministic()
    columns[Columns.ACTION_LOGP] = distribution.logp(columns[Columns.ACTIONS])


def _dist_cls(module_id: ModuleID, module: RLModule, explore: bool | None) -> type[Distribution]:
    dist_cls = module.get_exploration_action_dist_cls() if explore else module.get_inference_action_dist_cls()
    if not hasattr(dist_cls, "from_logits"):
        raise ModuleError(
            f"GetActions: the action distribution of module {module_id!r} is {dist_cls!r}, no Distribution."
        )
    return dist_cls


def _check_inputs(module_id: ModuleID, module: RLModule, explore: bool | None, columns: Mapping[str, Any]) -> None:
    """Holds what a module put out against what its distribution needs."""
    dist_cls, space = _dist_cls(module_id, module, explore), module.action_space
    inputs = _inputs(module_id, columns)
    if space is None or not issubclass(dist_cls, Distribution):
        return
    wanted = dist_cls.required_input_dim(space)
    found = tuple(getattr(inputs, "shape", ()))
    rows = len(columns.rows) if isinstance(columns, ColumnGroup) else None
    if found and rows is not None and found[0] != rows:
        raise ModuleError(
            f"GetActions: module {module_id!r} put out 'action_dist_inputs' of shape {found} for {rows} rows. Give "
            f"every row that came in one that goes out, in the same order."
        )
    if not found or found[-1] != wanted:
        raise ModuleError(
            f"GetActions: module {module_id!r} put out 'action_dist_inputs' of shape {found}, but {dist_cls.__name__} "
            f"needs {wanted} numbers in each row for actions of {describe(space)}. Give the last layer of its policy "
            f"so many outputs."
        )


def _inputs(module_id: ModuleID, columns: Mapping[str, Any]) -> torch.Tensor:
    if Columns.ACTION_DIST_INPUTS not in columns:
        raise _no_actions(module_id, columns)
    return columns[Columns.ACTION_DIST_INPUTS]


def _no_actions(module_id: ModuleID, names: Iterable[str]) -> ModuleError:
    return ModuleError(
        f"GetActions: module {module_id!r} put out {sorted(names)}, but neither 'actions' nor 'action_dist_inputs'. "
        f"Return one of them from its _forward."
    )
