"""The getters and setters of an episode's columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.batching import number, owned_value, unbatch
from marl_connectors.episodes.episode_base import EpisodeBase
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.lookback import Indices, count, gather, is_branch, map_tree, resolve
from marl_connectors.episodes.storage import NOTHING, STEP, WITH_LAST, EpisodeStorage, known_items
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.spaces import counted_from_0
from marl_connectors.typing import AgentID, EpisodeID

PLAIN = (list, np.ndarray)


class ColumnAccess(EpisodeBase):
    """Reads and writes columns by name and step; ``SingleAgentEpisode`` says what ``indices`` and ``fill`` mean."""

    __slots__ = ("action_space", "agent_id", "id_", "observation_space", "storage")

    id_: EpisodeID
    agent_id: AgentID | None
    observation_space: Space | None
    action_space: Space | None
    storage: EpisodeStorage

    @property
    def who(self) -> str:
        return f"SingleAgentEpisode {self.id_!r}" if self.agent_id is None else f"Episode of agent {self.agent_id!r}"

    def _space(self, name: str) -> Space | None:
        """The space of a column's items, if it is known."""
        if name == Columns.OBS:
            return self.observation_space
        space = self.action_space if name == Columns.ACTIONS else None
        if space is None:
            return None
        return counted_from_0(space) if self.storage.actions_from_0 else space

    def _get(
        self,
        name: str,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool = False,
        with_pending: bool = False,
    ) -> Any:
        """A hot path: one item, or all, without padding, is a plain indexing of the column."""
        storage = self.storage
        if type(indices) is int and type(storage) is LaneStorage and not (one_hot_discrete or with_pending):
            item = storage.item(name, indices, neg_index_as_lookback)
            if item is not NOTHING:
                return item
        column = known_items(storage, name) if with_pending else storage.column(name)
        if fill is None and not one_hot_discrete and type(column) in PLAIN:
            if indices is None:
                return column[storage.lookback :]
            if type(indices) is int:
                if indices >= 0 or neg_index_as_lookback:
                    position = indices + storage.lookback
                    if 0 <= position < len(column):
                        return column[position]
                elif -indices <= len(column):
                    return column[indices]
        total = len(column) if type(column) in PLAIN else count(column)
        lookback = storage.lookback
        try:
            positions = resolve(indices, total - lookback, lookback, neg_index_as_lookback, fill is not None)
        except (IndexError, TypeError, EpisodeError) as error:
            raise type(error)(f"{self.who}, {name}: {error}") from None
        if not one_hot_discrete:
            if type(positions) is slice and type(column) in PLAIN:
                return column[positions]
            if type(positions) is list and type(column) is list and fill is None:
                return [column[position] for position in positions]
        return gather(column, positions, fill, self._space(name), one_hot_discrete, name == Columns.INFOS)

    def _check_key(self, key: str) -> None:
        known = self.storage.extra_keys()
        if key not in known:
            raise KeyError(f"{self.who}: there is no extra model output {key!r}. {did_you_mean(key, known)}")

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Observations: ``len + 1`` of them for all."""
        return self._get(Columns.OBS, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Info dicts, as they came with the observations; always in a list. ``fill`` is used as it is."""
        return self._get(Columns.INFOS, indices, neg_index_as_lookback, fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Actions: ``len`` of them for all.

        Those that a runner recorded are the modules' own: of a Discrete space they count from 0, whatever its
        ``start``, and of a Box they lie where the module put them. The environment got ``actions_for_env``. In an
        episode made by hand they are what was put in. ``one_hot_discrete`` reads either kind as what it is.
        """
        return self._get(Columns.ACTIONS, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Rewards: ``len`` of them for all."""
        return self._get(Columns.REWARDS, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Items of one extra model output, such as ``Columns.ACTION_LOGP``.

        Raises:
            KeyError: If there is no such output.
        """
        self._check_key(key)
        return self._get(key, indices, neg_index_as_lookback, fill)

    # The documents' older spellings.

    def get_observation(self, index: int = -1, **options: Any) -> Any:
        """One observation; ``options`` are those of ``get_observations``."""
        return self.get_observations(index, **options)

    def get_action(self, index: int = -1, **options: Any) -> Any:
        """One action; ``options`` are those of ``get_actions``."""
        return self.get_actions(index, **options)

    def get_reward(self, index: int = -1, **options: Any) -> Any:
        """One reward; ``options`` are those of ``get_rewards``."""
        return self.get_rewards(index, **options)

    def set_observation(self, *, new_value: Any, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one observation."""
        self._set(Columns.OBS, new_value, at_index, neg_index_as_lookback)

    def set_action(self, *, new_value: Any, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one action."""
        self._set(Columns.ACTIONS, new_value, at_index, neg_index_as_lookback)

    def set_reward(self, *, new_value: float, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one reward."""
        self._set(Columns.REWARDS, new_value, at_index, neg_index_as_lookback)

    # Setters.

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites observations.

        Args:
            new_data: One item for an int, otherwise a list of items or a batch with as many.
            at_indices: Which ones; None for all but the lookback.
            neg_index_as_lookback: -1 means the last item before t=0.

        Raises:
            IndexError: If an index is out of range, or the number of items differs.
            EpisodeError: If only some items of an array change their shape or type.
        """
        self._set(Columns.OBS, new_data, at_indices, neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites actions; see ``set_observations``."""
        self._set(Columns.ACTIONS, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites rewards; see ``set_observations``."""
        self._set(Columns.REWARDS, new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites items of one extra model output; see ``set_observations``.

        With ``at_indices=None``, a new ``key`` is allowed. It gets zeros in the lookback and, while a runner goes on
        with the episode, in the steps after these. Other agents' episodes do not get it.
        """
        if at_indices is not None or key in self.storage.extra_keys():
            self._check_key(key)
            self._set(key, new_data, at_indices, neg_index_as_lookback)
            return
        if key in STEP:
            raise EpisodeError(f"{self.who}: {key!r} is no extra model output. Use the setter of that column.")
        items = self._items(new_data, len(self), key)
        zeros = [map_tree(lambda leaf, _: np.zeros_like(leaf), item) for item in items[:1] * self.storage.lookback]
        if self.storage.pending() is not None:
            raise EpisodeError(
                f"{self.who}: a new extra model output needs a value for each action, also for the one that waits."
            )
        self.storage.set_column(key, zeros + items)

    def __len__(self) -> int:
        return len(self.storage)

    def _set(
        self,
        name: str,
        new_data: Any,
        at_indices: Indices,
        neg_index_as_lookback: bool,
        with_pending: bool = False,
    ) -> None:
        storage = self.storage
        if type(new_data) is np.ndarray and type(at_indices) is int and type(storage) is LaneStorage:  # a hot path
            is_array = not with_pending and name != Columns.INFOS and name != Columns.REWARDS
            place = storage.place(name, at_indices, neg_index_as_lookback) if is_array else -1
            if place >= 0:
                storage.rollout.write_item(name, place, new_data)
                return
        lookback = storage.lookback
        rows = lookback + len(storage)
        if name in WITH_LAST and (rows or len(storage.column(Columns.T))):
            rows += 1
        waits = with_pending and name not in WITH_LAST and name in (storage.pending() or ())
        total = rows + waits
        new_data = self._as_held(name, new_data, is_one=isinstance(at_indices, (int, np.integer)))
        if type(at_indices) is int and not waits:
            position = at_indices + (lookback if at_indices >= 0 or neg_index_as_lookback else total)
            if 0 <= position < total:
                storage.set_items(name, (position,), (new_data,))
                return
        try:
            positions = resolve(at_indices, total - lookback, lookback, neg_index_as_lookback)
        except (IndexError, TypeError, EpisodeError) as error:
            raise type(error)(f"{self.who}, {name}: {error}") from None
        if isinstance(positions, int):
            self._set_items(name, (positions,), (new_data,), rows)
            return
        if isinstance(positions, slice):
            positions = range(*positions.indices(total))
        else:
            assert isinstance(positions, list)
            positions = range(total) if positions == list(range(total)) else positions
        if waits:
            self._set_items(name, positions, self._items(new_data, len(positions), name), rows)
            return
        if positions == range(total) and not isinstance(new_data, (list, tuple)):
            self._check_count(new_data, total, name)
            storage.set_column(name, new_data)
        else:
            storage.set_items(name, positions, self._items(new_data, len(positions), name))

    def _as_held(self, name: str, new_data: Any, *, is_one: bool) -> Any:
        """Rewards as finite floats, and single items with the parts of their space."""
        if name == Columns.REWARDS:
            if is_one:
                return number(new_data, self.who)
            if type(new_data) is list and set(map(type, new_data)) == {float} and math.isfinite(sum(new_data)):
                return new_data
            if isinstance(new_data, np.ndarray) and new_data.dtype.kind in "biuf" and np.isfinite(new_data).all():
                return new_data.astype(np.float64)
            return [number(reward, self.who) for reward in new_data] if isinstance(new_data, Iterable) else new_data
        space = self._space(name)
        if space is None:
            return new_data
        if is_one:
            return owned_value(new_data, space)
        is_batch = not isinstance(new_data, list) and (space.shape is None or not isinstance(new_data, tuple))
        return new_data if is_batch else [owned_value(item, space) for item in new_data]

    def _set_items(self, name: str, positions: Sequence[int], items: Sequence[Any], rows: int) -> None:
        """Position ``rows`` is that of the row that waits."""
        if rows in positions:
            for position, item in zip(positions, items, strict=True):
                if position == rows:
                    self.storage.set_pending(name, item)
            closed = [i for i, position in enumerate(positions) if position < rows]
            positions, items = [positions[i] for i in closed], [items[i] for i in closed]
        self.storage.set_items(name, positions, items)

    def _items(self, new_data: Any, wanted: int, name: str) -> list[Any]:
        """A batch as a list of items; a tuple is a tree of arrays only if the column is one."""
        if isinstance(new_data, tuple) and not is_branch(new_data, self._space(name)):
            new_data = list(new_data)
        self._check_count(new_data, wanted, name)
        return unbatch(new_data)

    def _check_count(self, new_data: Any, wanted: int, name: str) -> None:
        if not isinstance(new_data, (list, tuple, dict, np.ndarray)):
            raise EpisodeError(
                f"{self.who}: setting several {name!r} needs a list or an array with {wanted} item(s), but "
                f"{type(new_data).__name__} came."
            )
        try:
            came = count(new_data)
        except (TypeError, IndexError):
            raise EpisodeError(
                f"{self.who}: setting several {name!r} needs {wanted} item(s), but {new_data!r} has no first axis."
            ) from None
        if came != wanted:
            raise IndexError(
                f"{self.who}: {wanted} item(s) of {name!r} are to be replaced, but {came} came. Setters never change a "
                f"length."
            )
