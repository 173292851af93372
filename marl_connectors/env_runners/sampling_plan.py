"""The way from the newest observations to recorded actions, bound once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from gymnasium import spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_pipeline_v2 import BoundCall, ConnectorPipelineV2, cause_of
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.failures import progress
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE, GetActions
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_action_array
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
    RemoveSingleTsTimeRankFromBatch,
)
from marl_connectors.env_runners.acting_check import check_outputs_of_rows, check_seen_rows
from marl_connectors.env_runners.action_noise import ActionNoise, random_columns
from marl_connectors.env_runners.checkpoint_data import batch_from_state, batch_to_state
from marl_connectors.env_runners.data_checks import check_actions, check_forward_batch
from marl_connectors.env_runners.lane_group import LaneGroup, LiveRows
from marl_connectors.env_runners.run_metrics import SamplingTimes
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.rl_module.architecture import Structure, has_own_methods, is_stackable
from marl_connectors.rl_module.array_forward import ArrayForward, SeparateForwards, bind_forward, can_be_bound
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.trees import tree_map

_NORMALIZES = NormalizeAndClipActions.on_columns
_REMEMBERED = 64
"""So many layouts stay bound: those of games in which few agents act at a time, or some come and go, return."""


class _Step(NamedTuple):
    """A call of the plan's own among those of pieces; it has the attributes of a BoundCall.

    Attributes:
        run: Does it.
        pipeline: None: its errors are raised as they are.
    """

    run: Callable[[], Any]
    pipeline: None = None


_Call = BoundCall | _Step


@dataclass(slots=True)
class _Layout:
    """All that follows from which modules have how many rows.

    Attributes:
        given: The groups as env-to-module pieces fill them.
        made: The groups with what modules put out and the actions.
        before: The env-to-module pieces.
        tensors: Makes tensors of the groups whose modules need them.
        forward: The modules.
        after: The choice of actions and the module-to-env pieces.
        forwards: What holds copies of parameters.
        begun: The ``begin`` after which these were taken.
        is_checked: Whether a batch and actions have been looked at.
    """

    given: list[ColumnGroup]
    made: list[ColumnGroup]
    before: list[_Call]
    tensors: list[_Call]
    forward: list[_Call]
    after: list[_Call]
    forwards: list[ArrayForward | SeparateForwards]
    begun: int
    is_checked: bool = False


class _Prepared(NamedTuple):
    """What env-to-module pieces made of observations before the step that needs it.

    Attributes:
        batch: The columns: in arrays if NumpyToTensor is still to come.
        explore: The flag that the pieces were given.
        before: What the pieces had learned and logged before, to take it back.
    """

    batch: ColumnBatch
    explore: bool
    before: Mapping[str, Any] | None


class SamplingPlan:
    """Runs pieces and modules on the newest rows, and records what comes of it.

    What depends only on the pieces, the modules, ``explore`` and the layout of the rows is worked out once, when one of
    them changes, and gives a list of calls without arguments: pieces, matrix products, the choice of actions. Every
    step runs that list. There is no other way: a piece of a user's is a call between the others, a module that needs
    torch is a call of its forward pass, and each costs what it does itself.

    Whoever has rows can feed a plan, in this order:

    1. ``begin(...)`` says which pieces and modules there are, and whether actions are sampled. It is called whenever
       somebody may have changed one of them.
    2. ``bind(rows)`` says which rows act: one Rows object for each group of agents with like spaces, the same objects
       as long as the layout stays as it is.
    3. ``act(times)`` gives the actions for the rows that are the newest now, one group after another.

    Batches are made in the step that needs them, with one exception: ``prepare`` runs the env-to-module pieces before
    episodes are handed out, as they may write to them. The next ``act`` takes what came of it, so that pieces see
    each observation once, and a checkpoint holds it.

    Attributes:
        looks_ahead: Whether there are env-to-module pieces that may write to episodes, or keep what they see.
    """

    def __init__(
        self,
        noise: ActionNoise,
        shared_data: dict[str, Any],
        episodes: Callable[[], Sequence[Any]],
        *,
        checks_each_step: bool = False,
    ):
        """Builds a plan without pieces and rows.

        Args:
            noise: The random numbers behind sampled actions.
            shared_data: What pieces leave for one another; the object stays the same.
            episodes: Gives the episodes whose agents act, for pieces that work on items.
            checks_each_step: Whether ``act`` checks that what modules see and put out is finite. Whoever acts for many
                steps checks all that was recorded at once.
        """
        self._noise = noise
        self._shared_data = shared_data
        self._episodes = episodes
        self._checks_each_step = checks_each_step
        self.looks_ahead = False
        self._explore = False
        self._begun = 0
        self._known_to: tuple[Any, ...] = ()
        self._structures: list[Structure] = []
        self._rows: Sequence[LiveRows] = ()
        self._layouts: dict[Any, _Layout] = {}
        self._layout: _Layout | None = None
        self._prepared: _Prepared | None = None
        self._without_logp: dict[LaneGroup, type[Distribution]] = {}

    # What is bound.

    def begin(
        self,
        env_to_module: ConnectorPipelineV2,
        module_to_env: ConnectorPipelineV2,
        rl_module: MultiRLModule,
        *,
        explore: bool,
        metrics: Mapping[str, Any],
    ) -> bool:
        """Looks at pieces and modules, which may be others than before.

        Args:
            env_to_module: From observations to a forward batch.
            module_to_env: From the modules' outputs to actions.
            rl_module: The modules.
            explore: Whether actions are sampled.
            metrics: Where the pieces of ``env_to_module`` and ``module_to_env`` log.

        Returns:
            Whether observations have to pass the pieces anew, because they did so under another ``explore``. The caller
            then puts back the observations that the pieces may have written over.
        """
        self._env_to_module, self._module_to_env, self._rl_module = env_to_module, module_to_env, rl_module
        self._explore, self._metrics = bool(explore), metrics
        self._joins_in = _ends_plain(env_to_module, [NumpyToTensor])
        self._joins_out = _begins_plain(module_to_env, [GetActions, TensorToNumpy])
        self.looks_ahead = any(type(piece) not in DEFAULT_PIECES for piece in env_to_module)
        self._begun += 1
        self._layout = None
        self._keep_bound()
        prepared = self._prepared
        if prepared is None or prepared.explore == self._explore or prepared.before is None:
            return False
        env_to_module.set_state(prepared.before["pieces"])
        metrics["env_to_module"].set_state(prepared.before["metrics"])
        self._prepared = None
        return True

    def _keep_bound(self) -> None:
        """Forgets what is bound, unless pieces and modules are what they were."""
        if not self.is_current:
            self._layouts, self._layout, self._known_to = {}, None, self._bound_to()
            self._structures = [Structure(own, [own]) for own in self._rl_module.values() if not is_stackable(own)]

    def _bound_to(self) -> tuple[Any, ...]:
        pipelines, rl_module = (self._env_to_module, self._module_to_env), self._rl_module
        return (
            *pipelines,
            *(pipeline._steps for pipeline in pipelines),
            *(self._metrics[name] for name in ("env_to_module", "module_to_env")),
            *(_is_plain(pipeline) for pipeline in pipelines),
            *(self._explore, self._joins_in, self._joins_out),
            rl_module,
            rl_module.buckets,  # another list whenever a module that can be stacked has changed
            can_be_bound(rl_module),
        )

    @property
    def is_current(self) -> bool:
        """Whether pieces and modules are the same objects as in the last ``begin``, with the same layers and hooks."""
        now = self._bound_to()
        is_same = len(now) == len(self._known_to) and all(map(is_, now, self._known_to))
        return is_same and all(structure.is_current for structure in self._structures)

    def bind(self, rows: Sequence[LiveRows]) -> None:
        """Says which rows act from now on, group by group."""
        self._rows, self._layout = rows, None

    def _bound(self) -> _Layout:
        """The layout of the rows, bound now if it has not been before."""
        key = tuple((id(rows.group.env_action_space), rows.module_ids, rows.splits) for rows in self._rows)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _REMEMBERED:
                self._layouts.clear()
            layout = self._layouts[key] = self._build()
        else:
            for rows, given, made in zip(self._rows, layout.given, layout.made, strict=True):
                given.rows = made.rows = rows
            if layout.begun != self._begun:
                for forward in layout.forwards:
                    forward.load()
                layout.begun = self._begun
        self._layout = layout
        return layout

    def _build(self) -> _Layout:
        given, made = ([ColumnGroup(rows) for rows in self._rows] for _ in range(2))
        common = {"rl_module": self._rl_module, "explore": self._explore, "shared_data": self._shared_data}
        to_module = {**common, "metrics": self._metrics["env_to_module"]}
        to_env = {**common, "metrics": self._metrics["module_to_env"]}
        before, after = self._env_to_module, self._module_to_env
        calls = _bound(
            before, ColumnBatch(given), self._episodes, to_module, slice(None, -1 if self._joins_in else None)
        )
        once = [call for call in calls if type(_piece_of(call)) is AgentToModuleMapping]
        self._run(once)  # which look at nothing but which modules have rows
        forwards = [self._forward_of(rows) for rows in self._rows]
        in_torch = [i for i, forward in enumerate(forwards) if forward is None]
        tensors: list[_Call] = []
        if self._joins_in and in_torch:
            part = ColumnBatch([given[i] for i in in_torch], Phase.ARRAYS)
            tensors += _bound(before, part, self._episodes, to_module, slice(-1, None))
        forward: list[_Call] = []
        chosen: list[_Call] = []
        for own, columns, out in zip(forwards, given, made, strict=True):
            if own is not None:
                forward.append(_Step(partial(self._run_arrays, own, columns, out)))
        if in_torch:
            parts = [[groups[i] for i in in_torch] for groups in (given, made)]
            forward.append(_Step(partial(self._run_torch, *parts)))
        for i, (own, out) in enumerate(zip(forwards, made, strict=True)):
            choice = None if own is None else self._choice_of(own, out)
            if choice is not None:
                chosen.append(BoundCall(choice, after, after[0], out))
            elif own is not None:
                chosen.append(_Step(partial(_as_tensors, out)))
                in_torch.append(i)
        if self._joins_out and in_torch:
            part = ColumnBatch([made[i] for i in sorted(in_torch)], Phase.TENSORS)
            chosen += _bound(after, part, self._episodes, to_env, slice(0, 2))
        batch = ColumnBatch(made, Phase.TENSORS)
        later = _bound(after, batch, self._episodes, to_env, slice(2 if self._joins_out else 0, None))
        if not in_torch:
            later = [call for call in later if not self._is_idle(call)]
        calls = [call for call in calls if call not in once]
        bound = [own for own in forwards if own is not None]
        return _Layout(given, made, calls, tensors, forward, [*chosen, *later], bound, self._begun)

    def _forward_of(self, rows: LiveRows) -> ArrayForward | SeparateForwards | None:
        if not self._joins_in:
            return None
        forward = bind_forward(self._rl_module, rows.module_ids, rows.splits)
        return forward if forward is None or not forward.is_stateful or self._drops_time else None

    @property
    def _drops_time(self) -> bool:
        """Whether no piece of a user's looks at the outputs of stateful modules while they have a time axis."""
        pieces = list(self._module_to_env)
        at = next((i for i, piece in enumerate(pieces) if type(piece) is RemoveSingleTsTimeRankFromBatch), None)
        return self._joins_out and at is not None and all(type(piece) in DEFAULT_PIECES for piece in pieces[:at])

    def _choice_of(self, forward: ArrayForward | SeparateForwards, out: ColumnGroup) -> Callable[[], None] | None:
        """Chooses actions in arrays; None where GetActions does so in tensors."""
        if not self._joins_out:
            return None
        get_actions: Any = self._module_to_env[0]
        space = out.rows.action_space
        found = get_actions.bound_dist_cls(self._rl_module, out.module_ids, space, self._explore, forward.num_inputs)
        if found is None:
            return None
        dist_cls, is_later = found
        out.action_dist_cls = dist_cls if is_later else None
        return partial(self._choose, dist_cls, dist_cls.bind_choice(), out)

    def _is_idle(self, call: _Call) -> bool:
        """Whether a call leaves what was chosen in arrays as it is."""
        piece, group = _piece_of(call), getattr(call, "group", None)
        if type(piece) is RemoveSingleTsTimeRankFromBatch:
            return True
        if type(piece) is not NormalizeAndClipActions or group is None:
            return False
        if type(piece).on_columns is not _NORMALIZES or has_own_methods(piece):
            return False
        space = group.rows.action_space
        is_plain = isinstance(space, spaces.Discrete) and not space.start
        return is_plain and all(type(other) in DEFAULT_PIECES for other in self._module_to_env)

    # The plan's own calls.

    def _run_arrays(self, forward: ArrayForward | SeparateForwards, columns: ColumnGroup, out: ColumnGroup) -> None:
        """A forward pass in arrays. A hot path."""
        observations: Any = columns.get(Columns.OBS)
        if columns.holders or not forward.accepts(observations):
            self._run_as_given(columns, out)
            return
        inputs, state = forward(observations, columns.get(Columns.STATE_IN))
        out.clear()
        mask = columns.get(Columns.ACTION_MASK)
        if mask is not None:
            mask = out[Columns.ACTION_MASK] = mask.reshape(len(mask), -1)
            inputs = self._masked(inputs, mask, columns)
        if state is not None:
            out[Columns.STATE_OUT] = state
        out[Columns.ACTION_DIST_INPUTS] = inputs

    def _run_as_given(self, columns: ColumnGroup, out: ColumnGroup) -> None:
        """For observations unlike those that the modules were built for, which know best what is wrong with them."""
        NumpyToTensor().on_columns(columns=columns)
        self._run_torch([columns], [out])
        for name, column in out.items():
            out[name] = tree_map(lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf, column)

    def _masked(self, inputs: np.ndarray, mask: np.ndarray, columns: ColumnGroup) -> np.ndarray:
        module: Any = self._rl_module[columns.module_ids[0]]
        if module.handles_action_masks:
            return inputs
        forbid = module.get_train_action_dist_cls().without_forbidden
        return forbid(torch.from_numpy(inputs), torch.from_numpy(mask)).numpy()

    def _run_torch(self, given: list[ColumnGroup], made: list[ColumnGroup]) -> None:
        """The modules' own forward passes."""
        batch, module = ColumnBatch(given, Phase.TENSORS), self._rl_module
        outputs = module.forward_exploration(batch) if self._explore else module.forward_inference(batch)
        for own, found in zip(made, outputs.groups, strict=True):
            own.take_from(found)

    def _choose(self, dist_cls: type[Distribution], choose: Any, out: ColumnGroup) -> None:
        """Actions of what modules put out. A hot path."""
        inputs = out[Columns.ACTION_DIST_INPUTS]
        noise = self._noise.array_for_rows(out.rows, dist_cls, inputs.shape[-1]) if self._explore else None
        actions = out[Columns.ACTIONS] = choose(inputs, noise)
        if out.action_dist_cls is None:
            out[Columns.ACTION_LOGP] = dist_cls.logp_of_rows(inputs, actions)

    # A step.

    @property
    def seen(self) -> list[ColumnGroup]:
        """What modules saw in the newest step, group by group."""
        return [] if self._layout is None else self._layout.given

    @property
    def made(self) -> list[ColumnGroup]:
        """What was put out and chosen in the newest step, group by group."""
        return [] if self._layout is None else self._layout.made

    def act(self, times: SamplingTimes, *, at_random: bool = False) -> list[Any]:
        """Actions for the newest rows, which are recorded there with all that modules put out. A hot path.

        Args:
            times: Where the time that this takes is added.
            at_random: Whether to draw actions from the action spaces instead of asking the modules. Observations pass
                the env-to-module pieces all the same.

        Returns:
            The actions as environments take them, ``[B, ...]`` arrays or trees of them for each group.
        """
        layout, call = self._layout or self._bound(), None
        began = perf_counter()
        progress.module_id = None
        try:
            if self._prepared is None:
                for columns in layout.given:
                    columns.clear()
                for call in layout.before:
                    call.run()
                call = None
            else:
                self._take_prepared(layout)
            if not layout.is_checked:
                check_forward_batch(ColumnBatch(layout.given), self._rl_module)
            if at_random:
                given = forwarded = perf_counter()
                made = [random_columns(self._noise, columns) for columns in layout.given]
            else:
                for call in layout.tensors:
                    call.run()
                if self._checks_each_step:
                    check_seen_rows(layout.given)
                given = perf_counter()
                for call in layout.forward:
                    call.run()
                forwarded = perf_counter()
                for call in layout.after:
                    call.run()
                made, call = layout.made, None
                if not layout.is_checked:
                    check_actions(ColumnBatch(made))
                    layout.is_checked = True
                if self._checks_each_step:
                    for columns in made:
                        check_outputs_of_rows(columns, self._rl_module)
            actions = self._recorded(made)
        except Exception as error:
            _raise_as_of(call, error)
        times.env_to_module += given - began
        times.rlmodule_inference += forwarded - given
        times.module_to_env += perf_counter() - forwarded
        return actions

    def _take_prepared(self, layout: _Layout) -> None:
        prepared = self._prepared
        assert prepared is not None
        for columns, kept in zip(layout.given, prepared.batch.groups, strict=True):
            columns.take_from(kept)
        if prepared.batch.phase is Phase.ARRAYS and not self._joins_in:  # somebody has begun to watch the pipeline
            to_tensors = list(self._env_to_module)[-1]
            to_tensors.before_columns(layout.given, self._rl_module)
            for columns in layout.given:
                to_tensors.on_columns(columns=columns, rl_module=self._rl_module)
        self._prepared = None

    def _run(self, calls: Sequence[_Call]) -> None:
        call: Any = None
        progress.module_id = None
        try:
            for call in calls:
                call.run()
        except Exception as error:
            _raise_as_of(call, error)

    def _recorded(self, made: Sequence[ColumnGroup]) -> list[Any]:
        """Writes down what was put out; the actions. A hot path."""
        actions: list[Any] = []
        for columns in made:
            group: LaneGroup = columns.rows.group  # type: ignore[attr-defined]
            columns.record_in(group.rollout, group.positions)
            if columns.action_dist_cls is not None:
                self._without_logp[group] = columns.action_dist_cls
            actions.append(env_action_array(columns))
        return actions

    def complete(self) -> None:
        """Computes the log-probabilities that were left to be computed for all rows since the last call at once."""
        for group, dist_cls in self._without_logp.items():
            rollout = group.rollout
            new = slice(group.lookback * rollout.num_lanes, (group.last_row + 1) * rollout.num_lanes)
            actions = tree_map(lambda leaf, rows=new: leaf[rows], rollout.columns[Columns.ACTIONS])
            logp = dist_cls.logp_of_rows(rollout.columns[Columns.ACTION_DIST_INPUTS][new], actions)
            rollout.record(new, {Columns.ACTION_LOGP: logp})
            if Columns.ACTION_DIST_INPUTS in rollout.given:  # others have put out actions themselves
                rollout.given[Columns.ACTION_LOGP] = rollout.given[Columns.ACTION_DIST_INPUTS].copy()
        self._without_logp.clear()

    # Observations that pass the pieces beside a step.

    def show(self, groups: list[ColumnGroup], episodes: Sequence[Any]) -> None:
        """Runs the env-to-module pieces on rows that nobody acts on: last observations."""
        first = slice(None, -1 if self._joins_in else None)  # nobody needs tensors of them
        common = {"rl_module": self._rl_module, "explore": self._explore, "shared_data": self._shared_data}
        common["metrics"] = self._metrics["env_to_module"]
        self._run(_bound(self._env_to_module, ColumnBatch(groups), lambda: episodes, common, first))

    def prepare(self) -> None:
        """Runs the env-to-module pieces on the newest rows now, for the next ``act``."""
        if self._prepared is not None:
            return
        before = {
            "pieces": self._env_to_module.get_state(),
            "metrics": self._metrics["env_to_module"].get_state(),
        }
        layout = self._layout or self._bound()
        for columns in layout.given:
            columns.clear()
        self._run(layout.before)
        if not layout.is_checked:
            check_forward_batch(ColumnBatch(layout.given), self._rl_module)
        kept = [columns.like() for columns in layout.given]
        for own, columns in zip(kept, layout.given, strict=True):
            own.take_from(columns)
        phase = Phase.ARRAYS if self._joins_in else Phase.TENSORS
        self._prepared = _Prepared(ColumnBatch(kept, phase), self._explore, before)

    def forget(self) -> None:
        """The newest rows are no longer those that ``prepare`` was called for, or that were acted on."""
        self._prepared = None
        self._without_logp.clear()

    # For checkpoints.

    def get_state(self, *, with_batch: bool) -> dict[str, Any]:
        """What the next ``act`` depends on beside the rows, as plain data and arrays; nothing without their batch."""
        prepared, own = self._prepared, {k: v for k, v in self._shared_data.items() if k != ACTION_NOISE}
        batch = ColumnBatch([]) if prepared is None else prepared.batch
        return {
            "batch": batch_to_state(batch, own) if with_batch else None,
            "exploring": self._explore if prepared is None else prepared.explore,
            "before_batch": None if prepared is None else prepared.before,
        }

    def set_state(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Takes what ``get_state`` gave, for the rows that ``bind`` was called with."""
        self.forget()
        saved = state["batch"]
        if saved is None:
            return
        batch, shared_data = batch_from_state(saved, self._rows if saved["groups"] else (), device)
        self._shared_data.update(shared_data)
        if state["before_batch"] is not None:
            self._prepared = _Prepared(batch, state["exploring"], state["before_batch"])


def _raise_as_of(call: Any, error: Exception) -> NoReturn:
    """Raises an error as that of the piece whose call has failed, or as it is."""
    if call is None or call.pipeline is None:
        raise error
    raise call.failure(error) from cause_of(error)


def _piece_of(call: _Call) -> ConnectorV2 | None:
    return call.piece if isinstance(call, BoundCall) else None


def _as_tensors(out: ColumnGroup) -> None:
    for name, column in out.items():
        out[name] = tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, column)


def _is_plain(pipeline: Any) -> bool:
    """Whether nobody has changed how the pipeline runs its pieces."""
    return (
        isinstance(pipeline, ConnectorPipelineV2)
        and type(pipeline).run is ConnectorPipelineV2.run
        and type(pipeline).__call__ is ConnectorPipelineV2.__call__
        and not has_own_methods(pipeline)
    )


def _are(pieces: Sequence[ConnectorV2], classes: Sequence[type]) -> bool:
    return [type(piece) for piece in pieces] == list(classes) and not any(map(has_own_methods, pieces))


def _ends_plain(pipeline: Any, classes: Sequence[type]) -> bool:
    """Whether a pipeline ends with pieces of the library's, which nobody has changed."""
    return _is_plain(pipeline) and _are(list(pipeline)[-len(classes) :], classes)


def _begins_plain(pipeline: Any, classes: Sequence[type]) -> bool:
    return _is_plain(pipeline) and _are(list(pipeline)[: len(classes)], classes)


def _bound(
    pipeline: Any, batch: ColumnBatch, episodes: Callable[[], Sequence[Any]], common: dict[str, Any], pieces: slice
) -> list[_Call]:
    """The pieces' calls; of a pipeline that somebody has changed, or watches, one call of it."""
    if _is_plain(pipeline):
        return pipeline.bind(batch, episodes=episodes, pieces=pieces, **common)
    phase = batch.phase

    def run() -> None:
        batch.phase = phase
        found = pipeline.run(batch, episodes=episodes(), **common)
        for group, made in zip(batch.groups, found.groups, strict=True):
            if made is not group:
                group.take_from(made)

    return [_Step(run)]
