"""The sampling plan: the list of calls that computes and records actions, prepared once for each lane layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from marl_connectors.accelerators import BoundGroup, bind_acting
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.connector_pipeline_v2 import BoundCall, ConnectorPipelineV2, cause_of, runs_pieces
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_action_array
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.connectors.running_stats import FRAGMENT
from marl_connectors.env_runners.acting_check import check_outputs_of_rows, check_seen_rows
from marl_connectors.env_runners.action_noise import ActionNoise, random_columns
from marl_connectors.env_runners.data_checks import check_actions, check_forward_batch
from marl_connectors.env_runners.forward_batch_state import ForwardBatchState, can_be_stored
from marl_connectors.env_runners.lane_group import LaneGroup, LiveRows, RestoredLanes
from marl_connectors.env_runners.run_metrics import SamplingTimes
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.state import decode, storable
from marl_connectors.rl_module.architecture import Structure, is_stackable
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID

_REMEMBERED = 64
"""The number of lane layouts that stay bound, because layouts recur if few agents act at a time or agents change."""


class _Step(NamedTuple):
    """A call of one of the plan's functions, with the attributes of a BoundCall.

    Attributes:
        run: Runs the function.
        pipeline: Always None. Errors of the call are raised unchanged.
    """

    run: Callable[[], Any]
    pipeline: None = None


_Call = BoundCall | _Step


@dataclass(slots=True)
class _Layout:
    """The bound calls of a lane layout, which says which modules have how many rows.

    Attributes:
        given: The groups of the forward batch, which the env-to-module pieces fill.
        made: The groups of the module outputs and actions.
        before: The calls of the env-to-module pieces.
        tensors: The calls that convert groups to tensors, if their modules need them.
        forward: The calls of the modules.
        after: The calls that choose actions, and those of the module-to-env pieces.
        arrays: What acts in the place of modules, with copies of their parameters.
        begun: The number of the ``begin`` call after which these copies were made.
        is_checked: Whether a forward batch and actions have been checked.
    """

    given: list[ColumnGroup]
    made: list[ColumnGroup]
    before: list[_Call]
    tensors: list[_Call]
    forward: list[_Call]
    after: list[_Call]
    arrays: list[BoundGroup]
    begun: int
    is_checked: bool = False


class _Prepared(NamedTuple):
    """A forward batch that the env-to-module pieces computed before the step that uses it.

    Attributes:
        batch: The columns. They are arrays if NumpyToTensor has not run yet.
        explore: The ``explore`` that the pieces got.
        pieces: The states of the pieces before they computed the batch, to undo it.
        metrics: The logs of the pieces before that.
    """

    batch: ColumnBatch
    explore: bool
    pieces: dict[str, Any]
    metrics: Any


class SamplingPlan:
    """Runs connector pieces and modules on the newest rows, and records their outputs.

    The plan binds a list of calls without arguments: pieces, matrix products, the choice of actions. The list depends
    only on the pieces, the modules, ``explore`` and the lane layout, so it is built again only when one of them
    changes. Every step runs the list. A user's piece is one call in the list, and a module that needs torch is a call
    of its forward pass, so they do not slow down the other calls.

    A plan is used in this order:

    1. ``begin(...)`` sets the pieces, the modules, and whether actions are sampled. It must be called whenever one of
       them may have changed.
    2. ``bind(rows)`` sets the rows that act: one Rows object for each group of agents with equal spaces. They must be
       the same objects as long as the lane layout stays the same.
    3. ``act(times)`` returns the actions for the current newest rows, group by group.

    A forward batch is computed in the step that uses it, with one exception: ``prepare`` runs the env-to-module pieces
    before episodes are returned, because the pieces may write to the episodes. The next ``act`` uses this batch, so
    that pieces get each observation once. A checkpoint contains the batch.

    Attributes:
        looks_ahead: Whether there are env-to-module pieces that may write to episodes, or store their input.
    """

    def __init__(
        self,
        noise: ActionNoise,
        shared_data: dict[str, Any],
        episodes: Callable[[], Sequence[Any]],
        *,
        single_agent: bool,
        checks_each_step: bool = False,
    ):
        """Creates a plan without pieces and rows.

        Args:
            noise: The random numbers for sampled actions.
            shared_data: The data that pieces share. It must stay the same object.
            episodes: Returns the episodes whose agents act, for pieces that work on single items.
            single_agent: Whether pieces get the one RLModule itself, instead of the MultiRLModule.
            checks_each_step: Whether ``act`` checks that observations and module outputs are finite. An env runner
                checks all recorded steps at once instead, which is faster.
        """
        self._noise = noise
        self._shared_data = shared_data
        self._episodes = episodes
        self._single_agent = single_agent
        self._checks_each_step = checks_each_step
        self.looks_ahead = False
        self._explore = False
        self._begun = 0
        self._bound_parts: tuple[Any, ...] = ()
        self._structures: list[Structure] = []
        self._rows: Sequence[LiveRows] = ()
        self._layouts: dict[Any, _Layout] = {}
        self._layout: _Layout | None = None
        self._prepared: _Prepared | None = None
        self._without_logp: dict[LaneGroup, type[Distribution]] = {}

    # Binding.

    def begin(
        self,
        env_to_module: ConnectorPipelineV2,
        module_to_env: ConnectorPipelineV2,
        rl_module: MultiRLModule,
        *,
        explore: bool,
        metrics: Mapping[str, Any],
    ) -> bool:
        """Sets the pieces and the modules. Bound calls are dropped if any of them has changed.

        Args:
            env_to_module: The pipeline that turns observations into a forward batch.
            module_to_env: The pipeline that turns module outputs into actions.
            rl_module: The modules.
            explore: Whether actions are sampled.
            metrics: The loggers for the pieces of ``env_to_module`` and ``module_to_env``.

        Returns:
            True if the prepared forward batch was dropped because it was computed with another ``explore``. The caller
            must then restore the observations that the pieces may have overwritten.
        """
        self._env_to_module, self._module_to_env, self._rl_module = env_to_module, module_to_env, rl_module
        self._explore, self._metrics = bool(explore), metrics
        self._arrays = bind_acting(env_to_module, module_to_env, rl_module)
        self._joins_in = self._arrays is not None and self._arrays.joins_in
        self._joins_out = self._arrays is not None and self._arrays.joins_out
        self.looks_ahead = any(type(piece) not in DEFAULT_PIECES for piece in env_to_module)
        self._begun += 1
        self._layout = None
        self._keep_bound()
        prepared = self._prepared
        if prepared is None or prepared.explore == self._explore:
            return False
        env_to_module.set_state(prepared.pieces)
        metrics["env_to_module"].set_state(prepared.metrics)
        self._prepared = None
        return True

    @property
    def _module_of_pieces(self) -> RLModule | MultiRLModule:
        """The module that pieces get: the RLModule itself of a single agent, else the MultiRLModule."""
        return self._rl_module[DEFAULT_MODULE_ID] if self._single_agent else self._rl_module

    def _keep_bound(self) -> None:
        """Drops the bound layouts if pieces or modules have changed."""
        if not self.is_current:
            self._layouts, self._layout, self._bound_parts = {}, None, self._bound_to()
            self._structures = [Structure(own, [own]) for own in self._rl_module.values() if not is_stackable(own)]

    def _bound_to(self) -> tuple[Any, ...]:
        # This runs in every call of a policy.
        before, after, rl_module = self._env_to_module, self._module_to_env, self._rl_module
        return (
            before,
            after,
            before._steps,
            after._steps,
            self._metrics["env_to_module"],
            self._metrics["module_to_env"],
            runs_pieces(before),
            runs_pieces(after),
            self._explore,
            self._joins_in,
            self._joins_out,
            rl_module,
            rl_module.buckets,  # a new list whenever a stackable module has changed
            self._arrays is not None and self._arrays.applies,
        )

    @property
    def is_current(self) -> bool:
        """Whether pieces and modules are the same objects as in the last ``begin``, with the same layers and hooks."""
        now = self._bound_to()
        is_same = len(now) == len(self._bound_parts) and all(map(is_, now, self._bound_parts))
        return is_same and all(structure.is_current for structure in self._structures)

    def bind(self, rows: Sequence[LiveRows]) -> None:
        """Sets the rows that act from now on, group by group."""
        self._rows, self._layout = rows, None

    def _bound(self) -> _Layout:
        """Returns the layout of the rows, bound now if it is not bound yet."""
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
                for own in layout.arrays:
                    own.load()
                layout.begun = self._begun
        self._layout = layout
        return layout

    def _build(self) -> _Layout:
        given, made = ([ColumnGroup(rows) for rows in self._rows] for _ in range(2))
        common = {"rl_module": self._module_of_pieces, "explore": self._explore, "shared_data": self._shared_data}
        to_module = {**common, "metrics": self._metrics["env_to_module"]}
        to_env = {**common, "metrics": self._metrics["module_to_env"]}
        before, after = self._env_to_module, self._module_to_env
        calls = _bound(
            before, ColumnBatch(given), self._episodes, to_module, slice(None, -1 if self._joins_in else None)
        )
        once = [call for call in calls if type(_piece_of(call)) is AgentToModuleMapping]
        self._run(once)  # these pieces depend only on which modules have rows
        bound = [self._in_arrays(*both) for both in zip(given, made, strict=True)]
        in_torch = [i for i, own in enumerate(bound) if own is None]
        tensors: list[_Call] = []
        if self._joins_in and in_torch:
            part = ColumnBatch([given[i] for i in in_torch], Phase.ARRAYS)
            tensors += _bound(before, part, self._episodes, to_module, slice(-1, None))
        forward: list[_Call] = [_Step(own.run) for own in bound if own is not None]
        if in_torch:
            parts = [[groups[i] for i in in_torch] for groups in (given, made)]
            forward.append(_Step(partial(self._run_torch, *parts)))
        chosen: list[_Call] = []
        for i, (own, out) in enumerate(zip(bound, made, strict=True)):
            if own is not None and own.choose is not None:
                chosen.append(BoundCall(own.choose, after, after[0], out))
            elif own is not None:
                chosen.append(_Step(partial(_as_tensors, out)))
                in_torch.append(i)
        if self._joins_out and in_torch:
            part = ColumnBatch([made[i] for i in sorted(in_torch)], Phase.TENSORS)
            chosen += _bound(after, part, self._episodes, to_env, slice(0, 2))
        batch = ColumnBatch(made, Phase.TENSORS)
        later = _bound(after, batch, self._episodes, to_env, slice(2 if self._joins_out else 0, None))
        of_group = {id(out): own for own, out in zip(bound, made, strict=True) if own is not None}
        later = [call for call in later if not _is_replaced(call, of_group)]
        calls = [call for call in calls if call not in once]
        arrays = [own for own in bound if own is not None]
        return _Layout(given, made, calls, tensors, forward, [*chosen, *later], arrays, self._begun)

    def _in_arrays(self, columns: ColumnGroup, out: ColumnGroup) -> BoundGroup | None:
        """Returns what acts for a group in the place of its modules; None if they are called."""
        if self._arrays is None:
            return None
        return self._arrays.bind(columns, out, explore=self._explore, noise=self._noise, call=self._run_torch)

    # The plan's functions, which are bound as calls.

    def _run_torch(self, given: list[ColumnGroup], made: list[ColumnGroup]) -> None:
        """Runs the forward passes of the modules themselves, in torch."""
        batch, module = ColumnBatch(given, Phase.TENSORS), self._rl_module
        outputs = module.forward_exploration(batch) if self._explore else module.forward_inference(batch)
        for own, found in zip(made, outputs.groups, strict=True):
            own.take_from(found)

    # Steps.

    @property
    def forward_batch(self) -> list[ColumnGroup]:
        """The forward batch of the newest step, group by group."""
        return [] if self._layout is None else self._layout.given

    @property
    def outputs(self) -> list[ColumnGroup]:
        """The module outputs and actions of the newest step, group by group."""
        return [] if self._layout is None else self._layout.made

    def act(self, times: SamplingTimes, *, at_random: bool = False) -> list[Any]:
        """Chooses actions for the newest rows, and records them there with all module outputs.

        Args:
            times: The times of the parts of sampling. The times that this call takes are added, in seconds.
            at_random: Whether to draw actions from the action spaces instead of calling the modules. The env-to-module
                pieces run in both cases.

        Returns:
            For each group, the actions as the environments accept them: ``[B, ...]`` arrays or trees of arrays.
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
            actions = self._recorded(made, at_random)
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
        if prepared.batch.phase is Phase.ARRAYS and not self._joins_in:  # the pipeline has been changed since
            to_tensors = list(self._env_to_module)[-1]
            to_tensors.before_columns(layout.given, self._rl_module)
            for columns in layout.given:
                to_tensors.columns(columns, ARRAYS)
        self._prepared = None

    def _run(self, calls: Sequence[_Call]) -> None:
        call: Any = None
        progress.module_id = None
        try:
            for call in calls:
                call.run()
        except Exception as error:
            _raise_as_of(call, error)

    def _recorded(self, made: Sequence[ColumnGroup], at_random: bool) -> list[Any]:
        """Records the module outputs and actions, and returns the actions for the environments."""
        actions: list[Any] = []
        for columns in made:
            group: LaneGroup = columns.rows.group  # type: ignore[attr-defined]
            if at_random:
                group.rollout.record(group.positions, columns)
            else:
                columns.record_in(group.rollout, group.positions)
            if columns.action_dist_cls is not None:
                self._without_logp[group] = columns.action_dist_cls
            actions.append(env_action_array(columns))
        return actions

    def complete(self) -> None:
        """Computes the deferred log-probabilities of all rows since the last call at once."""
        for group, dist_cls in self._without_logp.items():
            rollout = group.rollout
            new = slice(group.lookback * rollout.num_lanes, (group.last_row + 1) * rollout.num_lanes)
            actions = tree_map(lambda leaf, rows=new: leaf[rows], rollout.columns[Columns.ACTIONS])
            logp = dist_cls.logp_of_rows(rollout.columns[Columns.ACTION_DIST_INPUTS][new], actions)
            waiting_for_actions = rollout.cursor[~rollout.pending] - new.start
            logp[waiting_for_actions[waiting_for_actions >= 0]] = 0.0
            rollout.record(new, {Columns.ACTION_LOGP: logp})
            if Columns.ACTION_DIST_INPUTS in rollout.given:  # some other modules output actions themselves
                rollout.given[Columns.ACTION_LOGP] = rollout.given[Columns.ACTION_DIST_INPUTS].copy()
        self._without_logp.clear()

    # Running the env-to-module pieces outside of a step.

    def process_last_observations(self, groups: list[ColumnGroup], episodes: Sequence[Any]) -> None:
        """Runs the env-to-module pieces on last observations, on which no agent acts, so that they can record them.

        Their action masks are recorded, too.

        Args:
            groups: The rows of the observations, group by group.
            episodes: The episodes of these rows.
        """
        first = slice(None, -1 if self._joins_in else None)  # no tensors of them are needed
        common = {"rl_module": self._module_of_pieces, "explore": self._explore, "shared_data": self._shared_data}
        common["metrics"] = self._metrics["env_to_module"]
        self._run(_bound(self._env_to_module, ColumnBatch(groups), lambda: episodes, common, first))
        _record_masks(groups)

    def prepare(self) -> None:
        """Runs the env-to-module pieces on the newest rows now, for the next ``act``, and records action masks."""
        if self._prepared is not None:
            return
        before = self._env_to_module.get_state(), self._metrics["env_to_module"].get_state()
        layout = self._layout or self._bound()
        for columns in layout.given:
            columns.clear()
        self._run(layout.before)
        if not layout.is_checked:
            check_forward_batch(ColumnBatch(layout.given), self._rl_module)
        _record_masks(layout.given)
        kept = [columns.like() for columns in layout.given]
        for own, columns in zip(kept, layout.given, strict=True):
            own.take_from(columns)
        phase = Phase.ARRAYS if self._joins_in else Phase.TENSORS
        self._prepared = _Prepared(ColumnBatch(kept, phase), self._explore, *before)

    def forget(self) -> None:
        """Drops the prepared forward batch and the deferred log-probabilities, because the newest rows are others."""
        self._prepared = None
        self._without_logp.clear()

    # Merging what the pieces have learned.

    @property
    def states_before_batch(self) -> dict[str, Any] | None:
        """The states of the pieces before they computed the prepared forward batch; None if there is no such batch."""
        return None if self._prepared is None else self._prepared.pieces

    @states_before_batch.setter
    def states_before_batch(self, states: dict[str, Any]) -> None:
        if self._prepared is not None:
            self._prepared = self._prepared._replace(pieces=states)

    # For checkpoints.

    def get_state(self) -> tuple[dict[str, Any] | None, ForwardBatchState | None, dict[LaneGroup, ColumnGroup]]:
        """Returns what the next ``act`` depends on in addition to the rows: the shared data and the prepared batch.

        Returns:
            The shared data as JSON data and arrays; the state of the batch, and its columns for each group of lanes.
            They are None and empty if something in them cannot be stored.
        """
        prepared = self._prepared
        shared = storable({k: v for k, v in self._shared_data.items() if k not in (ACTION_NOISE, FRAGMENT)})
        if shared is None or (prepared is not None and not can_be_stored(prepared.batch)):
            return None, None, {}
        if prepared is None:
            return shared, None, {}
        batch = prepared.batch
        state = ForwardBatchState(batch.phase is Phase.TENSORS, prepared.explore, prepared.pieces, prepared.metrics)
        return shared, state, {columns.rows.group: columns for columns in batch.groups}  # type: ignore[attr-defined]

    def set_state(
        self,
        shared_data: Mapping[str, Any] | None,
        state: ForwardBatchState | None,
        batches: Mapping[LaneGroup, RestoredLanes],
        device: torch.device,
    ) -> None:
        """Restores the state of ``get_state``, for the rows that ``bind`` was called with.

        Args:
            shared_data: The shared data; None if it was not stored.
            state: The state of the prepared batch; None if there is none.
            batches: The columns of the batch for each group of lanes. They are dropped if any of them is unknown.
            device: The device for columns that were tensors.
        """
        self.forget()
        self._shared_data.update(decode(shared_data) or {})
        restored = [batches[rows.group] for rows in self._rows]
        if state is None or any(own.batch is None for own in restored):
            return
        batch = ColumnBatch(
            [ColumnGroup(rows) for rows in self._rows], Phase.TENSORS if state.in_tensors else Phase.ARRAYS
        )
        for group, own in zip(batch.groups, restored, strict=True):
            for name, column in (own.batch or {}).items():
                is_tensor = name in own.tensors
                group[name] = tree_map(lambda leaf: torch.tensor(leaf, device=device), column) if is_tensor else column
        self._prepared = _Prepared(batch, state.explores, state.pieces, state.metrics)


def _is_replaced(call: _Call, of_group: Mapping[int, BoundGroup]) -> bool:
    """Whether the work of a piece on a group is done already."""
    own = of_group.get(id(getattr(call, "group", None)))
    return own is not None and own.replaces(_piece_of(call))


def _as_tensors(out: ColumnGroup) -> None:
    for name, column in out.items():
        out[name] = tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, column)


def _raise_as_of(call: Any, error: Exception) -> NoReturn:
    """Raises an error as the failure of the piece whose call failed. Errors of other calls are raised unchanged."""
    if call is None or call.pipeline is None:
        raise error
    raise call.failure(error) from cause_of(error)


def _record_masks(groups: Sequence[ColumnGroup]) -> None:
    """Records the action masks of observations on which no agent has acted yet; others are recorded with the actions.

    The targets of off-policy algorithms read them. Masks are left out if those of actions are not recorded.
    """
    for columns in groups:
        if Columns.ACTION_MASK not in columns:
            continue
        masks, held = _on_host(columns[Columns.ACTION_MASK]), columns.held_rows(Columns.ACTION_MASK)
        masks = masks.reshape(len(masks), -1)
        begin = 0
        for part in columns.rows.parts:
            end, rollout = begin + len(part.first), part.rollout
            column: Any = rollout.columns.get(Columns.ACTION_MASK)
            if column is not None and column.shape[1:] == masks.shape[1:]:
                own = held[begin:end]
                rollout.record(part.last[own], {Columns.ACTION_MASK: masks[begin:end][own]})
            begin = end


def _on_host(column: Any) -> np.ndarray:
    return column.detach().cpu().numpy() if isinstance(column, torch.Tensor) else np.asarray(column)


def _piece_of(call: _Call) -> ConnectorV2 | None:
    return call.piece if isinstance(call, BoundCall) else None


def _bound(
    pipeline: Any, batch: ColumnBatch, episodes: Callable[[], Sequence[Any]], common: dict[str, Any], pieces: slice
) -> list[_Call]:
    """Returns the calls of the pieces. A pipeline that a user has changed is one call."""
    if runs_pieces(pipeline):
        return pipeline.bind(batch, episodes=episodes, pieces=pieces, **common)
    phase = batch.phase

    def run() -> None:
        batch.phase = phase
        found = pipeline.run(batch, episodes=episodes(), **common)
        for group, made in zip(batch.groups, found.groups, strict=True):
            if made is not group:
                group.take_from(made)

    return [_Step(run)]
