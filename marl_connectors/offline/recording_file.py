r"""The files of recorded episodes: samples, one behind the other, and an index of the folder.

====================  ==================================================================================================
part of a sample      content
====================  ==================================================================================================
a line                the mark and version of the format, and JSON: what came before; sizes and SHA-256 of the others
a table               JSON: the table of the episodes, and their plain data
columns               safetensors: the columns, and the arrays of infos and notes
====================  ==================================================================================================

Each line has a checksum of its own. Samples are appended, so a run that is killed loses no earlier one. What is damaged
is skipped up to the next line that is not, which says how many samples and episodes came before.

Each line of ``episodes.index`` says how much of a file was on disk at some time. It is appended when a file is closed,
and at each checkpoint. So a lost end is noticed, and a writer that is killed leaves an index that counts no sample too
many.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import safetensors.numpy

from marl_connectors.checkpoints import sync_directory
from marl_connectors.errors import OfflineDataError
from marl_connectors.offline.recorded_sample import RecordedSample
from marl_connectors.state import Count, State, as_state, fields_of

SUFFIX: Final = ".episodes"
INDEX_FILE: Final = "episodes.index"
FORMAT_VERSION: Final = 1
_MARK: Final = b"\n#marl-connectors-sample-"
MARK: Final = _MARK + b"%d " % FORMAT_VERSION
"""What the line of a sample begins with."""
_ALIGNMENT: Final = 8
_LONGEST_LINE: Final = 10_000
_SIZES: Final = (1, 2, 4, 8)
_DTYPES: Final = {"BOOL": "?"} | {f"{kind}{8 * size}".upper(): f"{kind}{size}" for kind in "uif" for size in _SIZES}
"""The names of safetensors for numpy's types."""
_S = TypeVar("_S", bound=State)


class SampleLine(State):
    """The line before a sample.

    Attributes:
        number: The number of the sample in the file.
        episodes_before: The number of episodes in the samples before it.
        num_episodes: The number of episodes in it.
        table_sha256: The digest of its table.
        columns_sha256: The digest of its columns.
        table_bytes: The size of its table.
        columns_bytes: The size of its columns.
    """

    number: Count
    episodes_before: Count
    num_episodes: Count
    table_sha256: str
    columns_sha256: str
    table_bytes: Count
    columns_bytes: Count


class Extent(State):
    """A line of the index: how much of a file was on disk. A later line about a file replaces earlier ones.

    Attributes:
        file: The name of the file.
        samples: The number of samples.
        episodes: The number of episodes in them.
        is_closed: Whether the file was closed. Else more samples may have followed.
    """

    file: str
    samples: Count
    episodes: Count
    is_closed: bool


def checked_line(state: State) -> bytes:
    """Returns a line with the fields of a state, and their checksum."""
    own = fields_of(state)
    return json.dumps({**own, "crc32": zlib.crc32(json.dumps(own).encode())}).encode()


def _state_of(kind: type[_S], line: bytes) -> _S | None:
    """Returns the state that ``checked_line`` got; None if the line is damaged."""
    try:
        own = json.loads(line)
        del own["crc32"]
        state = as_state(kind, own)
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    return state if checked_line(state) == line.rstrip(b" ") else None


class Damage(NamedTuple):
    """A part of a file that is lost.

    Attributes:
        file: The file.
        sample: The number of the sample, counted from 0; None if samples are missing.
        why: What is wrong.
        ids: The ids of the lost episodes; None if they are unknown.
        num_episodes: The number of lost episodes; None if it is unknown.
    """

    file: Path
    sample: int | None
    why: str
    ids: tuple[str, ...] | None = None
    num_episodes: int | None = None

    def __str__(self) -> str:
        where = self.file if self.sample is None else f"{self.file}, sample {self.sample}"
        if self.ids:
            shown = ", ".join(map(repr, self.ids[:3])) + (f", ... {self.ids[-1]!r}" if len(self.ids) > 3 else "")
            lost = f"{len(self.ids)} episode{'s' * (len(self.ids) != 1)} or chunks are lost: {shown}"
        elif self.num_episodes == 0:
            lost = "no episode is lost"
        elif self.num_episodes is not None:
            lost = f"{self.num_episodes} episodes or chunks are lost, whose ids are unknown"
        else:
            lost = "the episodes in it are lost, and how many is unknown"
        return f"{where}: {self.why}; {lost}."


class UnreadableFileError(OfflineDataError):
    """A file of which nothing can be read.

    Attributes:
        why: What is wrong.
    """

    def __init__(self, file: Path, why: str):
        super().__init__(
            f"offline data: {file} is not a file of recorded episodes, because {why}. Pass files or folders that "
            f"output=... or EpisodeWriter wrote; from_parquet reads Parquet files."
        )
        self.why = why


def name_of_file(number: int) -> str:
    """Returns the name of the file with a number in a folder.

    >>> name_of_file(3)
    'episodes-000003.episodes'
    """
    return f"episodes-{number:06}{SUFFIX}"


# Writing.


def encoded_sample(
    document: Mapping[str, Any],
    arrays: dict[str, np.ndarray],
    *,
    offset: int,
    number: int,
    episodes_before: int,
    num_episodes: int,
) -> bytes:
    """Returns the bytes of a sample.

    Args:
        document: The JSON data that ``recorded`` returned.
        arrays: The arrays that it returned.
        offset: The place of the sample in the file.
        number: Its number in the file.
        episodes_before: The number of episodes in the samples before it.
        num_episodes: The number of episodes in it.
    """
    table = json.dumps(document, separators=(",", ":")).encode()
    columns = safetensors.numpy.save(arrays)
    line = SampleLine(
        number=number,
        episodes_before=episodes_before,
        num_episodes=num_episodes,
        table_sha256=hashlib.sha256(table).hexdigest(),
        columns_sha256=hashlib.sha256(columns).hexdigest(),
        table_bytes=len(table),
        columns_bytes=len(columns),
    )
    begin = MARK + checked_line(line)
    padding = -(offset + len(begin) + 1 + len(table)) % _ALIGNMENT
    return b"".join((begin, b" " * padding, b"\n", table, columns))


def append_to_index(folder: Path, extent: Extent) -> None:
    """Appends a line about a file, and waits until it is on disk."""
    is_new = not (folder / INDEX_FILE).exists()
    with open(folder / INDEX_FILE, "ab") as file:
        _write_lines(file, [extent])
    if is_new:
        sync_directory(folder)


def replace_index(folder: Path, extents: list[Extent]) -> None:
    """Replaces the index in one step; without any file, it is removed."""
    if not extents:
        (folder / INDEX_FILE).unlink(missing_ok=True)
        return
    temporary = folder / f"{INDEX_FILE}.tmp"
    with open(temporary, "wb") as file:
        _write_lines(file, extents)
    os.replace(temporary, folder / INDEX_FILE)
    sync_directory(folder)


def _write_lines(file: Any, extents: list[Extent]) -> None:
    file.write(b"".join(checked_line(extent) + b"\n" for extent in extents))
    file.flush()
    os.fsync(file.fileno())


# Reading.


def read_index(folder: Path) -> tuple[dict[str, Extent], bool]:
    """Returns what the index of a folder says of each file, and whether all lines can be read.

    A last line that was being written when a process was killed counts as none.
    """
    try:
        *lines, _ = (folder / INDEX_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}, True
    found = [_state_of(Extent, line) for line in lines]
    return {extent.file: extent for extent in found if extent is not None}, None not in found


class Sample(RecordedSample):
    """A sample in a file.

    Attributes:
        file: The file.
        number: Its number there.
        digest: The SHA-256 of its columns.
    """

    def __init__(self, file: Path, line: SampleLine, document: Any, columns: memoryview):
        super().__init__(document, _arrays_in(columns), len(columns))
        if len(self) != line.num_episodes:
            raise ValueError("it has another number of episodes than its line says")
        self.file, self.number, self.digest = file, line.number, line.columns_sha256
        self._line, self._columns = line, columns

    @cached_property
    def damage(self) -> Damage | None:
        """The damage of the sample, for which all of it is read once; None if there is none."""
        why = _damage_of(self._columns, self._line)
        if not why:
            try:
                self.check()
                _ = self.rollouts
            except Exception as error:  # whatever the file says
                why = _never_written(error)
        return Damage(self.file, self.number, why, tuple(self.ids)) if why else None


def _damage_of(columns: memoryview, line: SampleLine) -> str:
    """Returns what is wrong with the bytes of columns, if there is something."""
    if len(columns) < line.columns_bytes:
        return "the file ends within its columns"
    is_sound = hashlib.sha256(columns).hexdigest() == line.columns_sha256
    return "" if is_sound else "its columns are not what was written (their SHA-256 differs)"


def _never_written(error: Exception) -> str:
    return f"it contains what is never written ({type(error).__name__}: {error})"


def _arrays_in(data: memoryview) -> dict[str, np.ndarray]:
    """Returns views of the arrays in the bytes of safetensors, none of which is read.

    Raises:
        Exception: Any, if the bytes are none of safetensors.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, own in json.loads(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = own["data_offsets"]
            if not 0 <= begin <= end:
                raise ValueError(f"the array {name!r} begins after its end")
            found[name] = np.frombuffer(data[start + begin : start + end], _DTYPES[own["dtype"]]).reshape(own["shape"])
    return found


class RecordingFile:
    """The samples in a file, and what of it is lost.

    Attributes:
        file: The file.
        samples: The samples whose tables are intact. Their columns are checked when they are first used.
        damages: What is lost already.
    """

    def __init__(self, file: Path, extent: Extent | None = None):
        """Reads the tables.

        Args:
            file: The file.
            extent: How much of it was on disk at some time; None if that is unknown.

        Raises:
            UnreadableFileError: If it is not a file of recorded episodes, or nothing of it is left.
            OfflineDataError: If the file cannot be read, or has a newer format.
        """
        self.file = file
        self.samples: list[Sample] = []
        self.damages: list[Damage] = []
        self._num_samples = self._num_episodes = 0  # that are there, or named as lost
        try:
            with open(file, "rb") as opened:
                opened.seek(0, 2)  # an empty file cannot be mapped
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if opened.tell() else b""
        except OSError as error:
            raise OfflineDataError(f"offline data: {file} cannot be read: {error}") from error
        self._data = memoryview(self._map)
        self._check_kind()
        at, self._end = self._next(0), 0
        while at < len(self._data):
            line = bytes(self._data[at + len(MARK) : at + _LONGEST_LINE]).partition(b"\n")[0]
            about = _state_of(SampleLine, line)
            if about is None or about.number < self._num_samples or about.episodes_before < self._num_episodes:
                at = self._next(at + 1)
                continue
            self._account_for(about.number, about.episodes_before)
            at = self._read_sample(about, at + len(MARK) + len(line) + 1)
        is_told = extent is not None and self._account_for(extent.samples, extent.episodes)
        if self._end < len(self._data) and not is_told:
            number = 0 if extent is not None and extent.is_closed else None
            self.damages.append(Damage(file, None, f"the bytes from {self._end:,} on are no sample", None, number))

    def _check_kind(self) -> None:
        if self._map.find(MARK) >= 0:
            return
        version, _, _ = bytes(self._data[: len(_MARK) + 9]).removeprefix(_MARK).partition(b" ")
        if self._data[: len(_MARK)] == _MARK and version.isdigit():
            raise OfflineDataError(
                f"offline data: {self.file} has format version {int(version)}, but this version of marl-connectors "
                f"reads {FORMAT_VERSION}. Install the version that wrote it, or record again."
            )
        raise UnreadableFileError(self.file, "there is no sample in it" if len(self._data) else "it is empty")

    def _next(self, at: int) -> int:
        """Returns the place of the next mark of a sample, or the size of the file."""
        found = self._map.find(MARK, at)
        return len(self._data) if found < 0 else found

    def _account_for(self, samples: int, episodes: int) -> bool:
        """Names what is lost of the samples and episodes that were written up to some place, if anything is."""
        number, lost = samples - self._num_samples, episodes - self._num_episodes
        if number > 0:
            which = f"sample {samples - 1} is" if number == 1 else f"samples {samples - number} to {samples - 1} are"
            self.damages.append(Damage(self.file, None, f"{which} missing or damaged", num_episodes=lost))
            self._num_samples, self._num_episodes = samples, episodes
        return number > 0

    def _read_sample(self, line: SampleLine, begin: int) -> int:
        """Reads the table of a sample. Returns the place of what follows.

        Args:
            line: Its line.
            begin: The place behind the line.
        """
        middle = begin + line.table_bytes
        end = middle + line.columns_bytes
        is_whole = end == len(self._data) or self._data[end : end + len(MARK)] == MARK
        following = end if is_whole else self._next(begin)
        self._end = min(end, following)
        self._num_samples, self._num_episodes = line.number + 1, line.episodes_before + line.num_episodes
        table, columns = self._data[begin:middle], self._data[middle:end]
        ids = None
        why = "its table is damaged (its SHA-256 differs)" if end <= len(self._data) else "the file ends within it"
        if hashlib.sha256(table).hexdigest() == line.table_sha256:
            try:
                document = json.loads(bytes(table))
                ids = tuple(document["episodes"]["id"])
                sample = Sample(self.file, line, document, columns)
                why = "" if is_whole or sample.damage is None else sample.damage.why
            except Exception as error:  # whatever the file says
                why = _damage_of(columns, line) or _never_written(error)
        if why:
            self.damages.append(Damage(self.file, line.number, why, ids, line.num_episodes))
        else:
            self.samples.append(sample)
        return following
