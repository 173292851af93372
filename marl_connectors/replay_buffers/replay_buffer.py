"""Replay buffers: they keep the newest steps, and draw them with equal probabilities or by priorities."""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marl_connectors.checkpoints import taking_over
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import chunks_of, late_reward, num_steps_of
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import CheckpointError, ConfigError, EpisodeError, did_you_mean
from marl_connectors.replay_buffers.n_step import NStep, drawn_n_steps, largest_n_step
from marl_connectors.replay_buffers.replay_sample import EnvStepSample, ReplaySample, Window, segments_of_items
from marl_connectors.replay_buffers.ring import ACTED, Ring
from marl_connectors.replay_buffers.ring_state import RingState
from marl_connectors.seeding import stream
from marl_connectors.state import Count, Seed, State, read_state
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.validators import integer, number

AGENT_STEP, JOINT_STEP, TEAM_STEP = "agent_step", "joint_step", "team_step"
"""What a buffer draws: steps of agents, each by itself; or env steps with the rows of all agents, which have rewards of
their own, or those of a team."""
_ALL = "all agents"
_LEAST = 1e-6
"""Added to every priority, so that each step has a chance to be drawn again."""


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
    rings: dict[ModuleID, RingState]


class ReplayBuffer:
    """The newest steps, as columns. The classes below say what a step is, and how it is drawn.

    Episodes of one agent and of several agents may be added, in chunks, as env runners return them. Infos are not kept,
    and of the modules' outputs only ``extra_columns``. What connector pieces have written to the episodes is kept.

    In a buffer of env steps every agent acts with the same module in all episodes. Agents that are not there at an env
    step are marked.

    Priorities are proportional (Schaul et al., 2016: Prioritized Experience Replay). The probability of a step is
    proportional to ``priority ** alpha``. A new step has the greatest priority that any step of its module ever had;
    ``update_priorities`` sets it to the size of the step's error.

    Attributes:
        unit: What is drawn: ``"agent_step"``, ``"joint_step"`` or ``"team_step"``.
        has_priorities: Whether some steps are more likely to be drawn than others.
        capacity: The greatest number of rows: of each module, or of env steps. The last observation of an episode is
            a row, too.
        agents: The agents of each module; None in a buffer of agents' steps, which learns them from episodes.
        alpha: 0 for equal probabilities, 1 for probabilities in proportion to the priorities. Only buffers with
            priorities have it.
        beta: How much the ``weights`` correct for unequal probabilities: 0 for not at all, 1 for fully. Only buffers
            with priorities have it.
        extra_columns: The recorded module outputs that are kept, such as ``state_out``, and ``env_state``.
        seed: The seed of what is drawn.
        spill_folder: A folder for files that hold the columns, if the buffer may be larger than the memory; None to
            hold them in memory. The files have no names, and are gone when the buffer is.
        num_samples: The number of times that steps were drawn.
        num_steps_sampled: The number of steps that were drawn.
        prepare_added: Returns the episodes to add in place of given ones, with the actions of modules as a run scales
            them, or refuses them; None to add them as they are.
    """

    unit: ClassVar[str] = AGENT_STEP
    has_priorities: ClassVar[bool] = False
    alpha: float
    beta: float
    prepare_added: Callable[[Iterable[Any]], Iterable[Any]] | None = None

    def __init__(
        self,
        capacity: int = 100_000,
        *,
        agents: Mapping[ModuleID, Sequence[AgentID]] | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        extra_columns: Sequence[str] = (),
        seed: int = 0,
        spill_folder: str | os.PathLike[str] | None = None,
    ):
        """Creates an empty buffer. The arguments are the attributes.

        Args:
            capacity: As above.
            agents: As above.
            alpha: As above, 0.6 by default.
            beta: As above, 0.4 by default.
            extra_columns: As above.
            seed: As above.
            spill_folder: As above.

        Raises:
            ConfigError: If one of them has another type, is out of range, or is of no use in this buffer.
        """
        name = type(self).__name__
        self.capacity = integer(min=2).check(capacity, name, "capacity")
        if self.has_priorities:
            self.alpha = number(min=0).check(0.6 if alpha is None else alpha, name, "alpha")
            self.beta = number(min=0).check(0.4 if beta is None else beta, name, "beta")
        elif (alpha, beta) != (None, None):
            raise ConfigError(
                f"{name}: all steps are equally likely, so alpha and beta have no effect. Leave them out."
            )
        self.seed = integer(min=0).check(seed, name, "seed")
        self.extra_columns = tuple(extra_columns)
        self.spill_folder = None if spill_folder is None else Path(spill_folder)
        self.agents = None if agents is None else {module_id: tuple(own) for module_id, own in agents.items()}
        if (agents is None) != (self.unit == AGENT_STEP):
            what = "every agent that can appear, by module" if agents is None else "no agents, as it draws those alone"
            raise ConfigError(f"{name}: agents: expected {what}.")
        self.num_samples = 0
        self.num_steps_sampled = 0
        self._rings: dict[ModuleID, Ring] = {} if agents is None else {_ALL: self._new_ring(_ALL)}
        self._newest: ReplaySample | None = None

    @classmethod
    def settings(cls) -> list[str]:
        """Returns the names of the arguments that change something."""
        unused = [] if cls.has_priorities else ["alpha", "beta"]
        unused += ["agents"] if cls.unit == AGENT_STEP else []
        return [name for name in inspect.signature(cls).parameters if name not in unused]

    def _new_ring(self, key: ModuleID) -> Ring:
        return Ring(
            key,
            self.capacity,
            self.extra_columns,
            agents=self.agents,
            has_priorities=self.has_priorities,
            spill_folder=self.spill_folder,
        )

    def __len__(self) -> int:
        """The number of steps that are kept, of all modules together, or of env steps."""
        return sum(ring.num_steps for ring in self._rings.values())

    def __repr__(self) -> str:
        if self.agents is None:
            of_modules = ", ".join(f"{m}: {ring.num_steps:,}" for m, ring in self._rings.items())
            what = f"steps ({of_modules or 'no modules yet'})"
        else:
            what = f"env steps of {sum(map(len, self.agents.values()))} agents"
        return f"<{type(self).__name__} with {len(self):,} {what}, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes: of memory or, with ``spill_folder``, of files."""
        return sum(ring.nbytes for ring in self._rings.values())

    @property
    def module_ids(self) -> list[ModuleID]:
        """The modules whose agents' steps were added."""
        return [module_id for ring in self._rings.values() for module_id in ring.modules()]

    def get_num_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of steps that are kept, of one module or of all, or of env steps."""
        return sum(ring.num_steps for ring in self._rings_of(module_id))

    def get_num_episodes(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of episodes of which steps are kept: of agents, or of all agents together."""
        return sum(ring.num_episodes for ring in self._rings_of(module_id))

    def get_added_timesteps(self, module_id: ModuleID | None = None) -> int:
        """Returns the number of steps that were ever added, of one module or of all, or of env steps."""
        return sum(ring.num_steps_added for ring in self._rings_of(module_id))

    def get_sampled_timesteps(self) -> int:
        """Returns the number of steps that were drawn."""
        return self.num_steps_sampled

    @property
    def has_forgotten(self) -> bool:
        """Whether any of the steps that were added is no longer kept."""
        return len(self) < self.get_added_timesteps()

    def _rings_of(self, module_id: ModuleID | None) -> list[Ring]:
        return list(self._rings.values()) if module_id is None else [self._ring(module_id)]

    def _ring(self, module_id: ModuleID) -> Ring:
        key = module_id if self.agents is None else _ALL
        if key not in self._rings:
            raise EpisodeError(
                f"{type(self).__name__}: no steps of module {module_id!r} were added. "
                f"{did_you_mean(str(module_id), map(str, self._rings))}"
            )
        return self._rings[key]

    # Adding.

    def add(self, episodes: Any, *, is_wanted: Callable[[ModuleID], bool] | None = None) -> None:
        """Adds the steps of episodes; if there is no more room, the oldest steps are forgotten.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes, whole or in chunks, or one of them. Chunks of one
                episode must come in their order. A buffer of env steps takes MultiAgentEpisodes only.
            is_wanted: Whether the steps of a module are added, to a buffer of agents' steps; None to add all.

        Raises:
            EpisodeError: If their columns have other shapes or types than those of the same module before, or if
                they have other agents than ``agents``.
        """
        if isinstance(episodes, (SingleAgentEpisode, MultiAgentEpisode)):
            episodes = [episodes]
        if self.prepare_added is not None:
            episodes = self.prepare_added(episodes)
        for part in _in_turn(episodes):
            for episode in part:
                for agent_id, reward in _paid_to_absent(episode).items():
                    for ring in self._rings.values():
                        ring.credit_ended(episode.id_, agent_id, reward)
            if self.agents is None:
                self._add_agent_steps(part, is_wanted)
            else:
                self._add_env_steps(part)
            for episode in part:
                if episode.is_done:
                    for ring in self._rings.values():
                        ring.forget_ended(episode.id_)

    def _add_agent_steps(self, episodes: list[Any], is_wanted: Callable[[ModuleID], bool] | None) -> None:
        by_module: dict[ModuleID, list[Any]] = defaultdict(list)
        for chunk in chunks_of(episodes):
            module_id = chunk.module_id or DEFAULT_MODULE_ID
            tells = chunk.is_done or late_reward(chunk) != 0
            is_known = module_id in by_module or module_id in self._rings
            if (num_steps_of(chunk) or (tells and is_known)) and (is_wanted is None or is_wanted(module_id)):
                by_module[module_id].append(chunk)
        for module_id, chunks in by_module.items():
            if module_id not in self._rings:
                self._rings[module_id] = self._new_ring(module_id)
            self._rings[module_id].add(chunks)

    def _add_env_steps(self, episodes: list[Any]) -> None:
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise EpisodeError(
                    f"{type(self).__name__}: expected MultiAgentEpisodes, but got a {type(episode).__name__}. Use an "
                    f"EpisodeReplayBuffer for single agents."
                )
        chunks = [episode for episode in episodes if episode.env_t > episode.env_t_started or episode.is_done]
        if chunks:
            self._rings[_ALL].add(chunks)

    # Drawing.

    def sample(
        self,
        num_items: int | Mapping[ModuleID, int] | None = None,
        *,
        batch_size_B: int | None = None,  # RLlib's names
        batch_length_T: int = 1,
        n_step: NStep = 1,
        beta: float | None = None,
        gamma: float | None = None,
        lookback: int = 0,
        sequence_lens: Mapping[ModuleID, int] | None = None,
        burn_in_len: int = 0,
        module_ids: Collection[ModuleID] | None = None,
    ) -> ReplaySample:
        """Draws steps, or sequences of steps, with replacement.

        Each step is equally likely to be the first one, unless there are priorities. Of env steps, those are drawn in
        which an agent of the modules has acted.

        Args:
            num_items: The number of steps or sequences of each module, or one number for each; or that of env steps.
            batch_size_B: RLlib's name of the same number, for one module or for each.
            batch_length_T: The greatest length of a sequence. One that reaches its episode's end is shorter.
            n_step: The number of rows after each item's last step that are drawn with it, for n-step returns. With a
                range such as ``(2, 5)``, a number from 2 to 5 is drawn for each item.
            beta: As the attribute, for this sample; None for the attribute.
            gamma: Not used. The rewards that are drawn are those of single steps. ``AddNStepReturnsToTrainBatch`` adds
                up those of n steps in the learner pipeline, with each module's ``gamma``, after the pieces that change
                rewards.
            lookback: The number of rows before each item that are drawn with it, where its episode has them.
            sequence_lens: The greatest length of the sequences of stateful modules, ``burn_in_len`` included. A train
                batch has all rows of such a sequence; only its steps after the burn-in are part of the loss.
            burn_in_len: The number of steps from which such a sequence only computes a state. A sequence at the
                beginning of an episode has fewer of them.
            module_ids: The modules; all that have steps if None.

        Returns:
            A sequence of SingleAgentEpisodes, which are made when they are asked for, and the rows of a train batch; of
            a buffer of env steps an EnvStepSample.

        Raises:
            EpisodeError: If there are no steps of one of these modules, or of a buffer of joint steps, if there would
                be more than single env steps.
        """
        del gamma
        name, numbers = type(self).__name__, num_items if batch_size_B is None else batch_size_B
        of_modules = numbers if isinstance(numbers, Mapping) and self.agents is None else {}
        if self.unit == JOINT_STEP and (batch_length_T, lookback, burn_in_len, sequence_lens) != (1, 0, 0, None):
            raise EpisodeError(
                f"{name}: it draws single env steps. Leave out batch_length_T, lookback, burn_in_len and sequence_lens."
            )
        keys = [_ALL]
        if self.agents is None:
            keys = list(module_ids if module_ids is not None else of_modules or self.module_ids)
        if not keys:
            raise EpisodeError(f"{name}: there are no steps to draw from. Add episodes first.")
        windows, sequences = {}, []
        for key in keys:
            ring, generator = self._ring(key), stream(self.seed, "replay", str(key), self.num_samples)
            size = integer(min=1).check(of_modules[key] if of_modules else numbers, name, "num_items")
            positions = ring.draw(size, generator, module_ids)
            length = (sequence_lens or {}).get(key)
            if length is not None:
                sequences.append(key)
            weights = None
            if self.has_priorities:
                weights = ring.importance(positions, self.beta if beta is None else beta)
            windows[key] = Window(
                ring,
                positions,
                ahead=drawn_n_steps(n_step, size, generator),
                num_steps=batch_length_T if length is None else length - burn_in_len,
                lookback=lookback if length is None else max(lookback, 1),  # the state before it is in the row before
                burn_in=0 if length is None and self.agents is None else burn_in_len,
                weights=weights,
            )
        self.num_samples += 1
        self._newest = sample = self._sample_of(windows, module_ids, sequences)
        self.num_steps_sampled += sample.num_steps
        return sample

    def every_step(self, *, n_step: NStep = 1) -> ReplaySample:
        """Returns a sample with all steps that are kept, each once and as an item of its own.

        Args:
            n_step: As for ``sample``. Of a range, the largest number is that of all steps.
        """
        windows = {}
        for key, ring in self._rings.items():
            positions = np.flatnonzero(ring.flags & ACTED)
            windows[key] = Window(ring, positions, ahead=np.full(len(positions), largest_n_step(n_step)))
        return self._sample_of(windows)

    def _sample_of(
        self,
        windows: Mapping[ModuleID, Window],
        module_ids: Collection[ModuleID] | None = None,
        sequences: Collection[ModuleID] = (),
    ) -> ReplaySample:
        if self.agents is not None:
            return EnvStepSample(windows[_ALL], module_ids, shares_rewards=self.unit == TEAM_STEP)
        return ReplaySample({m: segments_of_items(own, are_sequences=m in sequences) for m, own in windows.items()})

    def update_priorities(
        self,
        priorities: np.ndarray | Mapping[ModuleID, np.ndarray],
        module_id: ModuleID | None = None,
        *,
        sample: ReplaySample | None = None,
    ) -> None:
        """Sets the priorities of steps that were drawn. Nothing may have been added since.

        The priority of a sequence is that of its first step. That of an env step is the mean of those of all agents
        that learn from it, or of the sequence that begins there.

        Args:
            priorities: For each module, ``[N]`` errors of its items, whose sizes are the new priorities; of a team, of
                the env steps that count. Those of one module are an array.
            module_id: The module of an array; None for the only one that was drawn.
            sample: What ``sample`` returned; None for what it returned last.

        Raises:
            EpisodeError: If there is not one finite error for each item, if nothing was drawn, or if all steps are
                equally likely.
        """
        name, sample = type(self).__name__, self._newest if sample is None else sample
        if not self.has_priorities or sample is None:
            why = "nothing was drawn yet. Call sample first" if self.has_priorities else "all steps are equally likely"
            raise EpisodeError(f"{name}: there are no priorities to set, because {why}.")
        if not isinstance(priorities, Mapping):
            priorities = {next(iter(sample.segments)) if module_id is None else module_id: priorities}
        found: dict[int, tuple[Window, np.ndarray, np.ndarray]] = {}
        for own_id, own in priorities.items():
            window, items = sample.segments[own_id].window, sample.items_of(own_id)
            sizes, number = np.abs(np.asarray(own, np.float64)), len(window.ahead)
            if sizes.shape != items.shape or not np.isfinite(sizes).all():
                raise EpisodeError(
                    f"{name}: expected {len(items)} finite errors of module {own_id!r}, one for each item that was "
                    f"drawn, but got an array {list(sizes.shape)} with {int((~np.isfinite(sizes)).sum())} that are not "
                    f"finite."
                )
            _, total, count = found.setdefault(id(window), (window, np.zeros(number), np.zeros(number)))
            total += np.bincount(items, sizes, number)
            count += np.bincount(items, minlength=number)
        for window, total, count in found.values():
            known = count > 0
            weights = (total[known] / count[known] + _LEAST) ** self.alpha
            window.ring.set_priorities(window.positions[known], weights)

    # Going back, and the state.

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
        if (_ALL in state.rings) != (self.agents is not None):
            other = "agents' steps" if _ALL not in state.rings else "env steps"
            raise CheckpointError(
                f"{type(self).__name__}: the state is that of a buffer of {other}. Load it "
                f"into a buffer of the class that it came from."
            )
        self.num_samples, self.num_steps_sampled = state.num_samples, state.num_steps_sampled
        self.seed = state.seed
        self._rings, self._newest = {}, None
        for module_id, saved in state.rings.items():
            with taking_over(f"replay buffer of {module_id!r}"):
                ring = self._rings[module_id] = self._new_ring(module_id)
                ring.set_state(saved)


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


class EpisodeReplayBuffer(ReplayBuffer):
    """The newest steps of each module's agents, which are drawn with equal probabilities."""


class PrioritizedEpisodeReplayBuffer(ReplayBuffer):
    """The newest steps of each module's agents, which are drawn by their priorities."""

    has_priorities = True


class TeamReplayBuffer(ReplayBuffer):
    """The newest env steps, for algorithms that learn the value of what several agents do together."""

    unit = TEAM_STEP


class PrioritizedTeamReplayBuffer(TeamReplayBuffer):
    """A ``TeamReplayBuffer`` that draws env steps by their priorities."""

    has_priorities = True


class JointReplayBuffer(ReplayBuffer):
    """The newest env steps with the rows of all agents, for central critics of agents with rewards of their own."""

    unit = JOINT_STEP


class PrioritizedJointReplayBuffer(JointReplayBuffer):
    """A ``JointReplayBuffer`` that draws env steps by their priorities. Rows have the column ``weights``."""

    has_priorities = True


MultiAgentEpisodeReplayBuffer = EpisodeReplayBuffer
"""RLlib's name for a buffer of several agents' episodes; here one class does both."""
MultiAgentPrioritizedEpisodeReplayBuffer = PrioritizedEpisodeReplayBuffer
"""RLlib's name for a buffer of several agents' episodes; here one class does both."""
