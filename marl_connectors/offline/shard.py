r"""Files with recorded episodes, called shards: a header, blocks of episodes, and an end.

====================  ==================================================================================================
part                  content
====================  ==================================================================================================
first line            JSON: ``format``, ``format_version``, ``library_version``
block                 a line ``#block`` with JSON: sizes and SHA-256 of the two parts that follow, and what came before
\- document           JSON: the table of the episodes, and their plain data
\- tensors            safetensors: the columns, and the arrays of infos and notes
last line             ``#end`` with JSON: the numbers of blocks and episodes. It lacks while the file is being written.
====================  ==================================================================================================

Blocks are appended, so a run that is killed loses no earlier one. A damaged block is skipped up to the next ``#block``.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import safetensors.numpy

from marl_connectors.errors import OfflineDataError
from marl_connectors.names import brief
from marl_connectors.offline.stored_episodes import StoredEpisodes
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
        elif self.num_episodes is not None:
            lost = f"{self.num_episodes} episodes or chunks are lost, whose ids are unknown"
        else:
            lost = "the episodes in it are lost, and how many is unknown"
        return f"{where}: {self.why}; {lost}."


def file_header() -> bytes:
    """Returns the first line of a shard."""
    header = {"format": FORMAT, "format_version": FORMAT_VERSION, "library_version": library_version()}
    return json.dumps(header).encode()


def encoded_block(
    document: dict[str, Any], tensors: dict[str, np.ndarray], *, offset: int, number: int, episodes_before: int
) -> bytes:
    """Returns the bytes of a block.

    Args:
        document: Its JSON data.
        tensors: Its arrays.
        offset: Its place in the file.
        number: Its number in the file.
        episodes_before: The number of episodes in the blocks before it.
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    columns = safetensors.numpy.save(tensors)
    about: dict[str, Any] = {
        "number": number,
        "episodes_before": episodes_before,
        "num_episodes": len(document["episodes"]["id"]),
        "document_sha256": hashlib.sha256(text).hexdigest(),
        "tensors_sha256": hashlib.sha256(columns).hexdigest(),
        "document_bytes": len(text),
        "tensors_bytes": len(columns),
    }
    line = _BLOCK + json.dumps(about).encode()
    padding = -(offset + len(line) + 1 + len(text)) % _ALIGNMENT
    return b"".join((line, b" " * padding, b"\n", text, columns))


def encoded_end(num_blocks: int, num_episodes: int) -> bytes:
    """Returns the last line of a shard."""
    return _END + json.dumps({"num_blocks": num_blocks, "num_episodes": num_episodes}).encode() + b"\n"


class Block:
    """Episodes that were written together, in a shard.

    Attributes:
        file: The shard.
        number: Its number there.
        stored: The episodes.
        digest: The SHA-256 of its tensors.
    """

    def __init__(self, file: Path, number: int, document: dict[str, Any], data: memoryview, digest: str):
        self.file = file
        self.number = number
        self.digest = digest
        self._data = data
        self.stored = StoredEpisodes(document, self._arrays)

    @cached_property
    def damage(self) -> Damage | None:
        """The damage of the block, for which all of it is read once; None if there is none."""
        if hashlib.sha256(self._data).hexdigest() != self.digest:
            return self._damage("its columns are not what was written (their SHA-256 differs)")
        try:
            _ = self.stored.rollouts
        except (KeyError, TypeError, ValueError) as error:
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

    def __init__(self, file: Path):
        """Reads the documents.

        Raises:
            OfflineDataError: If the file cannot be read, or is not a shard that this version can read.
        """
        self.file = file
        self.blocks: list[Block] = []
        self.damages: list[Damage] = []
        self.is_closed = False
        self._num_known = 0  # episodes of intact blocks and of lost ones that are accounted for
        try:
            with open(file, "rb") as opened:
                self._data = _mapped(opened)
        except OSError as error:
            raise OfflineDataError(f"offline data: {file} cannot be read: {error}") from error
        self._check_header()
        self._read_blocks()

    def _check_header(self) -> None:
        line = bytes(self._data[:_LONGEST_LINE]).partition(b"\n")[0]
        try:
            header = json.loads(line)
            found = (header["format"], header["format_version"])
        except (KeyError, TypeError, ValueError):
            found = None
        if found is None or found[0] != FORMAT or type(found[1]) is not int:
            raise OfflineDataError(
                f"offline data: {self.file} is not a file of recorded episodes, because its first line is not that of "
                f"one. Pass files or folders that output=... or EpisodeWriter wrote; from_parquet reads Parquet files."
            )
        if found[1] > FORMAT_VERSION:
            raise OfflineDataError(
                f"offline data: {self.file} has format version {found[1]} (written by marl-connectors "
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
            about = json.loads(own)
            begin = at + len(_BLOCK) + len(own) + 1
            middle = begin + about["document_bytes"]
            end = middle + about["tensors_bytes"]
            number, before, num_episodes = about["number"], about["episodes_before"], about["num_episodes"]
            digests = about["document_sha256"], about["tensors_sha256"]
            assert begin <= middle <= end
        except (AssertionError, KeyError, TypeError, ValueError):
            following = self._next(at)
            why = f"the line at byte {at:,} is damaged"
            self.damages.append(Damage(self.file, None, why))
            return following
        self._account_for(before, number)
        self._num_known = before + num_episodes
        document = self._data[begin:middle]
        if len(document) < middle - begin or hashlib.sha256(document).hexdigest() != digests[0]:
            why = "the file ends within it" if end > len(self._data) else "its table is damaged (its SHA-256 differs)"
            self.damages.append(Damage(self.file, number, why, num_episodes=num_episodes))
            return self._next(at)
        try:
            block = Block(self.file, number, json.loads(bytes(document)), self._data[middle:end], digests[1])
        except (KeyError, TypeError, ValueError) as error:
            why = f"its table has what is never written ({type(error).__name__}: {error})"
            self.damages.append(Damage(self.file, number, why, num_episodes=num_episodes))
            return self._next(at)
        if end > len(self._data):
            ids = tuple(block.stored.ids)
            self.damages.append(Damage(self.file, number, "the file ends within its columns", ids))
            return len(self._data)
        self.blocks.append(block)
        return end

    def _account_for(self, episodes_before: int, number: int | None) -> None:
        """Names the number of lost episodes, once a later block tells how many were before it."""
        missing = episodes_before - self._num_known
        unknown = [i for i, damage in enumerate(self.damages) if damage.ids is None and damage.num_episodes is None]
        if missing <= 0 or not unknown:
            if missing > 0:
                what = "at its end" if number is None else f"before block {number}"
                self.damages.append(Damage(self.file, None, f"blocks {what} are missing", num_episodes=missing))
            return
        first, *others = unknown
        self.damages[first] = self.damages[first]._replace(num_episodes=missing)
        for i in reversed(others):  # parts of the same loss
            del self.damages[i]

    def _read_end(self, line: bytes) -> None:
        try:
            about = json.loads(line[len(_END) :].partition(b"\n")[0])
            self._account_for(about["num_episodes"], None)
        except (KeyError, TypeError, ValueError):
            self.damages.append(Damage(self.file, None, "its last line is damaged", num_episodes=0))
        self.is_closed = True


def _mapped(opened: Any) -> memoryview:
    """Returns the bytes of a file, which are read when they are used."""
    opened.seek(0, 2)
    if not opened.tell():  # cannot be mapped
        return memoryview(b"")
    return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
