"""EpisodeReplayBuffer: keeps the newest steps of all modules, and draws them with equal probabilities."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.checkpoints import taking_over
from marl_connectors.episodes.packing import chunks_of, late_reward, num_steps_of
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.replay_buffers.n_step import NStep, drawn_n_steps, largest_n_step
from marl_connectors.replay_buffers.replay_sample import ReplaySample, Segments
from marl_connectors.replay_buffers.row_ring import ACTED, RowRing, RowRingState
from marl_connectors.seeding import stream
from marl_connectors.state import Count, Seed, State, read_state
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.validators import integer


class ReplayBufferState(State):
    """Everything that later samples of a replay buffer depend on.

    Attributes:
        num_samples: The number of times that steps were drawn.
        num_steps_sampled: The number of steps that were drawn.
        seed: The seed of what is drawn.
        rings: The steps of each module; of a buffer of env steps, those of all agents.
    """

    num_samples: Count
    num_steps_sampled: Count
    seed: Seed
    rings: dict[ModuleID, RowRingState]


class EpisodeReplayBuffer:
    """The newest steps of each module's agents, as columns.

    Episodes of one agent and of several agents may be added, in chunks, as env runners return them. Infos are not kept,
    and of the modules' outputs only ``extra_columns``. What connector pieces have written to the episodes is kept.

    Attributes:
        capacity: The greatest number of rows of each module. A row is a step, or the last observation of an episode.
        extra_columns: The recorded module outputs that are kept, such as ``state_out``.
        seed: The seed of what is drawn.
        spill_folder: A folder for files that hold the columns, if the buffer may be larger than the memory; None to
            hold them in memory. The files have no names, and are gone when the buffer is.
        num_samples: The number of times that steps were drawn.
        num_steps_sampled: The number of steps that were drawn.
        prepare_added: Returns the episodes to add in place of given ones, with the actions of modules as a run scales
            them, or refuses them; None to add them as they are.
    """

    prepare_added: Callable[[Iterable[Any]], Iterable[Any]] | None = None

    def __init__(
        self,
        capacity: int = 100_000,
        *,
        extra_columns: Sequence[str] = (),
        seed: int = 0,
        spill_folder: str | os.PathLike[str] | None = None,
    ):
        """Creates an empty buffer.

        Args:
            capacity: As above.
            extra_columns: As above.
            seed: As above.
            spill_folder: As above.

        Raises:
            ConfigError: If the capacity is not a number of rows.
        """
        name = type(self).__name__
        self.capacity = integer(min=2).check(capacity, name, "capacity")
        self.seed = integer(min=0).check(seed, name, "seed")
        self.extra_columns = tuple(extra_columns)
        self.spill_folder = None if spill_folder is None else Path(spill_folder)
        self.num_samples = 0
        self.num_steps_sampled = 0
        self._rings: dict[ModuleID, RowRing] = {}

    def __len__(self) -> int:
        """The number of steps that are kept, of all modules together."""
        return sum(ring.num_steps for ring in self._rings.values())

    def __repr__(self) -> str:
        of_modules = ", ".join(f"{m}: {ring.num_steps:,}" for m, ring in self._rings.items()) or "no modules yet"
        return f"<{type(self).__name__} with {len(self):,} steps ({of_modules}), {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes: of memory or, with ``spill_folder``, of files."""
        return sum(ring.nbytes for ring in self._rings.values())

    @property
    def module_ids(self) -> list[ModuleID]:
        """The modules whose agents' steps were added."""
        return list(self._rings)

    def get_num_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of steps that are kept, of one module or of all."""
        return len(self) if module_id is None else self._ring(module_id).num_steps

    def get_added_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of steps that were ever added, of one module or of all."""
        rings = self._rings.values() if module_id is None else [self._ring(module_id)]
        return sum(ring.num_steps_added for ring in rings)

    @property
    def has_forgotten(self) -> bool:
        """Whether any of the steps that were added is no longer kept."""
        return len(self) < self.get_added_timesteps()

    def get_sampled_timesteps(self) -> int:
        """Returns the number of steps that were drawn."""
        return self.num_steps_sampled

    def _ring(self, module_id: ModuleID) -> RowRing:
        if module_id not in self._rings:
            raise EpisodeError(
                f"{type(self).__name__}: no steps of module {module_id!r} were added. "
                f"{did_you_mean(str(module_id), map(str, self._rings))}"
            )
        return self._rings[module_id]

    def add(self, episodes: Iterable[Any], *, is_wanted: Callable[[ModuleID], bool] | None = None) -> None:
        """Adds the steps of episodes; if there is no more room, the oldest steps are forgotten.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes, whole or in chunks. Chunks of one episode must come in
                their order.
            is_wanted: Whether the steps of a module are added; None to add all.

        Raises:
            EpisodeError: If their columns have other shapes or types than those of the same module before.
        """
        if self.prepare_added is not None:
            episodes = self.prepare_added(episodes)
        for part in _in_turn(episodes):
            for episode in part:
                for agent_id, reward in _paid_to_absent(episode).items():
                    for ring in self._rings.values():
                        ring.credit_ended(episode.id_, agent_id, reward)
            self._add_together(part, is_wanted)
            for episode in part:
                if episode.is_done:
                    for ring in self._rings.values():
                        ring.forget_ended(episode.id_)

    def _add_together(self, episodes: list[Any], is_wanted: Callable[[ModuleID], bool] | None) -> None:
        """Adds the steps of episodes, without the rewards of agents that have ended in earlier chunks."""
        by_module: dict[ModuleID, list[Any]] = defaultdict(list)
        for chunk in chunks_of(episodes):
            module_id = chunk.module_id or DEFAULT_MODULE_ID
            tells = chunk.is_done or late_reward(chunk) != 0
            is_known = module_id in by_module or module_id in self._rings
            if (num_steps_of(chunk) or (tells and is_known)) and (is_wanted is None or is_wanted(module_id)):
                by_module[module_id].append(chunk)
        for module_id, chunks in by_module.items():
            ring = self._rings.get(module_id)
            if ring is None:
                ring = self._rings[module_id] = self._new_ring(module_id)
            ring.add(chunks)

    def _new_ring(self, module_id: ModuleID) -> RowRing:
        return RowRing(module_id, self.capacity, self.extra_columns, spill_folder=self.spill_folder)

    def sample(
        self,
        num_items: int | Mapping[ModuleID, int],
        *,
        batch_length_T: int = 1,  # RLlib's name
        n_step: NStep = 1,
        lookback: int = 0,
        sequence_lens: Mapping[ModuleID, int] | None = None,
        burn_in_len: int = 0,
        module_ids: Collection[ModuleID] | None = None,
    ) -> ReplaySample:
        """Draws steps, or sequences of steps, with replacement. Each step is equally likely to be the first one.

        Args:
            num_items: The number of steps or sequences of each module, or one number for each.
            batch_length_T: The greatest length of a sequence. One that reaches its episode's end is shorter.
            n_step: The number of rows after each item's last step that are drawn with it, for n-step returns. With a
                range such as ``(2, 5)``, a number from 2 to 5 is drawn for each item.
            lookback: The number of rows before each item that are drawn with it, where its episode has them.
            sequence_lens: The greatest length of the sequences of stateful modules, ``burn_in_len`` included. A train
                batch has all rows of such a sequence; only its steps after the burn-in are part of the loss.
            burn_in_len: The number of steps from which such a sequence only computes a state. A sequence at the
                beginning of an episode has fewer of them.
            module_ids: The modules; all that have steps if None.

        Raises:
            EpisodeError: If there are no steps of one of these modules.
        """
        if module_ids is None:
            module_ids = list(num_items) if isinstance(num_items, Mapping) else self.module_ids
        if not module_ids:
            raise EpisodeError(f"{type(self).__name__}: there are no steps to draw from. Add episodes first.")
        segments: dict[ModuleID, Segments] = {}
        for module_id in module_ids:
            ring = self._ring(module_id)
            number = num_items[module_id] if isinstance(num_items, Mapping) else num_items
            generator = stream(self.seed, "replay", str(module_id), self.num_samples)
            positions, weights = self._draw(
                ring, integer(min=1).check(number, type(self).__name__, "num_items"), generator
            )
            length, burn_in, before = batch_length_T, None, lookback
            if sequence_lens and module_id in sequence_lens:  # the state before a sequence is in the row before it
                length, burn_in, before = sequence_lens[module_id] - burn_in_len, burn_in_len, max(lookback, 1)
            ahead = drawn_n_steps(n_step, number, generator)
            segments[module_id] = Segments(
                ring, positions, num_steps=length, ahead=ahead, lookback=before, burn_in=burn_in, weights=weights
            )
        self.num_samples += 1
        sample = ReplaySample(segments)
        self.num_steps_sampled += sample.num_steps
        return sample

    def every_step(self, *, n_step: NStep = 1) -> ReplaySample:
        """Returns all steps that are kept, each once and as an item of its own.

        Args:
            n_step: As for ``sample``. Of a range, the largest number is that of all steps.
        """
        segments: dict[ModuleID, Segments] = {}
        for module_id, ring in self._rings.items():
            positions = np.flatnonzero(ring.flags & ACTED)
            ahead = np.full(len(positions), largest_n_step(n_step))
            segments[module_id] = Segments(ring, positions, num_steps=1, ahead=ahead, lookback=0)
        return ReplaySample(segments)

    def _draw(self, ring: RowRing, number: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the positions of steps, and their importance in the loss; None if all are equally likely."""
        return ring.draw(number, generator), None

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the buffer back to where it is now.

        No rows are copied for it. From here on, rows are kept that are overwritten, until ``forget_overwritten``.
        """
        attributes, parts = {**vars(self), "_rings": dict(self._rings)}, [ring.now() for ring in self._rings.values()]

        def go_back() -> None:
            vars(self).update(attributes)
            for part in parts:
                part()

        return go_back

    def forget_overwritten(self) -> None:
        """Forgets the rows that were kept to go back."""
        for ring in self._rings.values():
            ring.forget_overwritten()

    def get_state(self) -> ReplayBufferState:
        """Returns everything that later samples depend on."""
        return ReplayBufferState(
            num_samples=self.num_samples,
            num_steps_sampled=self.num_steps_sampled,
            seed=self.seed,
            rings={module_id: ring.get_state() for module_id, ring in self._rings.items()},
        )

    def set_state(self, state: ReplayBufferState | Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned.

        If it is of a buffer with another capacity, as many of the newest rows are kept as this one has room for.

        Raises:
            CheckpointError: If it is damaged, or of a buffer of another kind.
        """
        state = read_state(ReplayBufferState, state)
        self.num_samples, self.num_steps_sampled = state.num_samples, state.num_steps_sampled
        self.seed = state.seed
        self._rings = {}
        for module_id, saved in state.rings.items():
            with taking_over(f"replay buffer of {module_id!r}"):
                ring = self._rings[module_id] = self._new_ring(module_id)
                ring.set_state(saved)
                ring.fit_capacity()


def _paid_to_absent(episode: Any) -> dict[AgentID, float]:
    """Returns what agents were paid that have no steps in a chunk, as they have ended before or not come yet."""
    return getattr(episode, "_unclaimed", {})


def _in_turn(episodes: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields lists of chunks, in none of which an agent is paid after an end in an earlier chunk of the same list."""
    part: list[Any] = []
    ids: set[Any] = set()
    for episode in episodes:
        if _paid_to_absent(episode) and episode.id_ in ids:
            yield part
            part, ids = [], set()
        part.append(episode)
        ids.add(episode.id_)
    yield part


MultiAgentEpisodeReplayBuffer = EpisodeReplayBuffer
"""RLlib's name for a buffer of several agents' episodes; here one class does both."""
