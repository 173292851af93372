"""EpisodeReader: samples of recorded episodes."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta

from marl_connectors.episodes.continuations import joined
from marl_connectors.errors import ConfigError, EpisodeError, OfflineDataError, OfflineDataWarning
from marl_connectors.offline.choices import AS_RECORDED, ORDERS, SHUFFLED
from marl_connectors.offline.fit import Fit
from marl_connectors.offline.recorded_sample import ModuleFor
from marl_connectors.offline.recording_file import (
    INDEX_FILE,
    SUFFIX,
    Damage,
    Extent,
    RecordingFile,
    Sample,
    UnreadableFileError,
    read_index,
)
from marl_connectors.seeding import stream
from marl_connectors.state import Count, Index, Seed, State, read_state
from marl_connectors.validators import boolean, integer, number, one_of, optional

_CAUSES_SHOWN: Final = 3


class Record(NamedTuple):
    """An episode, or a chunk of one, in a sample.

    Attributes:
        sample: The sample.
        folder: The number of its input, which is a folder or a file.
        number: Its number in the sample.
    """

    sample: Sample
    folder: int
    number: int

    @property
    def id(self) -> str:
        """The id of the episode."""
        return self.sample.ids[self.number]

    def fact(self, name: str) -> Any:
        """Returns a fact of the table, such as ``"env_t"``."""
        return self.sample.table[name][self.number].item()


class EpisodeReaderState(State):
    """The position of an EpisodeReader in its data.

    Attributes:
        digest: What tells these data from others.
        order: The order in which they are read.
        seed: The seed of the shuffling.
        pass_number: The number of passes over the data before this one.
        position: The number of episodes of this pass that were read.
        env_steps_read: The number of env steps of all samples.
        agent_steps_read: The number of agent steps of all samples.
    """

    digest: str
    order: Annotated[str, Meta(pattern=rf"\A({'|'.join(ORDERS)})\Z")]
    seed: Seed
    pass_number: Index
    position: Index
    env_steps_read: Count
    agent_steps_read: Count


class EpisodeReader:
    """Reads what ``EpisodeWriter`` wrote, in samples of a wanted number of steps, again and again.

    Attributes:
        files: The files, in the order in which they were written.
        damages: What of them is lost. ``str(damage)`` says which file, sample and episodes, and why.
        num_incomplete: With ``complete_episodes``, the number of chunks that are left out, because the rest of their
            episode was not recorded or is lost.
    """

    def __init__(
        self,
        input_: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        order: str = SHUFFLED,
        seed: int = 0,
        complete_episodes: bool = False,
        join_chunks: bool = False,
        id_prefix: str = "",
        policy_mapping_fn: ModuleFor | None = None,
        check_all: bool = False,
        held_out_fraction: float = 0.0,
        only_held_out: bool = False,
        without: Collection[str] = (),
    ):
        """Reads the tables of the files; the columns are read when they are used. Warns of what is lost.

        Args:
            input_: A folder, a file, or a list of them.
            order: ``"shuffled"`` shuffles the episodes before each pass over the data, ``"in_order"`` reads them as
                they were written, and ``"as_recorded"`` returns the samples that were written, whatever their size.
            seed: The seed of the shuffling.
            complete_episodes: Whether the chunks of an episode are put together, and incomplete episodes left out.
            join_chunks: Whether the chunks of an episode that follow one another are put together, also of incomplete
                episodes.
            id_prefix: What is put before the ids of episodes.
            policy_mapping_fn: Chooses the modules of the agents; None for the modules that acted.
            check_all: Whether all columns are read at once to find damage; else each sample is checked when it is used.
            held_out_fraction: The share of the episodes that is held out, at least one if it is above 0. Which ones
                follows from the ids of all episodes alone, and chunks of an episode stay together.
            only_held_out: Whether the held-out episodes are read, and not the others.
            without: Columns that the episodes are made without, such as ``"state_out"``.

        Raises:
            OfflineDataError: If there is nothing to read, or a file is not one of recorded episodes.
        """
        who = type(self).__name__
        self.order = one_of(*ORDERS).check(order, who, "order")
        self._seed = integer(min=0).check(seed, who, "seed")
        self._complete = boolean().check(complete_episodes, who, "complete_episodes")
        self._joined = boolean().check(join_chunks, who, "join_chunks")
        if (self._complete or self._joined) and self.order == AS_RECORDED:
            name = "complete_episodes" if self._complete else "join_chunks"
            raise ConfigError(
                f"{who}: order='as_recorded' returns the chunks as they were written, so {name} must be False. Use "
                f"order='in_order'."
            )
        self._module_for = policy_mapping_fn
        self._without = frozenset(without)
        inputs = [input_] if isinstance(input_, (str, os.PathLike)) else list(input_)
        found = [(file, folder) for folder, given in enumerate(inputs) for file in files_of(given)]
        self.files = [file for file, _ in found]
        self._prefixes = [id_prefix + (f"{i}/" if len(inputs) > 1 else "") for i in range(len(inputs))]
        self.damages: list[Damage] = []
        self._fit: Fit | None = None
        self._fitting: set[int] = set()
        self._samples = self._read_samples(found, inputs)
        if check_all:
            self.samples()
        self._digest = hashlib.sha256("".join(sample.digest for sample, _ in self._samples).encode()).hexdigest()
        self.num_incomplete = 0
        self._units = _chains(self.records()) if self._joined else [[record] for record in self.records()]
        if self._complete:
            self._units, self.num_incomplete = whole_chains(self.records())
        if not self._units:
            raise self._nothing_error()
        self._hold_out(number(min=0, max=1).check(held_out_fraction, who, "held_out_fraction"), only_held_out)
        self._steps = np.array([_steps_of(unit) for unit in self._units], np.int64)
        self._order_of_pass: tuple[int, np.ndarray] | None = None
        self._pass = self._position = 0
        self._read = np.zeros(2, np.int64)

    def _read_samples(self, found: Sequence[tuple[Path, int]], inputs: Sequence[Any]) -> list[tuple[Sample, int]]:
        """Returns the samples of files, with the numbers of the inputs; notes what is lost already.

        Args:
            found: The files, and the numbers of the inputs.
            inputs: The inputs. Of those that are folders, no file may be missing.

        Raises:
            UnreadableFileError: If the only file is none of recorded episodes.
        """
        files = {file for file, _ in found}
        extents: dict[Path, Extent] = {}
        for folder in dict.fromkeys(file.parent for file in files):
            known, is_intact = read_index(folder)
            extents |= {folder / name: extent for name, extent in known.items()}
            if not is_intact:
                self._note(Damage(folder / INDEX_FILE, None, "a line is damaged", num_episodes=0))
        for file, extent in extents.items():
            if file.parent in map(Path, inputs) and file not in files:
                self._note(Damage(file, None, "the file is missing", num_episodes=_whole_number(extent)))
        samples: list[tuple[Sample, int]] = []
        for file, folder in found:
            try:
                own = RecordingFile(file, extents.get(file))
            except UnreadableFileError as error:
                if len(found) == 1:
                    raise
                self._note(Damage(file, None, error.why, num_episodes=_whole_number(extents.get(file))))
                continue
            for damage in own.damages:
                self._note(damage)
            samples += [(sample, folder) for sample in own.samples]
        return samples

    def _hold_out(self, fraction: float, only_held_out: bool) -> None:
        """Leaves out the episodes that are held out, or all others.

        Raises:
            OfflineDataError: If no episode is left on one of the sides.
        """
        if not fraction and not only_held_out:
            return
        ids = {(unit[0].folder, unit[0].id) for unit in self._units}
        by_hash = sorted(ids, key=lambda own: (hashlib.sha256(f"{own[0]}/{own[1]}".encode()).digest(), own))
        num_held_out = max(1, round(fraction * len(ids))) if fraction else 0
        if num_held_out == len(ids) or not num_held_out:
            raise OfflineDataError(
                f"offline data: held_out_fraction={fraction:g} of {len(ids)} recorded episode"
                f"{'s' * (len(ids) != 1)} leaves none to {'read' if not num_held_out else 'train on'}. Use another "
                f"fraction, or record more episodes."
            )
        held_out = set(by_hash[:num_held_out])
        self._units = [unit for unit in self._units if ((unit[0].folder, unit[0].id) in held_out) == only_held_out]
        self._digest = hashlib.sha256(f"{self._digest} {fraction!r} {only_held_out}".encode()).hexdigest()

    def _note(self, damage: Damage) -> None:
        self.damages.append(damage)
        warnings.warn(f"offline data: {damage} The rest is used.", OfflineDataWarning, stacklevel=4)

    def _is_lost(self, sample: Sample) -> bool:
        """Whether a sample is damaged, which is noted once."""
        if sample.damage is not None and sample.damage not in self.damages:
            self._note(sample.damage)
        return sample.damage is not None

    def _nothing_error(self) -> OfflineDataError:
        where = ", ".join(str(file) for file in self.files[:3]) + (", ..." if len(self.files) > 3 else "")
        if self.num_incomplete:
            return OfflineDataError(
                f"offline data: {where} hold {self.num_incomplete} chunks, but no episode from its beginning to its "
                f"end. Record with batch_mode='complete_episodes', or read with complete_episodes=False."
            )
        causes = " ".join(map(str, self.damages[:_CAUSES_SHOWN])) + " ..." * (len(self.damages) > _CAUSES_SHOWN)
        return OfflineDataError(f"offline data: there is no intact episode in {where}. {causes}".rstrip())

    def records(self) -> list[Record]:
        """Returns the episodes and chunks in all samples, in the order in which they were written."""
        return [Record(sample, folder, i) for sample, folder in self._samples for i in range(len(sample))]

    def __repr__(self) -> str:
        kind = "episodes" if self._complete else "episodes and chunks"
        size = f"{self.num_episodes:,} {kind}, {self.num_agent_steps:,} agent steps"
        return f"<EpisodeReader of {len(self.files)} files: {size}>"

    @property
    def chooses_modules(self) -> bool:
        """Whether ``policy_mapping_fn`` chooses the modules of agents, instead of those that acted."""
        return self._module_for is not None

    @property
    def num_episodes(self) -> int:
        """The number of episodes, or of chunks if ``complete_episodes`` is False."""
        return len(self._units)

    @property
    def num_env_steps(self) -> int:
        """The number of env steps of the data."""
        return int(self._steps[:, 0].sum())

    @property
    def num_agent_steps(self) -> int:
        """The number of agent steps of the data."""
        return int(self._steps[:, 1].sum())

    @property
    def num_env_steps_read(self) -> int:
        """The number of env steps of all samples so far."""
        return int(self._read[0])

    @property
    def num_agent_steps_read(self) -> int:
        """The number of agent steps of all samples so far."""
        return int(self._read[1])

    @property
    def num_passes(self) -> int:
        """The number of passes over the data that are completed."""
        return self._pass + (self._position >= len(self._units))

    def samples(self) -> list[Sample]:
        """Returns the intact samples that were written, in their order. The position of ``sample`` stays as it is."""
        return [sample for sample, _ in self._samples if not self._is_lost(sample)]

    def __iter__(self) -> Iterator[Any]:
        """Yields all episodes in the order in which they were written. The position of ``sample`` stays as it is."""
        for unit in self._units:
            yield from self._episodes([unit])

    # Samples.

    def sample(self, num_agent_steps: int | None = None, *, num_env_steps: int | None = None) -> list[Any]:
        """Returns the next episodes: as few as have the wanted number of steps.

        The last sample of a pass over the data is smaller if the data end. No sample has an episode twice.

        Args:
            num_agent_steps: The number of agent steps; None if ``num_env_steps`` is given, or for the rest of the pass.
                Samples ``"as_recorded"`` have the steps that they have.
            num_env_steps: The number of env steps, instead.

        Raises:
            OfflineDataError: If no intact episode is left.
        """
        if num_agent_steps is not None and num_env_steps is not None:
            raise ConfigError("EpisodeReader.sample: expected num_agent_steps or num_env_steps, but got both.")
        by_agents = num_env_steps is None
        wanted = optional(integer(min=1)).check(
            num_agent_steps if by_agents else num_env_steps,
            "EpisodeReader.sample",
            "num_agent_steps" if by_agents else "num_env_steps",
        )
        for _ in range(len(self._units) + 1):
            units = self._next_units(wanted, int(by_agents))
            episodes = self._episodes(units)
            if episodes:
                self._read += np.sum([_steps_of(unit) for unit in units if not self._lost_of(unit)], axis=0)
                return episodes
            if all(self._lost_of(unit) for unit in self._units):
                break
        raise self._nothing_error()

    def _next_units(self, wanted: int | None, kind: int) -> list[list[Record]]:
        """Returns the next episodes, and moves the position behind them."""
        if self._position >= len(self._units):
            self._pass, self._position = self._pass + 1, 0
        order, begin = self._order(), self._position
        if self.order == AS_RECORDED:
            first = self._units[begin][0].sample
            end = begin
            while end < len(order) and self._units[end][0].sample is first:
                end += 1
        elif wanted is None:
            end = len(order)
        else:
            collected = np.cumsum(self._steps[order[begin:], kind])
            end = begin + min(int(np.searchsorted(collected, wanted)) + 1, len(collected))
        self._position = end
        return [self._units[i] for i in order[begin:end]]

    def _order(self) -> np.ndarray:
        """Returns the order of the episodes in the current pass."""
        if self._order_of_pass is None or self._order_of_pass[0] != self._pass:
            order = np.arange(len(self._units))
            if self.order == SHUFFLED:
                stream(self._seed, "offline data", self._pass).shuffle(order)
            self._order_of_pass = self._pass, order
        return self._order_of_pass[1]

    def _lost_of(self, unit: Sequence[Record]) -> bool:
        return any(self._is_lost(record.sample) for record in unit)

    def _episodes(self, units: Sequence[Sequence[Record]]) -> list[Any]:
        """Returns the episodes of units that are intact."""
        units = [unit for unit in units if not self._lost_of(unit)]
        by_sample: dict[int, list[Record]] = {}
        for record in (record for unit in units for record in unit):
            by_sample.setdefault(id(record.sample), []).append(record)
        made: dict[tuple[int, int], Any] = {}
        for records in by_sample.values():
            sample, folder, _ = records[0]
            self._check_values(sample)
            numbers, prefix = [r.number for r in records], self._prefixes[folder]
            episodes = sample.episodes(numbers, self._module_for, prefix, self._without)
            made.update({(id(sample), r.number): e for r, e in zip(records, episodes, strict=True)})
        try:
            return joined([[made[id(r.sample), r.number] for r in unit] for unit in units])
        except EpisodeError as error:
            files = dict.fromkeys(str(record.sample.file) for unit in units for record in unit)
            raise OfflineDataError(
                f"offline data: chunks of an episode in {', '.join(files)} are not those of one episode: {error} Leave "
                f"the file out, or read with complete_episodes=False and join_chunks=False."
            ) from error

    # What has to fit.

    def check(self, fit: Fit) -> None:
        """Checks that the tables of all samples fit a run now, and that the columns of each do when it is first used.

        Args:
            fit: What the run needs.

        Raises:
            OfflineDataError: For the first episode that does not fit. ``sample`` may raise it, too.
        """
        self._fit, self._fitting = fit, set()
        for sample, _ in self._samples:
            try:
                fit.check_table(sample)
            except OfflineDataError:
                raise
            except Exception:  # as a file that is none can raise anything
                if not self._is_lost(sample):
                    raise

    def _check_values(self, sample: Sample) -> None:
        if self._fit is not None and id(sample) not in self._fitting:
            self._fit.check_values(sample)
            self._fitting.add(id(sample))

    # State.

    def get_state(self) -> EpisodeReaderState:
        """Returns the position in the data, for a reader of the same data that continues exactly there."""
        return EpisodeReaderState(
            digest=self._digest,
            order=self.order,
            seed=self._seed,
            pass_number=self._pass,
            position=self._position,
            env_steps_read=self.num_env_steps_read,
            agent_steps_read=self.num_agent_steps_read,
        )

    def set_state(self, state: EpisodeReaderState | Mapping[str, Any]) -> None:
        """Continues at the position that ``get_state`` returned.

        Raises:
            OfflineDataError: If the data are not the same, or are read in another order.
            CheckpointError: If the state is damaged.
        """
        state = read_state(EpisodeReaderState, state)
        if state.digest != self._digest:
            where = self.files[0].parent
            raise OfflineDataError(
                f"offline data: expected to continue in the data that were read before, but those in {where} are "
                f"others: files were added, removed, changed or damaged. Restore them, or begin a new run."
            )
        if (state.order, state.seed) != (self.order, self._seed):
            raise OfflineDataError(
                f"offline data: the position is that of order={state.order!r} and seed={state.seed}, but these "
                f"data are read with order={self.order!r} and seed={self._seed}. Use the same ones."
            )
        if state.position > len(self._units):
            raise OfflineDataError(
                f"offline data: the position {state.position} is beyond the {len(self._units)} episodes of the data."
            )
        self._pass, self._position = state.pass_number, state.position
        self._read = np.array([state.env_steps_read, state.agent_steps_read], np.int64)


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the files of recorded episodes of a folder in their order, or the file itself.

    Raises:
        OfflineDataError: If there is none.
    """
    source = Path(path)
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise OfflineDataError(f"offline data: there is nothing at {source}. Check the path.")
    files = sorted(source.glob(f"*{SUFFIX}"))
    if not files:
        others = sorted(entry.name for entry in source.iterdir())
        there = f"the first entry there is {others[0]!r}" if others else "it is empty"
        raise OfflineDataError(
            f"offline data: the folder {source} has no files of recorded episodes (*{SUFFIX}); {there}. Record some "
            f"with .offline_data(output=...) or: marl-connectors record"
        )
    return files


def _whole_number(extent: Extent | None) -> int | None:
    """Returns the number of all episodes of a file, if it is known."""
    return extent.episodes if extent is not None and extent.is_closed else None


def whole_chains(records: Sequence[Record]) -> tuple[list[list[Record]], int]:
    """Returns the chunks of each whole episode, in the order of the first ones, and the number of other chunks."""
    chains = _chains(records)
    whole = [chain for chain in chains if chain[0].fact("env_t_started") == 0 and _is_done(chain[-1])]
    return whole, len(records) - sum(map(len, whole))


def _chains(records: Sequence[Record]) -> list[list[Record]]:
    """Returns the chunks of each episode that follow one another, in the order of the first ones."""
    begun: dict[tuple[int, str], list[Record]] = {}
    chains: list[list[Record]] = []
    for record in records:
        key = record.folder, record.id
        chain, started = begun.pop(key, None), record.fact("env_t_started")
        if chain is None or started == 0 or chain[-1].fact("env_t") != started:
            chain = []
            chains.append(chain)
        chain.append(record)
        if not _is_done(record):
            begun[key] = chain
    return chains


def _steps_of(unit: Sequence[Record]) -> tuple[int, int]:
    """Returns the number of env steps and that of agent steps."""
    env_steps = sum(int(record.sample.env_steps[record.number]) for record in unit)
    return env_steps, sum(int(record.sample.agent_steps[record.number]) for record in unit)


def _is_done(record: Record) -> bool:
    return record.fact("is_terminated") or record.fact("is_truncated")
