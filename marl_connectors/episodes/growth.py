"""How an agent's episode grows, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.episodes.batching import number, owned, owned_infos
from marl_connectors.episodes.column_access import ColumnAccess
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.storage import ACTIONS, INFOS, OBS, REWARDS, T
from marl_connectors.errors import EpisodeError


class GrowingEpisode(ColumnAccess):
    """Takes in what the agent sees, does and earns.

    A step may come in parts, as turn-based environments have it: ``observe``, ``act``, ``credit`` (any number of
    times), then ``observe`` again, or ``end``. ``add_env_step`` is all of them at once.
    """

    __slots__ = ("t_started", "uncredited_reward")

    t_started: int
    uncredited_reward: float

    @property
    def t(self) -> int:
        """The agent step at which the newest observation was made."""
        return self.t_started + len(self.storage)

    @property
    def is_reset(self) -> bool:
        """Whether the agent has observed anything."""
        return len(self.storage.column(T)) > 0

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
            EpisodeError: If the episode has not begun or is over, ``reward`` is not a number, or something leaves its
                space and ``check_spaces`` is on. The episode is then as it was.
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

    def acting_storage(self) -> ListStorage:
        """The storage, if the agent may act now.

        Raises:
            EpisodeError: If not.
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

    def _check(self, item: Any, name: str) -> None:
        space = self._space(name)
        if space is not None:
            check_item(space, item, name, f"{self.who}, t={self.t}")

    def lists(self) -> ListStorage:
        """The storage as one that grows: a copy if it cannot."""
        if not isinstance(self.storage, ListStorage):
            self.storage = ListStorage.from_storage(self.storage)
        return self.storage

    def observe(self, observation: Any, infos: Mapping[str, Any] | None, t: int) -> None:
        """The agent sees something at env step ``t``, which closes the step that waits for it.

        A second observation before the agent acts replaces the first.
        """
        self._check_going_on("observes")
        if self.check_spaces:
            self._check(observation, OBS)
        self.lists().observe(owned(observation, self.observation_space), owned_infos(infos, self.who), t)

    def act(self, action: Any, extra_model_outputs: Mapping[str, Any] | None = None) -> None:
        """The agent does something about its newest observation, and waits for the next."""
        storage = self.acting_storage()
        if self.check_spaces:
            self._check(action, ACTIONS)
        storage.expect(extra_model_outputs or {}, self)
        storage.act(owned(action, self.action_space), extra_model_outputs or {})

    def credit(self, reward: float) -> None:
        """Adds a reward to the step of the agent's last action, also after the episode's end.

        What no step of this chunk has earned is added to ``uncredited_reward`` (and shown in the lookback, if the last
        action is there).
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
            terminated: The final state has no value.
            truncated: The episode was stopped.
            t: The env step of the end. Without it, an observation is missing only if an action waits.
        """
        waits, observed = self.storage.pending() is not None, self.storage.column(T)
        if (terminated or truncated) and len(observed) and (waits or (t is not None and observed[-1] < t)):
            columns, newest = self.lists().columns, int(observed[-1])
            final = max(newest + waits, newest if t is None else t)
            self.lists().observe(columns[OBS][-1], dict(columns[INFOS][-1]), final)
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)

    def _check_going_on(self, what: str) -> None:
        if self.is_done:
            how = "terminated" if self.is_terminated else "truncated"
            raise EpisodeError(f"{self.who}: it {what} after it was {how}. Start a new episode after the end.")


def check_item(space: Space, item: Any, name: str, who: str) -> None:
    """Checks that an observation or an action is in its space.

    Raises:
        EpisodeError: If not.
    """
    why = spaces.misfit(space, item)
    if why:
        what = "observation" if name == OBS else "action"
        raise EpisodeError(
            f"{who}: the {what} leaves its space, {spaces.describe(space)}: {why}. Correct the {what} or the space, or "
            f"turn check_spaces off."
        )
