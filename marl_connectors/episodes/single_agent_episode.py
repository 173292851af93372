"""One agent's trajectory, or a chunk of it."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, ActionUnits
from marl_connectors.episodes.column_view import ColumnView
from marl_connectors.episodes.episode_base import (
    PLAIN,
    EpisodeBase,
    EpisodeNotes,
    check_item,
    check_lookback,
    slice_bounds,
)
from marl_connectors.episodes.items import (
    count,
    is_branch,
    map_tree,
    number,
    owned,
    owned_infos,
    owned_value,
    same_item,
    unbatch,
)
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.lookback import Indices, gather, resolve
from marl_connectors.episodes.state import decode, encode, episode_state
from marl_connectors.episodes.storage import (
    ACTIONS,
    INFOS,
    NOTHING,
    OBS,
    REWARDS,
    STEP,
    WITH_LAST,
    ArrayStorage,
    EpisodeStorage,
    ListStorage,
    T,
    known_items,
)
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.names import brief
from marl_connectors.spaces import counted_from_0
from marl_connectors.state import Finite, Index, State
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class SingleAgentEpisodeNotes(EpisodeNotes):
    """What is unusual about a SingleAgentEpisode.

    Attributes:
        is_empty: Whether it has no observation.
        uncredited_reward: The reward that belongs to no step.
        pending: The action that is not answered yet, with its reward and module outputs; None if there is none.
    """

    is_empty: bool = False
    uncredited_reward: Finite = 0.0
    pending: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.pending is not None:
            reward: Any = self.pending.get(REWARDS)
            if type(reward) not in (int, float) or not math.isfinite(reward) or ACTIONS not in self.pending:
                raise ValueError(f"Expected pending to have an action and a reward, got {brief(self.pending)}")


class SingleAgentEpisodeState(State):
    """What ``SingleAgentEpisode.get_state`` returns; ``encode`` has made plain data of all ids and items.

    Attributes:
        id_: The id of the episode.
        agent_id: The agent.
        module_id: Its module.
        multi_agent_episode_id: The id of the MultiAgentEpisode that it is in.
        t_started: The number of steps that its agent has taken before.
        is_terminated: Whether it was terminated.
        is_truncated: Whether it was truncated.
        uncredited_reward: The reward that belongs to no step.
        is_numpy: Whether its columns are arrays.
        lookback: The number of steps before its beginning.
        untyped: The columns whose arrays are not of the type of their space.
        action_units: Whose actions it holds; None if that follows from its columns.
        heads: The parts of columns that are lists already.
        columns: The columns.
        pending: As in the notes.
        observation_space: The observation space as JSON data.
        action_space: The action space as JSON data.
        custom_data: The user's own notes.
        duration_s: The seconds between the first and the last addition.
        check_spaces: Whether additions are checked.
    """

    id_: Any
    agent_id: Any
    module_id: Any
    multi_agent_episode_id: Any
    t_started: Index
    is_terminated: bool
    is_truncated: bool
    uncredited_reward: float
    is_numpy: bool
    lookback: Index
    untyped: list[str]
    action_units: ActionUnits | None
    heads: dict[str, Any]
    columns: dict[str, Any]
    pending: dict[str, Any] | None
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    custom_data: dict[str, Any]
    duration_s: float
    check_spaces: bool


class SingleAgentEpisode(EpisodeBase):
    """One agent's observations, actions, rewards, infos and extra model outputs.

    An episode holds one observation (and info) more than actions: observation ``t`` led to action ``t``, which brought
    reward ``t`` and observation ``t + 1``. ``len(episode)`` counts steps, without the lookback before them.

    All getters accept ``indices``: None for all steps, an int for one item, a list or slice for a batch. Negative
    indices count from the end or, with ``neg_index_as_lookback=True``, backwards from t=0. ``fill`` is the value
    wherever the episode has no item; without it, such an index raises ``IndexError``, and slices are clipped. A batch
    is a list as long as the episode grows, and an array after ``to_numpy()``.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(observation=0)
    >>> episode.add_env_step(observation=1, action=5, reward=0.5)
    >>> episode.get_observations(), episode.get_actions(), episode.get_rewards(slice(-2, None), fill=0.0)
    ([0, 1], [5], [0.0, 0.5])

    Attributes:
        t_started: The agent step at which this chunk started.
        is_terminated: Whether the episode ended in a terminal state, which has no value.
        is_truncated: Whether the episode was stopped although its last state has a value.
        uncredited_reward: The sum of the rewards that no step of this chunk has earned: those that came before the
            agent ever acted and, at the start of a chunk, those for an action of the chunk before.
        storage: The storage of the columns.
    """

    __slots__ = (
        "action_space",
        "agent_id",
        "id_",
        "module_id",
        "multi_agent_episode_id",
        "observation_space",
        "storage",
        "t_started",
        "uncredited_reward",
    )

    id_: EpisodeID
    agent_id: AgentID | None
    module_id: ModuleID | None
    multi_agent_episode_id: EpisodeID | None
    observation_space: Space | None
    action_space: Space | None
    storage: EpisodeStorage
    t_started: int
    uncredited_reward: float

    def __init__(
        self,
        id_: EpisodeID | None = None,
        *,
        observations: Sequence[Any] | None = None,
        observation_space: Space | None = None,
        infos: Sequence[Mapping[str, Any]] | None = None,
        actions: Sequence[Any] | None = None,
        action_space: Space | None = None,
        rewards: Sequence[float] | None = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Sequence[Any]] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: AgentID | None = None,
        module_id: ModuleID | None = None,
        multi_agent_episode_id: EpisodeID | None = None,
        check_spaces: bool = False,
    ):
        """Creates an empty episode, or one from given data.

        Args:
            id_: The id that all chunks of one episode share. A new one is made if it is None.
            observations: The observations, one more than actions, or none.
            observation_space: The space of the observations, which determines the dtype of arrays and the shapes of
                filled items and one-hot vectors.
            infos: As many info dicts as observations; empty dicts if None.
            actions: One action for each step.
            action_space: The space of the actions, used like ``observation_space``.
            rewards: One reward for each step.
            terminated: Whether the last observation is that of a terminal state.
            truncated: Whether the episode was stopped after the last observation.
            extra_model_outputs: Name to a sequence with one item for each step.
            t_started: The agent step at which the chunk starts (after the lookback), 0 if None.
            len_lookback_buffer: How many of the given steps are from before the chunk; "auto" means all.
            agent_id: The agent.
            module_id: The module that chooses the agent's actions.
            multi_agent_episode_id: The id of the ``MultiAgentEpisode`` that this episode is part of.
            check_spaces: Whether observations and actions must be in their spaces.

        Raises:
            EpisodeError: If the data have unequal lengths.
        """
        started = t_started or 0
        storage = ListStorage()
        if len_lookback_buffer != "auto":
            check_lookback(len_lookback_buffer, "SingleAgentEpisode")
        if any(
            given is not None and len(given) for given in (observations, actions, rewards, infos, extra_model_outputs)
        ):
            seen, earned = [owned(item, observation_space) for item in _listed(observations)], _listed(rewards)
            wanted = len(earned) if len_lookback_buffer == "auto" else len_lookback_buffer
            lookback = min(wanted, len(earned))
            columns: dict[str, list] = {
                OBS: seen,
                INFOS: [dict(info or {}) for info in infos] if infos is not None else [{} for _ in seen],
                T: list(range(started - lookback, started - lookback + len(seen))),
                ACTIONS: [owned(item, action_space) for item in _listed(actions)],
                REWARDS: [number(reward, "SingleAgentEpisode") for reward in earned],
                **{name: list(items) for name, items in (extra_model_outputs or {}).items()},
            }
            storage = ListStorage(columns, lookback=lookback)
        self._init(
            storage,
            uuid.uuid4().hex if id_ is None else id_,
            agent_id,
            module_id,
            multi_agent_episode_id,
            started,
            observation_space,
            action_space,
        )
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.check_spaces = check_spaces
        self.validate()
        if check_spaces:
            for name in (OBS, ACTIONS):
                for item in storage.column(name):
                    self._check(item, name)

    @classmethod
    def from_storage(
        cls,
        storage: EpisodeStorage,
        *,
        id_: EpisodeID,
        agent_id: AgentID | None = None,
        module_id: ModuleID | None = None,
        multi_agent_episode_id: EpisodeID | None = None,
        t_started: int = 0,
        observation_space: Space | None = None,
        action_space: Space | None = None,
    ) -> SingleAgentEpisode:
        """Returns an episode of steps that a storage holds already. Nothing is copied or checked."""
        episode = cls.__new__(cls)
        episode._init(
            storage, id_, agent_id, module_id, multi_agent_episode_id, t_started, observation_space, action_space
        )
        return episode

    def _init(
        self,
        storage: EpisodeStorage,
        id_: EpisodeID,
        agent_id: AgentID | None,
        module_id: ModuleID | None,
        multi_agent_episode_id: EpisodeID | None,
        t_started: int,
        observation_space: Space | None,
        action_space: Space | None,
    ) -> None:
        self.storage = storage
        self.id_ = id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.t_started = t_started
        self.observation_space = observation_space
        self.action_space = action_space
        self.uncredited_reward = 0.0
        self._init_base()

    def _with(self, storage: EpisodeStorage, t_started: int) -> Self:
        """Returns an episode of the same identity with other steps."""
        other = type(self).__new__(type(self))
        other._init(
            storage,
            self.id_,
            self.agent_id,
            self.module_id,
            self.multi_agent_episode_id,
            t_started,
            self.observation_space,
            self.action_space,
        )
        other.check_spaces = self.check_spaces
        other._copy_notes(self)
        return other

    def continue_in(self, other: SingleAgentEpisode) -> None:
        """Continues in the storage of another episode, with its ids. ``custom_data`` is kept. This is for runners."""
        notes = self._custom_data
        self._init(
            other.storage,
            other.id_,
            other.agent_id,
            other.module_id,
            other.multi_agent_episode_id,
            other.t_started,
            other.observation_space,
            other.action_space,
        )
        self._custom_data = notes

    # What it is.

    @property
    def who(self) -> str:
        return f"SingleAgentEpisode {self.id_!r}" if self.agent_id is None else f"Episode of agent {self.agent_id!r}"

    def __repr__(self) -> str:
        whose = "" if self.agent_id is None else f"agent={self.agent_id!r} "
        return f"SAEps({whose}len={len(self)} done={self.is_done} R={self.get_return()} id_={self.id_})"

    def __len__(self) -> int:
        return len(self.storage)

    @property
    def is_numpy(self) -> bool:
        """Whether the columns are arrays."""
        return self.storage.is_numpy

    @property
    def t(self) -> int:
        """The agent step at which the newest observation was made."""
        return self.t_started + len(self.storage)

    @property
    def is_reset(self) -> bool:
        """Whether the agent has observed anything."""
        return len(self.storage.column(T)) > 0

    # Its columns, as RLlib shows them.

    @property
    def observations(self) -> ColumnView:
        """The observations: ``episode.observations[-1]`` is ``episode.get_observations(-1)``."""
        return ColumnView(self.storage, OBS, self.get_observations, self.set_observations)

    @property
    def infos(self) -> ColumnView:
        """The infos, one for each observation."""
        return ColumnView(self.storage, INFOS, self.get_infos)

    @property
    def actions(self) -> ColumnView:
        """The actions."""
        return ColumnView(self.storage, ACTIONS, self.get_actions, self.set_actions)

    @property
    def rewards(self) -> ColumnView:
        """The rewards."""
        return ColumnView(self.storage, REWARDS, self.get_rewards, self.set_rewards)

    @property
    def extra_model_outputs(self) -> dict[str, ColumnView]:
        """The extra model outputs by name. ``set_extra_model_outputs`` adds another one; changing the dict does not."""
        return {
            key: ColumnView(
                self.storage,
                key,
                partial(self.get_extra_model_outputs, key),
                partial(self.set_extra_model_outputs, key=key),
            )
            for key in self.storage.extra_keys()
        }

    def env_steps(self) -> int:
        """Returns the number of steps in this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Returns the number of steps in this chunk."""
        return len(self)

    def get_return(self) -> float:
        """Returns the sum of the rewards of this chunk's steps, not discounted."""
        rewards = self.get_rewards()
        return float(sum(rewards if isinstance(rewards, list) else rewards.tolist()))

    def validate(self) -> None:
        """Checks that the lengths of the columns fit together.

        Raises:
            EpisodeError: If they do not.
        """
        storage = self.storage
        counts = {name: count(storage.column(name)) for name in (*STEP, *storage.extra_keys())}
        steps = storage.lookback + len(storage)
        seen = 0 if steps == 0 and counts[OBS] == 0 else steps + 1
        wrong = [f"{n} {name}" for name, n in counts.items() if n != (seen if name in WITH_LAST else steps)]
        if wrong:
            raise EpisodeError(
                f"{self.who}: {steps} reward(s) need as many actions and extra model outputs, and {steps + 1} "
                f"observations and infos, but there are {', '.join(wrong)}."
            )

    def _space(self, name: str) -> Space | None:
        """Returns the space of a column's items, or None if it is unknown."""
        if name == Columns.OBS:
            return self.observation_space
        space = self.action_space if name == Columns.ACTIONS else None
        if space is None:
            return None
        return space if self.storage.action_units == ENV else counted_from_0(space)

    # How it grows.

    def add_env_reset(self, observation: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Adds what ``env.reset()`` returned.

        Raises:
            EpisodeError: If the episode has begun already.
        """
        if self.is_reset or self.is_done:
            raise EpisodeError(f"{self.who}: add_env_reset() comes first and once, but there is data. Start a new one.")
        self.observe(observation, infos, self.t_started)
        self._tick()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: float,
        infos: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds an action and what ``env.step()`` returned for it.

        Raises:
            EpisodeError: If the episode has not begun or is over, ``reward`` is not a number, or ``check_spaces`` is on
                and the action or observation is not in its space. The episode is then unchanged.
        """
        storage = self.storage
        if type(reward) is not float or reward - reward != 0.0:
            reward = number(reward, self.who)
        if (
            type(storage) is not ListStorage
            or storage.open_row is not None
            or self.is_terminated
            or self.is_truncated
            or not storage.columns[T]
        ):
            storage = self.acting_storage()
        if self.check_spaces:
            self._check(action, ACTIONS)
            self._check(observation, OBS)
        outputs = () if extra_model_outputs is None else tuple(extra_model_outputs)
        if outputs != storage.extras:
            storage.expect(extra_model_outputs or {}, self)
        storage.append(
            owned(observation, self.observation_space),
            action if type(action) is int else owned(action, self.action_space),
            reward,
            owned_infos(infos, self.who) if infos else {},
            extra_model_outputs,
        )
        if terminated or truncated:
            self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._last_time = perf_counter()
        if self._first_time is None:
            self._first_time = self._last_time

    def observe(self, observation: Any, infos: Mapping[str, Any] | None, t: int) -> None:
        """Adds an observation at env step ``t``, which closes the step that waits for it.

        A second observation before the agent acts replaces the first.
        """
        self._check_going_on("observes")
        if self.check_spaces:
            self._check(observation, OBS)
        self.lists().observe(owned(observation, self.observation_space), owned_infos(infos, self.who), t)

    def act(self, action: Any, extra_model_outputs: Mapping[str, Any] | None = None) -> None:
        """Adds the action that follows the newest observation; its step waits for the next one."""
        storage = self.acting_storage()
        if self.check_spaces:
            self._check(action, ACTIONS)
        storage.expect(extra_model_outputs or {}, self)
        storage.act(owned(action, self.action_space), extra_model_outputs or {})

    def acting_storage(self) -> ListStorage:
        """Returns the storage, as one that can grow.

        Raises:
            EpisodeError: If the agent may not act now.
        """
        storage = self.storage
        if type(storage) is not ListStorage:
            storage = self.lists()
        if self.is_terminated or self.is_truncated:
            self._check_going_on("acts")
        if storage.open_row is not None:
            raise EpisodeError(
                f"{self.who}: it acts twice without an observation in between. Add the observation it acted upon."
            )
        if not storage.columns[T]:
            raise EpisodeError(f"{self.who}: it acts, but has observed nothing. Call add_env_reset() first.")
        return storage

    def credit(self, reward: float) -> None:
        """Adds a reward to the step of the agent's last action, also after the episode's end.

        A reward that no step of this chunk has earned is added to ``uncredited_reward`` (and to the reward of the last
        action, if that is in the lookback).
        """
        reward = number(reward, self.who)
        storage = self.lists()
        if storage.open_row is not None:
            storage.open_row[REWARDS] = float(storage.open_row[REWARDS]) + reward
            return
        if storage.columns[REWARDS]:
            storage.columns[REWARDS][-1] += reward
        if not len(storage):
            self.uncredited_reward += reward

    def end(self, *, terminated: bool, truncated: bool, t: int | None = None) -> None:
        """Sets the done flags. If the final observation is missing, the newest one is repeated.

        Args:
            terminated: Whether the final state has no value.
            truncated: Whether the episode was stopped.
            t: The env step of the end. Without it, an observation is missing only if an action waits.
        """
        waits, observed = self.storage.pending() is not None, self.storage.column(T)
        if (terminated or truncated) and len(observed) and (waits or (t is not None and observed[-1] < t)):
            columns, newest = self.lists().columns, int(observed[-1])
            final = max(newest + waits, newest if t is None else t)
            self.lists().observe(columns[OBS][-1], dict(columns[INFOS][-1]), final)
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)

    def lists(self) -> ListStorage:
        """Returns the storage as lists, which can grow; other storages are replaced by a copy."""
        if not isinstance(self.storage, ListStorage):
            self.storage = ListStorage.from_storage(self.storage)
        return self.storage

    def _check(self, item: Any, name: str) -> None:
        space = self._space(name)
        if space is not None:
            check_item(space, item, name, f"{self.who}, t={self.t}")

    def _check_going_on(self, what: str) -> None:
        if self.is_done:
            how = "terminated" if self.is_terminated else "truncated"
            raise EpisodeError(f"{self.who}: it {what} after it was {how}. Start a new episode after the end.")

    # Getters.

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Returns observations; there are ``len + 1`` of them."""
        return self._get(Columns.OBS, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Returns the info dicts that came with the observations, always in a list. ``fill`` is used as it is."""
        return self._get(Columns.INFOS, indices, neg_index_as_lookback, fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Returns actions; there are ``len`` of them.

        Actions that a runner recorded are the modules' outputs: those of a Discrete space count from 0, whatever its
        ``start``, and those of a Box are neither clipped nor scaled to its bounds. The environment got
        ``actions_for_env``. An episode made by hand holds the actions that were added: those of the environment,
        unless module outputs such as ``action_logp`` came with them. ``one_hot_discrete`` reads both kinds correctly.
        """
        return self._get(Columns.ACTIONS, indices, neg_index_as_lookback, fill, one_hot_discrete)

    def get_rewards(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Returns rewards; there are ``len`` of them."""
        return self._get(Columns.REWARDS, indices, neg_index_as_lookback, fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Returns items of one extra model output, such as ``Columns.ACTION_LOGP``.

        Raises:
            KeyError: If there is no such output.
        """
        self._check_key(key)
        return self._get(key, indices, neg_index_as_lookback, fill)

    def get_observation(self, index: int = -1, **options: Any) -> Any:
        """Returns one observation; ``options`` are those of ``get_observations``."""
        return self.get_observations(index, **options)

    def get_action(self, index: int = -1, **options: Any) -> Any:
        """Returns one action; ``options`` are those of ``get_actions``."""
        return self.get_actions(index, **options)

    def get_reward(self, index: int = -1, **options: Any) -> Any:
        """Returns one reward; ``options`` are those of ``get_rewards``."""
        return self.get_rewards(index, **options)

    def _get(
        self,
        name: str,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool = False,
        with_pending: bool = False,
    ) -> Any:
        # Pieces on items read single items at every step, so one item, or all of them, is a plain index of a column.
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

    # Setters.

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites observations.

        Args:
            new_data: One item for an int, otherwise a list of items or a batch with as many.
            at_indices: The indices to overwrite; None for all but the lookback.
            neg_index_as_lookback: Whether -1 means the last item before t=0.

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

        With ``at_indices=None``, a new ``key`` is allowed. It gets zeros in the lookback and, while a runner continues
        the episode, in later steps. Other agents' episodes do not get it.
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

    def set_observation(self, *, new_value: Any, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one observation."""
        self._set(Columns.OBS, new_value, at_index, neg_index_as_lookback)

    def set_action(self, *, new_value: Any, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one action."""
        self._set(Columns.ACTIONS, new_value, at_index, neg_index_as_lookback)

    def set_reward(self, *, new_value: float, at_index: int = -1, neg_index_as_lookback: bool = False) -> None:
        """Overwrites one reward."""
        self._set(Columns.REWARDS, new_value, at_index, neg_index_as_lookback)

    def _set(
        self,
        name: str,
        new_data: Any,
        at_indices: Indices,
        neg_index_as_lookback: bool,
        with_pending: bool = False,
    ) -> None:
        storage = self.storage
        if type(new_data) is np.ndarray and type(at_indices) is int and type(storage) is LaneStorage:
            is_array = not with_pending and name != Columns.INFOS and name != Columns.REWARDS
            position = storage.position_of(name, at_indices, neg_index_as_lookback) if is_array else -1
            if position >= 0:
                storage.rollout.write_item(name, position, new_data)
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
        """Returns new data in the form in which a storage holds it.

        Rewards become finite floats, and single items get the parts of their space.
        """
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
        """Overwrites items; position ``rows`` is that of the row that waits."""
        if rows in positions:
            for position, item in zip(positions, items, strict=True):
                if position == rows:
                    self.storage.set_pending(name, item)
            closed = [i for i, position in enumerate(positions) if position < rows]
            positions, items = [positions[i] for i in closed], [items[i] for i in closed]
        self.storage.set_items(name, positions, items)

    def _items(self, new_data: Any, wanted: int, name: str) -> list[Any]:
        """Returns a batch as a list of items; a tuple is a tree of arrays only if the column is one."""
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

    # Chunks.

    def __getitem__(self, item: slice) -> SingleAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(f"{self.who}: episode[a:b] needs a slice, but {item!r} came. For items, use get_...().")
        return self.slice(item)

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Returns a successor chunk of length 0 that continues where this one stops.

        It has the same identity and custom data (copied), up to ``len_lookback_buffer`` steps of lookback, and the
        action that waits, if there is one.

        Raises:
            EpisodeError: If the episode is over.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: cut() makes a successor, but the episode is over. Start a new one.")
        check_lookback(len_lookback_buffer, self.who)
        rows = self.storage.lookback + len(self)
        lookback = min(len_lookback_buffer, rows)
        return self._with(ListStorage.from_storage(self.storage, rows - lookback, None, lookback), self.t)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Returns a copy of the steps ``[start, stop)``, with the observation after them and a lookback before them.

        The copy has the same ids, infos, agent, module and custom data. It has the done flags and an action that waits
        if the slice reaches the end.

        Args:
            slice_: Steps of this chunk, without a step size.
            len_lookback_buffer: How many steps of lookback to keep, as far as there are any; None for as many as here.

        Raises:
            EpisodeError: If the slice has a step size.
        """
        start, stop = slice_bounds(slice_, len_lookback_buffer, len(self), self.who)
        part = self._rows(start, stop, len_lookback_buffer)
        if start == 0 and (stop > 0 or len(self) == 0):
            part.uncredited_reward = self.uncredited_reward
        elif start == 0:
            part.withdraw_reward(self.uncredited_reward)
        return part

    def _rows(self, start: int, stop: int, len_lookback_buffer: int | None) -> Self:
        storage, at_end = self.storage, stop == len(self)
        lookback = storage.lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, storage.lookback + start)
        first, last = storage.lookback + start - lookback, storage.lookback + stop
        if storage.is_numpy:
            open_row = storage.pending() if at_end else None
            part: EpisodeStorage = ArrayStorage.from_storage(storage, first, last, lookback, open_row)
        else:
            part = ListStorage.from_storage(storage, first, None if at_end else last, lookback)
        new = self._with(part, self.t_started + start)
        if at_end:
            new.is_terminated, new.is_truncated = self.is_terminated, self.is_truncated
        return new

    def withdraw_reward(self, reward: float) -> None:
        """Subtracts a late reward, which arrived after these steps, from the last step of the lookback."""
        lookback = self.storage.lookback
        if lookback:
            self.storage.column(REWARDS)[lookback - 1] -= reward  # type: ignore[index]

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Appends a successor chunk, as ``cut()`` or ``slice()`` made it; ``other`` stays as it is.

        Raises:
            EpisodeError: If ``other`` is not this episode's continuation. The episode is then unchanged.
        """
        self.check_continuation(other)
        self.append_chunk(other)

    def take_over(self, other: SingleAgentEpisode) -> None:
        """Does the same as ``concat_episode`` with a chunk that is not used any more, whose rows are not copied.

        They are copied nevertheless if they do not follow those of this chunk in one rollout.
        """
        self.check_continuation(other)
        self.append_chunk(other, is_given_up=True)

    def append_chunk(self, other: SingleAgentEpisode, *, is_given_up: bool = False) -> None:
        """Appends a chunk that ``check_continuation`` has accepted, whose rows may be used if it is given up."""
        joined = _adjoining(self.storage, other.storage) if is_given_up else None
        if joined is None:
            self.lists().extend(other.storage)
        else:
            self.storage = joined
        if other.uncredited_reward:
            self.credit_in_place(other.uncredited_reward, len(self) - len(other))
        self._append_notes(other)

    def check_continuation(self, other: SingleAgentEpisode) -> None:
        """Raises an EpisodeError unless ``other`` is the chunk that follows this one."""
        if self.is_done:
            raise EpisodeError(f"{self.who}: concat_episode() continues an episode, but this one is over.")
        if (other.id_, other.t_started) != (self.id_, self.t):
            raise EpisodeError(
                f"{self.who}: concat_episode() needs the chunk of {self.id_!r} that starts at t={self.t}, but that of "
                f"{other.id_!r} from t={other.t_started} came."
            )
        mine, theirs = self.storage, other.storage
        if not other.is_reset:
            raise EpisodeError(f"{self.who}: concat_episode() got a chunk without observations. Give it at least one.")
        if _adjoining(mine, theirs) is None:
            boundary, here = mine.column(T)[-1:], theirs.lookback  # type: ignore[index]
            shared = len(boundary) and boundary[0] == theirs.column(T)[here]  # type: ignore[index]
            if shared and not same_item(self.get_observations(-1), other.get_observations(0)):
                raise EpisodeError(f"{self.who}: the chunks differ in the observation that they share, at t={self.t}.")
        known, extras = mine.extra_keys(), theirs.extra_keys()
        if set(known) != set(extras) and len(mine.column(REWARDS)) and (len(theirs) or theirs.pending()):
            raise EpisodeError(
                f"{self.who}: its extra model outputs are {sorted(known)}, those of the chunk to append "
                f"{sorted(extras)}. Both must have the same ones."
            )

    def credit_in_place(self, reward: float, steps: int) -> None:
        """Adds an uncredited reward of a later chunk to the last one of some steps, if there is one.

        Other views of the same rows see it.
        """
        rewards, before = self.storage.column(REWARDS), self.storage.lookback + steps
        if before:
            rewards[before - 1] += reward
        if not steps:
            self.uncredited_reward += reward

    # As arrays and as plain data.

    def to_numpy(self) -> SingleAgentEpisode:
        """Turns the columns into arrays, or trees of arrays, in the spaces' dtypes, in place. Infos stay a list.

        Raises:
            EpisodeError: If the items of a column differ in shape.
        """
        self.storage = self.as_arrays()
        return self

    def as_arrays(self) -> EpisodeStorage:
        """Returns the storage, or arrays made of it if it holds lists."""
        if isinstance(self.storage, ListStorage):
            return ArrayStorage.from_lists(self.storage, self.observation_space, self.action_space)
        return self.storage

    def get_data_dict(self) -> dict[str, Any]:
        """Returns all columns with one item for each step, without the lookback and the last observation."""
        steps = len(self)
        terminateds, truncateds = [False] * steps, [False] * steps
        if steps:
            terminateds[-1], truncateds[-1] = self.is_terminated, self.is_truncated
        data: dict[str, Any] = {
            Columns.TERMINATEDS: terminateds,
            Columns.TRUNCATEDS: truncateds,
            T: list(range(self.t_started, self.t)),
            Columns.EPS_ID: [self.id_] * steps,
        }
        if self.is_numpy:
            data = {name: np.array(items) for name, items in data.items()}
        data[OBS] = self.get_observations(slice(0, steps))
        data[INFOS] = self.get_infos(slice(0, steps))
        data[ACTIONS] = self.get_actions()
        data[REWARDS] = self.get_rewards()
        return data | {key: self.get_extra_model_outputs(key) for key in self.storage.extra_keys()}

    def get_notes(self) -> dict[str, Any]:
        """Returns what is unusual about this episode: the fields of ``SingleAgentEpisodeNotes`` with other values."""
        notes: dict[str, Any] = {}
        if not self.is_reset:
            notes["is_empty"] = True
        if self.uncredited_reward:
            notes["uncredited_reward"] = self.uncredited_reward
        if (pending := self.storage.pending()) is not None:
            notes["pending"] = pending
        return notes | self._base_notes()

    def set_notes(self, notes: SingleAgentEpisodeNotes) -> None:
        """Sets what ``get_notes`` returned."""
        self.uncredited_reward = notes.uncredited_reward
        if notes.pending is not None:
            lists = ListStorage.from_storage(self.storage)
            lists.open_row = dict(notes.pending)
            self.storage = lists
        self._set_base_notes(notes)

    def get_state(self) -> dict[str, Any]:
        """Returns the whole episode as nested dicts of numbers, strings, lists and numpy arrays.

        Raises:
            EpisodeError: If observations, infos or custom data hold anything else.
        """
        storage = self.storage
        columns = {name: storage.column(name) for name in (*STEP, *storage.extra_keys())}
        return {
            "id_": encode(self.id_, "id_"),
            "agent_id": encode(self.agent_id, "agent_id"),
            "module_id": encode(self.module_id, "module_id"),
            "multi_agent_episode_id": encode(self.multi_agent_episode_id, "multi_agent_episode_id"),
            "t_started": self.t_started,
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
            "uncredited_reward": self.uncredited_reward,
            "is_numpy": storage.is_numpy,
            "lookback": storage.lookback,
            "untyped": sorted(storage.untyped),
            "action_units": storage.given_units,
            "heads": {name: encode(column, name) for name, column in storage.heads.items()}
            if isinstance(storage, ListStorage)
            else {},
            "columns": {name: encode(column, name) for name, column in columns.items()},
            "pending": encode(storage.pending(), "pending"),
            "observation_space": None if self.observation_space is None else spaces.to_json(self.observation_space),
            "action_space": None if self.action_space is None else spaces.to_json(self.action_space),
            "custom_data": encode(self._custom_data or {}, "custom_data"),
            "duration_s": self.get_duration_s(),
            "check_spaces": self.check_spaces,
        }

    @classmethod
    def from_state(cls, state: SingleAgentEpisodeState | Mapping[str, Any]) -> SingleAgentEpisode:
        """Returns the episode that ``get_state()`` described.

        Raises:
            EpisodeError: If it has other fields, or fields of other types.
        """
        state = episode_state(SingleAgentEpisodeState, state)
        columns = {name: decode(column) for name, column in state.columns.items()}
        held: dict[str, Any] = {
            "lookback": state.lookback,
            "open_row": decode(state.pending),
            "action_units": state.action_units,
        }
        if state.is_numpy:
            storage: EpisodeStorage = ArrayStorage(columns, untyped=frozenset(state.untyped), **held)
        else:
            heads = {name: decode(column) for name, column in state.heads.items()}
            storage = ListStorage(columns, heads=heads, **held)
        observation_space, action_space = (
            None if space is None else spaces.from_json(space)
            for space in (state.observation_space, state.action_space)
        )
        episode = cls.from_storage(
            storage,
            id_=decode(state.id_),
            agent_id=decode(state.agent_id),
            module_id=decode(state.module_id),
            multi_agent_episode_id=decode(state.multi_agent_episode_id),
            t_started=state.t_started,
            observation_space=observation_space,
            action_space=action_space,
        )
        episode.is_terminated, episode.is_truncated = state.is_terminated, state.is_truncated
        episode.uncredited_reward = state.uncredited_reward
        episode._custom_data = decode(state.custom_data)
        episode._set_duration(state.duration_s)
        episode.check_spaces = state.check_spaces
        episode.validate()
        return episode


def _listed(items: Sequence[Any] | None) -> list[Any]:
    return [] if items is None else list(items)


def _adjoining(mine: EpisodeStorage, theirs: EpisodeStorage) -> LaneStorage | None:
    """Returns the rows of two chunks if those of the second one follow those of the first one in a rollout, or None."""
    if isinstance(mine, LaneStorage) and isinstance(theirs, LaneStorage):
        return mine.continued_by(theirs)
    return None
