"""TeamReplayBuffer: keeps the newest env steps, and draws the rows of all agents of an env step together."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import EpisodeError
from marl_connectors.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.n_step import NStep, drawn_n_steps, largest_n_step
from marl_connectors.replay_buffers.row_ring import ACTED, RowRing
from marl_connectors.replay_buffers.team_replay_sample import EnvStepSample, TeamReplaySample, Window
from marl_connectors.replay_buffers.team_ring import AGENT_FLAGS, TeamRing
from marl_connectors.seeding import stream
from marl_connectors.typing import AgentID, ModuleID
from marl_connectors.validators import integer

_ALL = "all agents"


class TeamReplayBuffer(EpisodeReplayBuffer):
    """The newest env steps, each with the rows of all agents; agents that are not there are marked.

    It is for algorithms that learn the value of what several agents do together. Every agent acts with the same module
    in all episodes.

    Attributes:
        agents: The agents of each module.
        sample_class: The class of what is drawn.
    """

    sample_class: ClassVar[type[EnvStepSample]] = TeamReplaySample

    def __init__(
        self,
        capacity: int = 100_000,
        *,
        agents: Mapping[ModuleID, Sequence[AgentID]],
        extra_columns: Sequence[str] = (),
        seed: int = 0,
        spill_folder: str | os.PathLike[str] | None = None,
    ):
        """Creates an empty buffer.

        Args:
            capacity: The greatest number of rows. A row is an env step, or the last observations of an episode.
            agents: All agents that can appear, by module.
            extra_columns: The recorded module outputs that are kept, such as ``state_out``, and ``env_state``.
            seed: The seed of what is drawn.
            spill_folder: As for every buffer.

        Raises:
            ConfigError: If the capacity is not a number of rows.
        """
        super().__init__(capacity, extra_columns=extra_columns, seed=seed, spill_folder=spill_folder)
        self.agents = {module_id: tuple(own) for module_id, own in agents.items()}
        self._rings[_ALL] = self._new_ring(_ALL)

    def _new_ring(self, module_id: ModuleID) -> RowRing:
        return TeamRing(self.capacity, self.agents, self.extra_columns, spill_folder=self.spill_folder)

    @property
    def _ring_of_all(self) -> TeamRing:
        ring = self._rings[_ALL]
        assert isinstance(ring, TeamRing)
        return ring

    def __repr__(self) -> str:
        number = sum(map(len, self.agents.values()))
        return f"<{type(self).__name__} with {len(self):,} env steps of {number} agents, {self.nbytes:,} bytes>"

    @property
    def module_ids(self) -> list[ModuleID]:
        """The modules whose agents' steps were added."""
        return list(self._ring_of_all.modules())

    def get_num_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of env steps that are kept."""
        return len(self)

    def get_added_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of env steps that were ever added."""
        return self._ring_of_all.num_steps_added

    def add(self, episodes: Iterable[Any]) -> None:
        """Adds the env steps of episodes; if there is no more room, the oldest ones are forgotten.

        Args:
            episodes: MultiAgentEpisodes, whole or in chunks. Chunks of one episode must come in their order.

        Raises:
            EpisodeError: If an episode is of a single agent, has agents that are not in ``agents``, or columns of other
                shapes or types than those before.
        """
        super().add(episodes)

    def _add_together(self, episodes: list[Any], is_wanted: Any) -> None:
        chunks = []
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise EpisodeError(
                    f"{type(self).__name__}: expected MultiAgentEpisodes, but got a {type(episode).__name__}. Use an "
                    f"EpisodeReplayBuffer for single agents."
                )
            if episode.env_t > episode.env_t_started or episode.is_done:
                chunks.append(episode)
        if chunks:
            self._ring_of_all.add(chunks)

    def sample(  # type: ignore[override]
        self,
        num_items: int,
        *,
        batch_length_T: int = 1,  # RLlib's name
        n_step: NStep = 1,
        burn_in_len: int = 0,
        lookback: int = 0,
        module_ids: Collection[ModuleID] | None = None,
    ) -> TeamReplaySample:
        """Draws env steps, or sequences of them, with replacement.

        Each env step in which an agent of the team has acted is equally likely to be the first one.

        Args:
            num_items: The number of env steps, or of sequences.
            batch_length_T: The greatest number of env steps of a sequence. One that reaches its episode's end is
                shorter.
            n_step: The number of rows after each item's last step that are drawn with it, for n-step returns; or a
                range, as for every buffer.
            burn_in_len: The number of env steps before each item that are drawn with it, where its episode has them,
                for the states of recurrent modules.
            lookback: The number of rows before these, of which no batch has rows.
            module_ids: The modules of the team; all that have steps if None.

        Raises:
            EpisodeError: If there are no such env steps.
        """
        number = integer(min=1).check(num_items, type(self).__name__, "num_items")
        generator = stream(self.seed, "replay", _ALL, self.num_samples)
        positions = self._draw_of(module_ids, number, generator)
        ahead = drawn_n_steps(n_step, number, generator)
        sample = self._sample_at(positions, batch_length_T, ahead, burn_in_len, lookback, module_ids)
        self.num_samples += 1
        self.num_steps_sampled += sample.num_steps
        return sample

    def _draw_of(
        self, module_ids: Collection[ModuleID] | None, number: int, generator: np.random.Generator
    ) -> np.ndarray:
        """Returns ``[number]`` positions of env steps in which an agent of a team has acted."""
        ring, found, missing = self._ring_of_all, [], number
        flags: Any = ring.columns.get(AGENT_FLAGS, {})
        team = [own for m, own in flags.items() if module_ids is None or m in module_ids]
        while missing > 0:
            drawn = ring.draw(missing, generator)
            acted = [(own[drawn] & ACTED).any(1) for own in team]
            drawn = drawn[reduce(np.logical_or, acted)] if team else drawn[:0]
            if not len(drawn) and not any((own & ACTED).any() for own in team):
                raise EpisodeError(
                    f"{type(self).__name__}: it has no steps of "
                    f"{'the modules ' + ', '.join(map(repr, module_ids)) if module_ids else 'any module'}. Add "
                    f"episodes in which their agents act."
                )
            found.append(drawn)
            missing -= len(drawn)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def every_step(self, *, n_step: NStep = 1) -> TeamReplaySample:
        """Returns all env steps that are kept, each once and as an item of its own."""
        positions = np.flatnonzero(self._ring_of_all.flags & ACTED)
        return self._sample_at(positions, 1, np.full(len(positions), largest_n_step(n_step)), 0, 0, None)

    def _sample_at(
        self,
        positions: np.ndarray,
        num_steps: int,
        ahead: np.ndarray,
        burn_in: int,
        lookback: int,
        module_ids: Collection[ModuleID] | None,
    ) -> TeamReplaySample:
        ring = self._ring_of_all
        window = Window.of(ring, positions, num_steps=num_steps, ahead=ahead, burn_in=burn_in, lookback=lookback)
        found: Any = self.sample_class(ring, window, module_ids)
        return found
