"""Checkpoints that somebody has changed, with checksums that fit; and a watch over what reading them does."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from marl_connectors.checkpoints import STATE_FILE

TENSORS_FILE = "tensors-0123456789abcdef.safetensors"
BAD_NAMES = [
    "subprocess:check_call",
    "os:system",
    "posix:system",
    "antigravity:geohash",
    "this:d",
    "builtins:exec",
    "builtins:print",
    "functools:partial",
    "collections:OrderedDict",
    "runpy:run_path",
    "pip:main",
    "setuptools:setup",
    "torch:load",
    "torch.serialization:load",
    "torch.hub:load",
    "numpy:save",
    "gymnasium:make",
    "gymnasium.envs.registration:make",
    "safetensors.numpy:save_file",
    "marl_connectors.checkpoints:save_state",
    "marl_connectors.checkpoints:os.system",
    "marl_connectors.cli.main:main",
    "marl_connectors.environments.registry.factory:make_env",
    "marl_connectors.names:import_function",
    "marl_envs.match_v0:np.save",
    "__main__:main",
    "marl_connectors.__main__:main",
    "os",
    ":",
    "",
]
"""What no setting can mean: things that run programs, read or write files, import anything, or are nowhere."""

_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 3, 2**31, 2**63, 2**70, 10**200, 0.5, -1.5, 1e308, "", "x", "3", "nan",
    [], {}, [[]], [None], {"x": 1}, {"__float__": "nan"}, {"__float__": "inf"}, {"__float__": "x"}, {"__tuple__": [1]},
    {"__tuple__": 1}, {"__tensor__": "no such"}, {"__tensor__": 3}, {"__bytes__": "AA=="}, {"__bytes__": "?"},
    {"__dict__": []}, {"__dict__": [[1]]}, {"__dict__": [[[], 1]]}, {"__unknown__": 1}, {"__scalar__": "no such"},
    "../x", "/etc/passwd", "\ud800", "\0",
]  # fmt: skip
_DEEP = {"deep 500": 500, "deep 990": 990, "deep 100000": 100_000}
"""Marks that stand for lists in lists."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the tensors of a checkpoint."""
    document = json.loads((path / STATE_FILE).read_text())
    return document, safetensors.numpy.load(tensors_file(path).read_bytes())


def tensors_file(path: Path) -> Path:
    """The file of a checkpoint with its arrays."""
    return path / json.loads((path / STATE_FILE).read_text())["tensors_file"]


def damage(path: Path, part: str) -> list[str]:
    """Changes the last byte of each array of a part of the state. Returns the names of the arrays."""
    file = tensors_file(path)
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    arrays = {name: own for name, own in json.loads(data[8:begin]).items() if name.startswith(f"{part}/")}
    for own in arrays.values():
        data[begin + own["data_offsets"][1] - 1] ^= 1
    file.write_bytes(data)
    return list(arrays)


def write(path: Path, document: dict[str, Any], tensors: dict[str, np.ndarray] | bytes) -> None:
    """Writes both, with checksums that fit: of each array, or of the whole file if it may be none of arrays."""
    path.mkdir(exist_ok=True)
    for file in path.glob("tensors*.safetensors"):
        file.unlink()
    if isinstance(tensors, bytes):
        data = tensors
        document["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    else:
        data = _saved(tensors)
        document["tensors_sha256"] = {key: _hash(array) for key, array in tensors.items()}
    document["tensors_file"] = TENSORS_FILE
    compact = json.dumps(document["state"], separators=(",", ":"))
    document["state_sha256"] = hashlib.sha256(compact.encode()).hexdigest()
    text = json.dumps(document)
    for mark, depth in _DEEP.items():
        text = text.replace(f'"{mark}"', "[" * depth + "]" * depth)
    (path / STATE_FILE).write_text(text)
    (path / TENSORS_FILE).write_bytes(data)


def _hash(array: np.ndarray) -> str:
    text = f"{array.dtype.name} {list(array.shape)} "
    return hashlib.sha256(text.encode() + array.tobytes()).hexdigest()


def _saved(tensors: dict[str, np.ndarray]) -> bytes:
    return safetensors.numpy.save({key: np.array(array, order="C") for key, array in tensors.items()})


def at(state: Any, *way: str) -> Any:
    """A part of an encoded state, through dicts with other keys than texts too."""
    for name in way:
        if isinstance(state, dict) and "__dict__" in state:
            state = next(value for key, value in state["__dict__"] if key == name)
        else:
            state = state[int(name)] if isinstance(state, list) else state[name]
    return state


def described(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    """What a setting's value looks like in a state file."""
    return {"__dict__": [["__kind__", kind], *([key, item] for key, item in more.items()), ["value", value]]}


# Mutations ----------------------------------------------------------------------------------------------------------


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Each container and key in a JSON tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found.append((value, key))
        _places(part, found)
    return found


def mutate(rng: random.Random, document: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """A changed copy of a checkpoint's document, and of its tensors or their bytes; checksums are still to be made."""
    document, tensors = copy.deepcopy(document), dict(tensors)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.random()
        if kind < 0.2:
            with np.errstate(all="ignore"):
                _change_tensor(rng, tensors)
        elif kind < 0.25:
            document[rng.choice([*document, "other"])] = copy.deepcopy(rng.choice(_VALUES))
            if "state" not in document:
                document["state"] = {}
        else:
            _change_json(rng, document["state"])
    if rng.random() < 0.03:
        data = bytearray(_saved(tensors))
        for _ in range(rng.choice((1, 5))):
            data[rng.randrange(min(len(data), 4000))] ^= 1 << rng.randrange(8)
        return document, bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
    return document, tensors


def _change_json(rng: random.Random, state: Any) -> None:
    places = _places(state, [])
    if not places:
        return
    if rng.random() < 0.5:  # the few settings count as much as the many numbers of episodes
        part = rng.choice(list(state)) if isinstance(state, dict) else None
        places = _places(state[part], []) or places if part is not None else places
    owner, key = rng.choice(places)
    old = owner[key]
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            owner[key] = copy.deepcopy(rng.choice(_VALUES))
        case 4:
            del owner[key]
        case 5 if isinstance(owner, dict):
            owner[rng.choice(["other", "__kind__", "x"])] = owner.pop(key)
        case 5 | 6:
            other, where = rng.choice(places)
            owner[key] = copy.deepcopy(other[where])
        case 7 if isinstance(old, list) and old:
            old.append(copy.deepcopy(rng.choice(old))) if rng.random() < 0.5 else old.pop(rng.randrange(len(old)))
        case 8 if isinstance(old, (int, float)) and not isinstance(old, bool):
            owner[key] = rng.choice([old + 1, -old, str(old), float(old), old * 10**9, bool(old)])
        case 9:
            deep: Any = old
            for _ in range(rng.choice((3, 60))):
                deep = [deep] if rng.random() < 0.5 else {"x": deep}
            owner[key] = rng.choice([deep, deep, *_DEEP])
        case _:
            names = [(o, k) for o, k in places if isinstance(o[k], str) and ":" in o[k]] or [(owner, key)]
            owner, key = rng.choice(names)
            owner[key] = rng.choice(BAD_NAMES)


def _change_tensor(rng: random.Random, tensors: dict[str, np.ndarray]) -> None:
    if not tensors:
        return
    key = rng.choice(sorted(tensors))
    array = tensors[key]
    match rng.randrange(8):
        case 0:
            del tensors[key]
        case 1:
            tensors[key] = array.reshape(-1)[: rng.randrange(array.size + 1)]
        case 2:
            tensors[key] = np.concatenate([array.reshape(-1)] * 2)
        case 3:
            tensors[key] = array.astype(rng.choice(["float32", "float64", "int64", "uint8", "bool", "float16"]))
        case 4:
            tensors[key] = array[None]
        case 5:
            tensors[key] = np.full_like(array, rng.choice([0, 1, 255 if array.dtype.itemsize > 1 else 1]))
        case 6:
            tensors[rng.choice([f"{key}'", "x"])] = array
        case 7 if array.dtype.kind == "f":
            tensors[key] = np.full_like(array, rng.choice([np.nan, np.inf, -1e30]))
        case _:
            other = rng.choice(sorted(tensors))
            tensors[key], tensors[other] = tensors[other], array


# The watch ----------------------------------------------------------------------------------------------------------

_WATCHED = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
            "os.startfile", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
            "os.chmod", "shutil.rmtree", "shutil.copyfile", "socket.connect", "socket.bind", "webbrowser.open",
            "pickle.find_class", "code.__new__")  # fmt: skip
_NEVER_IMPORTED = {"antigravity", "this", "pip", "runpy", "setuptools", "strangers_code"}
_seen: list[str] | None = None
_installed = False


def _note(event: str, args: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event in _WATCHED:
        _seen.append(f"{event}{args!r:.200}")
    elif event == "open":
        path, mode, flags = args
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if writes and path != os.devnull:
            _seen.append(f"open{args!r:.200}")
    elif event == "import" and args[0].partition(".")[0] in {
        "antigravity",
        "this",
        "pip",
        "evil",
        "runpy",
        "setuptools",
    }:
        _seen.append(f"import {args[0]}")


@contextmanager
def watched() -> Iterator[list[str]]:
    """What is done in the meantime that reading a file needs not: files written, processes started, and the like."""
    global _installed, _seen
    if not _installed:
        sys.addaudithook(_note)
        _installed = True
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _seen = seen = []
    try:
        yield seen
    finally:
        _seen, sys.dont_write_bytecode = None, before
