"""Forward passes of plain modules as a handful of array operations that are bound beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn.modules import module as torch_module

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.rl_module.array_layers import ArrayLayer, is_watched, run_layers
from marl_connectors.rl_module.encoders import Encoder, FlatPart
from marl_connectors.rl_module.layers import ACTIVATIONS, MLP, LayerNorm, Linear
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule

_KNOWN = {MLP, Encoder, FlatPart, Linear, LayerNorm, nn.ModuleList, *ACTIVATIONS.values()}
"""Layers whose forward passes are known here; somebody may have put others in their place."""
Finish = Callable[[np.ndarray], np.ndarray]
_FEW = 8
"""Up to how many modules with unlike numbers of rows are run one after another; more of them pay when stacked."""


class ArrayForward:
    """What the modules of a group put out as ``action_dist_inputs``, without a call of torch or of a module.

    A network of 2x64 does 64 rows in 15 us. As much again goes by until torch, the modules and the dicts between them
    have all been called, and all that comes of it is always the same: which matrices are multiplied.

    The matrices of stacked modules are the parameters' own memory. Those of a module alone are copies that lie in the
    order in which they are multiplied, made anew when a parameter was changed in place. Whatever else may change
    (hooks, layers, parameters that are replaced) is not seen, so a forward pass is bound anew for each sample.
    """

    __slots__ = ("_finish", "_layers", "_lead", "_own", "_parameters", "_versions")

    def __init__(
        self,
        layers: Sequence[ArrayLayer],
        finish: Finish | None,
        lead: tuple[int, ...],
        parameters: Sequence[nn.Parameter],
    ):
        """Takes the layers.

        Args:
            layers: One after another.
            finish: What is done with the last one's outputs.
            lead: ``(B,)``, or ``(M, B)`` for ``M`` stacked modules of ``B`` rows each.
            parameters: What the layers are over.
        """
        self._own = layers
        self._finish = finish
        self._lead = lead
        self._parameters = parameters if len(lead) == 1 else ()
        self._versions: list[int] = []
        self._layers = layers

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """``[rows, n]`` float32 of ``[rows, k]`` float32."""
        is_stacked = len(self._lead) > 1
        versions = [parameter._version for parameter in self._parameters]
        if versions != self._versions:
            self._versions = versions
            self._layers = [layer._replace(weight=np.ascontiguousarray(layer.weight)) for layer in self._own]
        outputs = run_layers(observations.reshape(*self._lead, -1) if is_stacked else observations, self._layers)
        if self._finish is not None:
            outputs = self._finish(outputs)
        return outputs.reshape(len(observations), -1) if is_stacked else outputs


class SeparateForwards:
    """The same for a few modules with unlike numbers of rows: one after another."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[tuple[slice, ArrayForward]]):
        """Takes the rows of each module, and its forward pass."""
        self._parts = parts

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """As ArrayForward."""
        return np.concatenate([forward(observations[rows]) for rows, forward in self._parts])


class ArrayForwards:
    """Finds the array operations of groups of rows, for as long as nobody changes the modules."""

    def __init__(self, rl_module: MultiRLModule):
        """Takes the modules."""
        plain = type(rl_module) is MultiRLModule and not has_own_methods(rl_module) and not has_hooks(rl_module)
        with torch.no_grad():  # as it is when acting
            self._rl_module = rl_module if plain and not is_watched() else None
        self._known: dict[int, tuple[Sequence[MLP], Finish | None]] = {}

    def of_group(self, group: ColumnGroup) -> ArrayForward | SeparateForwards | None:
        """The forward pass for acting on a group's rows; None if it takes more than plain layers over vectors."""
        if self._rl_module is None:
            return None
        ids = group.module_ids
        if len(ids) == 1:
            return self._of_module(self._rl_module[ids[0]], (len(group.rows),))
        bucket = self._rl_module.bucket_of(ids)
        if bucket is not None and group.rows_per_module is not None and ids == bucket.module_ids:
            return self._of_module(bucket.twin, (len(ids), group.rows_per_module))
        if len(ids) > _FEW:
            return None
        rows = [slice(begin, end) for begin, end in pairwise(group.splits)]
        parts = []
        for module_id, own in zip(ids, rows, strict=True):
            forward = self._of_module(self._rl_module[module_id], (own.stop - own.start,))
            if forward is None:
                return None
            parts.append((own, forward))
        return SeparateForwards(parts)

    def _of_module(self, module: RLModule, lead: tuple[int, ...]) -> ArrayForward | None:
        if id(module) not in self._known:
            parts = _acting_layers(module)
            self._known[id(module)] = parts, module.acting_outputs() if parts else None
        parts, finish = self._known[id(module)]
        layers = [mlp.array_layers(lead[-1]) for mlp in parts]
        if not layers or any(own is None for own in layers):
            return None
        parameters = [parameter for mlp in parts for parameter in mlp.layers.parameters()]
        return ArrayForward([layer for own in layers for layer in own or ()], finish, lead, parameters)


def _acting_layers(module: RLModule) -> Sequence[MLP]:
    """Those that the module's own class names, unless somebody has changed how any of them is called."""
    space = module.observation_space
    if "acting_layers" not in vars(type(module)) or not isinstance(space, spaces.Box):
        return ()
    if len(space.shape) != 1 or space.dtype not in (np.float32, np.float64) or has_own_methods(module):
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
