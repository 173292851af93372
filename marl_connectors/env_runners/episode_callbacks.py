"""Calls the callbacks that concern a runner's episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from marl_connectors.callbacks import CallbackCalls
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.typing import EpisodeID

EPISODE_CALLBACKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class EpisodeCallbacks:
    """Calls the callbacks for beginnings, steps and ends of episodes.

    These calls cost time in every step, so a runner without such callbacks has None instead of this object.
    """

    def __init__(
        self,
        calls: CallbackCalls,
        arguments: Callable[[], Mapping[str, Any]],
        *,
        sub_envs: Sequence[SubEnvironment],
        ongoing: Sequence[Episode],
        make_episode: Callable[[EpisodeID], Any],
        sync: Callable[[], None],
    ):
        """Stores the callbacks and their arguments.

        Args:
            calls: The callbacks.
            arguments: Returns the arguments of every callback in addition to the episode and the ``env_index``.
            sub_envs: All sub-environments.
            ongoing: The ongoing episode of each sub-environment. The list changes as episodes begin.
            make_episode: Returns an empty episode with the given id.
            sync: Updates the ongoing episodes before callbacks get them.
        """
        self._calls = calls
        self._arguments = arguments
        self._sub_envs = sub_envs
        self._ongoing = ongoing
        self._make_episode = make_episode
        self._sync = sync
        self._created: dict[int, Any] = {}
        self._wants_steps = calls.wants("on_episode_step")
        self._keeps_chunks = calls.wants("on_episode_end")
        self._chunks: dict[EpisodeID, list[Episode]] = {}
        self._left: list[int] | None = None

    def begin_sample(self, shares: Sequence[int] | None) -> None:
        """Must be called when a sample begins.

        Args:
            shares: For how many of its next episodes each sub-environment calls callbacks. None for all episodes.
        """
        self._left = None if shares is None else list(shares)

    def _call(self, name: str, episode: Any, env_index: int, **more: Any) -> None:
        if self._left is None or self._left[env_index]:
            self._calls.call(name, episode=episode, env_index=env_index, **more, **self._arguments())

    def create(self, sub_envs: Iterable[SubEnvironment]) -> None:
        """Creates the next episodes of sub-environments that are about to be reset."""
        for sub_env in sub_envs:
            self._create(sub_env.index, sub_env.episode_id(1))

    def _create(self, env_index: int, id_: EpisodeID) -> Any:
        self._created[env_index] = episode = self._make_episode(id_)
        self._call("on_episode_created", episode, env_index)
        return episode

    def take_created(self, sub_env: SubEnvironment) -> Any:
        """Returns the episode that begins in a sub-environment which was reset.

        If the reset could not be foreseen, the episode is created now.
        """
        id_ = sub_env.episode_id()
        episode = self._created.pop(sub_env.index, None)
        if episode is None or episode.id_ != id_:
            episode = self._create(sub_env.index, id_)
            del self._created[sub_env.index]
        return episode

    def ended(self, result: StepResult, ongoing: Sequence[Episode]) -> None:
        """Calls the callbacks for the last step and the end of episodes.

        Then the next episodes are created for the sub-environments that have not been reset yet.

        Args:
            result: The result of the step.
            ongoing: The episode of each sub-environment, before the next episodes begin.
        """
        dropped, late = {event.index for event in result.events if event.is_dropped}, dict(result.late)
        for env_index in result.over:
            episode = ongoing[env_index]
            chunks = self._chunks.pop(episode.id_, [])
            if env_index not in dropped:
                if self._wants_steps:
                    self._call("on_episode_step", episode, env_index)
                self._call("on_episode_end", episode, env_index, prev_episode_chunks=chunks)
                if self._left is not None and self._left[env_index]:
                    self._left[env_index] -= 1
            if env_index in late:
                self.create([self._sub_envs[env_index]])

    def stepped(self, result: StepResult) -> None:
        """Calls the callbacks for beginnings and steps of episodes, after a step of all sub-environments was recorded.

        Sub-environments whose episode has ended and that rest now are left out.
        """
        over = result.over
        rest = {index for index in over if self._sub_envs[index].is_reset_step}
        begun = {*over, *(event.index for event in result.events if event.begins)} - rest
        if not (begun or self._wants_steps):
            return
        self._sync()
        for env_index, episode in enumerate(self._ongoing):
            if env_index in begun:
                self._call("on_episode_start", episode, env_index)
            elif self._wants_steps and env_index not in rest:
                self._call("on_episode_step", episode, env_index)

    def started(self) -> None:
        """Calls ``on_episode_start`` after all sub-environments have begun an episode."""
        for env_index, episode in enumerate(self._ongoing):
            self._call("on_episode_start", episode, env_index)

    def cut(self, chunks: Iterable[Episode]) -> None:
        """Keeps the chunks of ongoing episodes that a sample has returned, for ``on_episode_end``."""
        if self._keeps_chunks:
            for chunk in chunks:
                self._chunks.setdefault(chunk.id_, []).append(chunk)
            going_on = {episode.id_ for episode in self._ongoing}
            self._chunks = {id_: own for id_, own in self._chunks.items() if id_ in going_on}
