"""EpisodeWriter: records episodes in files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from marl_connectors.checkpoints import sync_directory
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.choices import DEFAULT_FILE_SIZE, UNSTORABLE_INFOS
from marl_connectors.offline.folder_index import append_to_index, read_index, replace_index
from marl_connectors.offline.shard import SUFFIX, Extent, encoded_block, encoded_end, file_header, name_of_file
from marl_connectors.offline.stored_episodes import stored_state
from marl_connectors.validators import integer, one_of, optional

if TYPE_CHECKING:
    from typing_extensions import Self

POSITION: Final = (
    "num_samples",
    "num_episodes",
    "num_agent_steps",
    "file_number",
    "size",
    "blocks",
    "episodes",
    "rows",
)
"""The keys of the state of an EpisodeWriter."""


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
        num_samples: The number of calls of ``write`` so far that wrote episodes.
        num_episodes: The number of episodes, and chunks of episodes, so far.
        num_agent_steps: The number of agent steps so far.
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
        self.num_samples = self.num_episodes = self.num_agent_steps = 0
        self._file_number = self._size = self._blocks = self._episodes = self._rows = 0
        self._file: IO[bytes] | None = None
        self._is_begun = False
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the writer."""
        self.close()

    def __repr__(self) -> str:
        return f"<EpisodeWriter to {self.folder}: {self.num_episodes:,} episodes, {self.num_agent_steps:,} agent steps>"

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
            replace_index(self.folder, {})  # that of files which were deleted
            return
        before = [self._path(number) for number in range(self._file_number)]
        lacking = next((file for file in before if file not in files), None)
        if self._size and (path not in files or path.stat().st_size < self._size):
            lacking = path
        if lacking is not None:
            raise OfflineDataError(
                f"EpisodeWriter: expected to continue after {self.num_episodes:,} episodes in {self.folder}, but "
                f"{lacking.name} is missing or shorter than it was. Choose another folder, so that recording begins "
                f"there, or restore the file."
            )
        self._shorten_index()
        for file in files:  # of samples after the one that the state is of, which are made again
            if file > path or (file == path and not self._size):
                file.unlink()
        if self._size:
            os.truncate(path, self._size)
            self._file = open(path, "ab")  # noqa: SIM115  # closed by close()

    def _shorten_index(self) -> None:
        """Lets the index count no block behind the position of the state."""
        before = {self._path(number).name for number in range(self._file_number)}
        name, here = self._path().name, Extent(self._blocks, self._episodes, False)
        found = read_index(self.folder).extents
        kept = {own: extent for own, extent in found.items() if own in before}
        if self._size and name in found:
            kept[name] = min(here, found[name]._replace(is_closed=False))
        replace_index(self.folder, kept)

    def _path(self, number: int | None = None) -> Path:
        return self.folder / name_of_file(self._file_number if number is None else number)

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
        document, tensors = stored_state(episodes, self._note_dropped if self._drops else None)
        document["sample"] = self.num_samples
        if self._pieces is not None:
            document["pieces"] = self._pieces
        try:
            self._append(document, tensors)
        except OSError as error:
            raise OfflineDataError(f"EpisodeWriter: {self._path()} cannot be written: {error}") from error
        rows = sum(episode.agent_steps() for episode in episodes)
        self._rows += rows
        self._episodes += len(episodes)
        self._blocks += 1
        self.num_samples += 1
        self.num_episodes += len(episodes)
        self.num_agent_steps += rows
        is_long = self._max_rows is not None and self._rows >= self._max_rows
        if is_long or (self._max_file_size is not None and self._size >= self._max_file_size):
            self._close_file()

    def _append(self, document: dict[str, Any], tensors: dict[str, Any]) -> None:
        header = b"" if self._size else file_header()
        block = encoded_block(
            document, tensors, offset=self._size + len(header), number=self._blocks, episodes_before=self._episodes
        )
        if self._file is None:
            self._file = open(self._path(), "xb")  # noqa: SIM115  # closed by close()
        try:
            self._file.write(header + block)
            self._file.flush()
        except BaseException:  # also if a signal interrupts it
            self._keep_whole_blocks()
            raise
        self._size += len(header) + len(block)

    def _keep_whole_blocks(self) -> None:
        """Closes the file after a write that has failed. A later call continues after the last whole block."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # it may try to write the rest again
                self._file.close()
        self._file, self._is_begun = None, False
        if self._size:
            os.truncate(self._path(), self._size)
        else:
            self._path().unlink()

    def _note_dropped(self, agent_id: Any, key: Any, kind: str) -> None:
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
        if self._file is None:
            return
        try:
            self._file.write(encoded_end(self._blocks, self._episodes))
            self._sync(is_closed=True)
        except OSError as error:
            self._keep_whole_blocks()
            raise OfflineDataError(f"EpisodeWriter: {self._path()} cannot be written: {error}") from error
        self._file.close()
        self._file = None
        self._file_number += 1
        self._size = self._blocks = self._episodes = self._rows = 0

    def _sync(self, *, is_closed: bool = False) -> None:
        """Waits until all blocks are on disk, and then notes them in the folder's index."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            sync_directory(self.folder)
            append_to_index(self.folder, self._path().name, Extent(self._blocks, self._episodes, is_closed))

    def close(self) -> None:
        """Completes the file; a later ``write`` begins another one. Folders made for no episode are removed."""
        self._close_file()
        if not self.num_samples:
            self._is_begun = False
            with contextlib.suppress(OSError):  # something else is in it by now
                while self._made:
                    self._made.pop(0).rmdir()

    def get_state(self) -> dict[str, int]:
        """Returns how much is written, which is on disk then, for a writer that continues."""
        self._sync()
        return self.position()

    def position(self) -> dict[str, int]:
        """Does the same as ``get_state``, without waiting for the disk."""
        return {
            "num_samples": self.num_samples,
            "num_episodes": self.num_episodes,
            "num_agent_steps": self.num_agent_steps,
            "file_number": self._file_number,
            "size": self._size,
            "blocks": self._blocks,
            "episodes": self._episodes,
            "rows": self._rows,
        }

    def set_state(self, state: Mapping[str, int]) -> None:
        """Continues where ``get_state`` was called. What was written to the folder later is deleted at the next write.

        Args:
            state: The result of ``get_state``, perhaps of another process.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        self.num_samples = state["num_samples"]
        self.num_episodes = state["num_episodes"]
        self.num_agent_steps = state["num_agent_steps"]
        self._file_number, self._size = state["file_number"], state["size"]
        self._blocks, self._episodes, self._rows = state["blocks"], state["episodes"], state["rows"]
        self._is_begun = False
