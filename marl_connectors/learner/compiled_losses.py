"""Losses by ``torch.compile``: forward pass and loss of a minibatch are one graph, and so is its backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.learner.counted_rows import CountedRows
from marl_connectors.learner.minibatches import MiniBatch
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.transfers import all_moved
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner

Notes = list[tuple[tuple[str, ...], list[Tensor]]]


class NotesOfGraph:
    """Stands in for the learner's Figures while a loss is traced, as a graph cannot note anything but give it back.

    Attributes:
        notes: Names and values of each call.
    """

    def __init__(self) -> None:
        self.notes: Notes = []

    def note(self, module_ids: tuple[ModuleID, ...], terms: Mapping[str, Tensor]) -> None:
        """Keeps figures of the minibatch."""
        self.notes.append((tuple(terms), list(terms.values())))


class ColumnsOfGraph(dict[str, Any]):
    """The columns of a minibatch that its loss reads.

    Attributes:
        counted_rows: As in MiniBatchColumns.
    """

    counted_rows: CountedRows


class _ReadColumns(Mapping[str, Any]):
    """The columns of a minibatch, and which of them were read."""

    def __init__(self, columns: Any):
        self._columns = columns
        self.counted_rows = columns.counted_rows
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        self.read[name] = None
        return column

    def __contains__(self, name: object) -> bool:
        if is_there := name in self._columns:
            self.read[str(name)] = None
        return is_there

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _traced(
    learner: Learner,
    module_ids: tuple[ModuleID, ...],
    module: RLModule,
    columns: ColumnsOfGraph,
    coefficients: dict[str, Tensor] | None,
) -> tuple[Tensor, Notes]:
    """What becomes a graph: losses, and what the learner notes of them."""
    figures, noted = learner._figures, NotesOfGraph()
    learner._figures = noted  # type: ignore[assignment]
    learner.traced_coefficients = coefficients
    losses = learner.losses_of(module_ids, module, columns)
    learner._figures = figures
    learner.traced_coefficients = None
    return losses, noted.notes


class _Graph:
    """The compiled loss of some modules.

    Attributes:
        names: Of the columns that the loss reads.
        run: Computes it.
    """

    def __init__(self, number: int, names: Sequence[str], mode: str | None, backend: str):
        self.names = names
        # Code of its own: torch compiles one piece of code for a few different arguments only.
        code = _traced.__code__.replace(co_name=f"loss_{number}")
        own = FunctionType(code, _traced.__globals__, code.co_name)
        self.run: Callable[..., tuple[Tensor, Notes]] = torch.compile(own, fullgraph=True, mode=mode, backend=backend)
        self._of: Mapping[str, Any] | None = None
        self._coefficients: dict[str, Tensor] = {}

    def coefficients(self, given: Mapping[str, Any], device: torch.device) -> dict[str, Tensor] | None:
        """Coefficients as tensors, moved once an update."""
        if not given:
            return None
        if self._of is not given:
            numbers = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
            moved = all_moved([np.array(value, np.float32) for value in numbers.values()], device)
            self._coefficients = {**given, **dict(zip(numbers, moved, strict=True))}
            self._of = given
        return self._coefficients


class CompiledLosses:
    """Computes losses of minibatches by graphs: one for all modules of a bucket together, one for each module alone.

    The first minibatch of each is computed as it would be without, and shows which columns are read. What torch cannot
    make a graph of is computed so, too, after a warning.
    """

    def __init__(self, learner: Learner):
        """Compiles nothing yet.

        Args:
            learner: Whose losses; its config has ``torch.compile``'s mode and backend.

        Raises:
            ConfigError: If torch knows no such backend.
        """
        mode, backend = (
            getattr(learner.config, f"torch_compile_learner_dynamo_{kind}") for kind in ("mode", "backend")
        )
        known = torch.compiler.list_backends(exclude_tags=())
        if backend not in known:
            raise ConfigError(f"torch_compile_learner_dynamo_backend={backend!r}. {did_you_mean(backend, known)}")
        self._learner = learner
        self._mode = mode
        self._backend = backend
        self._graphs: dict[tuple[ModuleID, ...], _Graph | None] = {}

    @property
    def num_graphs(self) -> int:
        """How many losses are computed by graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    def losses_of(self, minibatch: MiniBatch, module: RLModule) -> Tensor:
        """As ``Learner.losses_of``."""
        learner, ids, columns = self._learner, minibatch.module_ids, minibatch.columns
        if ids not in self._graphs:
            shown = _ReadColumns(columns)
            losses = learner.losses_of(ids, module, shown)
            self._graphs[ids] = _Graph(len(self._graphs), list(shown.read), self._mode, self._backend)
            return losses
        graph = self._graphs[ids]
        if graph is None:
            return learner.losses_of(ids, module, columns)
        figures = learner._figures
        try:
            found = self._run(graph, ids, module, columns)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            learner._figures, learner.traced_coefficients = figures, None
            losses = learner.losses_of(ids, module, columns)  # raises what is wrong with the loss itself
            self._graphs[ids] = None
            warnings.warn(_not_compiled(ids, error), RuntimeWarning, stacklevel=2)
            return losses
        losses, notes = found
        for names, values in notes:
            figures.note(ids, dict(zip(names, values, strict=True)))
        return losses

    def _run(self, graph: _Graph, ids: tuple[ModuleID, ...], module: RLModule, columns: Any) -> tuple[Tensor, Notes]:
        learner = self._learner
        given = ColumnsOfGraph({name: columns[name] for name in graph.names})
        given.counted_rows = columns.counted_rows
        coefficients = graph.coefficients(learner.loss_coefficients(ids), learner.device)
        if learner.device.type == "cuda":  # CUDA graphs may write over what the step before gave
            torch.compiler.cudagraph_mark_step_begin()
        learner.to_train_mode(module)
        return graph.run(learner, ids, module, given, coefficients)


def _not_compiled(module_ids: Sequence[ModuleID], error: Exception) -> str:
    reason = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
    return (
        f"Learner: torch.compile made no graph of the loss of {', '.join(map(repr, module_ids))}, so it is computed "
        f"without one. {type(error).__name__}: {reason}"
    )
