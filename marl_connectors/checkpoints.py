"""Saves state to a folder with readable JSON and safetensors. ``load_state`` never runs code from these files.

A checkpoint is a directory of two files:

* ``state.json`` contains ``format_version``, ``library_version``, the name of the other file, the SHA-256 hashes of the
  state and of each array, and the state, in which each array is replaced by ``{"__tensor__": key}``.
* ``tensors-HASH.safetensors`` contains the arrays, under keys that are their paths in the state. Its name follows from
  the hashes.

A checkpoint is replaced in one step, that of its ``state.json``: until then the directory has the arrays of both.

The hashes detect damage, but not manipulation, because a changed file can have new hashes. So ``load_state`` only
accepts data that ``save_state`` can have written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from marl_connectors.errors import CheckpointError, MarlConnectorsError
from marl_connectors.json_data import parsed_json
from marl_connectors.names import brief, import_module
from marl_connectors.never_called import RefusesIgnoredMethods
from marl_connectors.state import STORED_KINDS, State, arrays_of, decode_state, encode_state
from marl_connectors.version import library_version

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT_VERSION: Final = 1
STATE_FILE: Final = "state.json"
CHECKPOINTS: Final = "checkpoints"
LATEST: Final = "latest"
BEST: Final = "best"
"""The subfolder of a run's folder with its checkpoints, and the files there with the names of newest and best."""
METRICS: Final = "metrics.jsonl"
"""A file that each folder of a run has."""

_TENSORS_FILE: Final = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")


def save_state(path: str | os.PathLike[str], state: State | Mapping[Any, Any]) -> None:
    """Writes a state. If writing is interrupted, ``path`` contains the whole new state or is unchanged.

    The state may contain None, booleans, integers, floats (also infinite ones and NaN), strings, bytes, lists, tuples,
    dicts with keys of those types, numpy arrays and scalars, and torch tensors. ``load_state`` returns the same types,
    except for tensors, which become numpy arrays (float32 for bfloat16), and dataclasses, which become dicts.

    Args:
        path: The directory to write. An existing checkpoint there is replaced, and missing parents are created.
        state: The state to save. It is not changed.

    Raises:
        CheckpointError: If something in the state cannot be written, or if ``path`` exists and is not a checkpoint.
    """
    tensors: dict[str, np.ndarray] = {}
    try:
        encoded = encode_state(state, (), tensors)
    except RecursionError as error:
        raise CheckpointError(
            "save_state: the state is nested too deep, or contains itself. Flatten it first."
        ) from error
    target = Path(path)
    _check_replaceable(target)
    hashes = {key: _array_hash(array) for key, array in tensors.items()}
    tensors_file = f"tensors-{_json_hash(hashes)[:16]}.safetensors"
    document = {
        "format_version": FORMAT_VERSION,
        "library_version": library_version(),
        "tensors_file": tensors_file,
        "tensors_sha256": hashes,
        "state_sha256": _json_hash(encoded),
        "state": encoded,
    }
    text = json.dumps(document, indent=1, allow_nan=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.tmp-{uuid.uuid4().hex[:12]}"
    temporary.mkdir()
    try:
        _write_synced(temporary / tensors_file, safetensors.numpy.save(tensors))
        _write_synced(temporary / STATE_FILE, text.encode())
        sync_directory(temporary)
        _put_in_place(temporary, target, tensors_file)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_state(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> dict[Any, Any]:
    """Returns the state that ``save_state`` wrote to ``path``. Its numpy arrays are writeable copies.

    Args:
        path: The directory.
        without: Keys of the state that are left out. Their arrays are not read from the disk.

    Raises:
        CheckpointError: If the checkpoint is missing, damaged, not a checkpoint, or of a newer format. There are no
            other errors, whatever the files contain.
    """
    source = Path(path)
    try:
        return _load(source, without)
    except RecursionError as error:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} is nested too deep")) from error
    except MemoryError as error:
        raise CheckpointError(f"checkpoint: {source} does not fit into the memory.") from error
    except OSError as error:
        raise CheckpointError(f"checkpoint: {source} cannot be read: {error}") from error


def _load(source: Path, without: Collection[str]) -> dict[Any, Any]:
    document = _read_document(source)
    data = document["state"]
    if _json_hash(data) != document["state_sha256"]:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} is not what was written (its SHA-256 differs)"))
    left_out = [data.pop(name) for name in without if name in data]
    tensors = _read_tensors(source, document, arrays_of(data), arrays_of(left_out))
    try:
        state = decode_state(data, tensors)
        if not isinstance(state, dict):
            raise TypeError("the state is not a dict")
    except (KeyError, TypeError, ValueError) as error:
        why = f"{STATE_FILE} contains something that is never written ({type(error).__name__}: {error})"
        raise CheckpointError(_damaged(source, why)) from error
    return state


def _read_tensors(
    source: Path, document: Mapping[str, Any], wanted: Collection[str], left_out: Collection[str]
) -> dict[str, np.ndarray]:
    """Reads arrays of a checkpoint, each of which is compared with its hash.

    Args:
        source: The directory.
        document: The content of ``state.json``.
        wanted: The keys of the arrays.
        left_out: The keys of arrays that are not read.

    Raises:
        CheckpointError: If an array is not what was written, or if the file has other arrays than these.
    """
    file, hashes = source / document["tensors_file"], document["tensors_sha256"]
    if not file.is_file():
        raise CheckpointError(_damaged(source, f"{file.name} is missing"))
    tensors: dict[str, np.ndarray] = {}
    try:
        with safetensors.safe_open(file, framework="np") as opened:
            there = set(opened.keys())
            for key in sorted(there.intersection(wanted)):
                array = tensors[key] = opened.get_tensor(key)
                if array.dtype.kind not in STORED_KINDS:
                    raise ValueError("it contains arrays of a type that is never written")
                if _array_hash(array) != hashes.get(key):
                    raise ValueError(f"the SHA-256 of {brief(key)} differs")
    except (safetensors.SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{file.name} is not what was written ({type(error).__name__}: {error}; {file.stat().st_size} bytes)"
        raise CheckpointError(_damaged(source, why)) from error
    if unknown := there.difference(wanted, left_out):
        why = f"{file.name} contains {brief(min(unknown))}, which {STATE_FILE} does not mention"
        raise CheckpointError(_damaged(source, why))
    return tensors


# Components ---------------------------------------------------------------------------------------------------------

PLACE_OF_MODULES: Final = ("learner_group", "learner", "rl_module")
"""The folders of the modules in RLlib's checkpoints of algorithms."""
_PLACES: Final = {
    PLACE_OF_MODULES: ("learner", "module"),
    ("env_runner", "rl_module"): ("learner", "module"),
    ("learner_group", "learner"): ("learner",),
    ("env_runner", "env_to_module_connector"): ("env_runner", "env_to_module"),
    ("env_runner", "module_to_env_connector"): ("env_runner", "module_to_env"),
}
"""The folders of components in RLlib's checkpoints of algorithms, and the places of their states in ours."""
REPLAY_BUFFERS: Final = ("replays",)
"""The fields of replay buffers in the states of algorithms. They may be large, and only training needs them."""


class Checkpointable(RefusesIgnoredMethods):
    """A component that can be saved by itself: a module, a connector piece, a pipeline or a learner.

    The checkpoint has the format of ``save_state``. It also says how the component was made, as far as names of classes
    and plain values can say it, for ``from_checkpoint``.
    """

    if TYPE_CHECKING:

        def get_state(self) -> Any: ...

        def set_state(self, state: Any) -> None: ...

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Writes a checkpoint of the component, and returns its path.

        Args:
            path: The folder to write; None for a new one among the temporary files.

        Raises:
            CheckpointError: If the path is taken, or something in the state cannot be written.
        """
        path = new_folder() if path is None else path
        save_state(path, {"component": components().describe(self), "state": self.get_state()})
        return str(path)

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Sets the state of a checkpoint.

        Args:
            path: A checkpoint that ``save_to_path`` wrote, or the component's place in the checkpoint of an algorithm,
                as RLlib names it: ``CHECKPOINT/learner_group/learner/rl_module/MODULE_ID``, for example.

        Raises:
            CheckpointError: If it is missing or damaged, or has no such component.
        """
        self.set_state(component_state(path))

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], *, trusted: bool = True) -> Self:
        """Makes the component of a checkpoint, with its state.

        Args:
            path: As for ``restore_from_path``.
            trusted: Whether your own classes and functions are imported by their names in the checkpoint, which runs
                the code in their modules.

        Raises:
            CheckpointError: If it is missing or damaged, has a component of another kind, or one whose class or
                arguments cannot be imported by name. Then make the component yourself, and call its
                ``restore_from_path``.
        """
        return components().component_from_checkpoint(cls, path, trusted=trusted)


@contextmanager
def taking_over(part: str) -> Iterator[None]:
    """Turns any error while a part of a checkpoint is read or applied into a CheckpointError that names the part."""
    try:
        yield
    except CheckpointError:
        raise
    except MarlConnectorsError as error:
        raise CheckpointError(f"checkpoint: its {part} does not fit: {error}") from error
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"checkpoint: its {part} cannot be taken over ({what[:300]}). It is damaged, or of another version, "
            f"or does not fit the code that it names."
        ) from error


def new_folder() -> str:
    """Returns the path of a checkpoint among the temporary files, where nothing is yet."""
    return os.path.join(tempfile.mkdtemp(), "checkpoint")


def components() -> Any:
    """Returns the module that describes components, and makes them from their descriptions."""
    # Algorithms are built on components, so the part of them that describes components is found by name.
    return import_module("marl_connectors.algorithms.components", who="checkpoint", error=CheckpointError)


class Part(NamedTuple):
    """What a path within a checkpoint names.

    Attributes:
        checkpoint: The folder of the checkpoint, or of the run.
        place: The place of a component within; ``()`` for all of it.
        how: How it was made, as ``components().describe`` says; None if that takes the rest of the checkpoint.
        state: Its state.
    """

    checkpoint: Path
    place: tuple[str, ...]
    how: Any
    state: Any


def component_state(path: str | os.PathLike[str]) -> Any:
    """Returns the state of a component, for its ``set_state``.

    Args:
        path: As for ``Checkpointable.restore_from_path``; or a folder to which ``save_state`` wrote such a state.

    Raises:
        CheckpointError: If it is missing or damaged, or has no such component.
    """
    return read_part(path).state


def read_part(path: str | os.PathLike[str]) -> Part:
    """Returns what a path names: a component, or an algorithm.

    Raises:
        CheckpointError: If it is missing or damaged, or has no such component.
    """
    checkpoint, place = _divided(Path(path))
    data = load_state(find_checkpoint(checkpoint), without=REPLAY_BUFFERS if place else ())
    how, state, rest = data.get("component"), data.get("state"), place
    if data.keys() != {"component", "state"}:  # it is of an algorithm
        if not place:
            return Part(checkpoint, place, None, data)
        folders = next((folders for folders in _PLACES if place[: len(folders)] == folders), None)
        if folders is None:
            known = ", ".join(map("/".join, _PLACES))
            raise CheckpointError(f"checkpoint: {path}: expected one of {known} after the path of the checkpoint.")
        how = data.get("modules") if folders[-1] == "rl_module" else None
        state, rest = _at(path, data, _PLACES[folders]), place[len(folders) :]
    if rest and isinstance(how, dict) and "specs" in how:
        rest = ("/".join(rest),)  # ids may have slashes
        how = {"kind": "module", "spec": _at(path, how, ("specs", *rest))}
    elif rest:
        how = None
    return Part(checkpoint, place, how, _at(path, state, rest))


def _at(path: str | os.PathLike[str], state: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        if not isinstance(state, dict) or key not in state:
            raise CheckpointError(f"checkpoint: {path}: there is no {brief(key)} in it. Check the path.")
        state = state[key]
    return state


def _divided(source: Path) -> tuple[Path, tuple[str, ...]]:
    """Divides a path into that of a checkpoint or a run, and the place of a component within."""
    for folder in (source, *source.parents):
        is_run = (folder / CHECKPOINTS / LATEST).exists()
        if is_run or is_checkpoint(folder) or _names_checkpoint(folder):
            return folder, source.relative_to(folder).parts
        if folder.exists():
            break  # a folder that exists is not a place inside of a checkpoint
    return source, ()


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a checkpoint: the path itself, or the latest checkpoint of a run's folder.

    ``RUN/checkpoints/best`` and ``RUN/checkpoints/latest`` are files that name the best and the latest checkpoint.

    Raises:
        CheckpointError: If it is the folder of a run without checkpoints, or if such a file does not name one of them.
    """
    folder = Path(path)
    latest = folder / CHECKPOINTS / LATEST
    if _names_checkpoint(folder):
        latest = folder
    elif is_checkpoint(folder) or not (folder / CHECKPOINTS).is_dir():
        if (folder / METRICS).is_file():
            raise CheckpointError(
                f"the run {folder} has no folder {CHECKPOINTS!r} any more. Put it back, or name a checkpoint."
            )
        return folder
    if not latest.exists():
        kept = sorted(str(entry) for entry in latest.parent.iterdir() if is_checkpoint(entry))
        hint = f"Name a checkpoint: {kept[-1]}" if kept else "It has not saved one yet. Resume it, or name another run."
        raise CheckpointError(f"the run {folder} has no file {CHECKPOINTS}/{LATEST}. {hint}")
    hint = f"Write the name of a folder of {latest.parent} into it."
    try:
        name = latest.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{latest} is not a text file with the name of a checkpoint ({error}). {hint}") from error
    if not _is_folder_name(name):
        raise CheckpointError(f"{latest} contains {brief(name)}, which is not the name of a folder beside it. {hint}")
    checkpoint = latest.parent / name
    if not is_checkpoint(checkpoint):
        raise CheckpointError(f"{latest} names {brief(name)}, but there is no such checkpoint. {hint}")
    if checkpoint.resolve().parent != latest.parent.resolve():
        raise CheckpointError(
            f"{latest} names {brief(name)}, which is outside of the run, {checkpoint.resolve()}. To use that "
            f"checkpoint, pass its path instead of that of the run. {hint}"
        )
    return checkpoint


def _names_checkpoint(path: Path) -> bool:
    """Whether a path is one of the files that name the best and the latest checkpoint of a run."""
    return path.name in (BEST, LATEST) and path.parent.name == CHECKPOINTS and path.is_file()


def run_folders_of(path: str | os.PathLike[str]) -> set[Path]:
    """Returns the folder of the run to which a checkpoint belongs; an empty set if it belongs to none.

    Raises:
        CheckpointError: As for ``find_checkpoint``.
    """
    checkpoint = find_checkpoint(path).resolve()
    return {checkpoint.parent.parent} if checkpoint.parent.name == CHECKPOINTS else set()


def _is_folder_name(name: str) -> bool:
    """Whether a string is a name within a folder, on any system, and cannot lead outside of the folder."""
    return name not in ("", ".", "..") and name.isprintable() and not set(name) & set('/\\:*?"<>|') and len(name) < 256


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a directory that ``save_state`` wrote, undamaged or not."""
    return (Path(path) / STATE_FILE).is_file()


# Reading and writing ------------------------------------------------------------------------------------------------


def _check_replaceable(target: Path) -> None:
    """Raises a CheckpointError unless the path is free, a checkpoint or an empty directory."""
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not target.is_symlink():
        found = sorted(entry.name for entry in target.iterdir())
        others = [name for name in found if name != STATE_FILE and not _TENSORS_FILE.fullmatch(name)]
        if not others:
            return
        what = f"a directory with {others[0]!r}, which is not part of a checkpoint"
    else:
        what = "not a directory"
    raise CheckpointError(
        f"save_state: expected {target} to be free or a checkpoint to replace, but it is {what}. Choose another path."
    )


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Flushes renames in a directory to disk, if the system can (Windows cannot open a directory)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(temporary: Path, target: Path, tensors_file: str) -> None:
    """Moves a new checkpoint to its place. The move of its ``state.json`` replaces the checkpoint that is there."""
    if not target.exists():
        os.rename(temporary, target)
        sync_directory(target.parent)
        return
    os.replace(temporary / tensors_file, target / tensors_file)
    sync_directory(target)
    os.replace(temporary / STATE_FILE, target / STATE_FILE)
    sync_directory(target)
    temporary.rmdir()
    for entry in target.iterdir():
        if entry.name not in (STATE_FILE, tensors_file):
            entry.unlink()


def _read_document(source: Path) -> dict[str, Any]:
    if not source.exists():
        raise CheckpointError(f"checkpoint: expected a checkpoint at {source}, but nothing is there. Check the path.")
    state_file = source / STATE_FILE
    if not state_file.is_file():
        raise CheckpointError(
            f"checkpoint: {source} is not a checkpoint, because it has no {STATE_FILE}. "
            f"Pass the directory that save_to_path wrote."
        )
    try:
        document = parsed_json(state_file.read_bytes())
    except ValueError as error:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} is not valid JSON ({error})")) from error
    version = document.get("format_version") if isinstance(document, dict) else None
    if version is None:
        raise CheckpointError(f"checkpoint: {source} is not a checkpoint, because {STATE_FILE} has no format_version.")
    if type(version) is not int or version < 1:
        raise CheckpointError(
            f"checkpoint: {source} is not a checkpoint, because its format_version is {brief(version)}, not a whole "
            f"number from 1."
        )
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint: {source} has format version {brief(version)} (written by marl-connectors "
            f"{brief(document.get('library_version'))}), but this version reads up to {FORMAT_VERSION}. "
            f"Upgrade marl-connectors."
        )
    missing = [key for key in ("state", "state_sha256", "tensors_file", "tensors_sha256") if key not in document]
    if missing:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} lacks {missing[0]!r}"))
    if not isinstance(document["state"], dict):
        raise CheckpointError(_damaged(source, f"its state is {brief(document['state'])}, not a JSON object"))
    if not isinstance(document["tensors_sha256"], dict):
        raise CheckpointError(_damaged(source, f"tensors_sha256 is {brief(document['tensors_sha256'])}"))
    name = document["tensors_file"]
    if not isinstance(name, str) or not _TENSORS_FILE.fullmatch(name):
        raise CheckpointError(_damaged(source, f"tensors_file is {brief(name)}, which is not the name of such a file"))
    return document


def _damaged(source: Path, why: str) -> str:
    return (
        f"checkpoint: {source} is damaged: {why}. Use another checkpoint of the run. --resume uses the one that is "
        f"named in the file checkpoints/latest."
    )


def _json_hash(encoded: Any) -> str:
    return hashlib.sha256(json.dumps(encoded, separators=(",", ":")).encode()).hexdigest()


def _array_hash(array: np.ndarray) -> str:
    found = hashlib.sha256(f"{array.dtype.name} {list(array.shape)} ".encode())
    found.update(array.data)
    return found.hexdigest()
