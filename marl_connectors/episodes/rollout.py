"""Rollouts: the columns in which trajectories are stored.

A *lane* holds one agent episode at a time, a *row* is one agent-step of a lane, a lane's *cursor* is its newest row:

====  ==========  ==========  ==========
row   lane 0      lane 1      lane 2
====  ==========  ==========  ==========
0     lookback    (unused)    lookback
1     step 0      step 0      last obs
2     step 1      step 1      step 0     (the lane's next episode)
3     **open**    last obs    **open**
====  ==========  ==========  ==========

A row opens when the agent observes. Its action and the module's outputs are written when the agent acts, and every
reward until the agent acts again is added to it. The next observation, in the row below, closes it; the last
observation of an episode has a row of its own that is never acted on. So whether an agent was terminated or truncated,
the state that its last action led to is at hand, and the value of what comes next is always "one row further".

Columns are flat: row ``r`` of lane ``l`` is at position ``r * num_lanes + l`` of every column. When all cursors are in
the same row, the newest rows are one contiguous slice; otherwise they are one index array.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, MODULE, in_units
from marl_connectors.episodes.items import alike
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.state import Bools, Column, Ints, State
from marl_connectors.trees import in_parts_of, leaves, same_structure, tree_map, tree_structure
from marl_connectors.typing import Tree

Positions = slice | np.ndarray
"""Flat positions in a column: a slice where they are contiguous, else ``[B]`` int64."""


def take(column: Tree, positions: Positions) -> Tree:
    """Returns the items at ``positions``: a view for a slice, else a copy."""
    if isinstance(positions, np.ndarray):
        return tree_map(lambda leaf: leaf.take(positions, axis=0), column)
    if type(column) is np.ndarray:
        return column[positions]
    if type(column) is dict:
        return {key: take(part, positions) for key, part in column.items()}
    return tree_map(lambda leaf: leaf[positions], column)


def spans(begins: np.ndarray, counts: np.ndarray, stride: int = 1) -> np.ndarray:
    """Returns the positions of several spans, one after another.

    >>> spans(np.array([5, 20]), np.array([2, 3])).tolist()
    [5, 6, 20, 21, 22]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before * stride, counts) + np.arange(int(counts.sum())) * stride


def put(column: Tree, positions: Positions, values: Tree) -> None:
    """Writes ``values`` (leading axis ``B``) to ``positions``."""
    if type(column) is np.ndarray:
        column[positions] = values
    elif type(column) is type(values) is dict and column.keys() == values.keys():
        for key, part in column.items():
            put(part, positions, values[key])
    else:
        tree_map(lambda leaf, value: leaf.__setitem__(positions, value), column, values)


def _put_dict(column: Tree, positions: Positions, values: Tree) -> bool:
    """Writes ``values`` like ``put`` if both are dicts of like arrays, such as states; returns whether they are."""
    if type(column) is np.ndarray:
        if type(values) is not np.ndarray or column.shape[1:] != values.shape[1:]:
            return False
        column[positions] = values
        return True
    if type(column) is not dict or type(values) is not dict or column.keys() != values.keys():
        return False
    return all(_put_dict(part, positions, values[key]) for key, part in column.items())


def fits(column: Tree, values: Tree) -> bool:
    """Whether ``values`` can be written to ``column`` without changing its shape, or the values (rounding aside)."""
    if type(column) is not np.ndarray or type(values) is not np.ndarray:
        return same_structure(column, values) and all(map(fits, leaves(column), leaves(values)))
    if column.shape[1:] != values.shape[1:]:
        return False
    if column.dtype == values.dtype:
        return True
    if not np.can_cast(values.dtype, column.dtype, "same_kind"):
        return False
    if column.dtype.kind not in "iu":
        return True
    return np.array_equal(values.astype(column.dtype), values)


def _can_be_mixed(layers: Sequence[Tree], *, of_pieces: bool) -> bool:
    """Whether rows of several layers can be read as one array.

    Args:
        layers: The layers.
        of_pieces: Whether pieces have written all of them, so that only their shapes must be the same. The dtype of the
            environment's own layer must be the same, too.
    """
    first, others = layers[0], layers[1:]
    if not of_pieces:
        return all(alike(first, other) for other in others)
    if not all(same_structure(first, other) for other in others):
        return False
    shapes = [[leaf.shape[1:] for leaf in leaves(layer)] for layer in layers]
    return all(own == shapes[0] for own in shapes)


OF_ALL_ROWS: Final = frozenset((Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T, Columns.ENV_STATE))
"""The columns that each row has, whether its agent has acted on it or not."""


class RolloutState(State):
    """The rows of some lanes of a Rollout, up to their newest ones.

    It does not depend on the other lanes of the rollout: columns and layers that none of these rows has are left out.

    Attributes:
        layers: Name to the layers of the column, ``[num_rows * num_lanes, ...]`` each: one, if pieces have not written
            items of other shapes to these rows.
        level: For columns with several layers, the layer of each row.
        acted: Whether the agent has acted on each row.
        given: For columns that only some of these rows have, or other rows than those with actions, whether a row has
            them.
    """

    layers: dict[str, list[Column]]
    level: dict[str, Ints]
    acted: Bools
    given: dict[str, Bools]

    def __post_init__(self) -> None:
        size = len(self.acted)
        for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T):
            if not self.layers.get(name):
                raise ValueError(f"Expected a column {name!r}, got {list(self.layers)}")
        columns = [
            *self.level.values(),
            *self.given.values(),
            *(own for layers in self.layers.values() for own in layers),
        ]
        if any(len(leaf) != size for column in columns for leaf in leaves(column)):
            raise ValueError(f"Expected columns of {size} rows, got others")
        for name, layers in self.layers.items():
            level = self.level.get(name)
            if not layers or (len(layers) > 1) != (level is not None):
                raise ValueError(f"Expected the layer of each row of {name!r} if there are several, got {len(layers)}")
            if level is not None and not (level.min(initial=0) >= 0 and level.max(initial=0) < len(layers)):
                raise ValueError(f"Expected the layers of {name!r} to be below {len(layers)}, got others")
        for name in (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.VF_PREDS):
            if any(leaf.dtype.kind != "f" for layer in self.layers.get(name, ()) for leaf in leaves(layer)):
                raise ValueError(f"Expected floats in {name!r}, got others")


class Rollout:
    """The columns of all lanes whose agents share observation and action spaces, for one sampling fragment.

    Attributes:
        columns: Name to ``[num_rows * num_lanes, ...]`` array or tree of arrays: ``OBS``, ``ACTIONS``, ``REWARDS``
            (float64), ``T`` (int32, the env step of the observation, -1 in unused rows) and the recorded
            module outputs.
        infos: Position to the info dict that came with the observation; empty infos are left out.
        cursor: ``[num_lanes]`` int64, position of each lane's newest row.
        pending: ``[num_lanes]`` bool, True where the agent has acted on its newest row and waits.
        layered: For columns to which items of other shapes were written back, the layer of each row. Layer 0 has the
            environment's data.
        given: For columns that were added to some episodes later, ``[num_rows * num_lanes]`` bool, whether a row has
            them. All other columns exist for all agents.
        action_units: Whose actions these are, one of ``action_units.ALL``.
        recorded: The columns that modules have output most recently.
    """

    __slots__ = (
        "_layers",
        "action_space",
        "action_units",
        "columns",
        "cursor",
        "given",
        "infos",
        "layered",
        "num_lanes",
        "num_rows",
        "observation_space",
        "pending",
        "recorded",
    )

    def __init__(self, observation_space: Space, action_space: Space, *, num_rows: int, num_lanes: int):
        self.observation_space = observation_space
        self.action_space = action_space
        self.num_rows = num_rows
        self.num_lanes = num_lanes
        size = num_rows * num_lanes
        self.columns: dict[str, Tree] = {
            Columns.OBS: spaces.zeros(observation_space, size),
            Columns.ACTIONS: spaces.zeros(action_space, size),
            Columns.REWARDS: np.zeros(size),
            Columns.T: np.full(size, -1, np.int32),
        }
        self.infos: dict[int, dict] = {}
        self.cursor = np.arange(num_lanes)
        self.pending = np.zeros(num_lanes, bool)
        # For columns to which pieces wrote other shapes: one column for each shape, the environment's first.
        self._layers: dict[str, list[Tree]] = {}
        self.layered: dict[str, np.ndarray] = {}
        self.given: dict[str, np.ndarray] = {}
        self.action_units = MODULE
        self.recorded: frozenset[str] = frozenset()

    @classmethod
    def of_columns(
        cls,
        columns: dict[str, Tree],
        observation_space: Space | None,
        action_space: Space | None,
        *,
        num_rows: int,
        num_lanes: int = 1,
        action_units: str = ENV,
    ) -> Rollout:
        """Returns a rollout with ``columns``, ``[num_rows * num_lanes, ...]`` each."""
        rollout = cls.__new__(cls)
        rollout.observation_space, rollout.action_space = observation_space, action_space
        rollout.num_rows, rollout.num_lanes = num_rows, num_lanes
        rollout.columns, rollout.infos = columns, {}
        rollout.cursor = (num_rows - 1) * num_lanes + np.arange(num_lanes)
        rollout.pending = np.zeros(num_lanes, bool)
        rollout._layers, rollout.layered, rollout.given = {}, {}, {}
        rollout.action_units = action_units
        rollout.recorded = frozenset()
        return rollout

    # The environment's data.

    def source(self, name: str) -> Tree:
        """Returns the column as the environment filled it, without later changes by pieces."""
        return self._layers[name][0] if name in self._layers else self.columns[name]

    def observe(
        self, positions: Positions, observations: Tree | list[Any], t: int | np.ndarray, states: Tree | None = None
    ) -> None:
        """Writes observations to the next rows of lanes.

        Args:
            positions: The positions of ``B`` rows.
            observations: ``[B, ...]`` of the observation space, or a list of ``B`` items.
            t: The env step(s) of the observations.
            states: ``[B, ...]``, the environments' states at that time; None if states are not used.

        Raises:
            TypeError: If the items are not numbers.
            ValueError: If they do not fit the observation space.
        """
        columns = self.columns
        column = columns[Columns.OBS]
        if self.layered and Columns.OBS in self.layered:
            column = self.source(Columns.OBS)
            self.layered[Columns.OBS][positions] = 0
        if type(observations) is list:
            values = np.array(observations) if type(column) is np.ndarray else None
            if values is None or values.dtype != column.dtype or values.shape[1:] != column.shape[1:]:
                values = spaces.stack(observations, self.observation_space)
            observations = values
        if type(column) is np.ndarray:
            column[positions] = observations
        else:
            put(column, positions, observations)
        columns[Columns.T][positions] = t
        for given in self.given.values():  # to the lane's former agent
            given[positions] = False
        if states is not None:
            self.record(positions, {Columns.ENV_STATE: states})

    def record(self, positions: Positions, outputs: dict[str, Tree]) -> None:
        """Writes actions and module outputs, ``[B, ...]`` each, to the rows that they were computed for."""
        columns, layered, given = self.columns, self.layered, self.given
        for name, values in outputs.items():
            column: Any = columns.get(name)
            is_array = type(column) is type(values) is np.ndarray and column.shape[1:] == values.shape[1:]
            if is_array and name not in layered and name not in given:
                column[positions] = values
            else:
                self._record(name, positions, values)

    def _record(self, name: str, positions: Positions, values: Tree) -> None:
        """Writes one column, which is added if it does not exist."""
        if name not in self.columns:
            size = self.num_rows * self.num_lanes
            self.columns[name] = tree_map(lambda v: np.zeros((size, *v.shape[1:]), v.dtype), values)
        column = self.source(name)
        if not _put_dict(column, positions, values):
            put(column, positions, _shaped(name, values, column))
        if name in self.layered:
            self.layered[name][positions] = 0
        if name in self.given:
            self.given[name][positions] = True

    def reserve(self, row: int) -> None:
        """Ensures that ``row`` exists in all lanes."""
        if row < self.num_rows:
            return
        num_rows = max(row + 1, self.num_rows + self.num_rows // 2 + 1)
        extra = (num_rows - self.num_rows) * self.num_lanes

        def grown(leaf: np.ndarray) -> np.ndarray:
            return np.concatenate([leaf, np.zeros((extra, *leaf.shape[1:]), leaf.dtype)])

        self._replace_leaves(grown)
        self.columns[Columns.T][-extra:] = -1
        self.num_rows = num_rows

    def _replace_leaves(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        for columns in (self.columns, self._layers, self.layered, self.given):
            for name, column in columns.items():
                columns[name] = tree_map(change, column)
        self._share_layers()

    def _share_layers(self) -> None:
        """Makes the newest layer of each column the column itself."""
        for name, layers in self._layers.items():
            self.columns[name] = layers[-1]

    # Reads and writes of connector pieces.

    def read(self, name: str, positions: Positions) -> Tree:
        """Returns the items of a column, ``[B, ...]``, with the changes of all pieces."""
        if name not in self._layers:
            return take(self.columns[name], positions)
        levels = self.layered[name][positions].tobytes()  # a byte for each row
        if len(levels) == 1 or (levels and levels.count(levels[0]) == len(levels)):
            return take(self._layers[name][levels[0]], positions)
        level = np.frombuffer(levels, np.int8)
        used = np.unique(level)
        layers = [self._layers[name][i] for i in used.tolist()]
        if len(layers) < 2:
            return take(layers[0] if layers else self.columns[name], positions)
        if not _can_be_mixed(layers, of_pieces=bool(used[0])):
            raise EpisodeError(
                f"Rollout: of {level.size} rows, {int((level > 0).sum())} have a {name!r} of another shape that a "
                f"connector piece has written, and the others do not. A piece that changes "
                f"the shape of {name!r} must write it for every agent at every step, or put its result in the batch "
                f"instead of the episodes."
            )

        def mixed(*leaves: np.ndarray) -> np.ndarray:
            values = leaves[0][positions].astype(np.result_type(*leaves))
            for i, leaf in zip(used[1:], leaves[1:], strict=True):
                values[level == i] = leaf[positions][level == i]
            return values

        return tree_map(mixed, *layers)

    def holds(self, name: str, first: np.ndarray | int, last: np.ndarray | int) -> bool:
        """Returns whether each of some agent episodes has a column: that of all agents, or one that was added to it.

        Args:
            name: The column.
            first: ``[N]`` positions of the episodes' oldest rows, or the position of one.
            last: ``[N]`` positions of their newest rows, each in the same lane as its ``first``.
        """
        if name not in self.given:
            return name in self.columns
        count = np.zeros((self.num_rows + 1, self.num_lanes), np.int64)
        np.cumsum(self.given[name].reshape(self.num_rows, self.num_lanes), axis=0, out=count[1:])
        flat = count.ravel()
        return bool((flat[np.asarray(last) + self.num_lanes] > flat[first]).all())

    def item(self, name: str, position: int) -> Any:
        """Returns the item of a single row, like ``read``."""
        levels = self.layered.get(name)
        column = self.columns[name] if levels is None else self._layers[name][levels.item(position)]
        return column[position] if type(column) is np.ndarray else tree_map(lambda leaf: leaf[position], column)

    def is_uniform(self, name: str, positions: Positions) -> bool:
        """Whether ``read`` can return these items as one array."""
        if name not in self.layered:
            return True
        used = np.unique(self.layered[name][positions]).tolist()
        layers = [self._layers[name][i] for i in used]
        return not layers or _can_be_mixed(layers, of_pieces=bool(used[0]))

    def write(self, name: str, positions: Positions, values: Tree) -> None:
        """Writes items back. Values of another shape or type than the column's are stored in a column of their own.

        This is also done for all observations, so that the environment's data are kept (``source``).
        """
        column: Any = self.columns.get(name)
        levels = self.layered.get(name)
        is_alike = type(values) is type(column) is np.ndarray and values.dtype == column.dtype
        if is_alike and levels is not None and values.shape[1:] == column.shape[1:] and name not in self.given:
            column[positions] = values  # in most steps, as in the one before
            levels[positions] = len(self._layers[name]) - 1
            return
        if column is None:
            self.given[name] = np.zeros(self.num_rows * self.num_lanes, bool)
            self.record(positions, {name: values})
            return
        layers = self._layers.get(name, [self.columns[name]])
        first = 1 if name == Columns.OBS else 0
        level = len(layers) - 1
        while level >= first and not fits(layers[level], values):
            level -= 1
        level = level if level >= first else len(layers)
        # If a piece only changes the dtype, the values of the piece before it would fit its layer, too.
        now = 0 if levels is None else int(levels[positions].max(initial=0))
        level = next((i for i in range(max(first, now), level) if alike(layers[i], values)), level)
        if level == len(layers):
            size = self.num_rows * self.num_lanes
            layers.append(tree_map(lambda v: np.zeros((size, *v.shape[1:]), v.dtype), values))
            self._layers[name], self.columns[name] = layers, layers[-1]
            self.layered.setdefault(name, np.zeros(size, np.int8))
        put(layers[level], positions, values)
        if name in self.layered:
            self.layered[name][positions] = level
        if name in self.given:
            self.given[name][positions] = True

    def write_item(self, name: str, position: int, item: Any) -> None:
        """Does the same as ``write`` for a single row. It must be fast if the item is like those written last."""
        column: Any = self.columns.get(name)
        levels = self.layered.get(name)
        is_written = levels is not None or name != Columns.OBS
        is_alike = type(item) is type(column) is np.ndarray and item.dtype == column.dtype
        if is_alike and is_written and item.shape == column.shape[1:] and name not in self.given:
            column[position] = item
            if levels is not None:
                levels[position] = len(self._layers[name]) - 1
            return
        self.write(name, slice(position, position + 1), spaces.stack([item]))

    def continued(self, num_rows: int, lookback: int, oldest: np.ndarray | None = None) -> Rollout:
        """Returns a new rollout that continues where this one ended. It shares no data with this one.

        Each lane's newest row becomes row ``lookback``. Of the ``lookback`` rows before it, those of the same episode
        are copied, too. All other rows are empty.

        Args:
            num_rows: The number of rows of the new rollout.
            lookback: The number of rows to keep before the newest ones.
            oldest: ``[num_lanes]``, the first row of each lane that may be copied, which is the row after the newest
                one for a lane that is not in use. None if all rows may be copied.
        """
        here = self.cursor + self.num_lanes * np.arange(-lookback, 1)[:, None]  # [lookback + 1, num_lanes]
        kept = here >= (0 if oldest is None else oldest * self.num_lanes)
        source, target = here[kept], np.flatnonzero(kept)
        num_rows = max(num_rows, lookback + 1)
        size = num_rows * self.num_lanes

        def carried(leaf: np.ndarray) -> np.ndarray:
            fresh = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
            fresh[target] = leaf[source]
            return fresh

        new = Rollout.of_columns({}, self.observation_space, self.action_space, num_rows=num_rows)
        new.num_lanes = self.num_lanes
        for old, fresh in ((self._layers, new._layers), (self.layered, new.layered), (self.given, new.given)):
            for name, column in old.items():
                fresh[name] = tree_map(carried, column)
        for name, column in self.columns.items():
            new.columns[name] = new._layers[name][-1] if name in new._layers else tree_map(carried, column)
        new.columns[Columns.T] = np.full(size, -1, np.int32)
        new.columns[Columns.T][target] = self.columns[Columns.T][source]
        if self.infos:
            for old_position, position in zip(source.tolist(), target.tolist(), strict=True):
                if old_position in self.infos:
                    new.infos[position] = self.infos[old_position]
        new.action_units, new.recorded = self.action_units, self.recorded
        new.cursor = lookback * self.num_lanes + np.arange(self.num_lanes)
        new.pending = self.pending.copy()
        return new

    def get_states(self, lanes: np.ndarray, counts: Sequence[int]) -> list[RolloutState]:
        """Returns the rows of ``copy_of`` in several parts.

        Args:
            lanes: ``[N]``, the numbers of the lanes to return, all of which have their newest row in the same row.
            counts: The number of lanes of each part, at least 1, in the order of ``lanes``.
        """
        num_rows = self.cursor.item(lanes.item(0)) // self.num_lanes + 1
        ends = np.cumsum(counts)
        starts = self.num_lanes * np.arange(num_rows)[:, None]
        positions = np.concatenate([(starts + own).ravel() for own in np.split(lanes, ends[:-1])])
        bounds = list(pairwise([0, *(ends * num_rows).tolist()]))
        kept = self.rows(positions)
        is_newest = positions >= self.num_lanes * (num_rows - 1)
        acted = np.where(is_newest, self.pending[positions % self.num_lanes], kept.columns[Columns.T] >= 0)

        def in_parts(flags: np.ndarray) -> list[bool]:
            return np.logical_or.reduceat(flags, [begin for begin, _ in bounds]).tolist()

        have = dict.fromkeys(kept.columns, in_parts(acted)) | dict.fromkeys(OF_ALL_ROWS, [True] * len(bounds))
        have |= {name: in_parts(given) for name, given in kept.given.items()}
        are_given = {name: in_parts(given != acted) for name, given in kept.given.items()}
        are_layered = {name: in_parts(level > 0) for name, level in kept.layered.items()}

        def part(i: int, here: slice) -> RolloutState:
            names = [name for name in kept.columns if have[name][i]]
            layered = [name for name in names if name in are_layered and are_layered[name][i]]
            layers = {name: kept._layers[name] if name in layered else [kept.source(name)] for name in names}
            return RolloutState(
                layers={name: [take(layer, here) for layer in own] for name, own in layers.items()},
                level={name: kept.layered[name][here] for name in layered},
                acted=acted[here],
                given={name: kept.given[name][here] for name in names if name in are_given and are_given[name][i]},
            )

        return [part(i, slice(begin, end)) for i, (begin, end) in enumerate(bounds)]

    def copy_of(self, lanes: np.ndarray) -> Rollout:
        """Returns copies of the rows that a new rollout starts with, up to the newest ones.

        Args:
            lanes: ``[N]``, the numbers of the lanes to return, all of which have their newest row in the same row.
        """
        num_rows = self.cursor.item(lanes.item(0)) // self.num_lanes + 1
        found = self.rows((self.num_lanes * np.arange(num_rows)[:, None] + lanes).ravel())
        found.num_rows, found.num_lanes, found.pending = num_rows, len(lanes), self.pending[lanes]
        found.cursor = (num_rows - 1) * len(lanes) + np.arange(len(lanes))
        return found

    def rows(self, positions: np.ndarray, *, without: Collection[str] = ()) -> Rollout:
        """Returns a rollout of one lane with copies of some rows, in this order, and without some columns."""
        found = Rollout.of_columns(
            {},
            self.observation_space,
            self.action_space,
            num_rows=len(positions),
            action_units=self.action_units,
        )
        for name, column in self.columns.items():
            if name not in without:
                found.columns[name] = column if name in self._layers else take(column, positions)
        kept = [name for name in self._layers if name not in without]
        found._layers = {name: [take(layer, positions) for layer in self._layers[name]] for name in kept}
        found.layered = {name: level[positions] for name, level in self.layered.items() if name not in without}
        found.given = {name: given[positions] for name, given in self.given.items() if name not in without}
        found._share_layers()
        if self.infos:
            infos = self.infos
            found.infos = {i: infos[p] for i, p in enumerate(positions.tolist()) if p in infos}
        return found

    def with_actions_in(self, units: str, space: Space) -> Rollout:
        """Returns a rollout that shares all but the actions, which are in other units; itself if no number differs."""
        column = self.columns[Columns.ACTIONS]
        actions = in_units(space, column, self.action_units, units)
        if all(one is other for one, other in zip(leaves(actions), leaves(column), strict=True)):
            return self
        found = copy.copy(self)
        for name in ("columns", "infos", "_layers", "layered", "given"):
            setattr(found, name, dict(getattr(self, name)))
        found.columns[Columns.ACTIONS] = actions
        found.action_units = units
        return found

    @property
    def kind(self) -> Any:
        """What rollouts must have in common to be ``joined``: their spaces, and what their columns are made of."""
        plain = {name: column for name, column in self.columns.items() if name not in self._layers}
        return (
            (self.observation_space, self.action_space, self.action_units, set(self.given)),
            {name: kind_of(column) for name, column in plain.items()},
            {name: list(map(kind_of, layers)) for name, layers in self._layers.items()},
        )

    @classmethod
    def joined(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Returns a rollout with the rows of several rollouts of one lane and one ``kind``, one after another."""
        first, infos, begin = rollouts[0], {}, 0

        def concatenated(columns: Iterable[Tree]) -> Tree:
            return tree_map(lambda *parts: np.concatenate(parts), *columns)

        for rollout in rollouts:
            infos.update({begin + row: info for row, info in rollout.infos.items()})
            begin += rollout.num_rows
        found = cls.of_columns(
            dict.fromkeys(first.columns),  # in this order
            first.observation_space,
            first.action_space,
            num_rows=begin,
            action_units=first.action_units,
        )
        found.infos = infos
        for name in first.columns:
            if name in first._layers:
                numbers = range(len(first._layers[name]))
                found._layers[name] = [concatenated(r._layers[name][i] for r in rollouts) for i in numbers]
                found.layered[name] = concatenated(r.layered[name] for r in rollouts)
            else:
                found.columns[name] = concatenated(r.columns[name] for r in rollouts)
        found.given = {name: concatenated(r.given[name] for r in rollouts) for name in first.given}
        found._share_layers()
        return found

    def arrays(self) -> dict[str, Any]:
        """Returns the columns of a rollout of one lane, without copying them, for ``of_arrays``."""
        layers = {name: self._layers.get(name, [column]) for name, column in self.columns.items()}
        return {"layers": layers, "level": self.layered, "given": self.given}

    @classmethod
    def of_arrays(
        cls,
        spaces_of: tuple[Any, Any],
        *,
        num_rows: int,
        action_units: str,
        layers: dict[str, list[Tree]],
        level: dict[str, np.ndarray],
        given: dict[str, np.ndarray],
    ) -> Rollout:
        """Returns the rollout whose columns are the result of ``arrays``, which are not copied.

        Args:
            spaces_of: The observation space and the action space.
            num_rows: The number of rows.
            action_units: As the attribute.
            layers: The layers of each column; a single one if no piece has written to it.
            level: The layer of each row, of the columns to which a piece has written.
            given: As the attribute.
        """
        columns = {name: own[-1] for name, own in layers.items()}
        rollout = cls.of_columns(columns, *spaces_of, num_rows=num_rows, action_units=action_units)
        rollout._layers, rollout.layered, rollout.given = {name: layers[name] for name in level}, level, given
        return rollout

    def set_states(
        self, states: Sequence[RolloutState], counts: Sequence[int], order: np.ndarray, num_rows: int
    ) -> None:
        """Restores the rows of all lanes of a new rollout, which has enough rows.

        Args:
            states: Parts of what ``get_states`` returned, of one or several rollouts.
            counts: The number of lanes of each part.
            order: For each lane of this rollout, its index among the lanes of all parts.
            num_rows: The number of rows that the parts must have.

        Raises:
            CheckpointError: If a part has another number of rows, or items that the environment cannot have returned.
        """
        for state, count in zip(states, counts, strict=True):
            if len(state.acted) != num_rows * count:
                raise CheckpointError(
                    f"checkpoint: it is damaged, or of a run with another episode_lookback_horizon: its ongoing "
                    f"episodes have {len(state.acted)} rows instead of {num_rows * count}."
                )
            for name, column in self.columns.items():
                if kind_of(state.layers[name][0]) != kind_of(column):
                    raise CheckpointError(
                        f"checkpoint: it is damaged: the {name!r} of its ongoing episodes have other types or shapes "
                        f"than this run's."
                    )

        def joined(*parts: np.ndarray) -> np.ndarray:
            of_lanes = [p.reshape(num_rows, count, *p.shape[1:]) for p, count in zip(parts, counts, strict=True)]
            full = np.zeros((self.num_rows, self.num_lanes, *parts[0].shape[1:]), parts[0].dtype)
            full[:num_rows] = np.concatenate(of_lanes, axis=1)[:, order]
            return full.reshape(self.num_rows * self.num_lanes, *parts[0].shape[1:])

        acted = [state.acted for state in states]
        for name in dict.fromkeys(name for state in states for name in state.layers):
            layers, levels = _aligned_layers(states, name)
            rows = [tree_map(joined, *layer) for layer in layers]
            self.columns[name] = rows[-1]
            if len(rows) > 1:
                self._layers[name], self.layered[name] = rows, joined(*levels)
            have = [state.given.get(name, state.acted & (name in state.layers)) for state in states]
            if name not in OF_ALL_ROWS and not all(map(np.array_equal, have, acted)):
                self.given[name] = joined(*have)
        self.columns[Columns.T][num_rows * self.num_lanes :] = -1
        self.pending = joined(*acted).reshape(self.num_rows, -1)[num_rows - 1]

    def widened(self, num_lanes: int) -> None:
        """Adds lanes in place. Row numbers stay the same; positions in the flat arrays change."""
        old_lanes, rows = self.num_lanes, self.num_rows

        def wider(leaf: np.ndarray) -> np.ndarray:
            fresh = np.zeros((rows, num_lanes, *leaf.shape[1:]), leaf.dtype)
            fresh[:, :old_lanes] = leaf.reshape(rows, old_lanes, *leaf.shape[1:])
            return fresh.reshape(rows * num_lanes, *leaf.shape[1:])

        self._replace_leaves(wider)
        self.columns[Columns.T].reshape(rows, num_lanes)[:, old_lanes:] = -1

        def moved(position: Any) -> Any:
            return position // max(old_lanes, 1) * num_lanes + position % max(old_lanes, 1)

        self.infos = {moved(position): info for position, info in self.infos.items()}
        self.cursor = np.concatenate([moved(self.cursor), np.arange(old_lanes, num_lanes)])
        self.pending = np.concatenate([self.pending, np.zeros(num_lanes - old_lanes, bool)])
        self.num_lanes = num_lanes


def _aligned_layers(states: Sequence[RolloutState], name: str) -> tuple[list[list[Tree]], list[np.ndarray]]:
    """Returns the layers that a column of several rollouts has together. Layers with items of one kind become one.

    Returns:
        For each layer the rows of each state, with zeros for states that lack it, and the layer of each row.
    """
    kinds: list[Tree] = []
    found: list[dict[int, Tree]] = []
    levels: list[np.ndarray] = []
    for i, state in enumerate(states):
        places = []
        for number, layer in enumerate(state.layers.get(name, ())):
            first = 1 if name == Columns.OBS and number else 0  # the first one has the observations of the environment
            place = next((k for k in range(first, len(kinds)) if alike(kinds[k], layer)), len(kinds))
            if place == len(kinds):
                kinds.append(layer)
                found.append({})
            found[place][i] = layer
            places.append(place)
        own = state.level.get(name, np.zeros(len(state.acted), np.int8))
        levels.append(np.array(places or [0], np.int8)[own])

    def none(kind: Tree, state: RolloutState) -> Tree:
        return tree_map(lambda leaf: np.zeros((len(state.acted), *leaf.shape[1:]), leaf.dtype), kind)

    return [
        [layer[i] if i in layer else none(kind, state) for i, state in enumerate(states)]
        for kind, layer in zip(kinds, found, strict=True)
    ], levels


def kind_of(column: Tree) -> Any:
    """Returns the structure of a column, and the types and shapes of its items."""
    if type(column) is np.ndarray:
        return column.dtype, column.shape[1:]
    return tree_structure(column), [(leaf.dtype, leaf.shape[1:]) for leaf in leaves(column)]


def _shaped(name: str, values: Tree, column: Tree) -> Tree:
    """Returns ``values`` in the parts of a column; actions also in the shape of its items.

    Modules may output an action of a ``[2, 2]`` Box as 4 numbers, and pieces an action of two parts as a tuple.

    Raises:
        EpisodeError: If they have other parts or shapes.
    """
    try:
        parts = in_parts_of(column, values)
        if name == Columns.ACTIONS:
            return tree_map(_leaf_shaped, parts, column)
        if all(one.shape[1:] == other.shape[1:] for one, other in zip(leaves(parts), leaves(column), strict=True)):
            return parts
    except ValueError:
        pass
    own, before = ([f"{leaf.dtype} {list(leaf.shape[1:])}" for leaf in leaves(tree)] for tree in (values, column))
    raise EpisodeError(
        f"Rollout: {name!r} has items of {', '.join(own)}, and those before are of {', '.join(before)}. Modules and "
        f"connector pieces must give all items of a column the same parts and shapes."
    )


def _leaf_shaped(values: np.ndarray, column: np.ndarray) -> np.ndarray:
    return values if values.shape[1:] == column.shape[1:] else values.reshape(len(values), *column.shape[1:])
