"""What callbacks are told of a runner's episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from marl_connectors.callbacks import CallbackCalls
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.environments.vector.step_result import StepResult
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.typing import EpisodeID

if TYPE_CHECKING:
    from marl_connectors.env_runners.env_runner import EnvRunner

EPISODE_CALLBACKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class EpisodeCallbacks:
    """Tells of episodes' beginnings, steps and ends. Only there if somebody wants to know: it is slow."""

    def __init__(self, calls: CallbackCalls, runner: EnvRunner, episodes: EpisodeTracker):
        """Takes who is told, by whom, and of which episodes."""
        self._calls = calls
        self._runner = runner
        self._episodes = episodes
        self._created: dict[int, Any] = {}
        self._tells_of_steps = calls.wants("on_episode_step")
        self._keeps_chunks = calls.wants("on_episode_end")
        self._chunks: dict[EpisodeID, list[Episode]] = {}
        self._left: list[int] | None = None

    def begin_sample(self, shares: Sequence[int] | None) -> None:
        """A sample begins: of each sub-environment's next episodes so many are to be told of; None for all."""
        self._left = None if shares is None else list(shares)

    def _tell(self, name: str, episode: Any, env_index: int, **more: Any) -> None:
        if self._left is None or self._left[env_index]:
            self._calls.tell(name, episode=episode, env_index=env_index, **more, **self._runner.told_with_all_callbacks)

    def create(self, sub_envs: Iterable[SubEnvironment]) -> None:
        """Makes the next episodes of sub-environments that are about to be reset."""
        for sub_env in sub_envs:
            self._create(sub_env.index, f"{sub_env.index}-{sub_env.episode_number + 1}")

    def _create(self, env_index: int, id_: EpisodeID) -> Any:
        self._created[env_index] = episode = self._episodes.empty_episode(id_)
        self._tell("on_episode_created", episode, env_index)
        return episode

    def take_created(self, sub_env: SubEnvironment) -> Any:
        """The episode that a sub-environment which was reset begins; made now if that reset could not be foreseen."""
        id_ = f"{sub_env.index}-{sub_env.episode_number}"
        episode = self._created.pop(sub_env.index, None)
        if episode is None or episode.id_ != id_:
            episode = self._create(sub_env.index, id_)
            del self._created[sub_env.index]
        return episode

    def ended(self, result: StepResult, ongoing: Sequence[Episode]) -> None:
        """Episodes have made their last steps. Those of sub-environments that await their reset have successors now."""
        dropped, late = {event.index for event in result.events if event.is_dropped}, dict(result.late)
        for env_index in result.over:
            episode = ongoing[env_index]
            chunks = self._chunks.pop(episode.id_, [])
            if env_index not in dropped:
                if self._tells_of_steps:
                    self._tell("on_episode_step", episode, env_index)
                self._tell("on_episode_end", episode, env_index, prev_episode_chunks=chunks)
                if self._left is not None and self._left[env_index]:
                    self._left[env_index] -= 1
            if env_index in late:
                self.create([self._runner.vector_env.sub_envs[env_index]])

    def went_on(self, result: StepResult) -> None:
        """A step of all is recorded, in which some have begun an episode, or have ended one and rest now."""
        over = result.over
        rest = {index for index in over if self._runner.vector_env.sub_envs[index].rests}
        begun = {*over, *(event.index for event in result.events if event.begins)} - rest
        if not (begun or self._tells_of_steps):
            return
        self._episodes.sync()
        for env_index, episode in enumerate(self._episodes.ongoing):
            if env_index in begun:
                self._tell("on_episode_start", episode, env_index)
            elif self._tells_of_steps and env_index not in rest:
                self._tell("on_episode_step", episode, env_index)

    def started(self) -> None:
        """All sub-environments have begun an episode."""
        for env_index, episode in enumerate(self._episodes.ongoing):
            self._tell("on_episode_start", episode, env_index)

    def cut(self, chunks: Iterable[Episode]) -> None:
        """A sample has handed out chunks of episodes that go on."""
        if self._keeps_chunks:
            for chunk in chunks:
                self._chunks.setdefault(chunk.id_, []).append(chunk)
            going_on = {episode.id_ for episode in self._episodes.ongoing}
            self._chunks = {id_: own for id_, own in self._chunks.items() if id_ in going_on}
