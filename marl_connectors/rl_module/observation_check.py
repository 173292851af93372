"""Whether modules are given observations of the shape that they were built for."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.errors import ModuleError
from marl_connectors.spaces import describe


def check_observations(group: ColumnGroup, rl_module: Any, *, train: bool) -> None:
    """Holds the ``obs`` of a group against the spaces of its modules; what is no Box is not looked at.

    Args:
        group: In tensors or arrays.
        rl_module: The modules.
        train: Whether the learner pipeline has made it, or the env-to-module pipeline.

    Raises:
        ModuleError: If a shape differs; names the module, the pipeline and both shapes.
    """
    shape = tuple(getattr(group.get(Columns.OBS), "shape", ()))
    if not shape:
        return
    for module_id in group.module_ids:
        space = getattr(rl_module[module_id], "observation_space", None)
        own = shape[1:] if Columns.STATE_IN not in group else shape[2:]  # behind rows and, when acting, time
        if isinstance(space, Box) and own != space.shape:
            pipeline = "learner" if train else "env-to-module"
            hint = (
                "A piece that changes observations in the batch only, such as FrameStacking, has to stand in both "
                "pipelines."
                if train
                else "A connector piece that changes observations must say so in recompute_output_observation_space."
            )
            raise ModuleError(
                f"module {module_id!r}: it was built for {describe(space)}, but the {pipeline} pipeline gives it "
                f"observations of shape {own}. {hint}"
            )
