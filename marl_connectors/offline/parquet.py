"""Recorded episodes as Parquet files: a row is an agent's step, and the spaces are in the metadata."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, NORMALIZED, ActionUnits
from marl_connectors.errors import (
    CheckpointError,
    EpisodeError,
    MissingDependencyError,
    OfflineDataError,
    OfflineDataWarning,
)
from marl_connectors.names import brief
from marl_connectors.offline.exchange import (
    OF_WHOLE,
    AgentFacts,
    AgentPart,
    AgentRows,
    agent_part,
    leaf_columns,
    samples_of_rows,
    whole_episodes,
)
from marl_connectors.offline.recorded_sample import check_space
from marl_connectors.packages import how_to_install
from marl_connectors.state import STORED_KINDS, Index, State, as_state, decode_state, encode_state, fields_of
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, Tree

FORMAT_VERSION: Final = 1
_KEY: Final = b"marl_connectors"
_DIGEST: Final = b"marl_connectors_sha256"
_FACTS: Final = AgentFacts.__struct_fields__
_KEYS: Final = ("episode", Columns.EPS_ID, Columns.AGENT_ID, "agent_eps_id")
"""What all rows of an agent's episode have in common, and no other rows."""
_SAME: Final = (Columns.MODULE_ID, *OF_WHOLE[1:])
"""What else all rows of an agent's episode have in common."""
_INFOS: Final = ("infos", "new_infos")
_MAY_LACK: Final = (Columns.AGENT_ID, Columns.MODULE_ID, *_INFOS)
"""The columns that may have rows without a value."""
_ENDS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_PLAIN: Final = (*_FACTS, Columns.AGENT_ID, Columns.REWARDS, *_ENDS, *_INFOS, "t", "new_t")
"""The columns that are neither observations, nor actions, nor module outputs."""


class ParquetMetadata(State):
    """What all rows of a file have in common.

    Attributes:
        format_version: The version of this format.
        is_multi_agent: Whether the episodes are MultiAgentEpisodes.
        observation_space: The observation space as JSON data; None if it is unknown.
        action_space: The action space.
        action_units: Whose actions they are; None for what the columns tell.
        trees: Observations, actions and each module output to their ``_tree_kind``.
    """

    format_version: Index
    is_multi_agent: bool
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    action_units: ActionUnits | None
    trees: dict[str, Any]


def _pyarrow() -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet files need pyarrow, which is not installed. {how_to_install('pyarrow')}"
        ) from error
    return pyarrow, pyarrow.parquet


def _sha256(kind: bytes) -> bytes:
    return hashlib.sha256(kind).hexdigest().encode()


# Writing.


def to_parquet(data: Any, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes recorded episodes as Parquet files, one for each kind of agents: those with the same spaces and columns.

    A row has the columns of RLlib: ``eps_id``, ``agent_id``, ``module_id``, ``obs``, ``actions``, ``rewards``,
    ``new_obs``, ``terminateds``, ``truncateds`` and module outputs. Observations are those of the environment, and
    lookbacks are left out. Parts of nested spaces have columns of their own, such as ``obs.position``. A warning counts
    what else has no place in a row: agents without a step, actions that are not answered yet at a cut, rewards after an
    agent's last step, ``custom_data`` and the environment's ``state()``.

    Args:
        data: A folder or file of recorded episodes, a list of them, an EpisodeReader, or a list of episodes.
        folder: The folder for the files, which must be empty or new.

    Returns:
        The files.

    Raises:
        OfflineDataError: If the folder is not empty.
        EpisodeError: If infos cannot be written as JSON, or if two parts of a nested space would have one column.
        MissingDependencyError: If pyarrow is not installed.
    """
    pa, pq = _pyarrow()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise OfflineDataError(f"to_parquet: {target} is not empty. Choose another folder.")
    writers: dict[bytes, Any] = {}
    files: list[Path] = []
    try:
        for sample in samples_of_rows(data, "to_parquet"):
            kinds: dict[bytes, list[AgentRows]] = {}
            for rows in sample:
                kinds.setdefault(_metadata(rows), []).append(rows)
            for kind, members in kinds.items():
                table = _table(pa, members, kind)
                if kind not in writers:
                    files.append(target / f"agents-{len(files)}.parquet")
                    writers[kind] = pq.ParquetWriter(files[-1], table.schema, write_page_checksum=True)
                writers[kind].write_table(table)
    finally:
        for writer in writers.values():
            writer.close()
    return files


def _metadata(rows: AgentRows) -> bytes:
    """Returns what all rows of a file have in common, as JSON."""
    seen, taken = rows.agent.observation_space, rows.agent.action_space
    trees = {Columns.OBS: rows.observations, Columns.ACTIONS: rows.actions, **rows.outputs}
    metadata = ParquetMetadata(
        format_version=FORMAT_VERSION,
        is_multi_agent=rows.is_multi_agent,
        observation_space=None if seen is None else spaces.to_json(seen),
        action_space=None if taken is None else spaces.to_json(taken),
        action_units=rows.action_units,  # type: ignore[arg-type]
        trees={column: _tree_kind(tree) for column, tree in trees.items()},
    )
    return json.dumps(fields_of(metadata)).encode()


def _tree_kind(column: Tree) -> Any:
    """Returns the structure of a column for ``_tree_of``, with the dtype and the shape of the items of each array."""
    if isinstance(column, dict):
        return {"dict": [[key, _tree_kind(part)] for key, part in column.items()]}
    if isinstance(column, tuple):
        return {"tuple": [_tree_kind(part) for part in column]}
    leaf = np.asarray(column)
    return [leaf.dtype.str, leaf.shape[1:]]


def _table(pa: Any, members: Sequence[AgentRows], kind: bytes) -> Any:
    """Returns the rows of agents of one kind."""
    columns: dict[str, list[Any]] = {}
    for rows in members:
        names = set()
        for name, values in _columns_of(rows):
            if name in names:
                raise EpisodeError(
                    f"to_parquet: agent {rows.agent.agent_id!r} of episode {rows.agent.id_!r} has two parts that would "
                    f"be the column {name!r}. Rename one of them, or record with an EpisodeWriter, which keeps them "
                    f"apart."
                )
            names.add(name)
            columns.setdefault(name, []).append(values)
    arrays = {name: _as_arrow(pa, np.concatenate(parts)) for name, parts in columns.items()}
    return pa.table(arrays).replace_schema_metadata({_KEY: kind, _DIGEST: _sha256(kind)})


def _columns_of(rows: AgentRows) -> list[tuple[str, np.ndarray]]:
    """Returns the columns of an agent's steps with their names."""
    own, steps = rows.agent, len(rows.rewards)

    def same(value: Any) -> np.ndarray:
        return np.full(steps, value, type(value) if isinstance(value, (bool, int)) else object)

    def last(value: Any, otherwise: Any, dtype: Any) -> np.ndarray:
        return np.array([otherwise] * (steps - 1) + [value], dtype)

    infos = [_json(info, own) for info in rows.infos]
    agent_t = np.arange(own.t_started, own.t_started + steps)
    facts: dict[str, np.ndarray] = {name: same(value) for name, value in fields_of(rows.facts).items()}
    return [
        *{**facts, "agent_t": agent_t, Columns.AGENT_ID: same(_json(own.agent_id, own))}.items(),
        *(("t", rows.t[:-1]), ("new_t", rows.t[1:])),
        *leaf_columns(Columns.OBS, tree_map(lambda leaf: leaf[:-1], rows.observations)),
        *leaf_columns(Columns.ACTIONS, rows.actions),
        (Columns.REWARDS, rows.rewards),
        *leaf_columns(Columns.NEXT_OBS, tree_map(lambda leaf: leaf[1:], rows.observations)),
        (Columns.TERMINATEDS, last(own.is_terminated, False, bool)),
        (Columns.TRUNCATEDS, last(own.is_truncated, False, bool)),
        *zip(_INFOS, (np.array(infos[:-1], object), last(infos[-1], None, object)), strict=True),
        *_for_env(rows),
        *(leaf for key, column in rows.outputs.items() for leaf in leaf_columns(key, column)),
    ]


def _for_env(rows: AgentRows) -> list[tuple[str, np.ndarray]]:
    """Returns the columns of the environment's actions, if they differ from those that the episode holds."""
    name, actions = Columns.ACTIONS_FOR_ENV, rows.actions_for_env()
    is_same = all(one is other for one, other in zip(leaves(actions), leaves(rows.actions), strict=True))
    return [] if is_same or name in rows.outputs else leaf_columns(name, actions)


def _json(value: Any, own: Any) -> str | None:
    """Returns plain data as JSON, with the marks of checkpoints; None for an empty dict and for None."""
    if value is None or value == {}:
        return None
    if isinstance(value, str):
        return value
    arrays: dict[str, np.ndarray] = {}
    try:
        encoded = encode_state(value, (), arrays)
    except CheckpointError as error:
        raise EpisodeError(
            f"to_parquet: agent {own.agent_id!r} of episode {own.id_!r} has an info or id that JSON cannot hold. "
            f"{error}"
        ) from error
    plain = {key: (array.dtype.str, array.shape, array.ravel().tolist()) for key, array in arrays.items()}
    return json.dumps({"value": encoded, "arrays": plain})


def _from_json(text: str | None) -> Any:
    """Returns what ``_json`` got; a text that is no JSON object of it stands for itself."""
    try:
        data = json.loads(text) if text is not None and text.startswith('{"value"') else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.keys() != {"value", "arrays"}:
        return text
    known = data["arrays"].items()
    arrays = {key: np.array(flat, _number_type(dtype)).reshape(shape) for key, (dtype, shape, flat) in known}
    return decode_state(data["value"], arrays)


def _number_type(name: str) -> np.dtype[Any]:
    """Returns the dtype of a name that a file has, as others could take any memory.

    Raises:
        ValueError: If it is not one of numbers.
    """
    dtype = np.dtype(name)
    if dtype.kind not in STORED_KINDS or dtype.itemsize > 8:
        raise ValueError(f"{name!r} is no type of numbers")
    return dtype


def _as_arrow(pa: Any, values: np.ndarray) -> Any:
    """Returns a column; arrays with several numbers a row are lists of a fixed size."""
    if values.dtype == object:
        return pa.array(values.tolist(), pa.string())
    if values.ndim == 1:
        return pa.array(values)
    size = int(np.prod(values.shape[1:]))
    if not size:
        return pa.array([[]] * len(values), pa.list_(pa.from_numpy_dtype(values.dtype)))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), size)


# Reading.


class _DamagedFileError(OfflineDataError):
    """A file that cannot be read as a table, or that is not what ``to_parquet`` wrote."""


def from_parquet(
    path: str | os.PathLike[str],
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    actions_in_input_normalized: bool | None = None,
) -> list[Any]:
    """Returns the episodes of Parquet files: those of ``to_parquet``, or RLlib's tables of steps.

    Write them with an ``EpisodeWriter`` to train on them. Nothing is ever unpickled: RLlib's files are read if their
    columns are plain (``output_compress_columns=[]``, ``output_write_episodes=False``), and refused otherwise.

    Args:
        path: A file, or a folder of files.
        observation_space: The observation space, for files that lack it.
        action_space: The action space, for files that lack it.
        actions_in_input_normalized: Whose actions a table holds that ``to_parquet`` did not write: True for those of
            modules, whose Box actions are in [-1, 1] and whose whole numbers count from 0; False for those of the
            environment. None takes them for the modules' if the table has ``action_logp``, ``action_dist_inputs`` or
            ``actions_for_env``, and for the environment's otherwise.

    Raises:
        OfflineDataError: If a file is not such a table, or holds pickled data; if the only file is damaged, or nothing
            is left. Of several files, damaged ones are left out, with a warning.
        MissingDependencyError: If pyarrow is not installed.
    """
    source = Path(path)
    files = sorted(source.glob("**/*.parquet")) if source.is_dir() else [source]
    if not files or not files[0].exists():
        raise OfflineDataError(f"from_parquet: there are no Parquet files at {source}. Check the path.")
    found: dict[Any, list[AgentPart]] = {}
    damages: list[str] = []
    for file in files:
        try:
            for key, part in _read(file, (observation_space, action_space), actions_in_input_normalized):
                found.setdefault(key, []).append(part)
        except _DamagedFileError as error:
            damages.append(str(error))
    if not found:
        raise OfflineDataError(damages[0] if damages else f"from_parquet: the files at {source} have no rows.")
    for damage in damages:
        warnings.warn(
            f"{damage} The other files are used; their episodes may lack agents whose rows were in this one.",
            OfflineDataWarning,
            stacklevel=2,
        )
    return whole_episodes("from_parquet", found)


class _Steps(NamedTuple):
    """The columns of a table.

    Attributes:
        file: The file.
        about: What all rows have in common.
        spaces: The observation and the action space.
        plain: The columns that have a value a row.
        trees: The others.
    """

    file: Path
    about: ParquetMetadata
    spaces: tuple[Space | None, Space | None]
    plain: dict[str, np.ndarray]
    trees: dict[str, Tree]


def _read(
    file: Path, spaces_of: tuple[Space | None, Space | None], is_normalized: bool | None
) -> list[tuple[Any, AgentPart]]:
    """Returns the agents' episodes of a file, and the key of the episode of each.

    Raises:
        OfflineDataError: If it is damaged, or no table of agents' steps.
    """
    pa, pq = _pyarrow()
    try:
        table = pq.read_table(file, page_checksum_verification=True)
        names = table.column_names
    except (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException) as error:
        raise _DamagedFileError(f"from_parquet: {file} cannot be read: {error}.") from error
    metadata = table.schema.metadata or {}
    kind = metadata.get(_KEY)
    if kind is None and not table.num_rows:
        return []
    if kind is None and {"agent_eps_id", "eps_t_started"} & {*names}:
        raise _DamagedFileError(
            f"from_parquet: {file} has the columns of to_parquet, but not its metadata (key {_KEY.decode()!r}), which "
            f"has the spaces. If a program has written the table again, let it keep the metadata of the schema."
        )
    try:
        if kind is None:
            about = _about_rllib(file, table, spaces_of[0], is_normalized)
        else:
            about, spaces_of = _about(file, kind, metadata.get(_DIGEST), table.nbytes)
        plain = {name: _plain(table.column(name), name, file) for name in _PLAIN if name in names}
        kinds = {**about.trees, Columns.NEXT_OBS: about.trees[Columns.OBS]}
        trees = {name: _tree_of(name, own, table, file) for name, own in kinds.items()}
        return _agents_of(_Steps(file, about, spaces_of, plain, trees), is_ours=kind is not None)
    except OfflineDataError:
        raise
    except Exception as error:  # as a file of someone else can say anything
        raise (OfflineDataError if kind is None else _DamagedFileError)(
            f"from_parquet: {file} is not a table of agents' steps ({type(error).__name__}: {error}). Its columns are "
            f"{', '.join(map(repr, names))}."
        ) from error


def _about(file: Path, kind: bytes, digest: bytes | None, num_bytes: int) -> tuple[ParquetMetadata, tuple[Any, Any]]:
    """Returns what the metadata of ``to_parquet`` say, and the spaces.

    Raises:
        OfflineDataError: If they are damaged, or of another version.
    """
    try:
        data = json.loads(kind)
        if digest not in (None, _sha256(kind)):
            raise ValueError("their SHA-256 differs")
        if data["format_version"] != FORMAT_VERSION:
            raise OfflineDataError(
                f"from_parquet: {file} has format version {brief(data['format_version'])}, but this version of "
                f"marl-connectors reads {FORMAT_VERSION}. Install the version that wrote it, or write the file again."
            )
        about = as_state(ParquetMetadata, data)
        both = about.observation_space, about.action_space
        for space in both:
            if space is not None:
                check_space(space, num_bytes)
        seen, taken = (None if space is None else spaces.from_json(space) for space in both)
    except OfflineDataError:
        raise
    except Exception as error:  # as they can say anything
        raise _DamagedFileError(
            f"from_parquet: the metadata of {file} are damaged ({type(error).__name__}: {error})."
        ) from error
    return about, (seen, taken)


def _about_rllib(file: Path, table: Any, space: Space | None, is_normalized: bool | None) -> ParquetMetadata:
    """Returns what is known of a table that ``to_parquet`` did not write.

    Args:
        file: The file.
        table: The table.
        space: The observation space, if it is known.
        is_normalized: As for ``from_parquet``.

    Raises:
        OfflineDataError: If it holds pickled data, or is no table of steps.
    """
    names = table.column_names
    if "item" in names and Columns.OBS not in names:
        raise OfflineDataError(
            f"from_parquet: {file} holds whole episodes of RLlib in a binary format of its own (column 'item'). Record "
            f"them again with output_write_episodes=False and output_compress_columns=[]."
        )
    for name in (Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, *_ENDS):
        if name not in names:
            raise OfflineDataError(
                f"from_parquet: {file} is not a table of agents' steps, because it has no column {name!r}. Its columns "
                f"are {', '.join(map(repr, names))}."
            )
    others = [name for name in names if name not in (*_PLAIN, "weights_seq_no")]
    for name in others:
        kind = str(table.schema.field(name).type)
        if "string" in kind or "binary" in kind:
            raise OfflineDataError(
                f"from_parquet: the column {name!r} of {file} holds texts or bytes. RLlib compresses columns to "
                f"pickled objects, which can run code when they are read, so they are refused. Record them again with "
                f"output_compress_columns=[], or convert them with RLlib."
            )
    others.remove(Columns.NEXT_OBS)
    agents = table.column(Columns.AGENT_ID) if Columns.AGENT_ID in names else []
    return ParquetMetadata(
        format_version=FORMAT_VERSION,
        is_multi_agent=any(agent.is_valid for agent in agents),
        observation_space=None,
        action_space=None,
        action_units=None if is_normalized is None else NORMALIZED if is_normalized else ENV,
        trees={name: _leaf_kind(table, name, space) for name in others},
    )


def _leaf_kind(table: Any, name: str, space: Space | None) -> list[Any]:
    """Returns the dtype and the shape of a column of numbers, or of lists of numbers that are equally long."""
    if name == Columns.OBS and space is not None and space.shape is not None and space.dtype is not None:
        return [np.dtype(space.dtype).str, space.shape]
    column = table.column(name)
    kind = column.type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    empty = _pyarrow()[0].nulls(0, kind).to_numpy(zero_copy_only=False)
    return [empty.dtype.str, np.array(column[0].as_py()).shape]


def _tree_of(name: str, kind: Any, table: Any, file: Path) -> Tree:
    """Returns a column as the tree of a kind."""
    if isinstance(kind, list):
        dtype, shape = kind
        return _leaf(table.column(name).combine_chunks(), dtype, shape, name, file)
    if "dict" in kind:
        return {key: _tree_of(f"{name}.{key}", part, table, file) for key, part in kind["dict"]}
    return tuple(_tree_of(f"{name}.{i}", part, table, file) for i, part in enumerate(kind["tuple"]))


def _leaf(column: Any, dtype: str, shape: Sequence[int], name: str, file: Path) -> np.ndarray:
    """Returns a column of numbers, or of lists of equally many numbers.

    Raises:
        OfflineDataError: If a row has no value, or a list has another length or lacks a number.
    """
    _check_values(column, name, file)
    flat = column
    while hasattr(flat.type, "value_type"):
        flat = flat.flatten()
    size = int(np.prod(shape))
    if flat.null_count or len(flat) != len(column) * size:
        for row, item in enumerate(column.to_pylist()):
            own = np.array(item, object).ravel()
            if len(own) != size or None in own.tolist():
                _refuse(file, name, row, f"{brief(item)}, but {size} numbers are expected")
    return flat.to_numpy(zero_copy_only=False).astype(_number_type(dtype)).reshape(len(column), *shape)


def _plain(chunked: Any, name: str, file: Path) -> np.ndarray:
    """Returns a column with a value a row.

    Raises:
        OfflineDataError: If a row lacks its value, or has none that can be read.
    """
    column = chunked.combine_chunks()
    kind = str(column.type)
    _check_values(column, name, file)
    if "string" in kind or kind == "null" or kind.startswith(("struct", "map")):
        items = np.empty(len(column), object)
        items[:] = column.to_pylist(maps_as_pydicts="strict") if kind.startswith("map") else column.to_pylist()
        return items
    if name in _INFOS:
        raise OfflineDataError(
            f"from_parquet: the column {name!r} of {file} holds {kind}, not texts or structs. Pickled infos are "
            f"refused, as reading them can run code. Record again without them."
        )
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf":
        raise OfflineDataError(f"from_parquet: the column {name!r} of {file} holds {kind}, which is not read.")
    if name == Columns.REWARDS and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        _refuse(file, name, row, f"{values[row]}, but rewards must be finite")
    return values


def _check_values(column: Any, name: str, file: Path) -> None:
    if column.null_count and name not in _MAY_LACK:
        _refuse(file, name, int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), "no value")


def _refuse(file: Path, name: str, row: int, what: str) -> None:
    raise OfflineDataError(
        f"from_parquet: in row {row} of {file}, the column {name!r} has {what}. Every step needs its observations, "
        f"action, reward and ends. Correct the row, or leave out its episode."
    )


def _agents_of(steps: _Steps, *, is_ours: bool) -> list[tuple[Any, AgentPart]]:
    """Returns the agents' episodes of a table, and the key of the episode of each. Their rows may lie anywhere in it.

    Raises:
        OfflineDataError: For rows that are no steps of an agent's episode, one after another.
    """
    plain = steps.plain
    places: dict[Any, list[int]] = {}
    keys = (plain[name].tolist() for name in _KEYS if is_ours or name in plain)
    for row, key in enumerate(zip(*keys, strict=True)):
        places.setdefault(key, []).append(row)
    found = []
    for own in places.values():
        rows = np.array(own)
        if is_ours:
            rows = rows[np.argsort(plain["agent_t"][rows], kind="stable")]
        _check_rows(steps, rows)
        part = _part_of(steps, rows, is_ours=is_ours)
        found.append(((part.facts.episode, part.facts.eps_id, "" if is_ours else steps.file), part))
    return found


def _check_rows(steps: _Steps, rows: np.ndarray) -> None:
    """Checks that rows are the steps of an agent's episode, one after another.

    Raises:
        OfflineDataError: For the first row that is not what follows the row before it.
    """
    plain, last, following = steps.plain, rows[:-1], rows[1:]
    wrong: list[tuple[np.ndarray, str]] = [
        (plain[name][following] != plain[name][last], f"its {name} is another one") for name in _SAME if name in plain
    ]
    is_over = plain[Columns.TERMINATEDS][last].astype(bool) | plain[Columns.TRUNCATEDS][last].astype(bool)
    wrong.append((is_over, "the episode has ended there; each episode needs an eps_id of its own"))
    if "agent_t" in plain:
        t = plain["agent_t"]
        wrong.append((t[following] != t[last] + 1, "its agent_t does not follow, so that steps are missing"))
    if "t" in plain:
        t = plain["t"]
        is_wrong = t[following] != plain["new_t"][last] if "new_t" in plain else t[following] <= t[last]
        wrong.append((is_wrong, "its t does not follow"))
    parts = zip(*(leaf_columns(name, steps.trees[name]) for name in (Columns.OBS, Columns.NEXT_OBS)), strict=True)
    for (name, leaf), (_, next_leaf) in parts:
        one, other = leaf[following], next_leaf[last]
        is_same = (one == other) | ((one != one) & (other != other))  # NaN is NaN
        is_wrong = ~is_same.all(axis=tuple(range(1, one.ndim)))
        wrong.append((is_wrong, f"its {name} is not the {Columns.NEXT_OBS} there"))
    for is_wrong, why in wrong:
        if is_wrong.any():
            i = int(np.flatnonzero(is_wrong)[0])
            raise OfflineDataError(
                f"from_parquet: {steps.file}, row {rows[i + 1]}, cannot be the step of episode "
                f"{plain[Columns.EPS_ID][rows[i]]!r} after row {rows[i]}: {why}. Rows with the same eps_id and "
                f"agent_id must be the steps of one episode, in order and without gaps."
            )


def _part_of(steps: _Steps, rows: np.ndarray, *, is_ours: bool) -> AgentPart:
    """Returns the agent's episode in some rows."""
    about, own = steps.about, {name: column[rows] for name, column in steps.plain.items()}
    first = {name: column[0].item() if isinstance(column[0], np.generic) else column[0] for name, column in own.items()}
    if not is_ours:
        first = {**_unknown(str(first[Columns.EPS_ID]), about.is_multi_agent), **first}
        first[Columns.EPS_ID] = str(first[Columns.EPS_ID])
    facts = as_state(AgentFacts, {name: first[name] for name in _FACTS})
    t = own.get("t", np.arange(len(rows)))
    columns = {name: tree_map(lambda leaf: leaf[rows], tree) for name, tree in steps.trees.items()}
    following = columns.pop(Columns.NEXT_OBS)
    columns[Columns.OBS] = tree_map(lambda a, b: np.concatenate([a, b[-1:]]), columns[Columns.OBS], following)
    columns[Columns.REWARDS] = np.asarray(own[Columns.REWARDS], np.float64)
    columns[Columns.T] = np.append(t, own["new_t"][-1] if "new_t" in own else t[-1] + 1).astype(np.int64)
    infos = [*own.get("infos", [None] * len(rows)), own["new_infos"][-1] if "new_infos" in own else None]
    columns["infos"] = [_info(info, steps.file, row) for info, row in zip(infos, [*rows, rows[-1]], strict=True)]
    return agent_part(
        columns,
        facts,
        _from_json(first[Columns.AGENT_ID]),
        is_multi_agent=about.is_multi_agent,
        spaces_of=steps.spaces,
        ends=(bool(own[Columns.TERMINATEDS][-1]), bool(own[Columns.TRUNCATEDS][-1])),
        action_units=about.action_units,
        where=f"{steps.file}, row {rows[0]},",
    )


def _unknown(id_: str, is_multi_agent: bool) -> dict[str, Any]:
    """Returns the facts for what a table does not say."""
    module_id = DEFAULT_MODULE_ID if is_multi_agent else None
    facts = AgentFacts(0, id_, 0, None, None, None, agent_eps_id=id_, agent_t=0, module_id=module_id)
    return {**fields_of(facts), Columns.AGENT_ID: None}


def _info(value: Any, file: Path, row: int) -> dict[str, Any]:
    """Returns the info dict that a row has as JSON or as a struct.

    Raises:
        OfflineDataError: If it has something else.
    """
    info = _from_json(value) if value is None or isinstance(value, str) else value
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = info or None
    if info is None:
        return {}
    if not isinstance(info, dict):
        raise OfflineDataError(
            f"from_parquet: the info in row {row} of {file} is no dict, but {brief(value)}. Infos must be structs, or "
            f"texts with JSON objects; leave the column out if it holds anything else."
        )
    return info
