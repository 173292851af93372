"""Checks of what a block says, so that no file can make a reader compute nonsense, whatever its checksums are.

The checks raise ValueError with what is wrong; the reader adds the file and the block. What they read may have any
structure, so any other exception than ValueError also means that the block is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ALL
from marl_connectors.spaces import parts_of
from marl_connectors.trees import leaves
from marl_connectors.typing import Tree


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_pairs_with(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: len(dict(value)) == len(value) and all(is_value(own) for _, own in value)


_OF_BOTH: Final = {"custom_data": _is_dict, "duration_s": _is_number, "check_spaces": _is_bool}
NOTES_OF_EPISODES: Final[dict[str, Callable[[Any], bool]]] = {
    **_OF_BOTH,
    "num_past": lambda value: type(value) is int and value >= 0,
    "module_of": _is_pairs_with(_is_text),
    "ended_before": _is_pairs_with(_is_bool),
    "unclaimed": _is_pairs_with(_is_number),
    "truncated_before": _is_bool,
    "observation_space": _is_dict,
    "action_space": _is_dict,
    "spaces_by_agent": _is_bool,
}
NOTES_OF_AGENTS: Final[dict[str, Callable[[Any], bool]]] = {
    **_OF_BOTH,
    "id_": _is_text,
    "multi_agent_episode_id": lambda value: value is None or _is_text(value),
    "is_empty": _is_bool,
    "uncredited_reward": _is_number,
    "pending": lambda value: _is_dict(value) and _is_number(value[Columns.REWARDS]) and Columns.ACTIONS in value,
}
_FLAGS: Final = ("is_multi_agent", "is_terminated", "is_truncated")
_LARGEST: Final = 2**53
_SMALL: Final = 2**20
"""The number of numbers that a space may have, if the block is smaller than that."""


def check_table(document: Mapping[str, Any], table: Mapping[str, np.ndarray], chunks: Mapping[str, np.ndarray]) -> None:
    """Checks the table of a block.

    Args:
        document: The JSON data of the block.
        table: The facts of episodes.
        chunks: The facts of agents' episodes.

    Raises:
        ValueError: For the first thing that is never written.
    """
    ids, state = document["episodes"]["id"], document["state"]
    _need(type(ids) is list and all(type(id_) is str for id_ in ids), "an id is no text")
    number, total = len(ids), len(chunks["agent"])
    for facts, length in ((table, number), (chunks, total)):
        for name, column in facts.items():
            _need(column.shape == (length,), f"{name!r} has another length than the other columns")
            kind = "b" if name in _FLAGS else "i"
            _need(not length or column.dtype.kind == kind, f"{name!r} has {column.dtype} values")
            is_fine = not length or kind == "b" or (column.min() >= 0 and column.max() < _LARGEST)
            _need(is_fine, f"{name!r} has values out of range")
    _need(bool((np.diff(table["end"], prepend=0) >= 0).all()), "'end' decreases")
    _need(total == (table["end"][-1] if number else 0), "'end' is not the number of agents' episodes")
    _need(bool((table["env_t"] >= table["env_t_started"]).all()), "an episode ends before it begins")
    alone = ~table["is_multi_agent"].astype(bool)
    _need(bool((np.diff(table["end"], prepend=0)[alone] == 1).all()), "an episode of one agent has several")
    rollouts, modules = state["rollouts"], document["modules"]
    _need(type(modules) is list and all(m is None or type(m) is str for m in modules), "a module id is no text")
    for name, known in (("agent", state["agents"]), ("module", modules), ("rollout", rollouts)):
        _need(type(known) is list and bool((chunks[name] < len(known)).all()), f"a number of {name!r} is unknown")
    _need(all(type(own["num_rows"]) is int and own["num_rows"] >= 0 for own in rollouts), "'num_rows' is no number")
    num_rows = np.array([own["num_rows"] for own in rollouts], np.int64)[chunks["rollout"].astype(np.int64)]
    first, start, stop = chunks["first_row"], chunks["start_row"], chunks["stop_row"]
    _need(bool(((first <= start) & (start <= stop) & (stop < num_rows)).all()), "rows are not those of a rollout")
    owned = np.bincount(chunks["rollout"].astype(np.int64), stop - first + 1, len(rollouts)).tolist()
    is_once = all(rows <= own["num_rows"] for rows, own in zip(owned, rollouts, strict=True))
    _need(is_once, "rows are those of several chunks")
    pieces, sample = document.get("pieces"), document.get("sample")
    _need(pieces is None or (type(pieces) is list and all(type(p) is str for p in pieces)), "'pieces' are no names")
    _need(sample is None or type(sample) is int, "'sample' is no number")
    for own in rollouts:
        _need(type(own["names"]) is list and type(own["layers"]) is dict, "its rollouts have no columns")
        _need(own.get("action_units") in ALL, "it does not say whose actions it has")


def check_space(data: Any, num_bytes: int) -> None:
    """Checks the JSON data of a space, before it is made, so that none is larger than what is stored.

    Args:
        data: The JSON data.
        num_bytes: The size of the arrays of the block.
    """
    kind = data["type"]
    if kind in ("Dict", "Tuple"):
        for part in data["spaces"]:
            check_space(part[1] if kind == "Dict" else part, num_bytes)
    elif kind in ("Box", "MultiBinary"):
        shape = data["shape"] if kind == "Box" else data["n"]
        sizes = shape if isinstance(shape, list) else [shape]
        is_shape = all(type(size) is int and size >= 0 for size in sizes)
        _need(is_shape and math.prod(sizes) <= max(num_bytes, _SMALL), f"a space has the shape {shape!r}")


def check_rollout(own: Mapping[str, Any], observation_space: Space | None, action_space: Space | None) -> None:
    """Checks the columns of a stored rollout against its number of rows and its spaces.

    Args:
        own: The decoded state of the rollout.
        observation_space: The observation space, if it is known.
        action_space: The action space, if it is known.

    Raises:
        ValueError: For the first thing that is never written.
    """
    rows, columns, layers = own["num_rows"], own["columns"], own["layers"]
    _need(sorted([*columns, *layers]) == sorted(own["names"]), "its columns are not those that it names")
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T):
        _need(name in own["names"], f"it has no column {name!r}")
    _need(set(own["level"]) == set(layers), "its layers are not those that it names")
    for name, column in columns.items():
        _check_column(name, column, rows)
    for name, versions in layers.items():
        _need(type(versions) is list and len(versions) > 0, f"{name!r} has no layers")
        for version in versions:
            _check_column(name, version, rows)
        level = own["level"][name]
        _check_column(name, level, rows)
        _need(level.dtype == np.int8, f"{name!r} does not say which layers its rows are in")
        _need(not rows or 0 <= int(level.min()) <= int(level.max()) < len(versions), f"{name!r} lacks a layer")
    for name, given in own["given"].items():
        _check_column(name, given, rows)
        _need(name in own["names"] and given.dtype == np.bool_, f"{name!r} does not say which rows have it")
    for name, kind in ((Columns.REWARDS, "f"), (Columns.T, "i")):
        column = columns[name]
        _need(type(column) is np.ndarray and column.ndim == 1, f"{name!r} is not one number a row")
        _need(column.dtype.kind == kind, f"{name!r} has {column.dtype} values")
    for name, space in ((Columns.OBS, observation_space), (Columns.ACTIONS, action_space)):
        if space is not None:
            source = layers[name][0] if name in layers else columns[name]
            _need(_is_like(space, source), f"{name!r} does not have the parts and shapes of its space")
    seen: set[int] = set()
    for group in own["infos"]:
        positions = group["rows"]
        _need(positions.ndim == 1 and positions.dtype.kind == "i", "the rows of infos are no numbers")
        seen.update(positions.tolist())
        _check_infos(group["values"], len(positions))
        _need(group["values"][0] in ("dict", "items"), "an info is no dict")
    _need(all(0 <= row < rows for row in seen), "an info is of no row")


def check_times(own: Mapping[str, Any], first: np.ndarray, stop: np.ndarray) -> None:
    """Checks that the env steps of each agent's episode in a rollout go up.

    Args:
        own: The decoded state of the rollout.
        first: ``[N]``, the first row of each agent's episode.
        stop: ``[N]``, its last row.
    """
    falls = np.concatenate([[0], np.cumsum(np.diff(own["columns"][Columns.T].astype(np.int64)) <= 0), [0]])
    if len(falls) > 2:
        _need(bool((falls[stop] == falls[first]).all()), "its env steps do not go up")


def check_notes(notes: Any, number: int, checks: Mapping[str, Callable[[Any], bool]], num_bytes: int) -> None:
    """Checks the notes of episodes, or of agents' episodes: pairs of a number and a dict.

    Args:
        notes: The decoded notes.
        number: The number of these episodes.
        checks: The names of notes to whether a value can be one.
        num_bytes: The size of the arrays of the block.
    """
    for i, given in notes:
        _need(type(i) is int and 0 <= i < number and type(given) is dict, "notes are of no episode")
        own: dict[str, Any] = given
        for name, value in own.items():
            _need(name in checks and checks[name](value), f"the note {name!r} is never written like that")
            if name in ("observation_space", "action_space"):
                for data in [part for _, part in value["agents"]] if "agents" in value else [value]:
                    check_space(data, num_bytes)


def _need(is_fine: bool, otherwise: str) -> None:
    if not is_fine:
        raise ValueError(otherwise)


def _check_column(name: str, column: Tree, rows: int) -> None:
    for leaf in leaves(column):
        is_array = isinstance(leaf, np.ndarray) and leaf.ndim > 0
        _need(is_array and len(leaf) == rows, f"{name!r} is not one item a row")


def _is_like(space: Space, column: Tree) -> bool:
    """Whether a column has the structure and the shapes of a space."""
    if isinstance(space, (gym_spaces.Dict, gym_spaces.Tuple)):
        keys = [key for key, _ in parts_of(space)]
        kind = dict if isinstance(space, gym_spaces.Dict) else tuple
        if not isinstance(column, kind):
            return False
        found = list(column) if isinstance(column, dict) else list(range(len(column)))
        return set(found) == set(keys) and all(_is_like(part, column[key]) for key, part in parts_of(space))  # type: ignore[index,call-overload]
    return isinstance(column, np.ndarray) and (space.shape is None or column.shape[1:] == space.shape)


def _check_infos(column: Any, length: int) -> None:
    """Checks a column of infos, as ``pack_infos`` makes it."""
    kind, values = column
    if kind == "dict":
        for part in values.values():
            _check_infos(part, length)
        return
    is_list = kind == "items" and type(values) is list
    is_array = kind in ("bool", "int", "float", "scalar", "array") and type(values) is np.ndarray and values.ndim > 0
    _need((is_list or is_array) and len(values) == length, "infos are not one item a row")
