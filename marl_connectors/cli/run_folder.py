"""The folder in which everything of a run is.

::

    config.json          what defines the run
    baselines.json       returns of random play and of the untrained modules
    metrics.jsonl        one JSON object per iteration
    tensorboard/         the same numbers as TensorBoard events; of single agents, only of those in the baselines
    curves.png           return per module over agent steps
    checkpoints/000020/  one folder each, and in ``latest`` the name of the newest
    video.gif            an episode of the trained modules
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from marl_connectors.checkpoints import LATEST, RUN_CHECKPOINTS, find_checkpoint
from marl_connectors.cli.curves import draw_curves
from marl_connectors.cli.results import agent_steps, module_returns
from marl_connectors.cli.values import jsonable
from marl_connectors.errors import CheckpointError, ConfigError

CONFIG, BASELINES, METRICS, CURVES, VIDEO, EVENTS, CHECKPOINTS = (
    "config.json",
    "baselines.json",
    "metrics.jsonl",
    "curves.png",
    "video.gif",
    "tensorboard",
    RUN_CHECKPOINTS,
)

AGENT_RETURNS = "agent_episode_returns_mean"
BY_AGENT = (AGENT_RETURNS, "agent_steps", "num_agent_steps_sampled")
MAX_AGENT_SERIES = 100
"""Agents that have TensorBoard series of their own, at most. An environment may make up new agent ids for ever."""


class RunFolder:
    """One run on disk; made by ``create`` or ``reopen``.

    Attributes:
        path: The folder.
        config: What ``config.json`` holds.
        baselines: What ``baselines.json`` holds: ``{"random_play": ..., "at_start": ...}``.
        last_steps: Agent steps at the last iteration that was logged.
    """

    def __init__(self, path: Path, config: dict[str, Any], baselines: dict[str, Any], purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = path
        self.config = config
        self.baselines = baselines
        self.last_steps = 0
        self._agents = _agents_of(baselines)
        self._series: dict[str, list[tuple[int, float, float]]] = {}
        for row in _read_metrics(path / METRICS):
            self._remember(row)
        self._events = SummaryWriter(str(path / EVENTS), purge_step=purge_step)

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], baselines: Mapping[str, Any], *, numbered: bool
    ) -> RunFolder:
        """Makes the folder of a run that really starts.

        Args:
            path: Where.
            config: What defines the run, as JSON data.
            baselines: Results of random play and of the untrained modules, as JSON data.
            numbered: Whether to take ``path-2``, ``path-3``, ... where ``path`` exists, rather than to use that folder.
        """
        path = _make_folder(path, numbered)
        (path / CHECKPOINTS).mkdir()
        _write_json(path / CONFIG, config)
        _write_json(path / BASELINES, baselines)
        (path / METRICS).touch()
        return cls(path, dict(config), dict(baselines), None)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run to go on with. What was logged after the latest checkpoint is dropped.

        Raises:
            CheckpointError: If there is no such run, or nothing to go on from.
        """
        config, baselines = read_config(path), _read_json(path, BASELINES)
        checkpoint = latest_checkpoint(path)
        if not checkpoint.name.isdigit():
            raise CheckpointError(
                f"{path}: expected the name of a checkpoint to be its iteration, got {checkpoint.name}."
            )
        iteration = int(checkpoint.name)
        kept = [row for row in _read_metrics(path / METRICS) if row["training_iteration"] <= iteration]
        replace_text(path / METRICS, "".join(json.dumps(row) + "\n" for row in kept))
        purge_step = agent_steps(kept[-1]) + 1 if kept else 0
        return cls(path, config, baselines, purge_step)

    def log(self, result: Mapping[str, Any]) -> None:
        """Adds the result of an iteration to the metrics and the TensorBoard events.

        Single agents have series only if they were in the baselines' episodes, and at most ``MAX_AGENT_SERIES`` do.
        """
        row = jsonable(result)
        with open(self.path / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        for name, value in _scalars(_without_strangers(row, self._agents)):
            self._events.add_scalar(name, value, agent_steps(result))
        self._remember(row)

    def save_checkpoint(self, algo: Any, iteration: int) -> Path:
        """Saves an ``Algorithm`` under its iteration and makes it the latest checkpoint; draws the curves anew."""
        checkpoint = self.path / CHECKPOINTS / f"{iteration:06d}"
        algo.save_to_path(checkpoint)
        replace_text(self.path / CHECKPOINTS / LATEST, checkpoint.name + "\n")
        self._events.flush()
        self.draw_curves()
        return checkpoint

    def draw_curves(self) -> None:
        random_play = module_returns(from_json(self.baselines["random_play"]))
        levels = {module_id: mean for module_id, (mean, _) in random_play.items()}
        draw_curves(self.path / CURVES, self._series, levels, self.path.name)

    def close(self) -> None:
        self._events.close()

    def _remember(self, row: Mapping[str, Any]) -> None:
        self.last_steps = agent_steps(row)
        for module_id, (mean, std) in module_returns(from_json(row["env_runners"])).items():
            self._series.setdefault(module_id, []).append((agent_steps(row), mean, std))


def check_can_be_made(path: Path, *, numbered: bool) -> None:
    """Checks that a run folder could be made, and makes nothing.

    Raises:
        ConfigError: If ``path`` is taken or cannot be written.
    """
    if not numbered and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(
            f"--out: expected a new or empty folder, but {path} exists. Choose another"
            + (f", or go on with: marl-connectors train --resume {shlex.quote(str(path))}" if _is_run(path) else ".")
        )
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"--out: expected a place that can be written, but {parent} cannot. Choose another folder.")


def _is_run(path: Path) -> bool:
    """Whether there is a run to go on with."""
    return (path / CONFIG).is_file() and (path / CHECKPOINTS / LATEST).is_file()


def read_config(path: Path) -> dict[str, Any]:
    """What defines a run, from its folder.

    Raises:
        CheckpointError: If the folder is missing or not one of a run.
    """
    if not path.is_dir():
        raise CheckpointError(f"run folder: expected one at {path}, but there is none. Check the path.")
    return _read_json(path, CONFIG)


def latest_checkpoint(path: Path) -> Path:
    """The newest checkpoint of a run folder.

    Raises:
        CheckpointError: If it has none.
    """
    return find_checkpoint(path)


def replace_text(path: Path, text: str) -> None:
    """Replaces a text file in one step, so that it is never half-written."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _make_folder(path: Path, numbered: bool) -> Path:
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            if not numbered:
                return candidate  # an empty folder, as check_can_be_made found
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n")


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        data = json.loads((path / name).read_bytes())
    except FileNotFoundError as cause:
        raise CheckpointError(
            f"{path} is not the folder of a run, because it has no {name}. Check the path."
        ) from cause
    except ValueError as cause:
        raise CheckpointError(f"{path / name} is damaged: it is not valid JSON ({cause}).") from cause
    if not isinstance(data, dict):
        raise CheckpointError(f"{path / name} is damaged: expected a JSON object.")
    return data


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of the metrics; a last line that a crash cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as cause:
        raise CheckpointError(f"{path} is damaged: it is not JSON lines ({cause}).") from cause


def from_json(env_runner_results: Mapping[str, Any]) -> dict[str, Any]:
    """Results of the env runners as ``jsonable`` wrote them, with NaN in place of None."""
    returns = env_runner_results.get("module_episode_returns", {})
    return {
        "module_episode_returns": {
            module_id: {key: math.nan if value is None else value for key, value in stats.items()}
            for module_id, stats in returns.items()
        }
    }


def agents_seen(baselines: Mapping[str, Any]) -> set[str]:
    """The agents that were in the episodes of any baseline."""
    return {agent_id for results in baselines.values() for agent_id in results.get(AGENT_RETURNS, {})}


def _agents_of(baselines: Mapping[str, Any]) -> frozenset[str]:
    """The agents that were in the episodes of all baselines, or the first ones of too many."""
    seen = [list(results.get(AGENT_RETURNS, {})) for results in baselines.values()]
    both = [agent_id for agent_id in seen[0] if all(agent_id in other for other in seen[1:])] if seen else []
    return frozenset(both[:MAX_AGENT_SERIES])


def _without_strangers(row: dict[str, Any], agents: Collection[str]) -> dict[str, Any]:
    """The results of an iteration, of single agents only those of ``agents``."""
    results = row.get("env_runners", {})
    known = {
        name: {agent_id: value for agent_id, value in results[name].items() if agent_id in agents}
        for name in BY_AGENT
        if name in results
    }
    return {**row, "env_runners": {**results, **known}}


def _scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield f"{prefix}{key}", value
