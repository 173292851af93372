"""The X-ray of a pipeline: what each piece does to a batch."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.episodes_of_run import EPISODES_OF_RUN
from marl_connectors.connectors.snapshots import ColumnShape, Snapshot
from marl_connectors.episodes.column_batch import ColumnBatch
from marl_connectors.errors import ConnectorError, describe_error
from marl_connectors.metrics import MetricsLogger

WIDTH = 120
"""Of the table, in characters."""
_HEADER = ("piece", "form", "µs", "copied", "columns")


@dataclasses.dataclass(frozen=True, slots=True)
class PieceReport:
    """What one piece did.

    Attributes:
        name: As the pipeline names it; pieces of nested pipelines have theirs in front.
        form: ``"columns"``, ``"items"`` (with a conversion before and after where the batch is in columns), or
            ``"idle"`` for a piece that has nothing to do on columns.
        seconds: How long it took.
        bytes_copied: Of the columns after it, what is neither in those before it nor in the trajectories; and
            ``bytes_written``.
        bytes_written: Of what it wrote to the trajectories.
        before: The columns that came in.
        after: The columns that went out.
        added: Names of columns that are new.
        changed: Names of columns whose values, shape, dtype or device are others.
        removed: Names of columns that are gone.
        written: Names of columns of the trajectories that it changed.
        written_before: Those columns as they were, for the batch's rows; or for the single steps that it changed,
            where the batch has no rows or it changed others.
        written_after: The same as they are now.
    """

    name: str
    form: str
    seconds: float
    bytes_copied: int
    bytes_written: int
    before: tuple[ColumnShape, ...]
    after: tuple[ColumnShape, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    written: tuple[str, ...]
    written_before: tuple[ColumnShape, ...]
    written_after: tuple[ColumnShape, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What each piece of a pipeline did to one batch. ``str()`` is a table, ``to_dict()`` JSON data.

    In the table, ``+`` stands for a column that was added, ``~`` for one that was changed, ``-`` for one that was
    removed, and ``>`` for a column of the trajectories that was written to.

    Attributes:
        pipeline: The pipeline's name.
        pieces: In order, those of nested pipelines in the place of these.
    """

    pipeline: str
    pieces: tuple[PieceReport, ...]

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[PieceReport]:
        return iter(self.pieces)

    def __getitem__(self, key: int | str) -> PieceReport:
        if isinstance(key, int):
            return self.pieces[key]
        for piece in self.pieces:
            if piece.name == key:
                return piece
        raise KeyError(f"{self.pipeline}: no piece {key!r}. Pieces: {', '.join(piece.name for piece in self.pieces)}.")

    @property
    def seconds(self) -> float:
        """How long all pieces took."""
        return sum(piece.seconds for piece in self.pieces)

    @property
    def bytes_copied(self) -> int:
        """What all pieces copied."""
        return sum(piece.bytes_copied for piece in self.pieces)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON data."""
        return {
            "pipeline": self.pipeline,
            "seconds": self.seconds,
            "bytes_copied": self.bytes_copied,
            "pieces": [_listed(dataclasses.asdict(piece)) for piece in self.pieces],
        }

    def __str__(self) -> str:
        cells = [_HEADER[:4]]
        cells += [(p.name, p.form, f"{p.seconds * 1e6:,.0f}", _size(p.bytes_copied)) for p in self.pieces]
        cells.append(("all", "", f"{self.seconds * 1e6:,.0f}", _size(self.bytes_copied)))
        texts = [[_HEADER[4]], *(_changes(piece) for piece in self.pieces), [""]]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        widths[0] = min(widths[0], 44)
        lines = [self.pipeline]
        for (name, form, *numbers), changes in zip(cells, texts, strict=True):
            right = [number.rjust(width) for number, width in zip(numbers, widths[2:], strict=True)]
            name = name if len(name) <= widths[0] else "…" + name[1 - widths[0] :]  # the end tells pieces apart
            start = "  ".join(["", name.ljust(widths[0]), form.ljust(widths[1]), *right, ""])
            for text in _folded(changes, WIDTH - len(start)):
                lines.append((start + text).rstrip())
                start = " " * len(start)
        return "\n".join(lines)


def trace(
    pipeline: ConnectorPipelineV2,
    batch: Any,
    *,
    episodes: Sequence[Any],
    shared_data: dict[str, Any] | None = None,
    **common: Any,
) -> tuple[Explanation, Any]:
    """Runs a pipeline for real, and watches.

    Args:
        pipeline: What to run.
        batch: Columns, or a batch of items.
        episodes: As for the pipeline.
        shared_data: As for the pipeline.
        **common: ``rl_module``, ``explore``, ``metrics``.

    Returns:
        What each piece did, and the batch that came out.
    """
    name = type(pipeline).__name__
    shared_data = {} if shared_data is None else shared_data
    one_piece = copy.copy(pipeline)
    reports: list[PieceReport] = []
    for piece_name, step in zip(pipeline.names(), pipeline._steps, strict=True):
        piece, on_columns, *_ = step
        if isinstance(piece, ConnectorPipelineV2):
            try:
                inner, batch = trace(piece, batch, episodes=episodes, shared_data=shared_data, **common)
            except ConnectorError as error:
                raise pipeline._failure(piece, error) from error.__cause__
            reports += [dataclasses.replace(report, name=f"{piece_name}.{report.name}") for report in inner]
            continue
        one_piece._steps = [step]
        before = Snapshot(batch, episodes)
        run = one_piece.run if isinstance(batch, ColumnBatch) else one_piece
        began = time.perf_counter()
        batch = run(batch=batch, episodes=episodes, shared_data=shared_data, **common)  # type: ignore[operator]
        _wait_for_gpu(before)
        seconds = time.perf_counter() - began
        episodes = shared_data.get(EPISODES_OF_RUN, episodes)  # a piece may have made them longer for all after it
        after = Snapshot(batch, episodes, keep_values=False)
        form = "items"
        if isinstance(batch, ColumnBatch) and not step[2]:
            form = "idle" if on_columns is None else "columns"
        reports.append(_report(piece_name, form, seconds, before, after))
    return Explanation(name, tuple(reports)), batch


def explain(
    pipeline: ConnectorPipelineV2,
    batch: Any,
    episodes: Sequence[Any],
    shared_data: dict[str, Any] | None,
    *,
    rl_module: Any,
    **common: Any,
) -> Explanation:
    """As ``ConnectorPipelineV2.explain``: ``trace`` on copies, the second time, when everything is warm.

    Raises:
        ConnectorError: If the episodes hold something that cannot be copied.
    """
    state = pipeline.get_state()
    metrics = common.pop("metrics", None)
    explanation = Explanation(type(pipeline).__name__, ())
    for _ in range(2):
        try:
            own_batch, own_episodes, own_data = copy.deepcopy(
                (batch, list(episodes), {} if shared_data is None else shared_data), {id(rl_module): rl_module}
            )
        except Exception as error:
            raise ConnectorError(
                f"{type(pipeline).__name__}: explain works on copies, but batch, episodes or shared_data cannot be "
                f"copied: {describe_error(error)}."
            ) from error
        try:
            with torch.random.fork_rng(devices=[]):
                explanation, _ = trace(
                    pipeline,
                    own_batch,
                    episodes=own_episodes,
                    shared_data=own_data,
                    rl_module=rl_module,
                    metrics=MetricsLogger() if metrics is None else copy.deepcopy(metrics),
                    **common,
                )
        finally:
            pipeline.set_state(copy.deepcopy(state))
    return explanation


def _report(name: str, form: str, seconds: float, before: Snapshot, after: Snapshot) -> PieceReport:
    written_before, written_after, bytes_written = after.writes_since(before)
    return PieceReport(
        name=name,
        form=form,
        seconds=seconds,
        bytes_copied=after.bytes_not_in(before) + bytes_written,
        bytes_written=bytes_written,
        before=before.shapes,
        after=after.shapes,
        added=tuple(column for column in after.names if column not in before.names),
        changed=after.changed_since(before),
        removed=tuple(column for column in before.names if column not in after.names),
        written=after.written_since(before),
        written_before=written_before,
        written_after=written_after,
    )


def _wait_for_gpu(snapshot: Snapshot) -> None:
    if torch.cuda.is_initialized() and any("cuda" in shape.device for shape in snapshot.shapes):
        torch.cuda.synchronize()


# The table.


def _changes(piece: PieceReport) -> list[str]:
    """A cell for each column that was added, changed, removed or written to."""
    cells = []
    marked = [("+", piece.added, piece.after), ("~", piece.changed, piece.after), ("-", piece.removed, ())]
    for mark, names, after in (*marked, (">", piece.written, piece.written_after)):
        for name in names:
            shapes = [shape for shape in after if shape.name == name]
            cells.append(f"{mark}{_short(name, 28)} {_kinds(shapes)}".rstrip())
    return cells or [""]


def _kinds(shapes: Sequence[ColumnShape]) -> str:
    """Like shapes once, with the number of groups or modules that have them."""
    counts: dict[str, int] = {}
    for shape in shapes:
        text = f"{_sizes(shape.shape)} {shape.dtype}" + ("" if shape.device in ("", "cpu") else f" {shape.device}")
        counts[text] = counts.get(text, 0) + 1
    return " | ".join(text if count == 1 else f"{count} × {text}" for text, count in counts.items())


def _sizes(shape: Any) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _size(number: int) -> str:
    return (
        f"{number:,} B"
        if number < 10_000
        else f"{number / 1e3:,.0f} kB"
        if number < 10_000_000
        else f"{number / 1e6:,.0f} MB"
    )


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _folded(cells: Sequence[str], width: int) -> list[str]:
    """Cells side by side, on as many lines as they need."""
    lines = [""]
    for cell in cells:
        cell = _short(cell, width)
        joined = f"{lines[-1]}  {cell}" if lines[-1] else cell
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(cell)
    return lines


def _listed(values: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(values, dict):
        return {key: _listed(value) for key, value in values.items()}
    return [_listed(value) for value in values] if isinstance(values, (list, tuple)) else values
