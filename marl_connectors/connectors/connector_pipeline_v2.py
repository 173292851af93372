"""ConnectorPipelineV2, which runs connector pieces one after another."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from gymnasium import Space

from marl_connectors import tensor_namespace
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.column_check import checked_columns
from marl_connectors.connectors.connector_v2 import ConnectorV2, works_on_columns
from marl_connectors.connectors.explain import Explanation, PieceReport, Snapshot
from marl_connectors.connectors.item_adapter import checked_batch, run_piece
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.connectors.piece_order import check_pieces
from marl_connectors.episodes.batch import RANKS, RUN_EPISODES, ColumnBatch, ColumnGroup, Phase
from marl_connectors.errors import ConfigError, ConnectorError, describe_error, did_you_mean, place_of_error
from marl_connectors.metrics import MetricsLogger
from marl_connectors.typing import AgentID


class ConnectorPipelineV2(ConnectorV2):
    """Connector pieces in order. A pipeline is itself a piece, so pipelines can be nested.

    ``pipeline(rl_module=..., batch={}, episodes=[...])`` runs all pieces on items. Runners and learners call
    ``pipeline.run(batch, ...)``, which keeps the batch in columns wherever the pieces allow it.
    ``pipeline.explain(...)`` reports what each piece does to a batch.

    Pieces are named after their class; a second piece of one class is called ``Name_2``, and so on.

    Raises:
        ConfigError: If one of the library's pieces is in another kind of pipeline than it belongs in, or before a
            piece whose work it needs.
    """

    kind: str | None = None
    """The kind of pipeline: ``"env_to_module"``, ``"module_to_env"`` or ``"learner"``; None for a plain one."""

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        connectors: Sequence[ConnectorV2] | None = None,
    ):
        self.connectors: list[ConnectorV2] = []
        for piece in connectors or ():
            self.connectors.append(_checked(piece))
        self._outer: WeakSet[ConnectorPipelineV2] = WeakSet()
        self._check_pieces()
        super().__init__()
        self.set_input_spaces(input_observation_space, input_action_space)
        for piece in self.connectors:
            self._adopt(piece)

    # The pieces.

    def __len__(self) -> int:
        return len(self.connectors)

    def __iter__(self) -> Iterator[ConnectorV2]:
        return iter(self.connectors)

    def __contains__(self, piece: object) -> bool:
        """Whether the pipeline has a piece, given by its name or class or as the object."""
        if isinstance(piece, (str, type)):
            return piece in self.names() or any(type(other) is piece for other in self.connectors)
        return any(other is piece for other in self.connectors)

    def __getitem__(self, key: int | str | type) -> ConnectorV2:
        if not isinstance(key, (int, str, type)):
            raise TypeError(
                f"{type(self).__name__}: expected an index, a name or a class between the brackets, got {key!r}. "
                f"Use list(pipeline) for a slice."
            )
        if isinstance(key, int) and not -len(self) <= key < len(self):
            raise IndexError(f"{type(self).__name__}: there is no piece {key}; it has {len(self)}: {self.names()}.")
        return self.connectors[key if isinstance(key, int) else self._find(key)]

    def names(self) -> list[str]:
        """The names of the pieces, in order."""
        names: list[str] = []
        for piece in self.connectors:
            base = type(piece).__name__
            count = 1 + sum(type(other).__name__ == base for other in self.connectors[: len(names)])
            names.append(base if count == 1 else f"{base}_{count}")
        return names

    def append(self, connector: ConnectorV2) -> None:
        """Adds a piece at the end."""
        self._insert(len(self), connector)

    def prepend(self, connector: ConnectorV2) -> None:
        """Adds a piece at the beginning."""
        self._insert(0, connector)

    def insert_before(self, name_or_class: str | type, connector: ConnectorV2) -> None:
        """Adds a piece before the first one with this name or class."""
        self._insert(self._find(name_or_class), connector)

    def insert_after(self, name_or_class: str | type, connector: ConnectorV2) -> None:
        """Adds a piece after the first one with this name or class."""
        self._insert(self._find(name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type) -> ConnectorV2:
        """Removes the first piece with this name or class, and returns it."""
        index = self._find(name_or_class)
        piece = self.connectors[index]
        self._edit([*self.connectors[:index], *self.connectors[index + 1 :]])
        if isinstance(piece, ConnectorPipelineV2):
            piece._outer.discard(self)
        return piece

    def _insert(self, index: int, connector: ConnectorV2) -> None:
        self._edit([*self.connectors[:index], _checked(connector), *self.connectors[index:]])
        self._adopt(connector)

    def _edit(self, pieces: list[ConnectorV2]) -> None:
        """Replaces the pieces. If these or an outer pipeline would be invalid, it raises and changes nothing."""
        before, self.connectors = self.connectors, pieces
        try:
            self._check_pieces()
            self._pass_spaces()
        except Exception:
            self.connectors = before
            self._pass_spaces()
            raise

    def _adopt(self, piece: ConnectorV2) -> None:
        if isinstance(piece, ConnectorPipelineV2):
            piece._outer.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """Replaces the weak references, which can be neither copied nor pickled."""
        return {**self.__dict__, "_outer": list(self._outer)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _outer=WeakSet(state["_outer"]))

    def _pass_spaces(self) -> None:
        """Passes the spaces through all pieces of this pipeline and of the outer ones."""
        self.set_input_spaces(self.input_observation_space, self.input_action_space)
        for outer in self._outer:
            outer._pass_spaces()

    def _find(self, name_or_class: str | type) -> int:
        names = self.names()
        for i, (name, piece) in enumerate(zip(names, self.connectors, strict=True)):
            if name_or_class == name or (isinstance(name_or_class, type) and type(piece) is name_or_class):
                return i
        wanted = name_or_class if isinstance(name_or_class, str) else name_or_class.__name__
        raise KeyError(f"{type(self).__name__}: no piece {wanted!r}. {did_you_mean(wanted, names)}")

    def _check_pieces(self) -> None:
        """Checks the pieces of this pipeline and of the outer ones."""
        check_pieces(type(self).__name__, self.kind, list(self._flat()))
        for outer in self._outer:
            outer._check_pieces()

    def _flat(self, around: tuple[ConnectorPipelineV2, ...] = ()) -> Iterator[ConnectorV2]:
        """Yields all pieces; a nested pipeline is replaced by its pieces."""
        if any(outer is self for outer in around):
            raise ConfigError(f"{type(self).__name__}: a pipeline cannot contain itself. Insert a copy.")
        for piece in self.connectors:
            if isinstance(piece, ConnectorPipelineV2):
                yield from piece._flat((*around, self))
            else:
                yield piece

    # Running.

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any] | None = None,
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Runs all pieces on items. Without a ``batch``, the first piece gets an empty one.

        Raises:
            ConnectorError: If a piece fails. The error names the pipeline and the piece, and its cause is the piece's
                own error.
        """
        batch = {} if batch is None else batch
        shared_data = {} if shared_data is None else shared_data
        common = {"explore": explore, "shared_data": shared_data, "metrics": metrics, **kwargs}
        piece: ConnectorV2 = self
        try:
            for piece, *_ in self._steps:
                progress.begin(self.in_learner_pipeline)
                batch = checked_batch(piece(rl_module=rl_module, batch=batch, episodes=episodes, **common))
        except Exception as error:
            raise self._failure(piece, error) from cause_of(error)
        return batch

    def _failure(self, piece: ConnectorV2, error: Exception, group: ColumnGroup | None = None) -> ConnectorError:
        """Returns the error for a failure inside a piece: on items of an agent, or on the columns of a group."""
        who = type(self).__name__
        if isinstance(error, ConnectorError) and isinstance(piece, ConnectorPipelineV2):
            return ConnectorError(f"{who}: {error}")  # the inner pipeline has named itself and the piece
        name = next(name for name, other in zip(self.names(), self.connectors, strict=True) if other is piece)
        whose = progress.describe(error) if group is None else progress.modules(group.module_ids)
        place = "" if isinstance(error, ConnectorError) else place_of_error(error)
        what = str(error).removeprefix(f"{type(piece).__name__}: ") + (f" ({place})" if place else "")
        what += progress.odd_item()
        progress.begin(None)
        if isinstance(error, ConnectorError):
            return ConnectorError(f"{who}: {name}{whose}: {what}")
        return ConnectorError(f"{who}: {name} failed{whose}: {type(error).__name__}: {what}")

    def run(
        self,
        batch: ColumnBatch,
        *,
        rl_module: Any,
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
    ) -> ColumnBatch:
        """Runs all pieces: on columns if they can, else on items, with a conversion before and after.

        If all pieces work on columns, the cost is one call for each piece and group.

        Raises:
            ConnectorError: If a piece fails. The error names the pipeline and the piece, and its cause is the piece's
                own error.
        """
        shared_data = {} if shared_data is None else shared_data
        common = {"rl_module": rl_module, "explore": explore, "shared_data": shared_data, "metrics": metrics}
        piece: ConnectorV2 = self
        group: ColumnGroup | None = None
        progress.module_id = None
        try:
            for group in batch.groups:
                group.within(**common)
            for piece, columns, on_items, before_columns, after_columns in self._steps:
                if not on_items:
                    if before_columns is not None:
                        group = None
                        before_columns(batch.groups, rl_module)
                    if columns is not None:
                        for group in batch.groups:
                            columns(group, namespace(batch.phase))
                    if after_columns is not None:
                        group = None
                        after_columns(batch.groups, common["shared_data"])
                    batch.phase = piece.phase_after or batch.phase
                    continue
                group = None
                batch = self._run_piece(piece, batch, episodes, common)
        except Exception as error:
            raise self._failure(piece, error, group) from cause_of(error)
        return batch

    def bind(
        self,
        batch: ColumnBatch,
        *,
        episodes: Callable[[], Sequence[Any]],
        pieces: slice = slice(None),
        **common: Any,
    ) -> list[BoundCall]:
        """Returns the work of some pieces on the groups of a batch, as calls without arguments.

        The calls can be run many times on the same groups, whose rows and columns may change in between. They are valid
        until pieces are added or removed, or a method of a piece is replaced.

        Args:
            batch: The batch that the calls work on. Calls that depend on its phase set it.
            episodes: Returns the episodes; called for pieces that work on items.
            pieces: Which of the pieces to bind.
            **common: All other arguments of the pieces: ``rl_module``, ``explore``, ``shared_data`` and ``metrics``.
        """
        calls: list[BoundCall] = []
        phase = batch.phase
        for group in batch.groups:
            group.within(**common)
        for i, (piece, columns, on_items, before_columns, after_columns) in enumerate(self._steps):
            if i in range(*pieces.indices(len(self._steps))):
                if on_items:
                    run = partial(self._work_on_items, piece, batch, phase, episodes, common)
                    calls.append(BoundCall(run, self, piece, None))
                if before_columns is not None:
                    run = partial(before_columns, batch.groups, common["rl_module"])
                    calls.append(BoundCall(run, self, piece, None))
                if columns is not None:
                    xp = namespace(phase)
                    calls += [BoundCall(partial(columns, g, xp), self, piece, g) for g in batch.groups]
                if after_columns is not None:
                    run = partial(after_columns, batch.groups, common["shared_data"])
                    calls.append(BoundCall(run, self, piece, None))
            phase = _phase_after(piece) or phase
        return calls

    def _work_on_items(
        self,
        piece: ConnectorV2,
        batch: ColumnBatch,
        phase: Phase,
        episodes: Callable[[], Sequence[Any]],
        common: dict[str, Any],
    ) -> None:
        """Runs a piece on items, or a pipeline, and puts the result into the groups of the batch."""
        batch.phase = phase
        found = self._run_piece(piece, batch, episodes(), common)
        for group, made in zip(batch.groups, found.groups, strict=True):
            if made is not group:
                group.take_from(made)

    def _run_piece(
        self, piece: ConnectorV2, batch: ColumnBatch, episodes: Sequence[Any], common: dict[str, Any]
    ) -> ColumnBatch:
        """Runs a piece that works on items, or a pipeline."""
        if isinstance(piece, ConnectorPipelineV2):
            return piece.run(batch, episodes=episodes, **common)
        if not batch.groups and RANKS in (common.get("shared_data") or {}):
            return batch  # only other learners have rows
        return run_piece(piece, batch, episodes, **common)

    def explain(
        self,
        batch: ColumnBatch | dict[str, Any] | None = None,
        *,
        rl_module: Any = None,
        episodes: Sequence[Any] = (),
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
    ) -> Explanation:
        """Reports what each piece does to a batch: its columns before and after, and its time.

        This is a dry run on copies: batch, episodes and the pieces' states are afterwards as they were before. It runs
        twice, and the second run, when everything is warm, is reported.

        Args:
            batch: Columns, as ``run`` accepts them, or a batch of items, as a call accepts it; None for an empty one.
            rl_module: As in ``run``.
            episodes: As in ``run``.
            explore: As in ``run``.
            shared_data: As in ``run``.
            metrics: As in ``run``.

        Raises:
            ConnectorError: If the batch, the episodes or ``shared_data`` hold something that cannot be copied.
        """
        state = self.get_state()
        originals = ({} if batch is None else batch, list(episodes), {} if shared_data is None else shared_data)
        explanation = Explanation(type(self).__name__, ())
        for _ in range(2):
            try:
                own_batch, own_episodes, own_data = copy.deepcopy(originals, {id(rl_module): rl_module})
            except Exception as error:
                raise ConnectorError(
                    f"{type(self).__name__}: explain works on copies, but batch, episodes or shared_data cannot be "
                    f"copied: {describe_error(error)}."
                ) from error
            try:
                with torch.random.fork_rng(devices=[]):
                    explanation, _ = self.trace(
                        own_batch,
                        episodes=own_episodes,
                        shared_data=own_data,
                        rl_module=rl_module,
                        explore=explore,
                        metrics=MetricsLogger() if metrics is None else copy.deepcopy(metrics),
                    )
            finally:
                self.set_state(copy.deepcopy(state))
        return explanation

    def trace(
        self,
        batch: ColumnBatch | dict[str, Any],
        *,
        episodes: Sequence[Any],
        shared_data: dict[str, Any] | None = None,
        **common: Any,
    ) -> tuple[Explanation, Any]:
        """Runs the pieces on a batch, not on a copy of it, and reports what each of them does.

        Args:
            batch: Columns, as ``run`` accepts them, or a batch of items, as a call accepts it.
            episodes: As in ``run``.
            shared_data: As in ``run``.
            **common: ``rl_module``, ``explore`` and ``metrics``, as in ``run``.

        Returns:
            What each piece did, and the batch after the last piece.
        """
        shared_data = {} if shared_data is None else shared_data
        one_piece = copy.copy(self)
        reports: list[PieceReport] = []
        for name, step in zip(self.names(), self._steps, strict=True):
            piece, columns, on_items, *_ = step
            if isinstance(piece, ConnectorPipelineV2):
                try:
                    inner, batch = piece.trace(batch, episodes=episodes, shared_data=shared_data, **common)
                except ConnectorError as error:
                    raise self._failure(piece, error) from error.__cause__
                reports += [dataclasses.replace(report, name=f"{name}.{report.name}") for report in inner]
                continue
            one_piece._steps = [step]
            before = Snapshot(batch, episodes)
            run = one_piece.run if isinstance(batch, ColumnBatch) else one_piece
            began = time.perf_counter()
            batch = run(batch=batch, episodes=episodes, shared_data=shared_data, **common)  # type: ignore[operator]
            before.wait_for_gpu()
            seconds = time.perf_counter() - began
            episodes = shared_data.get(RUN_EPISODES, episodes)  # a piece may have extended them for later pieces
            after = Snapshot(batch, episodes, keep_values=False)
            form = "items"
            if isinstance(batch, ColumnBatch) and not on_items:
                form = "idle" if columns is None else "columns"
            reports.append(PieceReport.between(name, form, seconds, before, after))
        return Explanation(type(self).__name__, tuple(reports)), batch

    def set_input_spaces(self, observation_space: Space | None, action_space: Space | None) -> None:
        """Passes the spaces through all pieces."""
        self._input_observation_space = observation_space
        self._input_action_space = action_space
        for piece in self.connectors:
            if self.in_learner_pipeline is not None:
                piece.in_learner_pipeline = self.in_learner_pipeline
            if observation_space is not None or action_space is not None:
                piece.set_input_spaces(observation_space, action_space)
            elif isinstance(piece, ConnectorPipelineV2):  # it keeps its spaces, as any piece does
                piece.set_input_spaces(piece.input_observation_space, piece.input_action_space)
            observation_space, action_space = piece.observation_space, piece.action_space
        self._observation_space, self._action_space = observation_space, action_space
        self._merging = [piece for piece in self.connectors if _can_merge(piece)]
        self._steps = []
        for piece in self.connectors:
            on_items = isinstance(piece, ConnectorPipelineV2) or not works_on_columns(piece)
            idle = piece.nothing_on_columns and type(piece).columns is ConnectorV2.columns
            columns = None if on_items or idle else checked_columns(piece)
            before = None if on_items or not _overrides(piece, "before_columns") else piece.before_columns
            after = None if on_items or not _overrides(piece, "after_columns") else piece.after_columns
            self._steps.append((piece, columns, on_items, before, after))

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """Adds the agent to all pieces."""
        for piece in self.connectors:
            piece.know_agent(agent_id, like)

    # State.

    def get_state(self) -> dict[str, Any]:
        """Returns each piece's state, by name."""
        return {name: piece.get_state() for name, piece in zip(self.names(), self.connectors, strict=True)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets a state that ``get_state`` has returned.

        Raises:
            ConfigError: If the state has other pieces than this pipeline.
        """
        self._check_state(state)
        for name, piece in zip(self.names(), self.connectors, strict=True):
            try:
                piece.set_state(state[name])
            except KeyError as error:
                raise ConfigError(
                    f"{type(self).__name__}: {name}: the state has no {error}. Pass one that its get_state returned."
                ) from error

    def merge_own_state(self) -> None:
        """Merges what each piece has learned since the last merge into what it applies.

        Raises:
            ConnectorError: If a piece fails. The error names the pipeline and the piece, and its cause is the piece's
                own error.
        """
        if type(self).merge_states is not ConnectorPipelineV2.merge_states:
            super().merge_own_state()
            return
        for piece in self._merging:
            progress.begin(None)
            try:
                piece.merge_own_state()
            except Exception as error:
                raise self._failure(piece, error) from cause_of(error)

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merges the states that the pipeline has in several runners into one: each piece merges its own.

        Raises:
            ConfigError: If a state has other pieces than this pipeline.
        """
        for state in states:
            self._check_state(state)
        if not states:
            return {}
        return {
            name: piece.merge_states([state[name] for state in states])
            for name, piece in zip(self.names(), self.connectors, strict=True)
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state has these pieces, also in nested pipelines, before anything is changed."""
        if list(state) != self.names():
            raise ConfigError(
                f"{type(self).__name__}: the state has the pieces {list(state)}, but the pipeline has {self.names()}. "
                f"Build it with the same connectors."
            )
        for name, piece in zip(self.names(), self.connectors, strict=True):
            if isinstance(piece, ConnectorPipelineV2):
                piece._check_state(state[name])

    def reset_state(self) -> None:
        """Resets the state of every piece."""
        for piece in self.connectors:
            piece.reset_state()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.names())})"


def runs_pieces(pipeline: ConnectorPipelineV2) -> bool:
    """Whether running a pipeline, or a stand-in for one, runs its pieces as ConnectorPipelineV2 does and ``bind``."""
    if not isinstance(pipeline, ConnectorPipelineV2) or "run" in vars(pipeline):
        return False
    cls = type(pipeline)
    return cls.run is ConnectorPipelineV2.run and cls.__call__ is ConnectorPipelineV2.__call__


def namespace(phase: Phase) -> Any:
    """Returns the array namespace of the columns of a batch in a phase."""
    return tensor_namespace if phase is Phase.TENSORS else ARRAYS


class BoundCall(NamedTuple):
    """A piece's work on a group, or on a whole batch, with all of its arguments.

    Attributes:
        run: The call that does the work.
        pipeline: The pipeline of the piece.
        piece: The piece.
        group: The group; None for all groups at once.
    """

    run: Callable[[], Any]
    pipeline: ConnectorPipelineV2
    piece: ConnectorV2
    group: ColumnGroup | None

    def failure(self, error: Exception) -> ConnectorError:
        """Returns the error to raise from ``cause_of(error)`` when ``run`` has failed."""
        return self.pipeline._failure(self.piece, error, self.group)


def cause_of(error: Exception) -> BaseException:
    """Returns the piece's own error, which is the cause of one that a pipeline has raised."""
    return error.__cause__ if isinstance(error, ConnectorError) and error.__cause__ else error


def _overrides(piece: ConnectorV2, method: str) -> bool:
    """Whether the piece's class overrides a method of ConnectorV2."""
    return getattr(type(piece), method) is not getattr(ConnectorV2, method)


def _can_merge(piece: ConnectorV2) -> bool:
    """Whether ``merge_own_state`` may change a piece."""
    return _overrides(piece, "merge_own_state") or _overrides(piece, "merge_states")


def _phase_after(piece: ConnectorV2) -> Phase | None:
    """Returns the phase of a batch after a piece; None if the piece does not change it."""
    if not isinstance(piece, ConnectorPipelineV2):
        return piece.phase_after
    return next((phase for inner in reversed(piece.connectors) if (phase := _phase_after(inner)) is not None), None)


def _checked(piece: ConnectorV2) -> ConnectorV2:
    if not isinstance(piece, ConnectorV2):
        raise ConfigError(
            f"ConnectorPipelineV2: pieces must be ConnectorV2 objects, got {piece!r}"
            + (". Pass an instance, not the class." if isinstance(piece, type) else ".")
        )
    return piece


def pieces_of(pipeline: ConnectorPipelineV2) -> list[Any]:
    """Returns all pieces, also those of nested pipelines."""
    nested = [pieces_of(piece) if isinstance(piece, ConnectorPipelineV2) else [piece] for piece in pipeline]
    return [piece for own in nested for piece in own]
