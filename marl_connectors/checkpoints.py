"""State on disk: a folder with readable JSON and safetensors, and nothing that could run code when it is loaded.

A checkpoint is a directory of two files:

* ``state.json``: ``format_version``, ``library_version``, the SHA-256 of both parts, and the state itself, in which
  each array is replaced by ``{"__tensor__": key}``;
* ``tensors.safetensors``: the arrays, under keys that say where in the state they belong.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy

from marl_connectors.errors import CheckpointError
from marl_connectors.version import library_version

FORMAT_VERSION: Final = 1
STATE_FILE: Final = "state.json"
TENSORS_FILE: Final = "tensors.safetensors"
RUN_CHECKPOINTS: Final = "checkpoints"
LATEST: Final = "latest"
"""In the folder of a run: the folder of its checkpoints, and there the file that names the newest."""

_TENSOR, _SCALAR, _TUPLE, _DICT, _FLOAT, _BYTES = (
    "__tensor__",
    "__scalar__",
    "__tuple__",
    "__dict__",
    "__float__",
    "__bytes__",
)
_KINDS: Final = "biuf"
"""The numpy kinds that safetensors stores: bool, integers, floats."""


def save_state(path: str | os.PathLike[str], state: Mapping[Any, Any]) -> None:
    """Writes a state so that ``path`` is afterwards either whole or as it was, never half-written.

    The state may hold None, booleans, integers, floats (also infinite ones and NaN), strings, bytes, lists, tuples,
    dicts with keys of those types, numpy arrays and scalars, and torch tensors. All types come back as they were, but
    for tensors, which come back as numpy arrays (bfloat16 as float32).

    Args:
        path: The directory to write. An existing checkpoint there is replaced; its parents are made as needed.
        state: What to save. It is not changed.

    Raises:
        CheckpointError: If something in the state cannot be written, or if ``path`` exists and is not a checkpoint.
    """
    target = Path(path)
    _check_replaceable(target)
    tensors: dict[str, np.ndarray] = {}
    encoded = _encode(state, (), tensors)
    tensor_bytes = safetensors.numpy.save(tensors)
    document = {
        "format_version": FORMAT_VERSION,
        "library_version": library_version(),
        "tensors_sha256": hashlib.sha256(tensor_bytes).hexdigest(),
        "state_sha256": _state_hash(encoded),
        "state": encoded,
    }
    text = json.dumps(document, indent=1, allow_nan=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex[:12]
    temporary = target.parent / f".{target.name}.tmp-{unique}"
    temporary.mkdir()
    try:
        _write_synced(temporary / TENSORS_FILE, tensor_bytes)
        _write_synced(temporary / STATE_FILE, text.encode())
        _sync_directory(temporary)
        _put_in_place(temporary, target, target.parent / f".{target.name}.old-{unique}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load_state(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """What ``save_state`` wrote to ``path``, with numpy arrays of its own that may be written to.

    Raises:
        CheckpointError: If the checkpoint is missing, damaged, not a checkpoint, or of a newer format.
    """
    source = Path(path)
    document = _read_document(source)
    if _state_hash(document["state"]) != document["state_sha256"]:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} is not what was written (its SHA-256 differs)"))
    tensors_file = source / TENSORS_FILE
    if not tensors_file.is_file():
        raise CheckpointError(_damaged(source, f"{TENSORS_FILE} is missing"))
    tensor_bytes = tensors_file.read_bytes()
    if hashlib.sha256(tensor_bytes).hexdigest() != document["tensors_sha256"]:
        raise CheckpointError(
            _damaged(source, f"{TENSORS_FILE} is not what was written (its SHA-256 differs; {len(tensor_bytes)} bytes)")
        )
    try:
        tensors = {key: np.array(array) for key, array in safetensors.numpy.load(tensor_bytes).items()}
        return _decode(document["state"], tensors)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(_damaged(source, f"{type(error).__name__}: {error}")) from error


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path names: itself, or the latest one of the folder of a run.

    Raises:
        CheckpointError: If it is the folder of a run that has none.
    """
    folder = Path(path)
    latest = folder / RUN_CHECKPOINTS / LATEST
    if is_checkpoint(folder) or not (folder / RUN_CHECKPOINTS).is_dir():
        return folder
    if not latest.is_file():
        raise CheckpointError(f"the run {folder} has no checkpoint yet. Start another: marl-connectors train ENV")
    checkpoint = latest.parent / latest.read_text(encoding="utf-8").strip()
    if not is_checkpoint(checkpoint):
        raise CheckpointError(
            f"{latest} names {checkpoint.name!r}, but there is no such checkpoint. "
            f"Write the name of another folder of {latest.parent} into it."
        )
    return checkpoint


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a directory that ``save_state`` wrote, undamaged or not."""
    return (Path(path) / STATE_FILE).is_file()


# Reading and writing ------------------------------------------------------------------------------------------------


def _check_replaceable(target: Path) -> None:
    """Refuses to replace anything but a checkpoint or an empty directory."""
    if not target.exists() and not target.is_symlink():
        return
    if target.is_dir() and not target.is_symlink():
        others = sorted({entry.name for entry in target.iterdir()} - {STATE_FILE, TENSORS_FILE})
        if not others:
            return
        what = f"a directory that holds {others[0]!r}, which is no part of a checkpoint"
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


def _sync_directory(path: Path) -> None:
    """Makes renames in a directory lasting, where the system can (Windows cannot open a directory)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(temporary: Path, target: Path, aside: Path) -> None:
    replaced = target.exists()
    if replaced:
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except BaseException:
        if replaced:
            os.rename(aside, target)
        raise
    _sync_directory(target.parent)
    if replaced:
        shutil.rmtree(aside)


def _read_document(source: Path) -> dict[str, Any]:
    if not source.exists():
        raise CheckpointError(f"checkpoint: expected one at {source}, but there is nothing. Check the path.")
    state_file = source / STATE_FILE
    if not state_file.is_file():
        raise CheckpointError(
            f"checkpoint: {source} is not a checkpoint, because it has no {STATE_FILE}. "
            f"Give the directory that save_to_path wrote."
        )
    try:
        document = json.loads(state_file.read_bytes())
    except ValueError as error:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} is not valid JSON ({error})")) from error
    if not isinstance(document, dict) or not isinstance(document.get("format_version"), int):
        raise CheckpointError(f"checkpoint: {source} is not a checkpoint, because {STATE_FILE} has no format_version.")
    if document["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint: {source} has format version {document['format_version']} (written by marl-connectors "
            f"{document.get('library_version')}), but this version reads up to {FORMAT_VERSION}. "
            f"Upgrade marl-connectors."
        )
    missing = [key for key in ("state", "state_sha256", "tensors_sha256") if key not in document]
    if missing:
        raise CheckpointError(_damaged(source, f"{STATE_FILE} lacks {missing[0]!r}"))
    return document


def _damaged(source: Path, why: str) -> str:
    return f"checkpoint: {source} is damaged: {why}. Use another checkpoint of the run."


def _state_hash(encoded: Any) -> str:
    return hashlib.sha256(json.dumps(encoded, separators=(",", ":")).encode()).hexdigest()


# The encoding -------------------------------------------------------------------------------------------------------


def _encode(value: Any, where: tuple[str, ...], tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON data; its arrays go into ``tensors``. ``where`` is the way to it, for keys and messages."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, tensors)
    if type(value) in (list, tuple):
        items = [_encode(item, (*where, str(i)), tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {_TUPLE: items}
    if type(value) is bytes:
        return {_BYTES: base64.b64encode(value).decode()}
    array = _as_array(value)
    if array is None or array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
        kind = type(value).__name__ if array is None else f"array of {array.dtype}"
        raise CheckpointError(
            f"save_state: expected JSON values, arrays of numbers and tensors, but state[{'/'.join(where)}] is a "
            f"{kind}. Turn it into those first."
        )
    key = "/".join(where) or "state"
    while key in tensors:
        key += "'"
    tensors[key] = array
    return {_SCALAR if isinstance(value, np.generic) else _TENSOR: key}


def _encode_mapping(value: Mapping[Any, Any], where: tuple[str, ...], tensors: dict[str, np.ndarray]) -> Any:
    if all(type(key) is str and not key.startswith("__") for key in value):
        return {key: _encode(item, (*where, key), tensors) for key, item in value.items()}
    pairs = [
        [_encode(key, (*where, str(key), "key"), tensors), _encode(item, (*where, str(key)), tensors)]
        for key, item in value.items()
    ]
    return {_DICT: pairs}


def _as_array(value: Any) -> np.ndarray | None:
    """A C-ordered array in this machine's byte order of an array, scalar or torch tensor, else None."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        tensor = value.detach().cpu()
        array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    else:
        return None
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _decode(data: Any, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(data, list):
        return [_decode(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        ((tag, content),) = data.items()
        match tag:
            case "__tensor__":
                return tensors[content]
            case "__scalar__":
                return tensors[content][()]
            case "__tuple__":
                return tuple(_decode(item, tensors) for item in content)
            case "__dict__":
                return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
            case "__float__":
                return float(content)
            case "__bytes__":
                return base64.b64decode(content)
    return {key: _decode(item, tensors) for key, item in data.items()}
