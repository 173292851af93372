"""Checks that observations, action distribution inputs and actions are finite numbers while agents act."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.env_runners.data_checks import owner_of
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.env_runners.lane_group import LaneGroup
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError, ModuleError
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID

_CHECKED = (Columns.ACTION_DIST_INPUTS, Columns.ACTIONS)


def check_outputs(
    group: LaneGroup, rl_module: Any, episodes: Callable[[], Iterable[tuple[int, Episode]]] = lambda: ()
) -> None:
    """Checks the module outputs that were recorded in a whole fragment, once at the end of the fragment.

    Outputs for an observation that is NaN are ignored here. The check of observations reports them.

    Args:
        group: The lane group whose rollout is checked.
        rl_module: The modules, for the error message.
        episodes: Returns the episodes that have rows in the rollout, each with its ``env_index``, for the error
            message.

    Raises:
        ModuleError: If an output is NaN or infinite. Logits of -inf are allowed. The message names the module, the
            agent and the step, and a parameter that is not finite, if there is one.
    """
    rollout = group.rollout
    begin = group.lookback * rollout.num_lanes
    own = {name: rollout.columns[name] for name in _CHECKED if name in rollout.columns}
    found = _first_bad({name: tree_map(lambda leaf: leaf[begin:], column) for name, column in own.items()})
    if found is None:
        return
    name, row, value = found
    position = begin + row
    seen = [leaf[position] for leaf in leaves(rollout.source(Columns.OBS))]
    if any(np.issubdtype(leaf.dtype, np.floating) and np.isnan(leaf).any() for leaf in seen):
        return
    owner, t = owner_of(group, position, episodes), int(rollout.columns[Columns.T][position])
    if owner is None:  # the row belongs to an episode that was dropped
        module_ids = group.rows.module_ids
        module_id = next((m for m in module_ids if _bad_parameter(rl_module[m])), module_ids[0])
        raise _not_finite(module_id, rl_module[module_id], name, value, f"at env step {t}")
    own = owner[-1]
    module_id = own.module_id or DEFAULT_MODULE_ID
    whose = "" if own.agent_id is None else f"for agent {own.agent_id!r} "
    raise _not_finite(module_id, rl_module[module_id], name, value, f"{whose}at env step {t}")


def check_seen_rows(groups: Sequence[ColumnGroup]) -> None:
    """Checks the observations that modules get in one step.

    Args:
        groups: The forward batch, group by group.

    Raises:
        ConnectorError: If an observation is not finite. The message names the module.
    """
    # This runs in every step: flags of tensors on a device are collected, and copied to the host together.
    on_device: list[tuple[ColumnGroup, torch.Tensor]] = []
    for group in groups:
        for leaf in leaves(group.get(Columns.OBS)):
            if isinstance(leaf, np.ndarray):
                if leaf.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(leaf), None):
                    raise _not_seen(group)
            elif isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                on_device.append((group, torch.isfinite(leaf).all()))
    if not on_device:
        return
    for (group, _), is_finite in zip(on_device, all_on_host([flag for _, flag in on_device]), strict=True):
        if not is_finite:
            raise _not_seen(group)


def _not_seen(group: ColumnGroup) -> ConnectorError:
    return ConnectorError(
        f"policy: the observations of module {group.module_ids[0]!r} are not finite. If a connector piece reads "
        f"rewards, pass them too (reward=..., rewards=...). Otherwise, check the observation."
    )


def check_outputs_of_rows(columns: ColumnGroup, rl_module: Any) -> None:
    """Checks the module outputs for a group's rows in one step.

    Args:
        columns: The module outputs and actions of the group.
        rl_module: The modules, for the error message.

    Raises:
        ModuleError: If an output is NaN or infinite. Logits of -inf are allowed.
    """
    found = _first_bad(columns)
    if found is not None:
        name, row, value = found
        module_id = columns.module_ids[int(np.searchsorted(columns.splits, row, "right")) - 1]
        raise _not_finite(module_id, rl_module[module_id], name, value, f"in row {row} of the observations")


def _first_bad(columns: Mapping[str, Any]) -> tuple[str, int, float] | None:
    """Returns the name of a column, a row and a number that is not finite, or None. Logits may be -inf."""
    for name in _CHECKED:
        for leaf in leaves(columns[name]) if name in columns else ():
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind != "f" or not leaf.size:
                continue
            largest = np.maximum.reduce(leaf, None)  # it is NaN if any number is NaN; `max` calls it through Python
            if largest < np.inf and (name == Columns.ACTION_DIST_INPUTS or leaf.min() > -np.inf):
                continue
            bad = ~(leaf < np.inf) if name == Columns.ACTION_DIST_INPUTS else ~np.isfinite(leaf)
            place = np.argwhere(bad)[0]
            return name, int(place[0]), float(leaf[tuple(place)])
    return None


def _bad_parameter(module: torch.nn.Module) -> str | None:
    return next((name for name, parameter in module.named_parameters() if not parameter.isfinite().all()), None)


def _not_finite(module_id: ModuleID, module: torch.nn.Module, name: str, value: float, where: str) -> ModuleError:
    parameter = _bad_parameter(module)
    cause = (
        f"Its parameter {parameter!r} is not finite: something has overwritten it."
        if parameter
        else "Its parameters are finite: check its forward pass, the layers that it shares, and the observations that "
        "connector pieces compute for it."
    )
    return ModuleError(
        f"module {module_id!r} ({type(module).__name__}): it output {name!r} with {value} {where}, so no action can be "
        f"chosen. {cause}"
    )
