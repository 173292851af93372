"""Acting in arrays: in the place of modules, and of the pieces between arrays and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from gymnasium import spaces

from marl_connectors.accelerate.array_forward import BoundForward, bind_forward, can_be_bound
from marl_connectors.accelerate.unchanged import is_unchanged
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_pipeline_v2 import runs_pieces
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.module_to_env.get_actions import GetActions, samples
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
    RemoveSingleTsTimeRankFromBatch,
)
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import apply_mask_of_module
from marl_connectors.trees import tree_map


class ForwardAndChoice:
    """The BoundGroup of a forward pass in arrays."""

    def __init__(self, forward: BoundForward, run: Callable[[], None], choose: Callable[[], None] | None, plain: bool):
        """Binds a group.

        Args:
            forward: The forward pass.
            run: Runs it.
            choose: Chooses the actions; None if pieces have to do it.
            plain: Whether NormalizeAndClipActions leaves actions as they are that were chosen here.
        """
        self.load = forward.load
        self.run = run
        self.choose = choose
        self._plain = plain

    def replaces(self, piece: ConnectorV2 | None) -> bool:
        """Whether a later module-to-env piece would change nothing. Outputs in arrays have no time axis."""
        if type(piece) is RemoveSingleTsTimeRankFromBatch:
            return True
        return self._plain and self.choose is not None and is_unchanged(piece, NormalizeAndClipActions)


class ArrayActing:
    """The ActingInArrays of the library's modules and default pieces."""

    def __init__(self, env_to_module: Any, module_to_env: Any, rl_module: MultiRLModule):
        """Looks at the pieces and the modules."""
        self._rl_module = rl_module
        before, self._after = list(env_to_module), list(module_to_env)
        self.joins_in = runs_pieces(env_to_module) and _are(before[-1:], [NumpyToTensor])
        self.joins_out = runs_pieces(module_to_env) and _are(self._after[:2], [GetActions, TensorToNumpy])

    @property
    def applies(self) -> bool:
        """Whether forward passes can be bound now."""
        return can_be_bound(self._rl_module)

    def bind(
        self, columns: ColumnGroup, out: ColumnGroup, *, explore: bool, noise: Any, call: Callable[..., None]
    ) -> ForwardAndChoice | None:
        """Binds a group of rows; returns None if its modules have to be called."""
        rows: Any = columns.rows
        forward = bind_forward(self._rl_module, rows.module_ids, rows.splits) if self.joins_in else None
        if forward is None or (forward.is_stateful and not self._drops_time):
            return None
        space = out.rows.action_space
        is_plain = isinstance(space, spaces.Discrete) and not space.start
        is_plain = is_plain and all(type(piece) in DEFAULT_PIECES for piece in self._after)
        run = partial(self._run, forward, columns, out, call)
        return ForwardAndChoice(forward, run, self._choice(forward, out, explore, noise), is_plain)

    @property
    def _drops_time(self) -> bool:
        """Whether no user's piece reads the outputs of stateful modules while they have a time axis."""
        at = next((i for i, piece in enumerate(self._after) if type(piece) is RemoveSingleTsTimeRankFromBatch), None)
        return self.joins_out and at is not None and all(type(piece) in DEFAULT_PIECES for piece in self._after[:at])

    def _choice(self, forward: BoundForward, out: ColumnGroup, explore: bool, noise: Any) -> Callable[[], None] | None:
        """Returns a call that chooses actions in arrays. None if GetActions chooses them in tensors."""
        if not self.joins_out:
            return None
        get_actions: Any = self._after[0]
        space = out.rows.action_space
        found = get_actions.bound_dist_cls(self._rl_module, out.module_ids, space, explore, forward.num_inputs)
        if found is None:
            return None
        dist_cls, is_later = found
        out.action_dist_cls = dist_cls if is_later else None
        noise = noise if samples(dist_cls, explore) else None
        return partial(_choose, dist_cls, noise, out)

    def _run(self, forward: BoundForward, columns: ColumnGroup, out: ColumnGroup, call: Callable[..., None]) -> None:
        """Runs a forward pass in arrays.

        Observations that it does not accept are for the modules. If these do not accept them either, they raise an
        error that explains why.
        """
        observations: Any = columns.get(Columns.OBS)
        if columns.holders or not forward.accepts(observations):
            NumpyToTensor().columns(columns, ARRAYS)
            call([columns], [out])
            for name, column in out.items():
                out[name] = tree_map(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, column)
            return
        inputs, state = forward(observations, columns.get(Columns.STATE_IN))
        out.clear()
        mask = columns.get(Columns.ACTION_MASK)
        if mask is not None:
            mask = out[Columns.ACTION_MASK] = mask.reshape(len(mask), -1)
            module: Any = self._rl_module[columns.module_ids[0]]
            inputs = inputs if module.handles_action_masks else apply_mask_of_module(module, inputs, mask)
        if state is not None:
            out[Columns.STATE_OUT] = state
        out[Columns.ACTION_DIST_INPUTS] = inputs


def _choose(dist_cls: type[Distribution], noise: Any, out: ColumnGroup) -> None:
    """Chooses actions from the modules' action distribution inputs."""
    inputs = out[Columns.ACTION_DIST_INPUTS]
    drawn = None if noise is None else noise.array_for_rows(out.rows, dist_cls, inputs.shape[-1])
    actions = out[Columns.ACTIONS] = dist_cls.actions_of_rows(inputs, drawn)
    if out.action_dist_cls is None:
        out[Columns.ACTION_LOGP] = dist_cls.logp_of_rows(inputs, actions)


def _are(pieces: Sequence[ConnectorV2], classes: Sequence[type]) -> bool:
    same = [type(piece) for piece in pieces] == list(classes)
    return same and all(is_unchanged(piece, type(piece)) for piece in pieces)
