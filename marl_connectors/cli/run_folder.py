"""The folder of a run, which holds all of its files.

::

    config.json          the settings of the run
    baselines.json       returns of random play and of the untrained modules
    metrics.jsonl        one JSON object per iteration
    tensorboard/         the same numbers as TensorBoard events, unless --track leaves them out; for single agents, only
                         those in the baselines
    curves.png           return per module over agent steps
    checkpoints/000020/  one folder per checkpoint, and the files ``latest`` and ``best`` with the names of these two
    untrained.gif        an episode of the untrained modules, for the beginning of the video
    video.gif            episodes of the untrained and the trained modules; video.mp4 with --video mp4
    videos/000020.gif    episodes of the modules after an iteration, with --video-every
    final.json           the returns of the trained modules, when the run has reached its end

A run can be resumed from its folder after any end, even a ``kill -9`` or a power cut: files are replaced in one step,
and metrics are on disk before the checkpoint of the same iteration.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.figures import agent_steps, module_returns
from marl_connectors.algorithms.fitting.run_files import (
    AGENT_RETURNS,
    CHECKPOINTS,
    CONFIG,
    METRICS,
    TEMPORARY,
    RunFiles,
    go_back_to,
    is_leftover,
    is_number,
    iteration_of,
    reading,
    remove_leftovers,
    replace_file,
    writing,
    wrong_results,
)
from marl_connectors.callbacks.trackers import MAX_AGENT_SERIES
from marl_connectors.checkpoints import BEST, LATEST, find_checkpoint, is_checkpoint, sync_directory
from marl_connectors.cli.pictures import draw_curves
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.json_data import brief, jsonable, parsed_json
from marl_connectors.programs import PROGRAM, command

BASELINES, CURVES, UNTRAINED_VIDEO, FINAL, EVENTS, VIDEOS = (
    "baselines.json",
    "curves.png",
    "untrained.gif",
    "final.json",
    "tensorboard",
    "videos",
)
SEEDS = "seeds.json"
"""The file in the folder of runs of several seeds with their options and results."""
SWEEP = "sweep.json"
"""The file in the folder of a sweep with its options and results."""
DRAWN, MOST_LIKELY = "drawn_actions", "most_likely_actions"
WAYS = {DRAWN: "drawn actions", MOST_LIKELY: "most likely actions"}
"""The ways of acting in which policies are measured, by their keys in ``final.json``, in words."""

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)
_CLAIM_S = 5.0
"""The seconds in which a command that has been killed leaves its folder: its processes end a little later than it."""


class Claim:
    """The right to write to a folder, which one process has until ``release`` or its end."""

    def __init__(self, path: Path) -> None:
        """Claims a folder. Where there are no locks on folders, as on Windows, every claim succeeds.

        Raises:
            ConfigError: If another process has it.
        """
        self._fd = -1
        try:
            import fcntl

            self._fd = os.open(path, os.O_RDONLY)
        except (ImportError, OSError):  # the folder cannot be read, as the next step says
            return
        end = time.monotonic() + _CLAIM_S
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < end:
                    time.sleep(0.1)
                    continue
                self.release()
                raise ConfigError(
                    f"{path} is used by another command, which is still running. Wait for its end, or use another "
                    f"folder."
                ) from None
            except OSError:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets others claim the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RunFolder(RunFiles):
    """A run of the command line on disk. ``create`` and ``reopen`` make these objects.

    Attributes:
        config: The content of ``config.json``.
        baselines: The content of ``baselines.json``: ``{"random_play": ..., "at_start": ...}``.
        last_steps: Agent steps at the last iteration that was logged.
    """

    _option = "--keep-best"

    def __init__(self, path: Path, config: dict[str, Any], baselines: dict[str, Any], **keep: Any) -> None:
        self.config = config
        self.baselines = baselines
        self.last_steps = 0
        self._series: dict[str, list[tuple[int, float, float]]] = {}
        super().__init__(path, **keep)
        self.resume = ""  # the command for this folder

    @classmethod
    def create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        baselines: Mapping[str, Any],
        *,
        numbered: bool,
        is_new: bool,
        claims: contextlib.ExitStack,
        **keep: Any,
    ) -> RunFolder:
        """Makes the folder of a new run, or of a run that starts again because it had no checkpoint yet.

        Args:
            path: The folder.
            config: The content of ``config.json``, as JSON data.
            baselines: Results of random play and of the untrained modules, as JSON data.
            numbered: Whether to use ``path-2``, ``path-3``, ... if ``path`` exists, instead of that folder.
            is_new: Whether nothing was written to the folder before.
            claims: Gets the claim of the folder of a new run. That of a run that starts again is claimed already.
            **keep: ``keep_best`` and ``keep_checkpoints``, as in the class.

        Raises:
            CheckpointError: If the folder cannot be written.
            ConfigError: If another run has begun in it.
        """
        with writing(path):
            path = make_folder(path, numbered)
            if is_new:
                claims.enter_context(Claim(path))
                if not _is_unused(path):
                    raise ConfigError(
                        f"--out: expected a new or empty folder, but another run has begun in {path}. Choose another."
                    )
            for name in (EVENTS, VIDEOS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (METRICS, BASELINES, UNTRAINED_VIDEO, f"{CHECKPOINTS}/{BEST}"):
                (path / name).unlink(missing_ok=True)
            _write_json(path / CONFIG, config)  # from now on, the run can be resumed
            _write_json(path / BASELINES, baselines)
            (path / METRICS).touch()
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            remove_leftovers(path)
            sync_directory(path)
            return cls(path, dict(config), dict(baselines), **keep)

    @classmethod
    def reopen(cls, path: Path, checkpoint: Path, **keep: Any) -> RunFolder:
        """Opens the folder of a run to resume. Everything that was logged after the checkpoint is dropped.

        Args:
            path: The folder.
            checkpoint: A checkpoint of the run.
            **keep: ``keep_best`` and ``keep_checkpoints``, as in the class.

        Raises:
            CheckpointError: If the run does not exist, or if its files are damaged.
        """
        config, baselines = read_config(path), read_baselines(path)
        iteration = iteration_of(checkpoint)
        if missing := go_back_to(path, iteration):
            _LOG.warning(
                "%s has no rows of %d of the %d iterations until the checkpoint. The run continues without them; they "
                "will be missing in its curves.",
                *(path / METRICS, missing, iteration),
            )
        with writing(path):
            replace_file(path / CHECKPOINTS / LATEST, f"{checkpoint.name}\n".encode())
            (path / FINAL).unlink(missing_ok=True)
            return cls(path, config, baselines, **keep)

    def change_config(self, changes: Mapping[str, Any]) -> None:
        """Replaces parts of ``config.json``.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        self.config = jsonable({**self.config, **changes})
        with writing(self.path / CONFIG, self.resume):
            _write_json(self.path / CONFIG, self.config)

    def save_checkpoint(self, algo: Any, iteration: int, *, in_between: bool = False) -> Path:
        """Saves a checkpoint, and draws the curves again unless the checkpoint is one in between."""
        checkpoint = super().save_checkpoint(algo, iteration, in_between=in_between)
        if not in_between:
            self.draw_curves()
        return checkpoint

    def _remember(self, row: Mapping[str, Any]) -> None:
        super()._remember(row)
        self.last_steps = agent_steps(row)
        for module_id, (mean, std) in module_returns(from_json(row["env_runners"])).items():
            self._series.setdefault(module_id, []).append((agent_steps(row), mean, std))

    def draw_curves(self) -> None:
        """Draws the returns so far.

        Raises:
            CheckpointError: If the picture cannot be written.
        """
        random_play = module_returns(from_json(self.baselines["random_play"]))
        levels = {module_id: mean for module_id, (mean, _) in random_play.items()}
        picture = io.BytesIO()
        draw_curves(picture, self._series, levels, self.path.name)
        with writing(self.path / CURVES, self.resume):
            replace_file(self.path / CURVES, picture.getvalue())

    def write_untrained_video(self, film: bytes) -> None:
        """Writes the GIF of an episode of the untrained modules."""
        with writing(self.path / UNTRAINED_VIDEO, self.resume):
            replace_file(self.path / UNTRAINED_VIDEO, film)

    @property
    def is_finished(self) -> bool:
        """Whether the trained modules have been measured, so that the run is complete."""
        return (self.path / FINAL).exists()

    def write_final(self, results: Mapping[str, Any]) -> None:
        """Writes ``final.json`` with the returns of the trained modules; it marks the run as finished."""
        with writing(self.path / FINAL, self.resume):
            _write_json(self.path / FINAL, results)


# What exists, and what can be made -----------------------------------------------------------------------------------


def check_can_be_made(path: Path, *, numbered: bool) -> None:
    """Checks that a run folder can be made, by writing next to it or into it. Leaves no files behind.

    Args:
        path: The folder to be made.
        numbered: Whether the folder may get another name if ``path`` exists.

    Raises:
        ConfigError: If ``path`` is taken or cannot be written.
    """
    try:
        parent = path.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        if parent == path.absolute():
            if not numbered and not _is_unused(path):
                resumes = "sweep" if (path / SWEEP).is_file() else "train"
                is_taken_up = is_run(path) or any((path / name).is_file() for name in (SEEDS, SWEEP))
                resume = f", or continue with: {command(PROGRAM, resumes, '--resume', path)}"
                raise ConfigError(
                    f"--out: expected a new or empty folder, but {path} exists. Choose another"
                    + (resume if is_taken_up else ".")
                )
            parent = parent.parent if numbered else parent
        if not parent.is_dir():
            raise OSError(f"{parent} is no folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", suffix=TEMPORARY, dir=parent) as temporary:
            folder = Path(temporary) / path.absolute().relative_to(parent)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text("{}")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--out: expected a place that can be written, but {path} cannot: {why}. Choose another folder."
        ) from error


def is_run(path: Path) -> bool:
    """Whether the folder has a run to resume, possibly from its beginning."""
    return os.path.isfile(path / CONFIG) and os.path.isdir(path / CHECKPOINTS)  # False for words that are no path


def _is_unused(path: Path) -> bool:
    """Whether the folder is empty, except for the remains of an interrupted start."""
    return path.is_dir() and all(is_leftover(entry) for entry in path.iterdir())


def latest_checkpoint(path: Path) -> Path:
    """Returns the newest checkpoint of a run folder.

    Raises:
        CheckpointError: If the folder has no checkpoint.
    """
    return find_checkpoint(path)


def checkpoint_to_resume(path: Path) -> Path | None:
    """Returns the checkpoint to resume from; None if the run ended before its first checkpoint.

    Raises:
        CheckpointError: If the run names a checkpoint that does not exist.
    """
    folder = path / CHECKPOINTS
    if (folder / LATEST).exists():
        checkpoint = find_checkpoint(path)
        iteration_of(checkpoint)
        return checkpoint
    with reading(folder):
        found = [entry for entry in folder.iterdir() if is_checkpoint(entry)] if folder.is_dir() else []
    checkpoint = max((entry for entry in found if is_number(entry.name)), key=iteration_of, default=None)
    if checkpoint is None:
        _check_had_none(path)
    return checkpoint


def _check_had_none(path: Path) -> None:
    """Checks that a run without checkpoints never had one. It begins anew, which overwrites what it has logged.

    Raises:
        CheckpointError: If its checkpoints are lost.
    """
    with reading(path):
        is_lost = (path / CURVES).exists() or (path / FINAL).exists()
        is_lost |= (
            not (path / CHECKPOINTS).is_dir() and (path / METRICS).is_file() and bool((path / METRICS).stat().st_size)
        )
    if is_lost:
        raise CheckpointError(
            f"train --resume: {path} had checkpoints, but none is in {path / CHECKPOINTS} any more. Put them back, or "
            f"start a new run with the same settings: {command(PROGRAM, 'train', '--config', path / CONFIG)}"
        )


# Reading ------------------------------------------------------------------------------------------------------------


def read_config(path: Path) -> dict[str, Any]:
    """Reads ``config.json``, which defines a run.

    Raises:
        CheckpointError: If the folder is missing, or is not the folder of a run.
    """
    with reading(path):
        is_folder = path.is_dir()
    if not is_folder:
        raise CheckpointError(f"run folder: expected one at {path}, but there is none. Check the path.")
    return _read_json(path, CONFIG)


def read_baselines(path: Path) -> dict[str, Any]:
    """Reads ``baselines.json``: the returns of random play and of the untrained modules.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    data = _read_json(path, BASELINES)
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
    data = _read_json(path, FINAL)
    if wrong := wrong_results(data, "the results") or next(
        (wrong for way in WAYS if (wrong := wrong_results(data.get(way, {}), way))), ""
    ):
        raise CheckpointError(f"{path / FINAL} is damaged: {wrong}. Delete it, and resume the run.")
    return data


def _read_json(path: Path, name: str) -> dict[str, Any]:
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


# Writing ------------------------------------------------------------------------------------------------------------


def make_folder(path: Path, numbered: bool) -> Path:
    """Makes a folder and returns its path: ``path-2``, ``path-3``, ... if ``path`` exists and may be ``numbered``."""
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            sync_directory(candidate.absolute().parent)
            return candidate
        except FileExistsError:
            if not numbered and candidate.is_dir():
                return candidate  # an unused folder, as check_can_be_made found, or that of a run that starts again
            if not numbered:
                raise
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n").encode())


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


def agents_seen(baselines: Mapping[str, Any]) -> set[str]:
    """Returns the agents that were in the episodes of any baseline."""
    return {agent_id for results in baselines.values() for agent_id in results.get(AGENT_RETURNS, {})}


def agents_of(baselines: Mapping[str, Any]) -> frozenset[str]:
    """Returns the agents that were in the episodes of all baselines, at most ``MAX_AGENT_SERIES``."""
    seen = [list(results.get(AGENT_RETURNS, {})) for results in baselines.values()]
    both = [agent_id for agent_id in seen[0] if all(agent_id in other for other in seen[1:])] if seen else []
    return frozenset(both[:MAX_AGENT_SERIES])
