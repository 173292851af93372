"""Recorded episodes as Minari data sets. Minari has no data of several agents, so each agent has a data set."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces as gym_spaces

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV
from marl_connectors.episodes.multi_agent_episode import agent_episode_id
from marl_connectors.errors import MissingDependencyError, OfflineDataError
from marl_connectors.offline.exchange import (
    AgentFacts,
    AgentPart,
    AgentRows,
    agent_part,
    leaf_columns,
    samples_of_rows,
    whole_episodes,
)
from marl_connectors.packages import how_to_install
from marl_connectors.state import Count, as_state, fields_of
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, Tree

_VERSION: Final = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")
_KEY: Final = "marl_connectors"


class _Note(AgentFacts):
    """What the metadata of an episode say of it.

    Attributes:
        t: The env step of each observation.
        sha256: The ``_digest`` of the episode, if nothing may have changed it.
    """

    t: list[Count]
    sha256: str | None = None


def to_minari(data: Any, dataset_id: str, **metadata: Any) -> dict[AgentID | None, Any]:
    """Writes recorded episodes as Minari data sets, in the folder that Minari uses (``MINARI_DATASETS_PATH``).

    Several agents have a data set each: ``NAME/AGENT-v0`` for the data set ``NAME-v0``. Actions are
    those of the environment. Infos, module outputs and lookbacks are
    left out. ``from_minari`` puts the agents' episodes together again.

    Args:
        data: A folder or file of recorded episodes, a list of them, an EpisodeReader, or a list of episodes.
        dataset_id: The id, ``(namespace/)name-v0``.
        **metadata: Arguments of ``minari.create_dataset_from_buffers``, such as ``author`` or ``algorithm_name``.

    Returns:
        Agent (None if there is a single one) to data set.

    Raises:
        OfflineDataError: If the id is not one of Minari's, an agent's spaces are unknown or change, or Minari refuses
            the data.
        MissingDependencyError: If Minari is not installed.
    """
    minari = _minari()
    match = _VERSION.fullmatch(dataset_id)
    if match is None:
        raise OfflineDataError(f"to_minari: the id {dataset_id!r} has no version. Write it as NAME-v0.")
    by_agent: dict[AgentID | None, list[AgentRows]] = {}
    for sample in samples_of_rows(data, "to_minari"):
        for rows in sample:
            by_agent.setdefault(rows.agent.agent_id, []).append(rows)
    found: dict[AgentID | None, Any] = {}
    for agent_id, members in by_agent.items():
        is_multi = members[0].is_multi_agent
        name = f"{match['name']}/{_agent_name(agent_id)}-v{match['version']}" if is_multi else dataset_id
        found[agent_id] = _written(minari, name, agent_id, members, metadata)
    if not found:
        raise OfflineDataError("to_minari: there is no episode with a step in the data.")
    return found


def _minari() -> Any:
    try:
        import minari  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependencyError(
            f"Minari data sets need minari, which is not installed. {how_to_install('minari[arrow]')}"
        ) from error
    return minari


def _agent_name(agent_id: AgentID) -> str:
    name = str(agent_id)
    if not re.fullmatch(r"[-_\w]+", name):
        raise OfflineDataError(
            f"to_minari: agent {agent_id!r} cannot be the name of a data set, which has letters, digits, - and _ only. "
            f"Rename the agents, or use to_parquet."
        )
    return name


def _written(
    minari: Any, name: str, agent_id: AgentID | None, members: Sequence[AgentRows], metadata: Mapping[str, Any]
) -> Any:
    """Writes the data set of an agent."""
    from minari.data_collector import EpisodeBuffer  # pyright: ignore[reportMissingImports]

    first = members[0]
    both = first.agent.observation_space, first.agent.action_space
    for rows in members:
        if None in both or (rows.agent.observation_space, rows.agent.action_space) != both:
            raise OfflineDataError(
                f"to_minari: agent {agent_id!r} has other spaces in episode {rows.facts.eps_id!r} than in "
                f"{first.facts.eps_id!r}, or none, but a data set has the same ones for all episodes. Use to_parquet."
            )
    buffers = [
        EpisodeBuffer(
            id=i,
            observations=_in_dtypes(rows.observations, both[0]),
            actions=_in_dtypes(rows.actions_for_env(), both[1]),
            rewards=rows.rewards.tolist(),
            terminations=_last(len(rows.rewards), rows.agent.is_terminated),
            truncations=_last(len(rows.rewards), rows.agent.is_truncated),
        )
        for i, rows in enumerate(members)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the user has given no author, and so on
        try:
            dataset = minari.create_dataset_from_buffers(
                name,
                buffers,
                **{
                    "observation_space": both[0],
                    "action_space": both[1],
                    "data_format": "arrow",
                    "jpeg_encoding": False,
                    **metadata,
                },
            )
        except (AssertionError, TypeError, ValueError) as error:
            raise OfflineDataError(f"to_minari: Minari refuses the data set {name!r}: {error}") from error
    notes = [_Note(**fields_of(rows.facts), t=rows.t.tolist()) for rows in members]
    if not dataset.storage.metadata.get("jpeg_encoding"):  # which changes observations
        for note, buffer in zip(notes, buffers, strict=True):
            note.sha256 = _digest(note, buffer, both)
    dataset.storage.update_episode_metadata([{_KEY: json.dumps(fields_of(note))} for note in notes])
    dataset.storage.update_metadata({_KEY: len(notes)})
    return dataset


def _digest(note: _Note, data: Any, spaces_of: tuple[Any, Any]) -> str:
    """Returns a checksum of the data of an episode, and of what is known about it.

    Args:
        note: What is known.
        data: The episode as Minari has it.
        spaces_of: The observation space and the action space.
    """
    columns = {
        "observations": _in_dtypes(data.observations, spaces_of[0]),
        "actions": _in_dtypes(data.actions, spaces_of[1]),
        "rewards": np.asarray(data.rewards, np.float64),
        "terminations": np.asarray(data.terminations, np.bool_),
        "truncations": np.asarray(data.truncations, np.bool_),
    }
    found = hashlib.sha256(json.dumps({**fields_of(note), "sha256": None}, sort_keys=True).encode())
    for name, column in columns.items():
        for key, leaf in leaf_columns(name, column):
            found.update(f"{key} {leaf.dtype} {leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def _in_dtypes(column: Tree, space: Any) -> Tree:
    """Returns a column in the dtypes of its space, as Minari wants it."""
    if isinstance(space, (gym_spaces.Dict, gym_spaces.Tuple)):
        parts = {key: _in_dtypes(column[key], part) for key, part in spaces.parts_of(space)}
        return parts if isinstance(space, gym_spaces.Dict) else tuple(parts.values())
    return spaces.in_dtype(column, space.dtype)


def _last(steps: int, value: bool) -> list[bool]:
    return [False] * (steps - 1) + [bool(value)]


def from_minari(datasets: Any) -> list[Any]:
    """Returns the episodes of Minari data sets.

    Args:
        datasets: A data set or its id, for SingleAgentEpisodes; or ``{agent_id: data set or id}``, for
            MultiAgentEpisodes. The latter must be data sets of ``to_minari``, or have the same number of episodes, in
            which all agents observe at every step from the beginning.

    Raises:
        OfflineDataError: If a data set is missing, or the data sets do not fit together.
        MissingDependencyError: If Minari is not installed.
    """
    minari = _minari()
    is_multi = isinstance(datasets, Mapping)
    by_episode: dict[int, list[AgentPart]] = {}
    counts: dict[Any, int | None] = {}
    for agent_id, given in (datasets if is_multi else {None: datasets}).items():
        found = _read(minari, given, agent_id, is_multi)
        counts[agent_id] = len(found) if any(part.facts.eps_t is None for part in found) else None
        for part in found:
            by_episode.setdefault(part.facts.episode, []).append(part)
    if len(set(counts.values())) > 1:
        raise OfflineDataError(
            f"from_minari: the data sets have different numbers of episodes ({counts}), and no metadata of to_minari "
            f"that says which of them belong together. Read each alone, or make data sets that fit."
        )
    return whole_episodes("from_minari", by_episode)


def _read(minari: Any, given: Any, agent_id: AgentID | None, is_multi_agent: bool) -> list[AgentPart]:
    """Returns the episodes of a data set."""
    where = repr(given)
    try:
        dataset = minari.load_dataset(given) if isinstance(given, str) else given
        where = f"{dataset.id} ({dataset.storage.data_path})"
        return list(_episodes_of(dataset, agent_id, is_multi_agent))
    except OfflineDataError:
        raise
    except Exception as error:  # Minari lets through what the libraries that it reads with raise
        raise _unreadable(where, f"{type(error).__name__}: {error}") from error


def _unreadable(where: str, why: str) -> OfflineDataError:
    return OfflineDataError(
        f"from_minari: the data set {where} cannot be read ({why}). Check the name with minari.list_local_datasets(), "
        f"or write or download it again."
    )


def _check_table(storage: Any, index: int) -> None:
    """Checks the table of an episode, as pyarrow ends the process when values of a damaged one are read."""
    if getattr(storage, "FORMAT", None) == "arrow":
        from pyarrow.dataset import dataset

        folder = Path(storage.data_path) / str(index)
        files = [str(file) for file in folder.iterdir() if file.suffix == ".arrow"]
        dataset(files, format="arrow").to_table().validate(full=True)


def _episodes_of(dataset: Any, agent_id: AgentID | None, is_multi_agent: bool) -> Iterator[AgentPart]:
    both = dataset.observation_space, dataset.action_space
    for number, index in enumerate(map(int, dataset.episode_indices)):
        where = f"{dataset.id}, episode {index} ({Path(dataset.storage.data_path) / str(index)})"
        note = None
        try:
            _check_table(dataset.storage, index)
            (data,), (metadata,) = dataset.iterate_episodes([index]), dataset.storage.get_episode_metadata([index])
            if _KEY in metadata:
                note = as_state(_Note, json.loads(metadata[_KEY]))
            is_lacking = note is None and index < dataset.storage.metadata.get(_KEY, 0)
            why = "its metadata lack what to_minari noted" if is_lacking else _damage_of(data, metadata, note, both)
        except Exception as error:  # Minari lets through what the libraries that it reads with raise
            why = f"{type(error).__name__}: {error}"
        if why:
            raise _unreadable(where, why)
        if note is None:
            own_id = agent_episode_id(str(number), agent_id, 0) if is_multi_agent else str(number)
            steps = list(range(len(data.rewards) + 1))
            note = _Note(number, str(number), 0, None, None, None, own_id, agent_t=0, module_id=None, t=steps)
        yield agent_part(
            {
                Columns.OBS: _as_arrays(data.observations),
                Columns.INFOS: [{} for _ in note.t],
                Columns.T: np.array(note.t, np.int64),
                Columns.ACTIONS: _as_arrays(data.actions),
                Columns.REWARDS: np.asarray(data.rewards, np.float64),
            },
            note,
            agent_id,
            is_multi_agent=is_multi_agent,
            spaces_of=both,
            ends=(bool(data.terminations[-1]), bool(data.truncations[-1])),
            action_units=ENV,
            where=where,
        )


def _damage_of(data: Any, metadata: Mapping[str, Any], note: _Note | None, spaces_of: tuple[Any, Any]) -> str | None:
    """Returns what is wrong with an episode; None if its parts fit together.

    Args:
        data: The episode as Minari has it.
        metadata: Its metadata.
        note: What ``to_minari`` noted in them, if it wrote the episode.
        spaces_of: The observation space and the action space.
    """
    steps = len(data.rewards)
    if metadata.get("total_steps", steps) != steps:
        return f"it has {steps} steps, but its metadata say {metadata['total_steps']}"
    if note is not None and note.sha256 not in (None, _digest(note, data, spaces_of)):
        return "it is not what to_minari wrote: its SHA-256 differs"
    return None


def _as_arrays(column: Tree) -> Tree:
    """Returns writeable arrays; what is no array or tree of arrays is refused."""
    if any(not isinstance(leaf, np.ndarray) for leaf in leaves(column)):
        raise OfflineDataError("from_minari: the data set has observations or actions that are not arrays of numbers.")
    return tree_map(np.array, column)
