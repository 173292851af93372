"""The short way from the newest observations to actions, where pipelines and modules are plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.lane_table import LaneGroup
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.rl_module.distributions import TorchCategorical
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.prepared_forward import PreparedForward, has_own_methods, prepared_forward

_TO_MODULE = (AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems, NumpyToTensor)
_TO_ENV = (
    GetActions,
    TensorToNumpy,
    UnBatchToIndividualItems,
    ModuleToAgentUnmapping,
    NormalizeAndClipActions,
    ListifyDataForVectorEnv,
)
_OF_SEVERAL_AGENTS = (AgentToModuleMapping, ModuleToAgentUnmapping)
_USUAL = {Columns.ACTION_DIST_INPUTS, Columns.ACTIONS}


class _Part(NamedTuple):
    """One group: its lanes, what is recorded of it, and its modules' forward pass."""

    group: LaneGroup
    columns: ColumnGroup
    forward: PreparedForward


class PreparedActions:
    """Chooses Discrete actions as the default pieces and plain MLPs would, in a few array operations.

    Where all pieces are the default ones and all modules MLPs over float32 vectors on the CPU, everything between the
    newest observations and the actions is known beforehand: some matrix products, noise, and an argmax. They take half
    of the time that a step by way of all pieces and modules takes.

    Nobody can tell the difference but by the clock. In each sample, and for each new arrangement of lanes, the ordinary
    way is taken first, with all its checks. The short one is computed beside it for that one step, and is ``open``
    from then on if it has given the same, bit for bit. Pieces, modules and their hooks are looked at in each sample
    anew, so what changes between samples is seen.
    """

    def __init__(self) -> None:
        self._is_possible = False
        self._is_tried = False
        self._num_steps = 0  # in this arrangement, by the ordinary way
        self._explore = False
        self._parts: list[_Part] = []
        self._batch = ColumnBatch([])

    def begin_sample(self, env_to_module: EnvToModulePipeline, module_to_env: ModuleToEnvPipeline) -> None:
        """Looks at the pieces."""
        self._parts, self._is_tried = [], False
        self._is_possible = _are_default(env_to_module, module_to_env)

    def begin_arrangement(self) -> None:
        """Lanes were opened or closed."""
        self._parts, self._is_tried, self._num_steps = [], False, 0

    @property
    def is_open(self) -> bool:
        """Whether the next step can take the short way."""
        return bool(self._parts)

    def forward(self) -> list[np.ndarray]:
        """``[B, n]`` for each group what the modules make of the newest observations. A hot path."""
        return [
            part.forward(part.group.rollout.read(Columns.OBS, part.group.positions))  # type: ignore[arg-type]
            for part in self._parts
        ]

    def choose(self, inputs: Sequence[np.ndarray], noise: ActionNoise) -> ColumnBatch:
        """What the module-to-env pipeline makes of it; the same object in each step. A hot path."""
        for (_, columns, _), logits in zip(self._parts, inputs, strict=True):
            columns[Columns.ACTION_DIST_INPUTS] = logits
            if self._explore:
                drawn = noise.array_for_rows(columns, TorchCategorical)
                columns[Columns.ACTIONS] = (logits + drawn).argmax(-1)  # type: ignore[operator]
            else:
                columns[Columns.ACTIONS] = logits.argmax(-1)
        return self._batch

    def try_beside(
        self,
        chosen: ColumnBatch,
        live: Sequence[tuple[LaneGroup, Callable | None]],
        rl_module: MultiRLModule,
        explore: bool,
        noise: ActionNoise,
    ) -> None:
        """Opens the short way if it gives what the ordinary one has given, which has just been taken.

        Not in the first step of an arrangement: where each step brings another one, preparing would not pay.

        Args:
            chosen: What the module-to-env pipeline gave.
            live: The groups with lanes that act.
            rl_module: The modules.
            explore: Whether actions are sampled.
            noise: Of this step.
        """
        self._num_steps += 1
        if not self._is_possible or self._is_tried or self._num_steps < 2:
            return
        self._is_tried, self._explore = True, explore
        parts = []
        for (group, _), columns in zip(live, chosen.groups, strict=True):
            layered = Columns.OBS in group.rollout.layered
            if layered or columns.action_dist_cls is not TorchCategorical or set(columns) != _USUAL:
                return
            forward = prepared_forward(rl_module, columns)
            if forward is None:
                return
            own = columns.like()
            own.action_dist_cls = TorchCategorical
            parts.append(_Part(group, own, forward))
        self._parts, self._batch = parts, ColumnBatch([part.columns for part in parts], chosen.phase)
        self.choose(self.forward(), noise)
        if not all(map(_are_same, (part.columns for part in parts), chosen.groups)):
            self._parts = []


def _are_same(a: ColumnGroup, b: ColumnGroup) -> bool:
    return all(a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in _USUAL)


def _are_default(env_to_module: EnvToModulePipeline, module_to_env: ModuleToEnvPipeline) -> bool:
    """Whether all pieces are the default ones, on the CPU, and nobody has changed how one of them is called."""
    pieces = [*env_to_module, *module_to_env]
    kinds = [type(piece) for piece in pieces]
    expected = [*_TO_MODULE, *_TO_ENV]
    if kinds not in (expected, [kind for kind in expected if kind not in _OF_SEVERAL_AGENTS]):
        return False
    pipelines: list[ConnectorPipelineV2] = [env_to_module, module_to_env]
    return (
        [type(pipeline) for pipeline in pipelines] == [EnvToModulePipeline, ModuleToEnvPipeline]
        and not any(map(has_own_methods, [*pipelines, *pieces]))
        and env_to_module[NumpyToTensor].device.type == "cpu"  # type: ignore[attr-defined]
    )
