"""One agent's trajectory, or a chunk of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.array_storage import ArrayStorage
from marl_connectors.episodes.batching import number, owned
from marl_connectors.episodes.chunks import ChunkedEpisode, check_lookback
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.lookback import count
from marl_connectors.episodes.state import decode, encode
from marl_connectors.episodes.storage import ACTIONS, INFOS, OBS, REWARDS, STEP, WITH_LAST, EpisodeStorage, T
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class SingleAgentEpisode(ChunkedEpisode):
    """One agent's observations, actions, rewards, infos and extra model outputs.

    It holds one observation (and info) more than the rest: observation ``t`` led to action ``t``, which brought reward
    ``t`` and observation ``t + 1``. ``len(episode)`` counts steps, without the lookback before them.

    All getters take ``indices``: None for all steps, an int for one item, a list or slice for a batch. Negative ones
    count from the end or, with ``neg_index_as_lookback=True``, backwards from t=0. ``fill`` stands wherever the data
    does not reach; without it, such an index raises ``IndexError``, and slices are clipped. A batch is a list as long
    as the episode grows and arrays after ``to_numpy()``.

    >>> episode = SingleAgentEpisode()
    >>> episode.add_env_reset(observation=0)
    >>> episode.add_env_step(observation=1, action=5, reward=0.5)
    >>> episode.get_observations(), episode.get_actions(), episode.get_rewards(slice(-2, None), fill=0.0)
    ([0, 1], [5], [0.0, 0.5])

    Attributes:
        t_started: The agent step at which this chunk started.
        is_terminated: The state after the last step has no value.
        is_truncated: The episode was stopped although that state has one.
        uncredited_reward: The sum of what arrived when none of this chunk's own steps could have earned it: before the
            agent ever acted, or, at the start of a chunk, for an action of the chunk before.
        storage: Where the columns are.
    """

    __slots__ = ()

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
        """An empty episode, or one from given data.

        Args:
            id_: Made up if None. Chunks of one episode share it.
            observations: One more than there are actions, or nothing.
            observation_space: Gives arrays their dtype, and ``fill`` and one-hot vectors their shape.
            infos: As many as observations; empty dicts if None.
            actions: One a step.
            action_space: See ``observation_space``.
            rewards: One a step.
            terminated: Whether the last observation is that of a terminal state.
            truncated: Whether the episode was stopped after the last observation.
            extra_model_outputs: Name to one item a step.
            t_started: The agent step at which the chunk starts (after the lookback), 0 if None.
            len_lookback_buffer: How many of the given steps are from before the chunk; "auto" means all.
            agent_id: Whose episode it is.
            module_id: Who chooses the actions.
            multi_agent_episode_id: The episode of all agents that this one is part of.
            check_spaces: Whether what is added must be in the spaces.

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
            seen, paid = [owned(item, observation_space) for item in _listed(observations)], _listed(rewards)
            wanted = len(paid) if len_lookback_buffer == "auto" else len_lookback_buffer
            lookback = min(wanted, len(paid))
            columns: dict[str, list] = {
                OBS: seen,
                INFOS: [dict(info or {}) for info in infos] if infos is not None else [{} for _ in seen],
                T: list(range(started - lookback, started - lookback + len(seen))),
                ACTIONS: [owned(item, action_space) for item in _listed(actions)],
                REWARDS: [number(reward, "SingleAgentEpisode") for reward in paid],
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
        """An episode whose steps are already kept somewhere. A hot path: nothing is copied or checked."""
        episode = cls.__new__(cls)
        episode._init(
            storage, id_, agent_id, module_id, multi_agent_episode_id, t_started, observation_space, action_space
        )
        return episode

    def go_on_in(self, other: SingleAgentEpisode) -> None:
        """Becomes a view of what another episode is a view of, under the same id; keeps its notes. For runners."""
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

    def __repr__(self) -> str:
        whose = "" if self.agent_id is None else f"agent={self.agent_id!r} "
        return f"SAEps({whose}len={len(self)} done={self.is_done} R={self.get_return()} id_={self.id_})"

    def __getitem__(self, item: slice) -> SingleAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(f"{self.who}: episode[a:b] takes a slice, but {item!r} came. For items, use get_...().")
        return self.slice(item)

    @property
    def is_numpy(self) -> bool:
        """Whether the columns are arrays."""
        return self.storage.is_numpy

    def env_steps(self) -> int:
        """Steps of this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps of this chunk."""
        return len(self)

    def get_return(self) -> float:
        """The sum of the rewards of this chunk's steps, not discounted."""
        rewards = self.get_rewards()
        return float(sum(rewards if isinstance(rewards, list) else rewards.tolist()))

    def to_numpy(self) -> SingleAgentEpisode:
        """Turns the columns into arrays, or trees of arrays, in the spaces' dtypes, in place. Infos stay a list.

        Raises:
            EpisodeError: If the items of a column differ in shape.
        """
        self.storage = self.as_arrays()
        return self

    def as_arrays(self) -> EpisodeStorage:
        """The storage, or arrays made of it if it is lists."""
        if isinstance(self.storage, ListStorage):
            return ArrayStorage.from_lists(self.storage, self.observation_space, self.action_space)
        return self.storage

    def validate(self) -> None:
        """Checks that the columns fit together.

        Raises:
            EpisodeError: If their lengths differ.
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

    # As plain data.

    def get_data_dict(self) -> dict[str, Any]:
        """One item a step for each column, without the lookback and the last observation."""
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

    def get_state(self) -> dict[str, Any]:
        """The whole episode as nested dicts of numbers, strings, lists and numpy arrays.

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
            "actions_from_0": storage.actions_from_0,
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
    def from_state(cls, state: Mapping[str, Any]) -> SingleAgentEpisode:
        """The episode that ``get_state()`` described."""
        columns = {name: decode(column) for name, column in state["columns"].items()}
        held: dict[str, Any] = {
            "lookback": state["lookback"],
            "open_row": decode(state["pending"]),
            "actions_from_0": state.get("actions_from_0", False),  # states of older versions lack it
        }
        if state["is_numpy"]:
            storage: EpisodeStorage = ArrayStorage(columns, untyped=frozenset(state["untyped"]), **held)
        else:
            heads = {name: decode(column) for name, column in state["heads"].items()}
            storage = ListStorage(columns, heads=heads, **held)
        observation_space, action_space = (
            None if state[name] is None else spaces.from_json(state[name])
            for name in ("observation_space", "action_space")
        )
        episode = cls.from_storage(
            storage,
            id_=decode(state["id_"]),
            agent_id=decode(state["agent_id"]),
            module_id=decode(state["module_id"]),
            multi_agent_episode_id=decode(state["multi_agent_episode_id"]),
            t_started=state["t_started"],
            observation_space=observation_space,
            action_space=action_space,
        )
        episode.is_terminated, episode.is_truncated = state["is_terminated"], state["is_truncated"]
        episode.uncredited_reward = state["uncredited_reward"]
        episode._custom_data = decode(state["custom_data"])
        episode._set_duration(state["duration_s"])
        episode.check_spaces = state["check_spaces"]
        episode.validate()
        return episode


def _listed(items: Sequence[Any] | None) -> list[Any]:
    return [] if items is None else list(items)
