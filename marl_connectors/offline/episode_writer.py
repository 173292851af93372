"""EpisodeWriter: records episodes in files."""

from __future__ import annotations

import contextlib
import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.checkpoints import sync_directory
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.choices import DEFAULT_FILE_SIZE, UNSTORABLE_INFOS
from marl_connectors.offline.recorded_sample import recorded
from marl_connectors.offline.recording_file import (
    SUFFIX,
    Extent,
    append_to_index,
    encoded_sample,
    name_of_file,
    read_index,
    replace_index,
)
from marl_connectors.state import Count, State, read_state
from marl_connectors.validators import integer, one_of, optional

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.typing import AgentID


class EpisodeWriterState(State):
    """How much an EpisodeWriter has written.

    Attributes:
        num_samples: The number of calls of ``write`` that wrote episodes.
        num_episodes: The number of episodes, and chunks of episodes.
        num_agent_steps: The number of agent steps.
        file_number: The number of the newest file.
        size: Its bytes.
        samples: Its samples.
        episodes: The episodes in them.
        rows: The agent steps in them.
    """

    num_samples: Count = 0
    num_episodes: Count = 0
    num_agent_steps: Count = 0
    file_number: Count = 0
    size: Count = 0
    samples: Count = 0
    episodes: Count = 0
    rows: Count = 0


class EpisodeWriter:
    """Records episodes in the files of a folder, exactly: ``EpisodeReader`` makes the same train batches of them.

    >>> import tempfile
    >>> from marl_connectors import SingleAgentEpisode
    >>> episode = SingleAgentEpisode(observations=[0, 1, 2], actions=[5, 6], rewards=[0.5, 1.0], len_lookback_buffer=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with EpisodeWriter(folder) as writer:
    ...         writer.write([episode])
    ...     EpisodeReader(folder).sample()[0].get_rewards().tolist()
    [0.5, 1.0]

    Attributes:
        folder: The folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_file_size: int | None = DEFAULT_FILE_SIZE,
        max_rows_per_file: int | None = None,
        unstorable_infos: str = "error",
        pieces: Sequence[str] | None = None,
    ):
        """Creates no file yet.

        Args:
            folder: The folder, which is created if needed. It must not hold recorded episodes.
            max_file_size: The bytes after which another file is begun; None for no limit.
            max_rows_per_file: The agent steps after which another file is begun; None for no limit.
            unstorable_infos: What happens to values of infos that no file can hold, such as objects: ``"error"``
                refuses them, ``"drop"`` leaves them out and warns once for each key.
            pieces: The names of the env-to-module pieces behind which the episodes are sampled, for runs that read
                them; None if they are unknown.
        """
        who = type(self).__name__
        self.folder = Path(folder)
        self._max_file_size = optional(integer(min=1)).check(max_file_size, who, "max_file_size")
        self._max_rows = optional(integer(min=1)).check(max_rows_per_file, who, "max_rows_per_file")
        self._drops = one_of(*UNSTORABLE_INFOS).check(unstorable_infos, who, "unstorable_infos") == "drop"
        self._pieces = None if pieces is None else list(pieces)
        self._dropped: set[Any] = set()
        self._written = EpisodeWriterState()
        self._is_begun = False
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the writer."""
        self.close()

    def __repr__(self) -> str:
        return f"<EpisodeWriter to {self.folder}: {self.num_episodes:,} episodes, {self.num_agent_steps:,} agent steps>"

    @property
    def num_samples(self) -> int:
        """The number of calls of ``write`` so far that wrote episodes."""
        return self._written.num_samples

    @property
    def num_episodes(self) -> int:
        """The number of episodes, and chunks of episodes, so far."""
        return self._written.num_episodes

    @property
    def num_agent_steps(self) -> int:
        """The number of agent steps so far."""
        return self._written.num_agent_steps

    def begin(self) -> None:
        """Creates the folder, and checks that it can be written to. ``write`` does this first.

        Raises:
            OfflineDataError: If it holds other recorded episodes, or cannot be written to.
        """
        if self._is_begun:
            return
        try:
            self._made += [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room()
        except OSError as error:
            raise OfflineDataError(f"EpisodeWriter: {self.folder} cannot be written to: {error}") from error
        self._is_begun = True

    def _make_room(self) -> None:
        """Prepares the folder for continuing at the position of the state, or for the first file."""
        files = sorted(self.folder.glob(f"*{SUFFIX}"))
        path = self._path()
        if not self.num_samples:
            if files:
                raise OfflineDataError(
                    f"EpisodeWriter: {self.folder} holds recorded episodes already ({files[0].name}). Choose another "
                    f"folder, or delete it."
                )
            replace_index(self.folder, [])  # that of files which were deleted
            return
        size = self._written.size
        before = map(self._path, range(self._written.file_number))
        lacking = next((file for file in before if file not in files), None)
        if size and (path not in files or path.stat().st_size < size):
            lacking = path
        if lacking is not None:
            raise OfflineDataError(
                f"EpisodeWriter: expected to continue after {self.num_episodes:,} episodes in {self.folder}, but "
                f"{lacking.name} is missing or shorter than it was. Choose another folder, so that recording begins "
                f"there, or restore the file."
            )
        self._shorten_index()
        for file in files:  # of samples after the one that the state is of, which are made again
            if file > path:
                file.unlink()
        self._keep_whole_samples()

    def _shorten_index(self) -> None:
        """Lets the index count no sample behind the position of the state."""
        before = {self._path(number).name for number in range(self._written.file_number)}
        found, _ = read_index(self.folder)
        kept = [extent for name, extent in found.items() if name in before]
        here = self._extent()
        if here.samples and (newest := found.get(here.file)):
            newest.is_closed = False
            kept.append(min(here, newest, key=lambda extent: extent.samples))
        replace_index(self.folder, kept)

    def _extent(self, *, is_closed: bool = False) -> Extent:
        return Extent(self._path().name, self._written.samples, self._written.episodes, is_closed)

    def _path(self, number: int | None = None) -> Path:
        return self.folder / name_of_file(self._written.file_number if number is None else number)

    def write(self, episodes: Sequence[Any]) -> None:
        """Appends episodes, or chunks of episodes. They stay together: they are one sample of ``EpisodeReader``.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes. They stay as they are.

        Raises:
            EpisodeError: If they hold something that no file can hold. Then nothing is written.
            OfflineDataError: If the folder holds other recorded episodes, or cannot be written to.
        """
        if not episodes:
            return
        self.begin()
        document, arrays = recorded(episodes, self._note_dropped if self._drops else None, self._pieces)
        written = self._written
        place = {"offset": written.size, "number": written.samples, "episodes_before": written.episodes}
        sample = encoded_sample(document, arrays, **place, num_episodes=len(episodes))
        try:
            with open(self._path(), "ab") as file:
                file.write(sample)
        except BaseException as error:  # also if a signal interrupts it
            self._keep_whole_samples()
            if isinstance(error, OSError):
                raise OfflineDataError(f"EpisodeWriter: {self._path()} cannot be written: {error}") from error
            raise
        written.size += len(sample)
        rows = sum(episode.agent_steps() for episode in episodes)
        written.rows += rows
        written.episodes += len(episodes)
        written.samples += 1
        written.num_samples += 1
        written.num_episodes += len(episodes)
        written.num_agent_steps += rows
        is_long = self._max_rows is not None and written.rows >= self._max_rows
        if is_long or (self._max_file_size is not None and written.size >= self._max_file_size):
            self._close_file()

    def _keep_whole_samples(self) -> None:
        """Removes what is behind the last whole sample of the file."""
        if self._written.size:
            os.truncate(self._path(), self._written.size)
        else:
            self._path().unlink(missing_ok=True)

    def _note_dropped(self, agent_id: AgentID, key: Any, kind: str) -> None:
        if key not in self._dropped:
            self._dropped.add(key)
            warnings.warn(
                f"EpisodeWriter: info[{key!r}] of agent {agent_id!r} holds a {kind}, which no file can hold. All such "
                f"values under this key are left out.",
                OfflineDataWarning,
                stacklevel=4,
            )

    def _close_file(self) -> None:
        """Completes the file."""
        written = self._written
        if self._is_begun and written.size:
            self._sync(is_closed=True)
            written.file_number += 1
            written.size = written.samples = written.episodes = written.rows = 0

    def _sync(self, *, is_closed: bool = False) -> None:
        """Waits until all samples are on disk, and then notes them in the folder's index."""
        if not (self._is_begun and self._written.size):
            return
        try:
            with open(self._path(), "rb+") as file:
                os.fsync(file.fileno())
            sync_directory(self.folder)
            append_to_index(self.folder, self._extent(is_closed=is_closed))
        except OSError as error:
            raise OfflineDataError(f"EpisodeWriter: {self._path()} cannot be written: {error}") from error

    def close(self) -> None:
        """Completes the file; a later ``write`` begins another one. Folders made for no episode are removed."""
        self._close_file()
        if not self.num_samples:
            self._is_begun = False
            with contextlib.suppress(OSError):  # something else is in it by now
                while self._made:
                    self._made.pop(0).rmdir()

    def get_state(self) -> EpisodeWriterState:
        """Returns how much is written, which is on disk then, for a writer that continues."""
        self._sync()
        return self.position()

    def position(self) -> EpisodeWriterState:
        """Does the same as ``get_state``, without waiting for the disk."""
        return copy.copy(self._written)

    def set_state(self, state: EpisodeWriterState | Mapping[str, Any]) -> None:
        """Continues where ``get_state`` was called. What was written to the folder later is deleted at the next write.

        Args:
            state: The result of ``get_state``, perhaps of another process.

        Raises:
            CheckpointError: If it is damaged.
        """
        self._written = copy.copy(read_state(EpisodeWriterState, state))
        self._is_begun = False
