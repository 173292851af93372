"""The recorded episodes of a run: those that it reads instead of sampling, and those that it records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.env_runners.sample import Sample
from marl_connectors.offline.episode_reader import AS_RECORDED, EpisodeReader
from marl_connectors.offline.episode_writer import EpisodeWriter


class OfflineData:
    """What ``.offline_data(...)`` asks for: a reader, a writer, or neither.

    Attributes:
        reader: Reads the recorded episodes of ``input_``; None if the run samples, and before ``open``.
        writer: Writes to ``output``; None if nothing is recorded.
    """

    def __init__(self, config: AlgorithmConfig, setup: Any):
        """Opens no file yet, as a restored run may only act.

        Args:
            config: The settings of the run.
            setup: The environment's properties.
        """
        self._config = config
        self._setup = setup
        self._position: Mapping[str, Any] | None = None
        self.reader: EpisodeReader | None = None
        self.writer: EpisodeWriter | None = None
        if config.output is not None:
            self.writer = EpisodeWriter(
                config.output,
                max_file_size=config.output_max_file_size,
                max_rows_per_file=config.output_max_rows_per_file,
                unstorable_infos=config.output_unstorable_infos,
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
        config, setup = self._config, self._setup
        if self.reader is not None or config.input_ is None:
            return
        reader = EpisodeReader(
            config.input_,
            order=config.input_order,
            seed=seed,
            complete_episodes=config.batch_mode == "complete_episodes",
            policy_mapping_fn=lambda agent_id, episode: config.policy_mapping_fn(agent_id, episode),
        )
        reader.check_spaces({agent_id: setup.agent_spaces(agent_id) for agent_id in setup.agent_ids})
        if self._position is not None:
            reader.set_state(self._position)
        self.reader = reader

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
        return (0, 0) if self.reader is None else (self.reader.num_env_steps_read, self.reader.num_agent_steps_read)

    def sample(self, size: int, *, by_agent_steps: bool) -> Sample:
        """Returns recorded episodes for one train batch.

        Args:
            size: The wanted number of steps. Samples ``"as_recorded"`` have the steps that they have.
            by_agent_steps: Whether ``size`` counts agent steps instead of env steps.
        """
        assert self.reader is not None
        if self.reader.order == AS_RECORDED:
            return Sample.of_episodes(self.reader.sample())
        wanted: dict[str, int] = {"num_agent_steps" if by_agent_steps else "num_env_steps": size}
        return Sample.of_episodes(self.reader.sample(**wanted))

    def record(self, sample: Sample) -> Any:
        """Writes the episodes of a sample. Returns the state of the writer before, for ``undo``."""
        if self.writer is None:
            return None
        before = self.writer.position()
        self.writer.write(sample.fetched())
        return before

    def undo(self, before: Any) -> None:
        """Undoes ``record``, for a sample that is made again."""
        if self.writer is not None:
            self.writer.set_state(before)

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

    def get_state(self) -> dict[str, Any]:
        """Returns the positions in the files."""
        return {
            "reader": self._position if self.reader is None else self.reader.get_state(),
            "writer": None if self.writer is None else self.writer.get_state(),
        }

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continues at the positions of ``get_state``. A run that begins to read or write has no position yet.

        Raises:
            OfflineDataError: If the data to read are not the same.
        """
        state = state or {}
        self._position = state.get("reader")
        if self.reader is not None and self._position is not None:
            self.reader.set_state(self._position)
        if self.writer is not None and state.get("writer") is not None:
            self.writer.set_state(state["writer"])

    def close(self) -> None:
        """Completes the files."""
        if self.writer is not None:
            self.writer.close()
