"""Whether modules are given observations of the shape that they were built for, on their own device."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.errors import ModuleError
from marl_connectors.spaces import describe
from marl_connectors.trees import leaves, tree_map


def check_observations(group: ColumnGroup, rl_module: Any, *, train: bool) -> None:
    """Holds the ``obs`` of a group against the spaces and devices of its modules.

    Where a MultiRLModule has a ``_forward`` of its own, that decides what the modules see, so spaces are left out.

    Args:
        group: In tensors or arrays.
        rl_module: The modules.
        train: Whether the learner pipeline has made it, or the env-to-module pipeline.

    Raises:
        ModuleError: If a shape or a part differs; names the module, the pipeline and both shapes. If they are on
            another device than the module.
    """
    if Columns.OBS not in group:
        return
    observations = group[Columns.OBS]
    lead = 2 if Columns.STATE_IN in group else 1  # rows and, when acting, time
    pipeline = "learner" if train else "env-to-module"
    sees_as_given = not getattr(rl_module, "has_own_forward", False)
    for module_id in group.module_ids:
        space = getattr(rl_module[module_id], "observation_space", None)
        if sees_as_given and space is not None and not _fits(space, observations, lead):
            shape = tree_map(lambda leaf: tuple(leaf.shape)[lead:], observations)
            hint = (
                "A piece that changes observations in the batch only, such as FrameStacking, has to stand in both "
                "pipelines."
                if train
                else "A connector piece that changes observations must say so in recompute_output_observation_space."
            )
            raise ModuleError(
                f"module {module_id!r}: it was built for {describe(space)}, but the {pipeline} pipeline gives it "
                f"observations of shape {shape}. {hint}"
            )
        _check_device(module_id, rl_module[module_id], observations, pipeline)


def _fits(space: Space, values: Any, lead: int) -> bool:
    """Whether a batch has a space's parts and shapes; of spaces without a fixed shape everything has."""
    if isinstance(space, spaces.Dict):
        return isinstance(values, dict) and all(
            key in values and _fits(part, values[key], lead) for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        same_length = isinstance(values, tuple) and len(values) == len(space.spaces)
        return same_length and all(_fits(part, value, lead) for part, value in zip(space.spaces, values, strict=True))
    shape = getattr(values, "shape", None)
    return shape is None or space.shape is None or tuple(shape)[lead:] == space.shape


def _check_device(module_id: str, module: Any, observations: Any, pipeline: str) -> None:
    parameter = next(module.parameters(), None) if isinstance(module, torch.nn.Module) else None
    for leaf in leaves(observations):
        if parameter is not None and isinstance(leaf, torch.Tensor) and leaf.device != parameter.device:
            raise ModuleError(
                f"module {module_id!r}: its parameters are on {parameter.device}, but the {pipeline} pipeline gives it "
                f"observations on {leaf.device}. Leave modules where the algorithm puts them, or give NumpyToTensor "
                f"their device."
            )
