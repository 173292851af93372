"""ColumnConnector, the short way to write a piece that works on columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.piece_errors import modules_named, progress
from marl_connectors.episodes.batch import ColumnGroup, slice_tree
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, did_you_mean
from marl_connectors.rl_module.module_columns import concatenated
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import ModuleID, Tree


class ColumnConnector(ConnectorV2):
    """A piece that gets a module's columns as arrays and returns the columns to set. Override ``transform``.

    Reads the columns of the batch and, through ``rows``, of the trajectories that ``transform`` reads. Writes the
    columns that ``transform`` returns to the batch, or to the trajectories if ``write_to_episodes`` names them. Keeps
    no state unless a subclass does.

    >>> import numpy as np
    >>> class ScaleObservations(ColumnConnector):
    ...     def transform(self, batch, *, rows, module_id, explore, **kwargs):
    ...         return {"obs": (batch["obs"] / 255.0).astype(np.float32)}
    """

    write_to_episodes: tuple[str, ...] = ()
    """The names of returned columns that are written to the trajectories instead of the batch. All later pieces and the
    learner get them from there."""
    by_module: bool = True
    """Whether ``transform`` is called once for each module. With False it is called once for all modules of agents with
    like spaces, with None as ``module_id``, which is faster if there are many modules."""

    def transform(
        self,
        batch: Mapping[str, Any],
        *,
        rows: ModuleRows,
        module_id: ModuleID | None,
        explore: bool | None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Returns new columns for the rows of one module. It is called once for each module that has rows.

        Args:
            batch: The columns that earlier pieces made, ``[B, ...]``: arrays, or tensors after NumpyToTensor. ``"obs"``
                is always present, and is read from the trajectories until a piece adds it to the batch. The arrays are
                read-only; return new ones.
            rows: The agent-steps of the ``B`` rows, and access to the rest of their trajectories.
            module_id: The module of the rows; None if ``by_module`` is False.
            explore: Whether actions will be sampled; None in a learner pipeline.
            **kwargs: ``rl_module``, ``shared_data``, ``metrics``, and arguments that newer versions may add.

        Returns:
            The columns to set, ``[B, ...]`` each; ``{}`` for none.
        """
        raise NotImplementedError(f"{type(self).__name__}: override transform(batch, *, rows, module_id, explore).")

    def on_columns(self, *, rl_module: Any, columns: ColumnGroup, explore: bool | None = None, **kwargs: Any) -> None:
        """Calls ``transform`` for each module, and sets the columns that it returns.

        Raises:
            ConnectorError: If a returned column does not have one row for each row of the module.
        """
        everyone = columns.rows
        several = self.by_module and len(columns.module_ids) > 1
        parts: list[RowPart] = []
        bounds: Any = zip(columns.module_ids, itertools.pairwise(columns.splits), strict=True)
        if not self.by_module:
            bounds = [(None, (0, columns.splits[-1]))]
        before: list[ModuleColumns] = []
        made: list[dict[str, Any]] = []
        for i, (module_id, (begin, end)) in enumerate(bounds):
            rows = ModuleRows(everyone, i if several else None, parts)
            batch = ModuleColumns(
                {name: slice_tree(column, begin, end) for name, column in columns.items()}
                if several
                else dict(columns),
                rows,
            )
            try:
                returned = self.transform(
                    batch, rows=rows, module_id=module_id, explore=explore, rl_module=rl_module, **kwargs
                )
                self._check(returned, end - begin)
                returned = {name: _writeable(column) for name, column in returned.items()}
                for name in self.write_to_episodes:
                    if name in returned:
                        rows.set(name, returned[name])
            except Exception:
                progress.module_id = module_id
                raise
            before.append(batch)
            made.append({name: values for name, values in returned.items() if name not in self.write_to_episodes})
        for name in dict.fromkeys(name for own in made for name in own):
            columns[name] = made[0][name] if not several else self._joined(name, made, before, columns)

    def _check(self, returned: Any, rows: int) -> None:
        if not isinstance(returned, dict):
            raise ConnectorError(
                f"transform returned {type(returned).__name__}, expected a dict of columns. "
                f"End it with 'return {{\"obs\": ...}}', or 'return {{}}' if it sets nothing."
            )
        for name, column in returned.items():
            for leaf in (column,) if type(column) is np.ndarray else leaves(column):
                if not isinstance(leaf, (np.ndarray, torch.Tensor)) or not leaf.ndim or len(leaf) != rows:
                    shape = f"shape {tuple(leaf.shape)}" if hasattr(leaf, "shape") else f"a {type(leaf).__name__}"
                    raise ConnectorError(
                        f"transform returned {name!r} with {shape}, expected an array [{rows}, ...] with one "
                        f"row for each that it got."
                    )

    def _joined(self, name: str, made: list[dict[str, Any]], before: list[ModuleColumns], columns: ColumnGroup) -> Any:
        """Returns a column of all modules; modules that returned no such column keep theirs."""
        parts: list[Any] = []
        for module_id, own, batch in zip(columns.module_ids, made, before, strict=True):
            if name not in own and name not in batch:
                others = modules_named(m for m, other in zip(columns.module_ids, made, strict=True) if name in other)
                raise ConnectorError(
                    f"transform returned {name!r}{others}, but not for module {module_id!r}, which has no such column "
                    f"yet. Return it for every module."
                )
            parts.append(own[name] if name in own else batch[name])
        forms = {m: _item_form(part) for m, part in zip(columns.module_ids, parts, strict=True)}
        first = forms[columns.module_ids[0]]
        for module_id, form in forms.items():
            if form != first:
                raise ConnectorError(
                    f"transform returned {name!r} of {form} for module {module_id!r}, but of {first} for module "
                    f"{columns.module_ids[0]!r}. Agents with like spaces need like columns."
                )
        return concatenated(parts)


def _item_form(column: Tree) -> str:
    """Describes the type and the shape of a column's items."""
    if isinstance(column, (np.ndarray, torch.Tensor)):
        return f"{type(column).__name__} {tuple(column.shape[1:])}"
    return ", ".join(_item_form(leaf) for leaf in leaves(column))


class ModuleColumns(Mapping[str, Any]):
    """The columns of one module. ``"obs"`` is read from the trajectories until a piece adds it to the batch."""

    __slots__ = ("_columns", "_rows")

    def __init__(self, columns: dict[str, Any], rows: ModuleRows):
        self._columns = columns
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        if name in self._columns:
            return read_only(self._columns[name])
        if name == Columns.OBS:
            return self._rows.get(Columns.OBS)
        raise KeyError(
            f"no column {name!r} in the batch yet. {did_you_mean(name, self)} Columns of the trajectories: "
            f"rows.get({name!r})."
        )

    def __contains__(self, name: object) -> bool:
        return name in self._columns or name == Columns.OBS

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns if Columns.OBS in self._columns else {**self._columns, Columns.OBS: None})

    def __len__(self) -> int:
        return len(self._columns) + (Columns.OBS not in self._columns)


class ModuleRows:
    """The agent-steps of one module in a batch, and access to their trajectories.

    Args:
        rows: The rows of all modules of a group.
        index: The index of the module in the group; None for all modules.
        parts: A list that is filled with ``rows.parts`` when a first module needs them.
    """

    def __init__(self, rows: Rows, index: int | None, parts: list[RowPart]):
        self._index = index
        self._all = rows
        self._parts = parts
        self._found: Rows | None = None
        begin, end = (0, len(rows)) if index is None else rows.splits[index : index + 2]
        self._bounds = (begin, end)

    def _own(self) -> Rows:
        """Returns the rows of the module, for reading and writing. They are computed when they are first needed."""
        if self._found is None:
            rows, index = self._all, self._index
            if index is None:
                self._found = rows
            else:
                if not self._parts:
                    self._parts.extend(rows.parts)
                self._found = rows.between(self._parts, *self._bounds, rows.module_ids[index])
        return self._found

    def __len__(self) -> int:
        return self._bounds[1] - self._bounds[0]

    # The columns of the trajectories.

    def has(self, column: str) -> bool:
        """Whether the trajectories hold this column."""
        return self._own().has(column)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        """Returns the items of a column of the trajectories, ``[B, ...]``, as read-only arrays.

        Args:
            column: The column's name, such as ``Columns.OBS`` or ``Columns.REWARDS``.
            offset: 0 for the row itself, -1 for the same agent's previous step, 1 for its next step.
            fill: The number that is returned for steps before the beginning of the agent's episode and after its newest
                row.

        Raises:
            EpisodeError: If there is no such column; if a step does not exist and there is no ``fill``; or if the
                episode had the step but did not keep it in its lookback.
        """
        return read_only(self._own().get(column, offset, fill))

    def set(self, column: str, values: Tree) -> None:
        """Writes ``[B, ...]`` items back to the trajectories, where all later pieces and pipelines see them."""
        self._own().set(column, values)

    # The agents, episodes and times of the rows.

    @property
    def action_space(self) -> Space:
        """The agents' action space."""
        return self._own().action_space

    @cached_property
    def counts(self) -> np.ndarray:
        """``[N]`` the number of rows of each agent episode."""
        return np.array(self._all.counts[slice(*self._of_episodes)])

    @cached_property
    def episodes(self) -> list[SingleAgentEpisode]:
        """The ``N`` agent episodes that have rows here, in order."""
        return list(self._all.episodes[slice(*self._of_episodes)])

    @cached_property
    def agent_ids(self) -> np.ndarray:
        """``[B]`` objects: the agent of each row; None in single-agent use."""
        return self._repeated([episode.agent_id for episode in self.episodes])

    @cached_property
    def episode_ids(self) -> np.ndarray:
        """``[B]`` objects: the id of the (multi-agent) episode."""
        return self._repeated([e.id_ if e.agent_id is None else e.multi_agent_episode_id for e in self.episodes])

    @property
    def t(self) -> np.ndarray:
        """``[B]`` the env step at which the row was observed."""
        return self.get(Columns.T)

    @cached_property
    def acted(self) -> np.ndarray:
        """``[B]`` bool, False in the row of an episode's last observation."""
        acted = self._all.acted
        return np.ones(len(self), bool) if acted is None else acted[slice(*self._bounds)]

    @cached_property
    def terminateds(self) -> np.ndarray:
        """``[B]`` bool, True in the row of the last step of an episode that was terminated."""
        return self._at_last_steps([episode.is_terminated for episode in self.episodes])

    @cached_property
    def truncateds(self) -> np.ndarray:
        """``[B]`` bool, True in the row of the last step of an episode that was truncated."""
        return self._at_last_steps([episode.is_truncated for episode in self.episodes])

    @cached_property
    def _of_episodes(self) -> tuple[int, int]:
        begin, end = np.searchsorted(np.cumsum(self._all.counts), self._bounds, side="right").tolist()
        return begin, end

    def _repeated(self, items: list[Any]) -> np.ndarray:
        values = np.empty(len(items), object)
        values[:] = items
        return np.repeat(values, self.counts)

    def _at_last_steps(self, flags: list[bool]) -> np.ndarray:
        return np.repeat(np.array(flags, bool), self.counts) & self._all.last_steps()[slice(*self._bounds)]


def read_only(values: Tree) -> Tree:
    """Returns read-only views of arrays; all other leaves stay as they are."""
    if type(values) is np.ndarray:
        view = values.view()
        view.flags.writeable = False
        return view
    if isinstance(values, (np.ndarray, torch.Tensor, InfoColumn)):
        return values
    return tree_map(lambda leaf: read_only(leaf) if type(leaf) is np.ndarray else leaf, values)


def _writeable(values: Tree) -> Tree:
    """Returns copies of read-only arrays; all other leaves stay as they are."""
    return tree_map(
        lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) and not leaf.flags.writeable else leaf, values
    )
