"""Reads and writes the files in the folder of a run, each in one step."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marl_connectors.callbacks.success import SUCCESS
from marl_connectors.callbacks.trackers import leaves
from marl_connectors.checkpoints import BEST, CHECKPOINTS, METRICS, is_checkpoint, sync_directory
from marl_connectors.errors import CheckpointError
from marl_connectors.json_data import brief, is_whole, jsonable, parsed_json

CONFIG = "config.json"
BASELINES, CURVES, FINAL, EVENTS = "baselines.json", "curves.png", "final.json", "tensorboard"
UNTRAINED_VIDEO, VIDEOS = "untrained.gif", "videos"
AGENT_RETURNS = "agent_episode_returns_mean"
TEMPORARY = ".tmp"
"""The end of the names of files that are being written."""
DRAWN, MOST_LIKELY = "drawn_actions", "most_likely_actions"
WAYS = {DRAWN: "drawn actions", MOST_LIKELY: "most likely actions"}
"""The ways of acting in which policies are measured, by their keys in ``final.json``, in words."""


# Checkpoints ----------------------------------------------------------------------------------------------------------


def go_back_to(path: Path, iteration: int, resume: str = "") -> int:
    """Drops everything from the files of a run that was written after an iteration, and what a kill has left half done.

    Args:
        path: The folder of the run.
        iteration: The iteration.
        resume: As for ``writing``.

    Returns:
        The number of iterations until this one of which the metrics have no row.

    Raises:
        CheckpointError: If the metrics are damaged, or the files cannot be written.
    """
    rows, text = read_metrics(path / METRICS, up_to=iteration)
    with writing(path, resume):
        remove_leftovers(path)
        replace_file(path / METRICS, text)
        if (best_iteration(path) or 0) > iteration:
            (path / CHECKPOINTS / BEST).unlink()
    return iteration - len({row["training_iteration"] for row in rows})


def remove_leftovers(path: Path) -> None:
    """Removes the files that were being written when a run was killed, from its folder and its checkpoints."""
    for entry in [*path.iterdir(), *(path / CHECKPOINTS).iterdir()]:
        if is_leftover(entry) or re.fullmatch(r"\.\d+\.tmp-[0-9a-f]+", entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def is_leftover(path: Path) -> bool:
    """Whether a file was being written when a run was killed."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint, which never exists half removed under its name."""
    going = path.with_name(f".{path.name}.tmp-0")
    os.rename(path, going)
    shutil.rmtree(going)


def best_iteration(path: Path) -> int | None:
    """Returns the iteration of the best checkpoint of a run folder; None if it has none that can be read."""
    try:
        name = (path / CHECKPOINTS / BEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(name) if is_number(name) and is_checkpoint(path / CHECKPOINTS / name) else None


def iteration_of(checkpoint: Path) -> int:
    """Returns the iteration of a checkpoint, which is its name.

    Raises:
        CheckpointError: If the name is something else.
    """
    if not is_number(checkpoint.name):
        raise CheckpointError(
            f"{checkpoint.parent.parent}: expected the name of a checkpoint to be its iteration, got {checkpoint.name}."
        )
    return int(checkpoint.name)


def is_number(name: str) -> bool:
    """Whether a name is that of a checkpoint of a run."""
    return re.fullmatch("[0-9]{1,18}", name) is not None


# Reading and writing --------------------------------------------------------------------------------------------------


def read_metrics(path: Path, up_to: int | None = None) -> tuple[list[dict[str, Any]], bytes]:
    """Reads the rows of the metrics, and their text. A last line that a crash cut short is left out.

    Args:
        path: The file.
        up_to: The iteration at which to stop reading; None to read all.

    Raises:
        CheckpointError: If a line is not a row of metrics. Names the line.
    """
    with reading(path):
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = parsed_json(line)
            wrong = _wrong_row(row)
        except ValueError as error:
            row, wrong = {}, f"expected the JSON object of an iteration ({error})"
        if wrong:
            raise CheckpointError(
                f"{path}, line {number}, is damaged: {' '.join(wrong.split())}. Correct it, or delete the line."
            )
        if up_to is not None and row["training_iteration"] > up_to:
            break
        rows.append(row)
        if row["training_iteration"] == up_to:
            break
    return rows, b"".join(line + b"\n" for line in lines[: len(rows)])


def names_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of an iteration's numbers, also of those without a value."""
    return (name for name, value in leaves(row) if value is None or isinstance(value, (int, float)))


def _wrong_row(row: Any) -> str:
    """Returns a text that says what is wrong with the results of an iteration; "" if nothing is."""
    if not isinstance(row, dict):
        return f"expected a JSON object, but got {brief(row)}"
    for name, at_least in (("training_iteration", 1), ("num_agent_steps_sampled_lifetime", 0)):
        if not is_whole(row.get(name), at_least, 2**53):
            return f"expected {name!r} to be a whole number of at least {at_least}, but got {brief(row.get(name))}"
    return wrong_results(row.get("env_runners"), "env_runners")


def wrong_results(results: Any, where: str) -> str:
    """Returns a text that says what is wrong with results of env runners; "" if nothing is."""
    if not isinstance(results, dict):
        return f"expected {where!r} to be a JSON object, but got {brief(results)}"
    for name in ("module_episode_returns", AGENT_RETURNS):
        if not isinstance(results.get(name, {}), dict):
            return f"expected {where}/{name} to be a JSON object, but got {brief(results[name])}"
    for module_id, stats in results.get("module_episode_returns", {}).items():
        place = f"{where}/module_episode_returns/{brief(module_id)[1:-1]}"
        if not isinstance(stats, dict):
            return f"expected {place} to be a JSON object, but got {brief(stats)}"
        for key in ("mean", "std"):
            value = stats.get(key, "nothing")
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2.0**1023
            if not (is_number or value is None):
                return f"expected {place}/{key} to be a number or null, but got {brief(value)}"
    success = results.get(SUCCESS)
    if success is not None and not (isinstance(success, (int, float)) and not isinstance(success, bool)):
        return f"expected {where}/{SUCCESS} to be a number or null, but got {brief(success)}"
    number = results.get("num_episodes", 0)
    return "" if is_whole(number) else f"expected {where}/num_episodes to be a whole number, but got {brief(number)}"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the system's error for a file that is read into a CheckpointError."""
    try:
        yield
    except OSError as error:
        name = str(path) if len(str(path)) < 300 else f"{str(path)[:300]}..."
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}. Check the path.") from error


@contextlib.contextmanager
def writing(path: Path, resume: str = "") -> Iterator[None]:
    """Turns the system's error for a file that is written, such as a full disk, into a CheckpointError.

    Args:
        path: What is written.
        resume: How the run is resumed; ``""`` if it is no file of a run, or the run has nothing to resume yet.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        place = error.filename if isinstance(error.filename, str) else path
        room = "make room, or make the place writable"
        hint = f"{room.capitalize()}, and try again."
        if resume:
            hint = f"What was saved before is complete: {room}, and continue with: {resume}"
        raise CheckpointError(f"{place} could not be written: {why}. {hint}") from error


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that it is never half written. Afterwards the file is on disk."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Makes sure that the content of a file is on disk."""
    with open(path, "ab") as file:
        os.fsync(file.fileno())


# What is in them ----------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """Reads ``config.json``, which defines a run.

    Raises:
        CheckpointError: If the folder is missing, or is not the folder of a run.
    """
    with reading(path):
        is_folder = path.is_dir()
    if not is_folder:
        raise CheckpointError(f"run folder: expected one at {path}, but there is none. Check the path.")
    return read_json(path, CONFIG)


def read_baselines(path: Path) -> dict[str, Any]:
    """Reads ``baselines.json``: the returns of random play and of the untrained modules; ``{}`` if there is none.

    Raises:
        CheckpointError: If the file is damaged.
    """
    if not (path / BASELINES).exists():
        return {}
    data = read_json(path, BASELINES)
    for name in ("random_play", "at_start"):
        wrong = wrong_results(data.get(name), name)
        if wrong:
            raise CheckpointError(f"{path / BASELINES} is damaged: {wrong}. Correct it there, or take a copy of it.")
    return {name: data[name] for name in ("random_play", "at_start")}


def read_final(path: Path) -> dict[str, Any] | None:
    """Reads ``final.json``: the returns of the trained modules. None if the run has not reached its end.

    Raises:
        CheckpointError: If the file is damaged.
    """
    if not (path / FINAL).exists():
        return None
    data = read_json(path, FINAL)
    if wrong := wrong_results(data, "the results") or next(
        (wrong for way in WAYS if (wrong := wrong_results(data.get(way, {}), way))), ""
    ):
        raise CheckpointError(f"{path / FINAL} is damaged: {wrong}. Delete it, and resume the run.")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replaces a JSON file in one step."""
    replace_file(path, (json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Reads a JSON file in the folder of a run or of several, which its name defines.

    Raises:
        CheckpointError: If it is missing or damaged.
    """
    try:
        with reading(path / name):
            data = parsed_json((path / name).read_bytes())
    except CheckpointError as cause:
        if isinstance(cause.__cause__, FileNotFoundError):
            raise CheckpointError(
                f"{path} is not the folder of a run, because it has no {name}. Check the path."
            ) from cause
        raise
    except ValueError as cause:
        raise CheckpointError(f"{path / name} is damaged: it is not valid JSON ({cause}).") from cause
    if not isinstance(data, dict):
        raise CheckpointError(f"{path / name} is damaged: expected a JSON object, but got {brief(data)}.")
    return data


# Results ------------------------------------------------------------------------------------------------------------


def from_json(env_runner_results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns results of the env runners that ``jsonable`` wrote, with NaN instead of None."""
    returns = env_runner_results.get("module_episode_returns", {})
    return {
        "module_episode_returns": {
            module_id: {key: math.nan if value is None else value for key, value in stats.items()}
            for module_id, stats in returns.items()
        }
    }
