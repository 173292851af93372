"""From the newest observations to actions in array operations, bound once, wherever pieces and modules allow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_v2 import works_on_columns
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.rows import Rows
from marl_connectors.rl_module.array_forward import ArrayForward, ArrayForwards, SeparateForwards, has_own_methods
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule


class _BoundGroup(NamedTuple):
    """What is known of a group of rows as long as its lanes stay the same.

    Attributes:
        forward: The forward pass of its modules.
        dist_cls: The distribution of their actions.
        columns: What the module-to-env pieces get, the same object in each step.
        is_done: Whether the actions are what the environments get, and no later piece has anything to do.
    """

    forward: ArrayForward | SeparateForwards
    dist_cls: type[Distribution]
    columns: ColumnGroup
    is_done: bool


class SamplingPlan:
    """Runs the network and chooses actions in arrays, between the user's pieces.

    What depends on the lanes, the pieces and the modules alone is worked out once, when one of them changes: which
    pieces have anything to do, which matrices are multiplied, and how the modules' distribution chooses. Each step then
    calls that and nothing else. Pieces of a user's that work on columns are called between, and cost themselves.

    It applies where the library's own pieces stand at the joints (NumpyToTensor last, GetActions and TensorToNumpy
    first), all pieces work on columns, and modules are plain MLPs over vectors on the CPU. That is decided from the
    pieces, the modules and the batch alone, never from what was before, so that a resumed run decides alike.
    """

    def __init__(
        self,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        rl_module: MultiRLModule,
        noise: ActionNoise,
    ):
        """Takes what it binds; ``begin_sample`` looks at it."""
        self._env_to_module = env_to_module
        self._module_to_env = module_to_env
        self._rl_module = rl_module
        self._noise = noise
        self._forwards: ArrayForwards | None = None
        self._bound: dict[Rows, _BoundGroup | None] = {}
        self._explore = False
        self._before: Callable[[Sequence[ColumnGroup]], None] = _nothing
        self._after: Callable[[Sequence[ColumnGroup]], None] = _nothing

    def begin_sample(self, explore: bool, shared_data: dict[str, Any], metrics: Mapping[str, Any]) -> None:
        """Looks at pieces and modules, which may be others than in the sample before.

        Args:
            explore: Whether actions are sampled.
            shared_data: What pieces leave for one another.
            metrics: Where the pieces of each pipeline log.
        """
        self._bound, self._forwards, self._explore = {}, None, explore
        if not _fit(self._env_to_module, self._module_to_env):
            return
        self._forwards = ArrayForwards(self._rl_module)
        common = {"rl_module": self._rl_module, "explore": explore, "shared_data": shared_data}
        self._before = self._env_to_module.bound(slice(None, -1), metrics=metrics["env_to_module"], **common)
        self._after = self._module_to_env.bound(slice(2, None), metrics=metrics["module_to_env"], **common)

    def begin_layout(self) -> None:
        """Lanes were opened or closed, or act for other modules."""
        self._bound = {}

    @property
    def is_possible(self) -> bool:
        """Whether batches should stay arrays until somebody needs tensors."""
        return self._forwards is not None

    def make_batch(self, rows: Iterable[Rows]) -> ColumnBatch:
        """What all env-to-module pieces but NumpyToTensor make of the newest rows."""
        batch = ColumnBatch([ColumnGroup(own) for own in rows], Phase.ARRAYS)
        self._before(batch.groups)
        return batch

    def forward(self, batch: ColumnBatch) -> list[np.ndarray] | None:
        """``[B, n]`` float32, what the modules of each group put out; None where they need tensors."""
        if batch.phase is not Phase.ARRAYS or self._forwards is None:
            return None
        outputs = []
        for columns in batch.groups:
            observations = columns.get(Columns.OBS)
            if len(columns) != 1 or type(observations) is not np.ndarray or columns.holders or columns.sequences:
                return None
            if observations.dtype != np.float32:
                observations = observations.astype(np.float32)
            if columns.rows not in self._bound:
                self._bound[columns.rows] = self._bind(columns, observations)
            bound = self._bound[columns.rows]
            if bound is None:
                return None
            outputs.append(bound.forward(observations))
        return outputs

    def choose(self, batch: ColumnBatch, outputs: Sequence[np.ndarray]) -> ColumnBatch:
        """Actions, as all module-to-env pieces make them of what modules put out."""
        chosen: list[ColumnGroup] = []
        are_done = True
        for given, inputs in zip(batch.groups, outputs, strict=True):
            bound = self._bound[given.rows]
            assert bound is not None
            columns = bound.columns
            columns.clear()
            columns[Columns.ACTION_DIST_INPUTS] = inputs
            noise = self._noise.array_for_rows(columns, bound.dist_cls) if self._explore else None
            columns[Columns.ACTIONS] = bound.dist_cls.actions_of_rows(inputs, noise)
            if columns.action_dist_cls is None:
                columns[Columns.ACTION_LOGP] = bound.dist_cls.logp_of_rows(inputs, columns[Columns.ACTIONS])
            chosen.append(columns)
            are_done &= bound.is_done
        if not are_done:
            self._after(chosen)
        return ColumnBatch(chosen, Phase.ITEMS)

    def _bind(self, columns: ColumnGroup, observations: np.ndarray) -> _BoundGroup | None:
        assert self._forwards is not None
        forward = self._forwards.of_group(columns)
        if forward is None:
            return None
        own, get_actions = columns.like(), self._module_to_env[0]
        assert isinstance(get_actions, GetActions)
        own[Columns.ACTION_DIST_INPUTS] = inputs = forward(observations)
        dist_cls = get_actions.common_dist_cls(self._rl_module, own, self._explore)
        if dist_cls is None or (self._explore and not dist_cls.draws_from_noise(inputs.shape[-1])):
            return None
        own.action_dist_cls = dist_cls if get_actions.defers_logp else None
        return _BoundGroup(forward, dist_cls, own, self._leaves_actions(columns.rows.action_space))

    def _leaves_actions(self, space: Any) -> bool:
        """Whether the pieces behind TensorToNumpy leave actions of a space as they are."""
        later = [piece for piece in list(self._module_to_env)[2:] if not piece.nothing_on_columns]
        are_plain = [type(piece) for piece in later] == [NormalizeAndClipActions] and not has_own_methods(later[0])
        return are_plain and isinstance(space, spaces.Discrete) and not space.start


def _nothing(groups: Sequence[ColumnGroup]) -> None:
    pass


def _fit(env_to_module: EnvToModulePipeline, module_to_env: ModuleToEnvPipeline) -> bool:
    """Whether arrays can take the place of tensors between the two pipelines."""
    before, after = list(env_to_module), list(module_to_env)
    if type(env_to_module) is not EnvToModulePipeline or type(module_to_env) is not ModuleToEnvPipeline:
        return False
    joints: list[Any] = [*before[-2:], *after[:2]]
    if [type(piece) for piece in joints] != [BatchIndividualItems, NumpyToTensor, GetActions, TensorToNumpy]:
        return False
    if any(map(has_own_methods, [env_to_module, module_to_env, *joints])):
        return False
    return joints[1].device.type == "cpu" and all(works_on_columns(piece) for piece in (*before, *after))
