"""Forward passes of plain modules as a handful of array operations that are looked up beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import nn
from torch.nn.modules import module as torch_module

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.rl_module.array_layers import ArrayLayer, run_layers
from marl_connectors.rl_module.encoders import Encoder, FlatPart
from marl_connectors.rl_module.layers import ACTIVATIONS, MLP, LayerNorm, Linear
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule

_KNOWN = {MLP, Encoder, FlatPart, Linear, LayerNorm, nn.ModuleList, *ACTIVATIONS.values()}
"""Layers whose forward passes are known here; somebody may have put others in their place."""


class PreparedForward:
    """What the modules of a group put out as ``action_dist_inputs``, without a call of torch or of a module.

    A network of 2x64 does 64 rows in 15 us. As much again goes by until torch, the modules and the dicts between them
    have all been called, and all that comes of it is always the same: which matrices are multiplied.

    The matrices are the parameters' own memory. So updates in place are seen. Whatever else may change (hooks, layers,
    parameters that are replaced) is not, so a forward pass is prepared anew for each sample.
    """

    __slots__ = ("_layers", "_lead")

    def __init__(self, layers: Sequence[ArrayLayer], lead: tuple[int, ...]):
        """Takes the layers.

        Args:
            layers: One after another.
            lead: ``(B,)``, or ``(M, B)`` for ``M`` stacked modules of ``B`` rows each.
        """
        self._layers = layers
        self._lead = lead

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """``[rows, n]`` float32 of ``[rows, k]`` float32. A hot path."""
        if len(self._lead) == 1:
            return run_layers(observations, self._layers)
        stacked = run_layers(observations.reshape(*self._lead, -1), self._layers)
        return stacked.reshape(len(observations), -1)


def prepared_forward(rl_module: MultiRLModule, group: ColumnGroup) -> PreparedForward | None:
    """The forward pass for acting on a group's rows; None if it takes more than plain layers on float32 vectors."""
    if type(rl_module) is not MultiRLModule or has_own_methods(rl_module) or has_hooks(rl_module):
        return None
    lead: tuple[int, ...] = (len(group.rows),)
    if len(group.module_ids) == 1:
        module = rl_module[group.module_ids[0]]
    else:
        bucket = rl_module.bucket_of(group.module_ids)
        if bucket is None or group.rows_per_module is None or group.module_ids != bucket.module_ids:
            return None
        module, lead = bucket.twin, (len(bucket.module_ids), group.rows_per_module)
    parts = _acting_layers(module)
    layers = [mlp.array_layers(lead[-1]) for mlp in parts]
    if not layers or any(own is None for own in layers):
        return None
    return PreparedForward([layer for own in layers for layer in own or ()], lead)


def _acting_layers(module: RLModule) -> Sequence[MLP]:
    """Those that the module's own class names, unless somebody has changed how any of them is called."""
    space = module.observation_space
    if "acting_layers" not in vars(type(module)) or not isinstance(space, spaces.Box):
        return ()
    if len(space.shape) != 1 or space.dtype != np.float32 or has_own_methods(module):
        return ()
    layers = module.acting_layers()
    for part in (part for mlp in layers for part in mlp.modules()):
        if type(part) not in _KNOWN or has_own_methods(part) or has_hooks(part):
            return ()
    return layers if all(isinstance(mlp, MLP) for mlp in layers) else ()


def has_own_methods(thing: Any) -> bool:
    """Whether somebody has replaced a method of this one object."""
    return not _methods(type(thing)).isdisjoint(vars(thing))


@lru_cache(256)
def _methods(cls: type) -> frozenset[str]:
    return frozenset(name for name in dir(cls) if callable(getattr(cls, name, None)))


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody is called before or after the module's forward pass."""
    own = module._forward_hooks or module._forward_pre_hooks
    return bool(own or torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
