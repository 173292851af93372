r"""Files with recorded episodes, called shards: a header, blocks of episodes, and an end.

====================  ==================================================================================================
part                  content
====================  ==================================================================================================
first line            JSON: ``format``, ``format_version``, ``library_version``, and ``crc32`` of these
block                 a line ``#block`` with JSON: sizes and SHA-256 of the two parts that follow, and what came before
\- document           JSON: the table of the episodes, and their plain data
\- tensors            safetensors: the columns, and the arrays of infos and notes
last line             ``#end`` with JSON: the numbers of blocks and episodes. It lacks while the file is being written.
====================  ==================================================================================================

Blocks are appended, so a run that is killed loses no earlier one. A damaged block is skipped up to the next ``#block``.
A damaged line loses nothing if the digests say that the parts after it are intact.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import safetensors.numpy

from marl_connectors.errors import OfflineDataError
from marl_connectors.names import brief
from marl_connectors.offline.stored_block import StoredBlock
from marl_connectors.offline.stored_episodes import StoredEpisodes
from marl_connectors.state import Count, State, as_state, fields_of
from marl_connectors.version import library_version

FORMAT: Final = "marl-connectors episodes"
FORMAT_VERSION: Final = 1
SUFFIX: Final = ".episodes"
_BLOCK: Final = b"\n#block "
_END: Final = b"\n#end "
_ALIGNMENT: Final = 8
_LONGEST_LINE: Final = 10_000
_DTYPES: Final[dict[str, Any]] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
}
"""The names of safetensors for the types that are written."""


class BlockLine(State):
    """What the line before a block says.

    Attributes:
        number: The number of the block in the file.
        episodes_before: The number of episodes in the blocks before it.
        num_episodes: The number of episodes in it.
        document_sha256: The digest of its document.
        tensors_sha256: The digest of its tensors.
        document_bytes: The size of its document.
        tensors_bytes: The size of its tensors.
    """

    number: Count
    episodes_before: Count
    num_episodes: Count
    document_sha256: str
    tensors_sha256: str
    document_bytes: Count
    tensors_bytes: Count


class EndLine(State):
    """What the last line says.

    Attributes:
        num_blocks: The number of blocks in the file.
        num_episodes: The number of episodes in them.
    """

    num_blocks: Count
    num_episodes: Count


class Damage(NamedTuple):
    """A part of a shard that is lost.

    Attributes:
        file: The file.
        block: The number of the block, counted from 0; None if blocks are missing.
        why: What is wrong.
        ids: The ids of the lost episodes; None if they are unknown.
        num_episodes: The number of lost episodes; None if it is unknown.
    """

    file: Path
    block: int | None
    why: str
    ids: tuple[str, ...] | None = None
    num_episodes: int | None = None

    def __str__(self) -> str:
        where = self.file if self.block is None else f"{self.file}, block {self.block}"
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


class Extent(NamedTuple):
    """How much of a shard was written at some time, by the index of its folder.

    Attributes:
        blocks: The number of blocks.
        episodes: The number of episodes in them.
        is_closed: Whether it had its last line. Else more blocks may have followed.
    """

    blocks: int
    episodes: int
    is_closed: bool


class UnreadableShardError(OfflineDataError):
    """A file of which nothing can be read.

    Attributes:
        file: The file.
        why: What is wrong.
    """

    def __init__(self, file: Path, why: str):
        super().__init__(
            f"offline data: {file} is not a file of recorded episodes, because {why}. Pass files or folders that "
            f"output=... or EpisodeWriter wrote; from_parquet reads Parquet files."
        )
        self.file = file
        self.why = why


def name_of_file(number: int) -> str:
    """Returns the name of the file with a number in a folder.

    >>> name_of_file(3), number_of_file("episodes-000003.episodes"), number_of_file("other.episodes")
    ('episodes-000003.episodes', 3, None)
    """
    return f"episodes-{number:06}{SUFFIX}"


def number_of_file(name: str) -> int | None:
    """Returns the number of a file with such a name; None for other names."""
    digits = name.removeprefix("episodes-").removesuffix(SUFFIX)
    return int(digits) if digits.isdecimal() and name_of_file(int(digits)) == name else None


def file_header() -> bytes:
    """Returns the first line of a shard."""
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "library_version": library_version()}
    return json.dumps({**header, "crc32": crc32(header)}).encode()


def crc32(header: dict[str, Any]) -> int:
    """Returns the checksum of the JSON data of a line."""
    return zlib.crc32(json.dumps(header).encode())


def encoded_block(
    stored: StoredBlock, tensors: dict[str, np.ndarray], *, offset: int, number: int, episodes_before: int
) -> bytes:
    """Returns the bytes of a block.

    Args:
        stored: Its table.
        tensors: Its arrays.
        offset: Its place in the file.
        number: Its number in the file.
        episodes_before: The number of episodes in the blocks before it.
    """
    text = json.dumps(stored, separators=(",", ":"), allow_nan=False, default=fields_of).encode()
    columns = safetensors.numpy.save(tensors)
    about = BlockLine(
        number=number,
        episodes_before=episodes_before,
        num_episodes=len(stored.episodes.id),
        document_sha256=hashlib.sha256(text).hexdigest(),
        tensors_sha256=hashlib.sha256(columns).hexdigest(),
        document_bytes=len(text),
        tensors_bytes=len(columns),
    )
    line = _BLOCK + json.dumps(fields_of(about)).encode()
    padding = -(offset + len(line) + 1 + len(text)) % _ALIGNMENT
    return b"".join((line, b" " * padding, b"\n", text, columns))


def encoded_end(num_blocks: int, num_episodes: int) -> bytes:
    """Returns the last line of a shard."""
    return _END + json.dumps(fields_of(EndLine(num_blocks, num_episodes))).encode() + b"\n"


class Block:
    """Episodes that were written together, in a shard.

    Attributes:
        file: The shard.
        number: Its number there.
        sample: The number of the sample in its folder; None if it is unknown.
        stored: The episodes.
        digest: The SHA-256 of its tensors.
    """

    def __init__(self, file: Path, number: int, document: Any, data: memoryview, digest: str):
        self.file = file
        self.number = number
        self.digest = digest
        self._data = data
        self.stored = StoredEpisodes(document, self._arrays, len(data))
        self.sample = self.stored.block.sample

    @cached_property
    def damage(self) -> Damage | None:
        """The damage of the block, for which all of it is read once; None if there is none."""
        if hashlib.sha256(self._data).hexdigest() != self.digest:
            return self._damage("its columns are not what was written (their SHA-256 differs)")
        try:
            self.stored.check_columns()
            _ = self.stored.rollouts
        except Exception as error:  # whatever the file says
            return self._damage(f"it contains what is never written ({type(error).__name__}: {error})")
        return None

    def _damage(self, why: str) -> Damage:
        return Damage(self.file, self.number, why, tuple(self.stored.ids))

    def _arrays(self) -> dict[str, np.ndarray]:
        """Returns views of the arrays."""
        size = int.from_bytes(self._data[:8], "little")
        header = json.loads(bytes(self._data[8 : 8 + size]))
        found = {}
        for name, own in header.items():
            if name != "__metadata__":
                begin, end = own["data_offsets"]
                if not 0 <= begin <= end:
                    raise ValueError(f"the array {name!r} begins after its end")
                part = self._data[8 + size + begin : 8 + size + end]
                found[name] = np.frombuffer(part, _DTYPES[own["dtype"]]).reshape(own["shape"])
        return found


class Shard:
    """The blocks of a file, and what of it is lost.

    Attributes:
        file: The file.
        blocks: The blocks whose documents are intact. Their columns are checked when they are read.
        damages: What is lost already.
        is_closed: Whether the writer has closed the file.
    """

    def __init__(self, file: Path, extent: Extent | None = None):
        """Reads the documents.

        Args:
            file: The file.
            extent: How much of it was written at least; None if that is unknown.

        Raises:
            UnreadableShardError: If it is not a shard, or nothing of it is left.
            OfflineDataError: If the file cannot be read, or has a newer format.
        """
        self.file = file
        self.blocks: list[Block] = []
        self.damages: list[Damage] = []
        self.is_closed = False
        self._num_known = 0  # episodes of intact blocks and of lost ones that are accounted for
        self._num_blocks = 0  # the same for blocks
        try:
            with open(file, "rb") as opened:
                self._data = _mapped(opened)
        except OSError as error:
            raise OfflineDataError(f"offline data: {file} cannot be read: {error}") from error
        self._check_header()
        self._read_blocks()
        if extent is not None and not self.is_closed:
            self._note_missing_end(extent)

    def _check_header(self) -> None:
        if not len(self._data):
            raise UnreadableShardError(self.file, "it is empty")
        line = bytes(self._data[:_LONGEST_LINE]).partition(b"\n")[0]
        try:
            header = json.loads(line)
            checked = {name: header[name] for name in ("format", "format_version", "library_version")}
            is_intact = header["format"] == FORMAT and type(header["format_version"]) is int
            is_intact = is_intact and header["crc32"] == crc32(checked)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            header, is_intact = {}, False
        if not is_intact and self._find(_BLOCK, 0) < 0:
            raise UnreadableShardError(self.file, "its first line is not that of one")
        if not is_intact:
            self.damages.append(Damage(self.file, None, "its first line is damaged", num_episodes=0))
        elif header["format_version"] > FORMAT_VERSION:
            raise OfflineDataError(
                f"offline data: {self.file} has format version {header['format_version']} (written by marl-connectors "
                f"{brief(header.get('library_version'))}), but this version reads up to {FORMAT_VERSION}. Upgrade "
                f"marl-connectors."
            )

    def _read_blocks(self) -> None:
        at = len(bytes(self._data[:_LONGEST_LINE]).partition(b"\n#")[0])
        while at < len(self._data):
            line = bytes(self._data[at : at + _LONGEST_LINE])
            if line.startswith(_END):
                self._read_end(line)
                return
            if line.startswith(_BLOCK):
                at = self._read_block(at, line)
            else:
                following = self._next(at)
                self.damages.append(Damage(self.file, None, f"bytes {at:,} to {following:,} are not a block"))
                at = following

    def _note_missing_end(self, extent: Extent) -> None:
        """Notes the blocks that were written, but are not there."""
        number = len(self.damages)
        if self._num_blocks < extent.blocks or extent.is_closed:
            self._account_for(extent.episodes, extent.blocks, where="at the end")
        if extent.is_closed and len(self.damages) == number:
            self.damages.append(Damage(self.file, None, "its last line is missing", num_episodes=0))
        self.is_closed = extent.is_closed

    def _next(self, at: int) -> int:
        """Returns the place of the next block or the end, or the size of the file."""
        found = [i for i in (self._find(_BLOCK, at + 1), self._find(_END, at + 1)) if i >= 0]
        return min(found, default=len(self._data))

    def _find(self, mark: bytes, at: int) -> int:
        return self._map.find(mark, at) if self._map is not None else -1

    @property
    def _map(self) -> mmap.mmap | None:
        return self._data.obj if isinstance(self._data.obj, mmap.mmap) else None

    def _read_block(self, at: int, line: bytes) -> int:
        """Reads the document of a block. Returns the place of what follows."""
        try:
            own, _, _ = line[len(_BLOCK) :].partition(b"\n")
            about = as_state(BlockLine, json.loads(own))
        except (RecursionError, ValueError):
            following = self._next(at)
            why = f"the line at byte {at:,} is damaged"
            self.damages.append(Damage(self.file, None, why))
            return following
        begin = at + len(_BLOCK) + len(own) + 1
        middle = begin + about.document_bytes
        end = middle + about.tensors_bytes
        number, before, num_episodes = about.number, about.episodes_before, about.num_episodes
        if not self._account_for(before, number):
            self.damages.append(Damage(self.file, number, "the counts in its line are damaged", num_episodes=0))
            before, number = self._num_known, self._num_blocks
        self._num_known, self._num_blocks = before + num_episodes, number + 1
        document = self._data[begin:middle]
        if len(document) < middle - begin or hashlib.sha256(document).hexdigest() != about.document_sha256:
            is_cut = end > len(self._data) and self._next(at) == len(self._data)
            why = "the file ends within it" if is_cut else "its table is damaged (its SHA-256 differs)"
            self.damages.append(Damage(self.file, number, why, num_episodes=num_episodes))
            return self._next(at)
        columns, following = self._columns(middle, end, about.tensors_sha256)
        try:
            block = Block(self.file, number, json.loads(bytes(document)), columns, about.tensors_sha256)
        except Exception as error:  # whatever the file says
            why = f"its table has what is never written ({type(error).__name__}: {error})"
            self.damages.append(Damage(self.file, number, why, num_episodes=num_episodes))
            return following
        self._num_known = before + len(block.stored)
        if following != end and block.damage is not None:
            is_cut = following == len(self._data)
            why = "the file ends within its columns" if is_cut else "its columns, or their size, are damaged"
            self.damages.append(Damage(self.file, number, why, tuple(block.stored.ids)))
            if end < following:
                self.damages.append(Damage(self.file, None, f"bytes {end:,} to {following:,} are not a block"))
        else:
            if following != end or len(block.stored) != num_episodes:
                self.damages.append(Damage(self.file, number, "its line is damaged", num_episodes=0))
            self.blocks.append(block)
        return following

    def _columns(self, begin: int, end: int, digest: str) -> tuple[memoryview, int]:
        """Returns the columns of a block and the place of what follows: ``end``, unless that size must be wrong."""
        columns = self._data[begin:end]
        is_at_mark = end <= len(self._data) and any(self._data[end : end + len(m)] == m for m in (_BLOCK, _END))
        if is_at_mark or end == len(self._data):
            return columns, end
        if end < len(self._data) and hashlib.sha256(columns).hexdigest() == digest:
            return columns, end  # the line that follows is damaged
        following = self._next(begin - 1)
        return self._data[begin:following], following

    def _account_for(self, episodes_before: int, number: int, where: str = "") -> bool:
        """Names the number of lost episodes, once a later line tells how many were before it.

        Args:
            episodes_before: The number of episodes before the line.
            number: The number of blocks before it.
            where: Where missing blocks were; before block ``number`` unless given.

        Returns:
            Whether the counts of that line can be right.
        """
        missing, missing_blocks = episodes_before - self._num_known, number - self._num_blocks
        unknown = [i for i, damage in enumerate(self.damages) if damage.ids is None and damage.num_episodes is None]
        if missing < 0 or missing_blocks < 0 or (missing > 0) != (missing_blocks > 0):
            return False
        if missing and not unknown:
            blocks = f"block {number - 1} is" if missing_blocks == 1 else f"{missing_blocks} blocks are"
            why = f"{blocks} missing {where or f'before block {number}'}"
            self.damages.append(Damage(self.file, None, why, num_episodes=missing))
        elif missing:
            first, *others = unknown
            self.damages[first] = self.damages[first]._replace(num_episodes=missing)
            for i in reversed(others):  # parts of the same loss
                del self.damages[i]
        elif unknown:  # what is no block held none
            for i in unknown:
                self.damages[i] = self.damages[i]._replace(num_episodes=0)
        return True

    def _read_end(self, line: bytes) -> None:
        try:
            about = as_state(EndLine, json.loads(line[len(_END) :].partition(b"\n")[0]))
            is_intact = self._account_for(about.num_episodes, about.num_blocks, where="at the end")
        except (RecursionError, ValueError):
            is_intact = False
        if not is_intact:
            self.damages.append(Damage(self.file, None, "its last line is damaged", num_episodes=0))
        self.is_closed = True


def _mapped(opened: Any) -> memoryview:
    """Returns the bytes of a file, which are read when they are used."""
    opened.seek(0, 2)
    if not opened.tell():  # cannot be mapped
        return memoryview(b"")
    return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
