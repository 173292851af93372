"""Recorded episodes as Parquet files: a row is an agent's step, and the spaces are in the metadata."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, NORMALIZED, ActionUnits
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import (
    CheckpointError,
    EpisodeError,
    MissingDependencyError,
    OfflineDataError,
    OfflineDataWarning,
)
from marl_connectors.names import brief
from marl_connectors.offline.agent_rows import (
    AgentRows,
    agent_episode,
    agent_rows,
    batches_of,
    leaf_columns,
    leaf_names,
    left_out,
    tree_of,
    tree_shape,
    warn_of_left_out,
    whole_episode,
)
from marl_connectors.offline.stored_block import check_space
from marl_connectors.packages import how_to_install
from marl_connectors.state import Index, State, as_state, decode_state, encode_state, fields_of
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, Tree

FORMAT_VERSION: Final = 1
_KEY: Final = b"marl_connectors"
_DIGEST: Final = b"marl_connectors_sha256"
_OTHERS: Final = (
    "agent_t",
    "t",
    "new_t",
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
)
_INFOS: Final = ("infos", "new_infos")
_MAY_LACK: Final = (Columns.AGENT_ID, Columns.MODULE_ID, *_INFOS)
"""The columns that may have rows without a value."""
_FACTS: Final = ("episode", "eps_t_started", "eps_t", "eps_terminated", "eps_truncated", "agent_eps_id", "agent_t")
"""Columns beside RLlib's: the number, env steps and ends of the episode, the id of the agent's, the agent's step."""
_KEYS: Final = (Columns.EPS_ID, "episode", Columns.AGENT_ID, "agent_eps_id")
"""What all rows of an agent's episode have in common, and no other rows."""
_SAME: Final = (Columns.MODULE_ID, "eps_t_started", "eps_t", "eps_terminated", "eps_truncated")
"""What else all rows of an agent's episode have in common."""


class ParquetMetadata(State):
    """What all rows of a file have in common.

    Attributes:
        format_version: The version of this format.
        is_multi_agent: Whether the episodes are MultiAgentEpisodes.
        observation_space: The observation space as JSON data; None if it is unknown.
        action_space: The action space.
        action_units: Whose actions they are.
        outputs: The module outputs.
        trees: Each column with parts to the shape of its tree.
        leaves: Each column of numbers to the dtype and the shape of an item.
    """

    format_version: Index
    is_multi_agent: bool
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    action_units: ActionUnits
    outputs: list[str]
    trees: dict[str, Any]
    leaves: dict[str, tuple[str, list[Index]]]


class _About(NamedTuple):
    """What is known of a file beside its rows.

    Attributes:
        is_multi_agent: As in the metadata.
        spaces: The observation and the action space.
        action_units: As in the metadata; None for what the columns tell.
        outputs: As in the metadata.
        trees: As in the metadata.
        leaves: As in the metadata.
    """

    is_multi_agent: bool
    spaces: tuple[Space | None, Space | None]
    action_units: str | None
    outputs: list[str]
    trees: dict[str, Any]
    leaves: dict[str, tuple[str, list[int]]]


class _JsonValue(State):
    """Plain data as JSON.

    Attributes:
        value: The data, as ``encode_state`` returns them.
        arrays: Its arrays: their dtypes, shapes and numbers.
    """

    value: Any
    arrays: dict[str, tuple[str, list[Index], list[Any]]]


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
    writers: dict[str, Any] = {}
    files: list[Path] = []
    number = 0
    lacking: Counter[str] = Counter()
    try:
        for episodes in batches_of(data):
            kinds: dict[str, list[tuple[int, Any, AgentRows]]] = {}
            for episode in episodes:
                lacking += left_out(episode)
                for rows in agent_rows(episode):
                    kinds.setdefault(_metadata(episode, rows), []).append((number, episode, rows))
                number += 1
            for kind, members in kinds.items():
                table = _table(pa, members, kind)
                if kind not in writers:
                    files.append(target / f"agents-{len(files)}.parquet")
                    writers[kind] = pq.ParquetWriter(files[-1], table.schema, write_page_checksum=True)
                writers[kind].write_table(table)
    finally:
        for writer in writers.values():
            writer.close()
    warn_of_left_out("to_parquet", lacking)
    return files


def _pyarrow() -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet files need pyarrow, which is not installed. {how_to_install('pyarrow')}"
        ) from error
    return pyarrow, pyarrow.parquet


def _metadata(episode: Any, rows: AgentRows) -> str:
    """Returns what all rows of a file have in common, as JSON."""
    trees = {Columns.OBS: rows.observations, Columns.ACTIONS: rows.actions, **rows.outputs}
    leaves = {name: own for column, tree in trees.items() for name, own in leaf_columns(column, tree).items()}
    own = rows.agent
    _check_names(trees, own)
    metadata = ParquetMetadata(
        format_version=FORMAT_VERSION,
        is_multi_agent=isinstance(episode, MultiAgentEpisode),
        observation_space=None if own.observation_space is None else spaces.to_json(own.observation_space),
        action_space=None if own.action_space is None else spaces.to_json(own.action_space),
        action_units=rows.action_units,
        outputs=list(rows.outputs),
        trees={column: tree_shape(tree) for column, tree in trees.items()},
        leaves={name: (leaf.dtype.str, list(leaf.shape[1:])) for name, leaf in leaves.items()},
    )
    return json.dumps(fields_of(metadata))


def _check_names(trees: Mapping[str, Tree], own: SingleAgentEpisode) -> None:
    """Checks that all parts of trees have columns of their own, as ``obs.a.b`` may stand for two parts.

    Raises:
        EpisodeError: If two of them would have the same name.
    """
    counts = Counter([*_KEYS, *_SAME, *_OTHERS, *_INFOS])
    for column, tree in {**trees, Columns.NEXT_OBS: trees[Columns.OBS]}.items():
        counts.update(leaf_names(column, tree))
    twice = [name for name, number in counts.items() if number > 1]
    if twice:
        raise EpisodeError(
            f"to_parquet: agent {own.agent_id!r} of episode {own.id_!r} has two parts that would be the column "
            f"{twice[0]!r}. Rename one of them, or record with an EpisodeWriter, which keeps them apart."
        )


def _table(pa: Any, members: Sequence[tuple[int, Any, AgentRows]], kind: str) -> Any:
    """Returns the rows of agents of one kind."""
    columns: dict[str, list[Any]] = {}
    for number, episode, rows in members:
        for name, values in _columns_of(number, episode, rows).items():
            columns.setdefault(name, []).append(values)
    arrays = {name: _as_arrow(pa, np.concatenate(parts)) for name, parts in columns.items()}
    return pa.table(arrays).replace_schema_metadata({_KEY: kind.encode(), _DIGEST: _sha256(kind.encode())})


def _sha256(kind: bytes) -> bytes:
    return hashlib.sha256(kind).hexdigest().encode()


def _columns_of(number: int, episode: Any, rows: AgentRows) -> dict[str, np.ndarray]:
    own, steps = rows.agent, len(rows.rewards)
    is_multi = isinstance(episode, MultiAgentEpisode)
    begin, end = (episode.env_t_started, episode.env_t) if is_multi else (episode.t_started, episode.t)

    def same(value: Any, dtype: Any = object) -> np.ndarray:
        return np.full(steps, value, dtype)

    def last(value: Any) -> np.ndarray:
        column = np.zeros(steps, bool)
        column[-1] = value
        return column

    new_infos = same(None)
    new_infos[-1] = _json(rows.infos[-1], own)
    return {
        Columns.EPS_ID: same(str(episode.id_)),
        Columns.AGENT_ID: same(_json(own.agent_id, own)),
        Columns.MODULE_ID: same(own.module_id),
        "episode": same(number, np.int64),
        "eps_t_started": same(begin, np.int64),
        "eps_t": same(end, np.int64),
        "eps_terminated": same(episode.is_terminated, bool),
        "eps_truncated": same(episode.is_truncated, bool),
        "agent_eps_id": same(str(own.id_)),
        "agent_t": np.arange(own.t_started, own.t_started + steps),
        "t": rows.t[:-1],
        "new_t": rows.t[1:],
        **leaf_columns(Columns.OBS, tree_map(lambda leaf: leaf[:-1], rows.observations)),
        **leaf_columns(Columns.ACTIONS, rows.actions),
        Columns.REWARDS: rows.rewards,
        **leaf_columns(Columns.NEXT_OBS, tree_map(lambda leaf: leaf[1:], rows.observations)),
        Columns.TERMINATEDS: last(own.is_terminated),
        Columns.TRUNCATEDS: last(own.is_truncated),
        "infos": np.array([_json(info, own) for info in rows.infos[:-1]], object),
        "new_infos": new_infos,
        **_for_env(rows),
        **{name: leaf for key, column in rows.outputs.items() for name, leaf in leaf_columns(key, column).items()},
    }


def _for_env(rows: AgentRows) -> dict[str, np.ndarray]:
    """Returns the columns of the environment's actions, if they differ from those that the episode holds."""
    name, actions = Columns.ACTIONS_FOR_ENV, rows.actions_for_env()
    pairs = zip(leaves(actions), leaves(rows.actions), strict=True)
    is_same = all(one is other for one, other in pairs)
    return {} if is_same or name in rows.outputs else leaf_columns(name, actions)


def _json(value: Any, own: SingleAgentEpisode) -> str | None:
    """Returns plain data as JSON, with the marks of checkpoints; None for an empty dict and for None."""
    if value is None or value == {}:
        return None
    if isinstance(value, str):
        return value
    tensors: dict[str, np.ndarray] = {}
    try:
        encoded = encode_state(value, (), tensors)
    except CheckpointError as error:
        raise EpisodeError(
            f"to_parquet: agent {own.agent_id!r} of episode {own.id_!r} has an info or id that JSON cannot hold. "
            f"{error}"
        ) from error
    arrays = {key: (array.dtype.str, list(array.shape), array.ravel().tolist()) for key, array in tensors.items()}
    return json.dumps(fields_of(_JsonValue(encoded, arrays)))


def _from_json(text: str | None) -> Any:
    """Returns what ``_json`` got; a text that is no JSON object of it stands for itself."""
    try:
        data = json.loads(text) if text is not None and text.startswith('{"value"') else None
    except ValueError:
        data = None
    if data is None:
        return text
    own = as_state(_JsonValue, data)
    arrays = {key: np.array(flat, dtype).reshape(shape) for key, (dtype, shape, flat) in own.arrays.items()}
    return decode_state(own.value, arrays)


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
    found: dict[Any, list[_Agent]] = {}
    damages: list[str] = []
    for file in files:
        try:
            agents = _read(file, observation_space, action_space, actions_in_input_normalized)
        except _DamagedFileError as error:
            damages.append(str(error))
            continue
        for key, own in agents.items():
            found.setdefault(key, []).extend(own)
    if not found:
        raise OfflineDataError(damages[0] if damages else f"from_parquet: the files at {source} have no rows.")
    for damage in damages:
        warnings.warn(
            f"{damage} The other files are used; their episodes may lack agents whose rows were in this one.",
            OfflineDataWarning,
            stacklevel=2,
        )
    # RLlib's episodes have no numbers, and stay in their order.
    return [_episode(members) for _, members in sorted(found.items(), key=lambda item: item[0][0])]


class _DamagedFileError(OfflineDataError):
    """A file that cannot be read as a table, or whose metadata are damaged."""


def _read(
    file: Path, observation_space: Space | None, action_space: Space | None, is_normalized: bool | None
) -> dict[Any, list[_Agent]]:
    """Returns the agents' episodes of a file by episode.

    Raises:
        OfflineDataError: If it is damaged, or no table of agents' steps.
    """
    pa, pq = _pyarrow()
    unreadable = (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException)
    try:
        table = pq.read_table(file, page_checksum_verification=True)
        names = table.column_names
    except unreadable as error:
        raise _DamagedFileError(f"from_parquet: {file} cannot be read: {error}.") from error
    metadata = table.schema.metadata or {}
    kind = metadata.get(_KEY)
    if kind is None and not table.num_rows:
        return {}
    if kind is None and {"agent_eps_id", "eps_t_started"} & {*names}:
        raise _DamagedFileError(
            f"from_parquet: {file} has the columns of to_parquet, but not its metadata (key {_KEY.decode()!r}), which "
            f"has the spaces. If a program has written the table again, let it keep the metadata of the schema."
        )
    about = (
        _about_rllib(file, table, (observation_space, action_space), is_normalized)
        if kind is None
        else _about(file, kind, metadata, table.nbytes)
    )
    needed = () if kind is None else (*_KEYS, *_SAME, *_OTHERS, *_INFOS, *about.leaves)
    missing = [name for name in needed if name not in names]
    if missing:
        raise _DamagedFileError(f"from_parquet: {file} has no column {missing[0]!r}, although its metadata say so.")
    if kind is not None and Columns.ACTIONS_FOR_ENV not in about.outputs:  # they follow from the actions
        table = table.select([name for name in names if name.split(".")[0] != Columns.ACTIONS_FOR_ENV])
    try:
        return _agents_of(table, about, str(file))
    except OfflineDataError:
        raise
    except Exception as error:  # as a file of someone else can say anything
        raise OfflineDataError(
            f"from_parquet: {file} is not a table of agents' steps ({type(error).__name__}: {error}). Its columns are "
            f"{', '.join(map(repr, names))}."
        ) from error


def _about(file: Path, kind: bytes, metadata: Mapping[bytes, bytes], num_bytes: int) -> _About:
    """Returns what the metadata of ``to_parquet`` say.

    Raises:
        OfflineDataError: If they are damaged, or of a newer version.
    """
    try:
        data = json.loads(kind)
        version = data["format_version"]
        if version > FORMAT_VERSION:
            raise OfflineDataError(
                f"from_parquet: {file} has format version {brief(version)}, but this version reads up to "
                f"{FORMAT_VERSION}. Upgrade marl-connectors."
            )
        if metadata.get(_DIGEST, _sha256(kind)) != _sha256(kind):
            raise ValueError("their SHA-256 differs")
        own = as_state(ParquetMetadata, data)
        both = own.observation_space, own.action_space
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
    return _About(own.is_multi_agent, (seen, taken), own.action_units, own.outputs, own.trees, own.leaves)


def _episode(members: Sequence[_Agent]) -> Any:
    """Returns the episode of agents' episodes.

    Raises:
        OfflineDataError: If their facts differ, or an agent has two episodes at the same time.
    """
    first = members[0]
    for other in members[1:]:
        if other.facts != first.facts:
            raise OfflineDataError(
                f"from_parquet: {other.where} says other things about the episode than {first.where}: "
                f"{_differences(first.facts, other.facts)}. Each episode needs an id, and a number, of its own."
            )
    if not first.facts["is_multi_agent"] and len(members) > 1:
        raise OfflineDataError(
            f"from_parquet: {members[1].where} belongs to an episode of a single agent that {first.where} has already. "
            f"Each episode needs an id, and a number, of its own."
        )
    if not first.facts["is_multi_agent"]:
        return first.agent
    ordered = sorted(members, key=lambda own: own.begin)
    newest: dict[Any, _Agent] = {}
    for own in ordered:
        former = newest.get(own.agent.agent_id)
        if former is not None and (not former.agent.is_done or former.end > own.begin):
            raise OfflineDataError(
                f"from_parquet: {own.where} begins another episode of agent {own.agent.agent_id!r}, but the one from "
                f"{former.where} has not ended by then. Each episode needs an id, and a number, of its own."
            )
        newest[own.agent.agent_id] = own
    facts = first.facts
    return whole_episode(
        facts["id"],
        [own.agent for own in ordered],
        facts["begin"],
        max(own.end for own in members) if facts["end"] is None else facts["end"],
        _ends_of(facts, members),
    )


def _ends_of(facts: Mapping[str, Any], members: Sequence[_Agent]) -> tuple[bool, bool]:
    """Returns whether an episode is terminated, and truncated; tables of RLlib only say it of agents."""
    if facts["is_terminated"] is not None:
        return facts["is_terminated"], facts["is_truncated"]
    if not all(own.agent.is_done for own in members):
        return False, False
    is_truncated = any(own.agent.is_truncated for own in members)
    return not is_truncated, is_truncated


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {one[name]!r} and {other[name]!r}" for name in one if one[name] != other[name])


class _Agent(NamedTuple):
    """An agent's episode of a table, and what the table says about its whole episode.

    Attributes:
        agent: The agent's episode.
        facts: What the table says about the whole episode; None where it does not say it.
        where: The file, and the first row.
        begin: The env step of its first observation.
        end: That of its last one.
    """

    agent: SingleAgentEpisode
    facts: dict[str, Any]
    where: str
    begin: int
    end: int


def _agents_of(table: Any, about: _About, file: str) -> dict[Any, list[_Agent]]:
    """Returns the agents' episodes of a table by episode. The rows of one may lie anywhere in the table.

    Raises:
        OfflineDataError: For rows that are no steps of an agent's episode, one after another.
    """
    arrays = _arrays_of(table, about, file)
    numbers = arrays.get("episode")
    keys = [arrays[name] for name in _KEYS if name in arrays]
    changes = [key[1:] != key[:-1] for key in keys]
    bounds = [0, *(np.flatnonzero(np.any(changes, axis=0)) + 1).tolist(), table.num_rows]
    spans: dict[Any, list[tuple[int, int]]] = {}
    for begin, end in itertools.pairwise(bounds):
        if end > begin:
            spans.setdefault(tuple(key[begin] for key in keys), []).append((begin, end))
    found: dict[Any, list[_Agent]] = {}
    for own in spans.values():
        rows = np.concatenate([np.arange(*span) for span in own])
        if "agent_t" in arrays:
            rows = rows[np.argsort(arrays["agent_t"][rows], kind="stable")]
        _check_rows(arrays, rows, file)
        member = _agent_of(arrays, about, rows, file)
        number = 0 if numbers is None else int(numbers[rows[0]])
        found.setdefault((number, member.facts["id"], file if numbers is None else ""), []).append(member)
    return found


def _check_rows(arrays: Mapping[str, np.ndarray], rows: np.ndarray, file: str) -> None:
    """Checks that rows are the steps of an agent's episode, one after another.

    Raises:
        OfflineDataError: For the first row that is not what follows the row before it.
    """
    last, following = rows[:-1], rows[1:]
    wrong: list[tuple[np.ndarray, str]] = [
        (arrays[name][following] != arrays[name][last], f"its {name} is another one")
        for name in _SAME
        if name in arrays
    ]
    is_over = arrays[Columns.TERMINATEDS][last].astype(bool) | arrays[Columns.TRUNCATEDS][last].astype(bool)
    wrong.append((is_over, "the episode has ended there; each episode needs an eps_id of its own"))
    if "agent_t" in arrays:
        t = arrays["agent_t"]
        wrong.append((t[following] != t[last] + 1, "its agent_t does not follow, so that steps are missing"))
    if "t" in arrays:
        t = arrays["t"]
        is_wrong = t[following] != arrays["new_t"][last] if "new_t" in arrays else t[following] <= t[last]
        wrong.append((is_wrong, "its t does not follow"))
    for name, leaf in arrays.items():
        if _is_obs(name):
            former = arrays[Columns.NEXT_OBS + name[len(Columns.OBS) :]]
            wrong.append((_differ(leaf[following], former[last]), f"its {name} is not the {Columns.NEXT_OBS} there"))
    for is_wrong, why in wrong:
        if is_wrong.any():
            i = int(np.flatnonzero(is_wrong)[0])
            raise OfflineDataError(
                f"from_parquet: {file}, row {rows[i + 1]}, cannot be the step of episode "
                f"{arrays[Columns.EPS_ID][rows[i]]!r} after row {rows[i]}: {why}. Rows with the same eps_id and "
                f"agent_id must be the steps of one episode, in order and without gaps."
            )


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns ``[N]``, whether two arrays differ in their rows; NaN equals NaN."""
    is_same = (one == other) | ((one != one) & (other != other))
    return ~is_same.all(axis=tuple(range(1, one.ndim)))


def _agent_of(arrays: Mapping[str, np.ndarray], about: _About, rows: np.ndarray, file: str) -> _Agent:
    """Returns the agent's episode in some rows."""
    own = {name: leaf[rows] for name, leaf in arrays.items()}

    def first(name: str, otherwise: Any = None) -> Any:
        value = own[name][0] if name in own else otherwise
        return value.item() if isinstance(value, np.generic) else value

    def column(name: str) -> Tree:
        return tree_of(name, about.trees.get(Columns.OBS if name == Columns.NEXT_OBS else name), own)

    def with_last(name: str, following: str) -> Tree:
        return tree_map(lambda a, b: np.concatenate([a, b[-1:]]), column(name), column(following))

    steps = len(rows)
    t = own["t"] if "t" in own else np.arange(steps)
    new_t = own["new_t"][-1] if "new_t" in own else t[-1] + 1
    infos = [_info(own["infos"][i], file, rows[i]) for i in range(steps)] if "infos" in own else [{}] * steps
    last_info = _info(own["new_infos"][-1], file, rows[-1]) if "new_infos" in own else {}
    ends = bool(own[Columns.TERMINATEDS][-1]), bool(own[Columns.TRUNCATEDS][-1])
    id_, agent_id = str(first(Columns.EPS_ID)), _from_json(first(Columns.AGENT_ID))
    columns = {
        Columns.OBS: with_last(Columns.OBS, Columns.NEXT_OBS),
        Columns.INFOS: [*infos, last_info],
        Columns.T: np.append(t, new_t).astype(np.int64),
        Columns.ACTIONS: column(Columns.ACTIONS),
        Columns.REWARDS: np.asarray(own[Columns.REWARDS], np.float64),
        **{name: column(name) for name in about.outputs},
    }
    is_multi = about.is_multi_agent
    agent = agent_episode(
        columns,
        id_=first("agent_eps_id", id_),
        agent_id=agent_id,
        module_id=first(Columns.MODULE_ID, DEFAULT_MODULE_ID if is_multi else None),
        whole_id=id_ if is_multi else None,
        t_started=first("agent_t", 0),
        spaces_of=about.spaces,
        ends=ends,
        action_units=about.action_units,
    )
    facts = {
        "id": id_,
        "is_multi_agent": is_multi,
        "begin": first("eps_t_started", 0),
        "end": first("eps_t"),
        "is_terminated": first("eps_terminated"),
        "is_truncated": first("eps_truncated"),
    }
    begin, end = int(columns[Columns.T][0]), int(columns[Columns.T][-1])
    return _Agent(agent, facts, f"{file}, row {rows[0]},", begin, end)


def _info(value: Any, file: str, row: int) -> dict[str, Any]:
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


def _arrays_of(table: Any, about: _About, file: str) -> dict[str, np.ndarray]:
    """Returns the columns of a table as arrays, in the dtypes and shapes that are known."""
    leaves = dict(about.leaves)
    leaves |= {Columns.NEXT_OBS + name[len(Columns.OBS) :]: own for name, own in leaves.items() if _is_obs(name)}
    arrays: dict[str, np.ndarray] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        kind = str(column.type)
        if column.null_count and name not in _MAY_LACK:
            _refuse(file, name, int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), "no value")
        if name in leaves:
            dtype, shape = leaves[name]
            arrays[name] = _leaf(column, dtype, shape, file, name)
        elif "string" in kind or kind == "null" or kind.startswith(("struct", "map")):
            items = np.empty(len(column), object)
            items[:] = column.to_pylist(maps_as_pydicts="strict") if kind.startswith("map") else column.to_pylist()
            arrays[name] = items
        elif name in _INFOS:
            raise OfflineDataError(
                f"from_parquet: the column {name!r} of {file} holds {kind}, not texts or structs. Pickled infos are "
                f"refused, as reading them can run code. Record again without them."
            )
        else:
            arrays[name] = column.to_numpy(zero_copy_only=False)
            if arrays[name].dtype.kind not in "biuf":
                raise OfflineDataError(f"from_parquet: the column {name!r} of {file} holds {kind}, which is not read.")
    rewards = arrays[Columns.REWARDS]
    if rewards.dtype.kind == "f" and not np.isfinite(rewards).all():
        row = int(np.flatnonzero(~np.isfinite(rewards))[0])
        _refuse(file, Columns.REWARDS, row, f"{rewards[row]}, but rewards must be finite")
    return arrays


def _leaf(column: Any, dtype: str, shape: Sequence[int], file: str, name: str) -> np.ndarray:
    """Returns a column of numbers, or of lists of equally many numbers.

    Raises:
        OfflineDataError: If a list has another length, or lacks a number.
    """
    flat = column
    while hasattr(flat.type, "value_type"):
        flat = flat.flatten()
    size = int(np.prod(shape))
    if flat.null_count or len(flat) != len(column) * size:
        for row, item in enumerate(column.to_pylist()):
            own = np.array(item, object).ravel()
            if len(own) != size or None in own.tolist():
                _refuse(file, name, row, f"{brief(item)}, but {size} numbers are expected")
    return flat.to_numpy(zero_copy_only=False).astype(dtype).reshape(len(column), *shape)


def _refuse(file: str, name: str, row: int, what: str) -> None:
    raise OfflineDataError(
        f"from_parquet: in row {row} of {file}, the column {name!r} has {what}. Every step needs its observations, "
        f"action, reward and ends. Correct the row, or leave out its episode."
    )


def _is_obs(name: str) -> bool:
    return name == Columns.OBS or name.startswith(f"{Columns.OBS}.")


def _about_rllib(file: Path, table: Any, both: tuple[Space | None, Space | None], is_normalized: bool | None) -> _About:
    """Returns what is known of a table without our metadata.

    Args:
        file: The file.
        table: The table.
        both: Its observation and action space.
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
    needed = (
        *(Columns.EPS_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS),
        *(Columns.TERMINATEDS, Columns.TRUNCATEDS),
    )
    missing = [name for name in needed if name not in names]
    if missing:
        raise OfflineDataError(
            f"from_parquet: {file} is not a table of agents' steps, because it has no column {missing[0]!r}. Its "
            f"columns are {', '.join(map(repr, names))}."
        )
    leaves: dict[str, Any] = {}
    plain = {
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.REWARDS,
        *_FACTS,
        "t",
        "infos",
        Columns.NEXT_OBS,
    }
    plain |= {Columns.TERMINATEDS, Columns.TRUNCATEDS, "weights_seq_no", "new_infos"}
    outputs = [name for name in names if name not in plain and name not in (Columns.OBS, Columns.ACTIONS)]
    for name in (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, *outputs):
        kind = str(table.schema.field(name).type)
        if "string" in kind or "binary" in kind:
            raise OfflineDataError(
                f"from_parquet: the column {name!r} of {file} holds texts or bytes. RLlib compresses columns to "
                f"pickled objects, which can run code when they are read, so they are refused. Record them again with "
                f"output_compress_columns=[], or convert them with RLlib."
            )
        leaves[name] = _leaf_of(table.column(name), both[0] if name == Columns.OBS else None)
    agents = table.column(Columns.AGENT_ID).to_pylist() if Columns.AGENT_ID in names else []
    is_multi = any(agent is not None for agent in agents)
    units = None if is_normalized is None else NORMALIZED if is_normalized else ENV
    leaves.pop(Columns.NEXT_OBS)
    return _About(is_multi, both, units, outputs, {}, leaves)


def _leaf_of(column: Any, space: Space | None) -> tuple[str, list[int]]:
    """Returns the dtype and the shape of a column of numbers, or of lists of numbers that are equally long."""
    first = np.array(column[0].as_py())
    if space is not None and space.shape is not None and space.dtype is not None:
        return np.dtype(space.dtype).str, list(space.shape)
    kind = column.type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    empty = _pyarrow()[0].nulls(0, kind).to_numpy(zero_copy_only=False)
    return empty.dtype.str, list(first.shape)
