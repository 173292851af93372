"""Reports on a pipeline: what each piece does to a batch, and how long it takes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optree
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.item_batch import agent_episodes
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.bootstrap_view import originals
from marl_connectors.errors import EpisodeError
from marl_connectors.html_tables import html_text
from marl_connectors.trees import leaves
from marl_connectors.typing import ModuleID

WIDTH = 120
"""The width of the table in characters, unless the terminal is narrower."""
_LEAST = 40
"""The width for columns below which they stand in lines of their own."""
_HEADER = ("piece", "form", "µs", "columns")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column of one group of modules (or one leaf of it, where it is a tree).

    Attributes:
        modules: The modules that the rows belong to; empty where a batch of items does not say.
        name: The column's name.
        leaf: The path in a tree, such as ``"['position']"``; empty for a plain column.
        shape: The shape of the column, or of its list of items.
        dtype: The dtype of the numbers; ``"list of ..."`` for items.
        device: The device; ``"cpu"`` for arrays, empty for lists.
    """

    modules: tuple[ModuleID, ...]
    name: str
    leaf: str
    shape: tuple[int, ...]
    dtype: str
    device: str


@dataclasses.dataclass(frozen=True, slots=True)
class PieceReport:
    """The report on what one piece did to a batch.

    Attributes:
        name: The name of the piece in the pipeline; for pieces of a nested pipeline, after the name of that pipeline.
        form: ``"columns"``, ``"items"`` (with a conversion before and after if the batch is in columns), or
            ``"idle"`` for a piece that does nothing on columns.
        seconds: The time that the piece took.
        before: The columns before the piece.
        after: The columns after the piece.
        added: Names of columns that the piece added.
        changed: Names of columns of which the piece changed values, shape, dtype or device.
        removed: Names of columns that the piece removed.
        written: Names of columns of the trajectories that the piece changed.
        written_before: These columns before the piece: their rows of the batch, or only the steps that changed if the
            batch has no rows for them.
        written_after: The same columns after the piece.
    """

    name: str
    form: str
    seconds: float
    before: tuple[ColumnShape, ...]
    after: tuple[ColumnShape, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    written: tuple[str, ...]
    written_before: tuple[ColumnShape, ...]
    written_after: tuple[ColumnShape, ...]

    @classmethod
    def between(cls, name: str, form: str, seconds: float, before: Snapshot, after: Snapshot) -> PieceReport:
        """Returns the report on a piece that ran between two snapshots.

        Args:
            name: The piece's name.
            form: The form; see the attribute.
            seconds: The time that the piece took.
            before: The snapshot before the piece ran, with values.
            after: The snapshot after the piece ran.
        """
        written = after.writes_since(before)
        return cls(
            name=name,
            form=form,
            seconds=seconds,
            before=before.shapes,
            after=after.shapes,
            added=tuple(column for column in after.names if column not in before.names),
            changed=after.changed_since(before),
            removed=tuple(column for column in before.names if column not in after.names),
            written=tuple(written),
            written_before=tuple(shape for was, _ in written.values() for shape in was),
            written_after=tuple(shape for _, now in written.values() for shape in now),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The report on what each piece of a pipeline did to one batch. ``str()`` returns it as a table.

    In the table, ``+`` marks a column that was added, ``~`` one that was changed, ``-`` one that was removed, and ``>``
    a column of the trajectories that was written to.

    Attributes:
        pipeline: The pipeline's name.
        pieces: The reports in order; a nested pipeline is replaced by its pieces.
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
        """The time that all pieces took together."""
        return sum(piece.seconds for piece in self.pieces)

    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as JSON data."""
        return {
            "pipeline": self.pipeline,
            "seconds": self.seconds,
            "pieces": [_listed(dataclasses.asdict(piece)) for piece in self.pieces],
        }

    def __str__(self) -> str:
        cells = [_HEADER[:3]]
        cells += [(piece.name, piece.form, f"{piece.seconds * 1e6:,.0f}") for piece in self.pieces]
        cells.append(("all", "", f"{self.seconds * 1e6:,.0f}"))
        texts = [[_HEADER[3]], *(_changes(piece) for piece in self.pieces), [""]]
        width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        widths[0] = max(8, min(widths[0], 44, width - widths[1] - widths[2] - 8))
        is_narrow = width - sum(widths) - 8 < _LEAST
        lines = [self.pipeline]
        for (name, form, time_taken), changes in zip(cells, texts, strict=True):
            name = name if len(name) <= widths[0] else "…" + name[1 - widths[0] :]  # the end tells pieces apart
            start = "  ".join(["", name.ljust(widths[0]), form.ljust(widths[1]), time_taken.rjust(widths[2]), ""])
            if is_narrow:
                lines += [start.rstrip(), *(f"    {text}" for text in _folded(changes, width - 4) if text)]
                continue
            for text in _folded(changes, width - len(start)):
                lines.append((start + text).rstrip())
                start = " " * len(start)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the table for notebooks."""
        return html_text(str(self))


class Explanations(dict[str, Explanation]):
    """The explanations of an algorithm's pipelines, by their names. ``str()`` returns all tables."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.values()))

    def _repr_html_(self) -> str:
        """Returns the tables for notebooks."""
        return html_text(str(self))


# The table.


def _changes(piece: PieceReport) -> list[str]:
    """Returns a cell for each column that was added, changed, removed or written to."""
    cells = []
    marked = [("+", piece.added, piece.after), ("~", piece.changed, piece.after), ("-", piece.removed, ())]
    for mark, names, after in (*marked, (">", piece.written, piece.written_after)):
        for name in names:
            shapes = [shape for shape in after if shape.name == name]
            cells.append(f"{mark}{_short(name, 28)} {_forms(shapes)}".rstrip())
    return cells or [""]


def _forms(shapes: Sequence[ColumnShape]) -> str:
    """Describes shapes; equal ones once, with the number of groups or modules that have them."""
    counts: dict[str, int] = {}
    for shape in shapes:
        text = f"{_sizes(shape.shape)} {shape.dtype}" + ("" if shape.device in ("", "cpu") else f" {shape.device}")
        counts[text] = counts.get(text, 0) + 1
    return " | ".join(text if count == 1 else f"{count} × {text}" for text, count in counts.items())


def _sizes(shape: Any) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _folded(cells: Sequence[str], width: int) -> list[str]:
    """Returns cells side by side, on as many lines as they need."""
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
    """Returns tuples as lists, as JSON has them."""
    if isinstance(values, dict):
        return {key: _listed(value) for key, value in values.items()}
    return [_listed(value) for value in values] if isinstance(values, (list, tuple)) else values


# The contents of a batch and of its trajectories at one moment.

_TRAJECTORIES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


class Snapshot:
    """The columns of a batch, with their values.

    Attributes:
        shapes: The shapes of all columns.
        names: The names of all columns, each once.
    """

    def __init__(self, batch: Any, episodes: Sequence[Any], *, keep_values: bool = True):
        """Takes the snapshot.

        Args:
            batch: Columns, or items in any phase.
            episodes: The episodes that the batch is made of.
            keep_values: Whether to copy the values, so that a later snapshot can be compared with this one.
        """
        self._columns: dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]] = {}
        for modules, name, column in _columns(batch):
            for leaf, values, is_list in _info_leaves(column) if name == Columns.INFOS else _leaves(column):
                self._columns[modules, name, leaf] = (_shape(modules, name, leaf, values, is_list), values)
        self._rows = _rows_of(batch)
        self._steps = _steps_of(batch, episodes)
        self.shapes = tuple(shape for shape, _ in self._columns.values())
        self.names = tuple(dict.fromkeys(shape.name for shape in self.shapes))
        if keep_values:
            self._columns = {key: (shape, _copies(values)) for key, (shape, values) in self._columns.items()}
            self._rows = {key: (shape, _copies(values)) for key, (shape, values) in self._rows.items()}
            self._steps = {
                key: (module, [_copies(step) for step in steps]) for key, (module, steps) in self._steps.items()
            }

    def wait_for_gpu(self) -> None:
        """Waits for a GPU's pending work if the batch has columns on one, so that its time can be taken."""
        if torch.cuda.is_initialized() and any("cuda" in shape.device for shape in self.shapes):
            torch.cuda.synchronize()

    def changed_since(self, earlier: Snapshot) -> tuple[str, ...]:
        """Returns the columns of both snapshots whose values, shape, dtype or device differ."""
        both = [name for name in self.names if name in earlier.names]
        return tuple(name for name in both if not self._same(name, earlier))

    def _same(self, name: str, earlier: Snapshot) -> bool:
        here, there = ({k: v for k, v in s._columns.items() if k[1] == name} for s in (self, earlier))
        return list(here) == list(there) and all(
            here[key][0] == there[key][0] and _equal(here[key][1], there[key][1]) for key in here
        )

    def writes_since(self, earlier: Snapshot) -> dict[str, tuple[list[ColumnShape], list[ColumnShape]]]:
        """Returns the columns of the trajectories that differ, each as it was and as it is.

        The values are those of the batch's rows, or of the single steps that differ if no row does.
        """
        found: dict[str, tuple[list[ColumnShape], list[ColumnShape]]] = {}
        for name in dict.fromkeys(key[1] for key in (*self._rows, *self._steps)):
            changes = self._rows_written(name, earlier) or self._steps_written(name, earlier)
            if changes:
                found[name] = [old for old, _ in changes if old is not None], [new for _, new in changes]
        return found

    def _rows_written(self, name: str, earlier: Snapshot) -> list[tuple[ColumnShape | None, ColumnShape]]:
        found = []
        for key, (shape, values) in self._rows.items():
            old, old_values = earlier._rows.get(key, (None, []))
            is_as_long = old is None or old.shape[0] == shape.shape[0]  # else a piece has dropped rows
            if key[1] == name and is_as_long and not _equal(values, old_values):
                found.append((old, shape))
        return found

    def _steps_written(self, name: str, earlier: Snapshot) -> list[tuple[ColumnShape | None, ColumnShape]]:
        by_module: dict[tuple[ModuleID, ...], list[tuple[list[Any] | None, list[Any]]]] = {}
        for key, (modules, steps) in self._steps.items():
            if key[1] == name:
                old = earlier._steps[key][1] if key in earlier._steps else []
                pairs = [(old[i] if i < len(old) else None, step) for i, step in enumerate(steps)]
                changed = [pair for pair in pairs if pair[0] is None or not _equal(pair[1], pair[0])]
                by_module.setdefault(modules, []).extend(changed)
        found = []
        for modules, changed in by_module.items():
            for leaf in range(len(changed[0][1]) if changed else 0):
                old, new = ([step[leaf] for step in steps if step] for steps in zip(*changed, strict=True))
                before, after = (_shape_of_steps(modules, name, items) if items else None for items in (old, new))
                if after is not None:
                    found.append((before, after))
        return found


def _columns(batch: Any) -> Iterator[tuple[tuple[ModuleID, ...], str, Any]]:
    """Yields ``(modules, name, column)`` of a batch of either form."""
    if isinstance(batch, ColumnBatch):
        for group in batch.groups:
            for name, column in group.items():
                yield group.module_ids, name, column
            if group.sequences is not None:
                yield group.module_ids, Columns.SEQ_LENS, group.sequences.lengths
                if group.sequences.state_in is not None:
                    yield group.module_ids, Columns.STATE_IN, group.sequences.state_in
        return
    for name, column in batch.items():
        if isinstance(column, dict) and column and all(isinstance(key, str) for key in column):
            for own_name, own in column.items():
                yield (name,), own_name, own
        elif isinstance(column, dict):
            yield (), name, [item for items in column.values() for item in items]
        else:
            yield (), name, column


def _leaves(column: Any) -> Iterator[tuple[str, list[Any], bool]]:
    """Yields ``(leaf, arrays, is_list)`` of a column: one array, or one for each item of a list."""
    found: dict[str, list[Any]] = {}
    for item in column if isinstance(column, list) else [column]:
        paths, values, _ = optree.tree_flatten_with_path(item)
        for path, value in zip(paths, values, strict=True):
            found.setdefault("".join(f"[{part!r}]" for part in path), []).append(value)
    for path, values in found.items():
        yield path, values, isinstance(column, list)


def _info_leaves(column: Any) -> list[tuple[str, list[Any], bool]]:
    """Yields the same as ``_leaves``, with text for info dicts, which may contain any objects."""
    return [("", [str(info) for info in column], True)] if len(column) else []


def _shape(modules: tuple[ModuleID, ...], name: str, leaf: str, values: list[Any], is_list: bool) -> ColumnShape:
    first = values[0]
    dtype = str(first.dtype).removeprefix("torch.") if hasattr(first, "dtype") else type(first).__name__
    tensor = "tensor " if isinstance(first, torch.Tensor) else ""
    if is_list:
        return ColumnShape(modules, name, leaf, (len(values), *np.shape(first)), f"list of {tensor}{dtype}", "")
    device = str(first.device) if isinstance(first, torch.Tensor) else "cpu"
    return ColumnShape(modules, name, leaf, tuple(np.shape(first)), f"{tensor}{dtype}", device)


def _shape_of_steps(modules: tuple[ModuleID, ...], name: str, items: list[Any]) -> ColumnShape:
    shape = _shape(modules, name, "", items, True)
    return dataclasses.replace(shape, dtype=shape.dtype.removeprefix("list of "), device="cpu")


def _rows_of(batch: Any) -> dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]]:
    """Returns the columns of the trajectories at the rows of the batch."""
    found: dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]] = {}
    for group in batch.groups if isinstance(batch, ColumnBatch) else []:
        for name in dict.fromkeys(name for part in group.rows.parts for name in part.rollout.columns):
            try:
                column = group.rows.get(name) if group.rows.has(name) else None
            except (EpisodeError, KeyError):  # some rows have it, or have it in other shapes
                continue
            for leaf, values, _ in [] if column is None else _leaves(column):
                found[group.module_ids, name, leaf] = (_shape(group.module_ids, name, leaf, values, False), values)
    return found


def _steps_of(
    batch: Any, episodes: Sequence[Any]
) -> dict[tuple[int, str], tuple[tuple[ModuleID, ...], list[list[Any]]]]:
    """Returns the columns of all agent episodes, step by step, each step as its leaves."""
    found: dict[tuple[int, str], tuple[tuple[ModuleID, ...], list[list[Any]]]] = {}
    for i, episode in enumerate(_agent_episodes(batch, episodes)):
        modules = () if episode.module_id is None else (episode.module_id,)
        for name in (*_TRAJECTORIES, *episode.storage.extra_keys()):
            column = episode.storage.column(name)
            if isinstance(column, list):
                steps = [leaves(item) for item in column]
            else:
                steps = [list(step) for step in zip(*leaves(column), strict=True)]
            found[i, name] = (modules, steps)
    return found


def _agent_episodes(batch: Any, episodes: Sequence[Any]) -> list[Any]:
    groups = batch.groups if isinstance(batch, ColumnBatch) else []
    parts = [episode for group in groups for episode in group.rows.episodes]
    parts += agent_episodes(episodes, stepped_only=False)
    return list({id(part): part for part in originals(parts)}.values())


def _copies(values: list[Any]) -> list[Any]:
    return [
        value.detach().clone() if isinstance(value, torch.Tensor) else np.array(value, copy=True) for value in values
    ]


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_equal_arrays, one, other))


def _equal_arrays(one: Any, other: Any) -> bool:
    one, other = (x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
