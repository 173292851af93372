"""The index of a folder of recorded episodes: how much of each file was written, so that a lost end is noticed.

Each line is JSON: ``file``, ``blocks``, ``episodes``, ``is_closed``, and ``crc32`` of these. A later line about a file
replaces earlier ones. A line is appended when the blocks that it counts are on disk, so a writer that is killed at any
time leaves an index that counts no block too many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from marl_connectors.checkpoints import sync_directory
from marl_connectors.offline.shard import Extent, crc32
from marl_connectors.state import Count, State, as_state

INDEX_FILE: Final = "episodes.index"


class IndexLine(State):
    """A line of the index.

    Attributes:
        file: The name of a file.
        blocks: As in its ``Extent``.
        episodes: As in its ``Extent``.
        is_closed: As in its ``Extent``.
        crc32: The checksum of the others.
    """

    file: str
    blocks: Count
    episodes: Count
    is_closed: bool
    crc32: int


class FolderIndex(NamedTuple):
    """What the index of a folder says.

    Attributes:
        extents: The name of each file to what was written of it.
        is_intact: Whether all lines can be read. A last line that was being written when a process was killed counts
            as none.
    """

    extents: dict[str, Extent]
    is_intact: bool = True


def read_index(folder: Path) -> FolderIndex:
    """Returns what the index of a folder says; nothing if it has none."""
    try:
        *lines, _ = (folder / INDEX_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return FolderIndex({})
    extents, is_intact = {}, True
    for line in lines:
        try:
            own = as_state(IndexLine, json.loads(line))
        except (RecursionError, ValueError):
            is_intact = False
            continue
        extent = Extent(own.blocks, own.episodes, own.is_closed)
        if _line(own.file, extent) == line + b"\n":
            extents[own.file] = extent
        else:
            is_intact = False
    return FolderIndex(extents, is_intact)


def append_to_index(folder: Path, name: str, extent: Extent) -> None:
    """Appends a line about a file, and waits until it is on disk."""
    is_new = not (folder / INDEX_FILE).exists()
    with open(folder / INDEX_FILE, "ab") as file:
        file.write(_line(name, extent))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_directory(folder)


def replace_index(folder: Path, extents: Mapping[str, Extent]) -> None:
    """Replaces the index in one step; without any file, it is removed."""
    if not extents:
        (folder / INDEX_FILE).unlink(missing_ok=True)
        return
    temporary = folder / f"{INDEX_FILE}.tmp"
    with open(temporary, "wb") as file:
        file.write(b"".join(_line(name, extent) for name, extent in extents.items()))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / INDEX_FILE)
    sync_directory(folder)


def _line(name: str, extent: Extent) -> bytes:
    own: dict[str, Any] = {"file": name, **extent._asdict()}
    return json.dumps({**own, "crc32": crc32(own)}).encode() + b"\n"
