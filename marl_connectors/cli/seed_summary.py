"""What several runs that differ in their seed have reached: a table, ``seeds.json`` and a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.algorithms.fitting import run_files
from marl_connectors.algorithms.fitting.figures import agent_steps, module_returns, number, percent, t_quantile, table
from marl_connectors.algorithms.fitting.pictures import draw_curves
from marl_connectors.algorithms.fitting.run_files import WAYS, read_metrics
from marl_connectors.cli.folders import SEEDS
from marl_connectors.cli.layers import ALGO, SETTINGS
from marl_connectors.cli.tree import Tree, flat, nested
from marl_connectors.errors import CheckpointError
from marl_connectors.json_data import brief, is_whole

LEARNING_CURVES = "learning_curves.png"
MANY_SEEDS = 10
"""The number of seeds from which on the interquartile mean is reported, too."""
_RESAMPLES = 2000
_MODULES_SHOWN = 6
AFTER_TRAINING = "after_training"
"""What the results of trained modules are called among those that were measured."""
FINISHED, UNFINISHED, MISSING = "finished", "unfinished", "missing"

# Statistics over seeds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """One number of several seeds.

    Attributes:
        num_seeds: The number of seeds.
        mean: The mean.
        std: The standard deviation, with the divisor ``num_seeds - 1``; NaN for one seed.
        interval: The 95 % confidence interval of the mean by Student's t-distribution; NaN for one seed.
        interquartile_mean: The mean of the middle half; None for fewer than ``MANY_SEEDS`` seeds.
        interquartile_interval: Its 95 % percentile bootstrap interval; None for fewer than ``MANY_SEEDS`` seeds.
    """

    num_seeds: int
    mean: float
    std: float
    interval: tuple[float, float]
    interquartile_mean: float | None = None
    interquartile_interval: tuple[float, float] | None = None


def seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Returns the statistics of one number of several seeds.

    The interquartile mean and its bootstrap interval follow Agarwal et al. (2021), arXiv:2108.13264. With few seeds, a
    bootstrap interval is too narrow.

    Args:
        values: At least one number, one for each seed.
    """
    mean, half_width = (float(each[0]) for each in mean_and_half_width(np.asarray(values, np.float64)[:, None]))
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    robust: list[Any] = []
    if len(values) >= MANY_SEEDS:
        drawn = np.random.default_rng(0).choice(np.asarray(values, np.float64), (_RESAMPLES, len(values)))
        interval = np.quantile([interquartile_mean(sample) for sample in drawn], [0.025, 0.975])
        robust = [interquartile_mean(values), tuple(interval.tolist())]
    return SeedStatistics(len(values), mean, std, (mean - half_width, mean + half_width), *robust)


def mean_and_half_width(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns means over seeds, and half the width of their 95 % intervals by Student's t-distribution.

    Args:
        values: ``[num_seeds, num_points]``, NaN where a seed has no value.

    Returns:
        ``[num_points]`` each, NaN where there are no values; half the width is NaN where there is only one.
    """
    numbers = np.sum(~np.isnan(values), axis=0)
    mean = np.nansum(values, axis=0) / np.where(numbers, numbers, math.nan)
    squares = np.nansum(np.square(values - mean), axis=0)
    variance = squares / np.where(numbers > 1, numbers - 1, math.nan)
    quantiles = np.array([t_quantile(int(count) - 1) if count > 1 else math.nan for count in numbers])
    return mean, quantiles * np.sqrt(variance / np.where(numbers, numbers, math.nan))


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Returns the mean without the lowest and the highest quarter, both rounded down to a whole number of values.

    >>> interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0])
    2.0
    """
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


# Results of the seeds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What the run of one seed has reached.

    Attributes:
        seed: The seed.
        folder: The name of its run folder.
        status: ``"finished"``, ``"unfinished"`` or ``"missing"``.
        agent_steps: The agent steps of the run.
        measured: What was measured, by ``"after_training"``, the other way of acting as in ``final.json``, and the
            names in ``baselines.json``. Each has an agent's mean return by module, under ``"return/MODULE"``, and the
            mean ``"success"`` if there is one.
        error: The error that has stopped the run; ``""`` if there was none.
        curve: Module id to ``[(agent steps, mean return), ...]`` without NaN. It is not written to ``seeds.json``.
    """

    seed: int
    folder: str
    status: str = MISSING
    agent_steps: int = 0
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    error: str = ""
    curve: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def number(self, name: str, what: str = AFTER_TRAINING) -> float:
        """Returns a return or the success, such as ``"return/red"``, of what was measured; NaN if there is none."""
        return self.measured.get(what, {}).get(name, math.nan)


def seed_folder(seed: int) -> str:
    """Returns the name of the run folder of a seed."""
    return f"seed{seed}"


def read_result(path: Path, seed: int, *, steps: int | None = None, error: str = "") -> SeedResult:
    """Reads what the run of a seed has reached.

    Args:
        path: The folder of all seeds.
        seed: The seed.
        steps: The agent steps that the run must have to be finished; None for those with which it has ended.
        error: The error that has stopped the run.

    Raises:
        CheckpointError: If a file of the run is damaged.
    """
    run = path / seed_folder(seed)
    if not (run / run_files.CONFIG).is_file():
        return SeedResult(seed, run.name, error=error)
    rows, _ = read_metrics(run / run_files.METRICS)
    done = agent_steps(rows[-1]) if rows else 0
    final = run_files.read_final(run)
    measured = dict(run_files.read_baselines(run)) if rows else {}
    if final is not None:
        measured |= {AFTER_TRAINING: final, **{way: final[way] for way in WAYS if way in final}}
    curve: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for module_id, mean in _means(row["env_runners"]).items():
            if math.isfinite(mean):
                curve.setdefault(module_id, []).append((agent_steps(row), mean))
    return SeedResult(
        seed=seed,
        folder=run.name,
        status=FINISHED if final is not None and done >= (steps or 0) else UNFINISHED,
        agent_steps=done,
        measured={what: _numbers(own) for what, own in measured.items()},
        error=error,
        curve=curve,
    )


def _means(results: Mapping[str, Any]) -> dict[str, float]:
    return {module_id: mean for module_id, (mean, _) in module_returns(run_files.from_json(results)).items()}


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns the return of each module, and the success, as ``SeedResult.measured`` has them."""
    found = {f"return/{module_id}": mean for module_id, mean in _means(results).items()}
    success = results.get("success")
    if isinstance(success, Mapping):
        success = success.get("mean")
    if isinstance(success, (int, float)) and not isinstance(success, bool) and math.isfinite(success):
        found["success"] = float(success)
    return found


def summary_of(results: Sequence[SeedResult]) -> dict[str, SeedStatistics]:
    """Returns the statistics of each module's return, and of ``"success"``, over the finished seeds."""
    finished = [result for result in results if result.status == FINISHED]
    names = dict.fromkeys(name for result in finished for name in result.measured.get(AFTER_TRAINING, {}))
    found = {}
    for name in sorted(names, key="success".__eq__):  # the success is the last one
        values = [result.number(name) for result in finished if math.isfinite(result.number(name))]
        if values:
            found[name] = seed_statistics(values)
    return found


# What people and programs read ---------------------------------------------------------------------------------------


def summary_table(results: Sequence[SeedResult]) -> str:
    """Formats the returns of all seeds, their mean, standard deviation and interval, and the baselines' means."""
    summary = summary_of(results)
    shown = list(summary)[:_MODULES_SHOWN]
    if "success" in summary and "success" not in shown:
        shown.append("success")
    rows = [[str(result.seed), *(_cell(result, name) for name in shown)] for result in results]
    rows.append(["mean", *(_figure(name, summary[name].mean) for name in shown)])
    rows.append(["standard deviation", *(_figure(name, summary[name].std) for name in shown)])
    rows.append(["95 % interval", *(_interval(name, summary[name].interval) for name in shown)])
    if any(summary[name].interquartile_mean is not None for name in shown):
        rows.append(["interquartile mean", *(_figure(name, summary[name].interquartile_mean) for name in shown)])
        rows.append(["its 95 % interval", *(_interval(name, summary[name].interquartile_interval) for name in shown)])
    other_ways = [(label, way) for way, label in WAYS.items() if any(way in result.measured for result in results)]
    for label, key in (*other_ways, ("untrained", "at_start"), ("random play", "random_play")):
        rows.append([label, *(_baseline(results, name, key) for name in shown)])
    text = table(["seed", *(name.removeprefix("return/") for name in shown)], rows)
    hidden = len(summary) - len(shown)
    return text + (f"\n  and {hidden} more modules: see {SEEDS}" if hidden else "")


def _cell(result: SeedResult, name: str) -> str:
    if result.status != FINISHED:
        return "failed" if result.error else result.status
    return _figure(name, result.number(name))


def _figure(name: str, value: float | None) -> str:
    """Formats a return, or a success in per cent."""
    shown = math.nan if value is None else value
    return percent(shown) if name == "success" else number(shown)


def _interval(name: str, interval: tuple[float, float] | None) -> str:
    if interval is None or not math.isfinite(interval[0]):
        return "–"
    low, high = np.clip(interval, 0.0, 1.0) if name == "success" else interval
    return f"{_figure(name, float(low))} to {_figure(name, float(high))}"


def _baseline(results: Sequence[SeedResult], name: str, key: str) -> str:
    finite = [value for result in results if math.isfinite(value := result.number(name, key))]
    return _figure(name, float(np.mean(finite)) if finite else None)


def about_intervals(results: Sequence[SeedResult]) -> str:
    """Returns a sentence that says which intervals the table has."""
    num_seeds = max((each.num_seeds for each in summary_of(results).values()), default=0)
    if num_seeds < 2:
        return "An interval needs two seeds or more."
    bootstrap = (
        f", and a percentile bootstrap with {_RESAMPLES:,} resamples for the interquartile mean"
        if num_seeds >= MANY_SEEDS
        else ""
    )
    return f"Intervals are for the mean over {num_seeds} seeds: Student's t{bootstrap}."


def write_seeds(path: Path, tree: Tree, results: Sequence[SeedResult]) -> None:
    """Writes ``seeds.json`` in one step.

    Args:
        path: The folder of all seeds.
        tree: The settings with which each seed is trained.
        results: What each seed has reached.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    data = {
        "format_version": 1,
        SETTINGS: nested(tree),
        "seeds": [result.seed for result in results],
        "results": [{key: value for key, value in asdict(result).items() if key != "curve"} for result in results],
        "interval": "95 % confidence interval of the mean over seeds, by Student's t-distribution",
        "summary": {name: asdict(each) for name, each in summary_of(results).items()},
    }
    with run_files.writing(path / SEEDS):
        run_files.write_json(path / SEEDS, data)


def is_seeds_folder(path: Path) -> bool:
    """Whether a folder has runs that differ in their seed."""
    try:
        return (path / SEEDS).is_file()
    except (OSError, ValueError):  # no path can be like this, for example because it is too long
        return False


def read_seeds(path: Path) -> tuple[Tree, list[int]]:
    """Reads the tree of settings and the seeds of ``seeds.json``.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    data = run_files.read_json(path, SEEDS)
    tree = flat(data.get(SETTINGS, {}), str(path / SEEDS))
    if ALGO not in tree:
        raise CheckpointError(f"{path / SEEDS} is damaged: expected settings under {SETTINGS!r}, with an algorithm.")
    seeds = data.get("seeds")
    if not isinstance(seeds, list) or not seeds or not all(map(is_whole, seeds)):
        raise CheckpointError(f"{path / SEEDS} is damaged: expected 'seeds' to be a list of seeds, got {brief(seeds)}.")
    return tree, list(dict.fromkeys(seeds))


def draw_learning_curves(path: Path, results: Sequence[SeedResult]) -> None:
    """Draws the mean return of each module over agent steps, with its interval over seeds.

    Raises:
        CheckpointError: If the picture cannot be written.
    """
    curves: dict[str, list[Sequence[tuple[int, float]]]] = {}
    for result in results:
        for module_id, points in result.curve.items():
            curves.setdefault(module_id, []).append(points)
    random_play = {}
    for module_id in curves:
        levels = np.array([result.number(f"return/{module_id}", "random_play") for result in results])
        if np.isfinite(levels).any():
            random_play[module_id] = float(np.mean(levels[np.isfinite(levels)]))
    picture = io.BytesIO()
    means = {name: mean_curve(own) for name, own in curves.items()}
    draw_curves(picture, means, random_play, path.name, single=curves)
    with run_files.writing(path / LEARNING_CURVES):
        run_files.replace_file(path / LEARNING_CURVES, picture.getvalue())


def mean_curve(
    curves: Sequence[Sequence[tuple[int, float]]], num_points: int = 200
) -> list[tuple[float, float, float]]:
    """Returns the mean of several curves, each interpolated linearly between its points.

    Args:
        curves: ``[(agent steps, return), ...]`` of each seed, by increasing steps.
        num_points: The number of points of the mean curve.

    Returns:
        ``(agent steps, mean, half the width of the 95 % interval)`` each. A seed does not count beyond its own points;
        where it is the only one, half the width is NaN.
    """
    kept = [np.array(points, np.float64) for points in curves if points]
    if not kept:
        return []
    steps = np.linspace(min(points[0, 0] for points in kept), max(points[-1, 0] for points in kept), num_points)
    values = [np.interp(steps, points[:, 0], points[:, 1], left=math.nan, right=math.nan) for points in kept]
    mean, half_width = mean_and_half_width(np.stack(values))
    return list(zip(steps.tolist(), mean.tolist(), half_width.tolist(), strict=True))
