"""The recorded episodes of a run: those that it reads instead of sampling, and those that it records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.connectors.observation_transform import ObservationTransform
from marl_connectors.env_runners.sample import Sample
from marl_connectors.errors import ConfigError, OfflineDataError
from marl_connectors.offline.choices import AS_RECORDED, IN_ORDER
from marl_connectors.offline.episode_reader import EpisodeReader, EpisodeReaderState
from marl_connectors.offline.episode_writer import EpisodeWriter, EpisodeWriterState
from marl_connectors.offline.fit import Fit
from marl_connectors.state import State
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.environments.registry.spec import EnvSpec

WRITERS: Final = (
    ObservationTransform,
    SingleAgentObservationPreprocessor,
    MultiAgentObservationPreprocessor,
    WriteObservationsToEpisodes,
)
"""The library's pieces that write observations to episodes, and the base classes of others that do."""


def own_pieces(pipeline: Iterable[ConnectorV2]) -> list[ConnectorV2]:
    """Returns the pieces of a pipeline, and of pipelines in it, without the default ones."""
    found: list[ConnectorV2] = []
    for piece in pipeline:
        if isinstance(piece, ConnectorPipelineV2):
            found += own_pieces(piece)
        elif not isinstance(piece, DEFAULT_PIECES):
            found.append(piece)
    return found


def _may_write(piece: ConnectorV2) -> bool:
    """Whether a piece writes observations to episodes, or is not one of the library's."""
    return isinstance(piece, WRITERS) or not type(piece).__module__.startswith("marl_connectors.")


class OfflineDataState(State):
    """The positions in recorded episodes.

    Attributes:
        reader: That in the episodes that are read; None if the run has read none.
        due: The number of env steps of recorded episodes that are due.
        writer: That in the episodes that are recorded; None if the run records none.
    """

    reader: EpisodeReaderState | None = None
    due: Annotated[float, Meta(gt=-(2**62), lt=2**62)] = 0.0
    writer: EpisodeWriterState | None = None


class OfflineData:
    """What ``.offline_data(...)`` asks for: a reader, a writer, or neither.

    Attributes:
        reader: Reads the recorded episodes of ``input_``; None if the run samples, and before ``open``.
        held_out: Reads the recorded episodes that are held out for evaluations; None if there are none, and before
            ``open``.
        writer: Writes to ``output``; None if nothing is recorded.
        pieces: The names of the env-to-module pieces that may write observations to episodes.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        setup: EnvSpec,
        env_to_module: Iterable[ConnectorV2],
        learner_pieces: Iterable[ConnectorV2],
        module_ids: Callable[[], Collection[ModuleID]],
        needed_columns: Sequence[str] = (),
    ):
        """Opens no file yet, as a restored run may only act.

        Args:
            config: The settings of the run.
            setup: The environment's properties.
            env_to_module: The pieces of its env-to-module pipeline.
            learner_pieces: The pieces of its learner pipelines.
            module_ids: Returns its modules.
            needed_columns: The columns beside those of every episode that it reads of recorded episodes.

        Raises:
            ConfigError: If statistics of observations are to be learned from recorded ones.
        """
        self._config = config
        self._setup = setup
        own = [piece for piece in own_pieces(env_to_module) if _may_write(piece)]
        self.pieces = [type(piece).__name__ for piece in own]
        # Of what a replay buffer holds, learner pieces change the steps that are drawn, and not those after them.
        learner_classes = set() if config.has_replay_buffer else {type(piece) for piece in learner_pieces}
        self._writers = [
            type(piece).__name__ for piece in own if isinstance(piece, WRITERS) and type(piece) not in learner_classes
        ]
        self._module_ids = module_ids
        self._needed_columns = tuple(needed_columns)
        self._due = 0.0
        self._check_filters(own)
        self._position: EpisodeReaderState | None = None
        self.reader: EpisodeReader | None = None
        self.held_out: EpisodeReader | None = None
        self.writer: EpisodeWriter | None = None
        if config.output is not None:
            self.writer = EpisodeWriter(
                config.output,
                max_file_size=config.output_max_file_size,
                max_rows_per_file=config.output_max_rows_per_file,
                unstorable_infos=config.output_unstorable_infos,
                pieces=self.pieces,
            )

    def _check_filters(self, own: Sequence[ConnectorV2]) -> None:
        """Checks that no piece standardises observations by statistics that recorded episodes do not change."""
        if self._config.input_ is not None and self._config.learns_from_other_policies:
            for piece in own:
                if isinstance(piece, MeanStdFilter):
                    who = type(self._config).__name__
                    raise ConfigError(
                        f"{who}: {type(piece).__name__} in env_to_module_connector keeps statistics of the "
                        f"observations that the run acts on, but {who.removesuffix('Config')} learns from recorded "
                        f"ones, which do not change them, so that policies would act on other observations than they "
                        f"have learned from. Leave the piece out and use data that were recorded without it, or "
                        f"scale observations by fixed numbers in a wrapper of the environment."
                    )

    @property
    def is_read(self) -> bool:
        """Whether train batches are made of recorded episodes."""
        return self._config.input_ is not None

    def open(self, seed: int) -> None:
        """Opens the files to read, and checks that they fit.

        Args:
            seed: The run's seed.

        Raises:
            OfflineDataError: If there is nothing to read, or episodes of other agents or spaces.
        """
        config = self._config
        if self.reader is not None or config.input_ is None:
            return
        fraction = config.held_out_fraction
        reader = self._opened(config.input_, order=config.input_order, seed=seed, held_out_fraction=fraction)
        if config.held_out_input_ is not None:
            self.held_out = self._opened(config.held_out_input_, order=IN_ORDER)
        elif fraction:
            self.held_out = self._opened(config.input_, order=IN_ORDER, held_out_fraction=fraction, only_held_out=True)
        if self._position is not None:
            reader.set_state(self._position)
        self.reader = reader

    def _opened(self, input_: Any, **settings: Any) -> EpisodeReader:
        """Returns a reader whose episodes fit the environment."""
        config = self._config
        is_complete = config.batch_mode == "complete_episodes"
        into_buffer = config.has_replay_buffer
        reader = EpisodeReader(
            input_,
            complete_episodes=is_complete,
            join_chunks=into_buffer and not is_complete and config.input_order != AS_RECORDED,
            id_prefix="recorded/" if into_buffer else "",  # the buffer tells them from episodes that are being sampled
            policy_mapping_fn=lambda agent_id, episode: config.policy_mapping_fn(agent_id, episode),
            without=config.unread_columns,
            **settings,
        )
        reader.check(self.fit())
        if not reader.num_env_steps:
            raise OfflineDataError(f"offline data: no recorded episode in {input_} has a step to learn from.")
        return reader

    def fit(self, *, modules: bool = False) -> Fit:
        """Returns what recorded episodes must be like for this run.

        Args:
            modules: Whether the modules that have acted must be those of the run.
        """
        setup = self._setup
        return Fit(
            {agent_id: setup.agent_spaces(agent_id) for agent_id in setup.agent_ids},
            self.pieces,
            self._writers,
            self._module_ids() if modules else None,
            self._needed_columns,
        )

    def begin(self, seed: int) -> None:
        """Opens the files to read, and checks that episodes can be recorded, before any is sampled.

        Args:
            seed: The run's seed.

        Raises:
            OfflineDataError: As for ``open``; or if ``output`` holds other recorded episodes, or cannot be written to.
        """
        self.open(seed)
        if self.writer is not None:
            self.writer.begin()

    @property
    def num_steps(self) -> tuple[int, int]:
        """The numbers of env steps and agent steps that were read so far."""
        if self.reader is not None:
            return self.reader.num_env_steps_read, self.reader.num_agent_steps_read
        position = self._position
        return (0, 0) if position is None else (position.env_steps_read, position.agent_steps_read)

    def sample(self, size: int, *, by_agent_steps: bool) -> tuple[Sample | None, int]:
        """Returns the recorded episodes of one train batch, and the number of steps to sample for the rest of it.

        Args:
            size: The number of steps of the batch. Samples ``"as_recorded"`` have the steps that they have.
            by_agent_steps: Whether steps are agent steps instead of env steps.
        """
        if self.reader is None:
            return None, size
        fraction = self._config.live_fraction
        read = Sample.of_episodes(_read(self.reader, max(1, round(size * (1.0 - fraction))), by_agent_steps))
        steps = read.agent_steps if by_agent_steps else read.env_steps
        return read, max(1, round(steps * fraction / (1.0 - fraction))) if fraction else 0

    def take_due(self, env_steps: float, *, within_pass: bool) -> Sample:
        """Returns the recorded episodes that are due after some more env steps, for algorithms with a replay buffer.

        Episodes are whole, so there are none as long as those before have had more steps than were due.

        Args:
            env_steps: The number of env steps, which may have a fraction.
            within_pass: Whether the episodes are of one pass over the data. What is due then comes in the next pass.
        """
        assert self.reader is not None
        self._due += env_steps
        passes = self.reader.num_passes
        found: list[Any] = []
        while self._due >= 1 and not (within_pass and self.reader.num_passes > passes):
            read = _read(self.reader, int(self._due), by_agent_steps=False)  # which ends with the pass
            self._due -= sum(episode.env_steps() for episode in read)
            found += read
        return Sample.of_episodes(found)

    def held_out_batches(self, size: int, *, by_agent_steps: bool) -> Iterator[list[Any]]:
        """Yields all held-out episodes, in the same order each time.

        Args:
            size: The number of steps of a batch.
            by_agent_steps: Whether steps are agent steps instead of env steps.
        """
        assert self.held_out is not None
        begin = self.held_out.get_state()
        try:
            while not self.held_out.num_passes:
                yield _read(self.held_out, size, by_agent_steps)
        finally:
            self.held_out.set_state(begin)

    def record(self, sample: Sample) -> None:
        """Writes the episodes of a sample, if they are recorded."""
        if self.writer is not None:
            self.writer.write(sample.fetched())

    def now(self) -> Callable[[], None]:
        """Returns a function that goes back to the present places in the files."""
        due, reader = self._due, self.reader
        parts = [] if reader is None else [partial(reader.set_state, reader.get_state())]
        parts += [] if self.writer is None else [partial(self.writer.set_state, self.writer.position())]

        def go_back() -> None:
            self._due, self.reader = due, reader
            for part in parts:
                part()

        return go_back

    def results(self) -> dict[str, Any]:
        """Returns what the results of an iteration say about recorded episodes, if there are any."""
        found: dict[str, Any] = {}
        if self.reader is not None:
            found |= {
                "num_env_steps_read_lifetime": self.reader.num_env_steps_read,
                "num_agent_steps_read_lifetime": self.reader.num_agent_steps_read,
                "num_passes": self.reader.num_passes,
                "num_damages": len(self.reader.damages),
            }
        if self.writer is not None:
            found |= {
                "num_episodes_written_lifetime": self.writer.num_episodes,
                "num_agent_steps_written_lifetime": self.writer.num_agent_steps,
            }
        return {"offline_data": found} if found else {}

    def get_state(self) -> OfflineDataState:
        """Returns the positions in the files."""
        return OfflineDataState(
            reader=self._position if self.reader is None else self.reader.get_state(),
            due=self._due,
            writer=None if self.writer is None else self.writer.get_state(),
        )

    def set_state(self, state: OfflineDataState, seed: int) -> None:
        """Continues at the positions of ``get_state``. A run that begins to read or write has no position yet.

        Args:
            state: What ``get_state`` returned.
            seed: The seed of the state's run.

        Raises:
            OfflineDataError: If the data to read are not the same.
        """
        self._position = state.reader
        self._due = state.due
        if self.reader is not None:
            self.reader = None
            self.open(seed)
        if self.writer is not None and state.writer is not None:
            self.writer.set_state(state.writer)

    def close(self) -> None:
        """Completes the files."""
        if self.writer is not None:
            self.writer.close()


def _read(reader: EpisodeReader, size: int, by_agent_steps: bool) -> list[Any]:
    """Returns the next episodes of a reader, as few as have the wanted number of steps."""
    if reader.order == AS_RECORDED:
        return reader.sample()
    wanted: dict[str, int] = {"num_agent_steps" if by_agent_steps else "num_env_steps": size}
    return reader.sample(**wanted)


def together(read: Sample | None, live: Sample) -> Sample:
    """Returns the episodes of a train batch: those that were read, followed by those that were sampled."""
    if read is None:
        return live
    return Sample.of_episodes([*read.episodes(), *live.episodes()])
