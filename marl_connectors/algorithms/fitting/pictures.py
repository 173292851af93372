"""The pictures of a run: learning curves as a PNG file."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart. Curves use it in turn."""
_LEGEND_ROWS = 16
_LOG_FROM = 30
"""The ratio of the largest to the smallest value of a setting from which on its scale is logarithmic."""

Series = Mapping[str, Sequence[tuple[float, float, float]]]
"""``{module_id: [(agent steps, mean return, standard deviation), ...]}``"""


def draw_curves(
    file: Path | BinaryIO,
    series: Series,
    random_play: Mapping[str, float],
    title: str,
    *,
    single: Mapping[str, Sequence[Sequence[tuple[int, float]]]] | None = None,
) -> None:
    """Draws the return per module over agent steps.

    A line is the mean return of an agent per episode, over the episodes that ended in an iteration. Its band is one
    standard deviation to either side, and a dashed line is the return of random actions. Iterations in which no episode
    ended are left out.

    Args:
        file: The PNG file to write, or a file that is open for writing.
        series: The returns to draw; of several seeds, their means with half the widths of the intervals.
        random_play: The mean return of random actions per module, if it is known.
        title: The title of the picture.
        single: Of several seeds, ``{module_id: [[(agent steps, mean return), ...], ...]}``, one list for each seed,
            drawn as thin lines.
    """
    what = "one standard deviation either way"
    if single is not None:
        what = "95 % interval of the mean; thin lines: single seeds"
    label = f"return of an agent per episode{', mean over seeds' if single is not None else ''}\n(band: {what})"
    with _drawn(file, title, label) as axes:
        for index, (module_id, points) in enumerate(sorted(series.items())):
            for curve in (single or {}).get(module_id, ()):
                steps, returns = [point[0] for point in curve], [point[1] for point in curve]
                axes.plot(steps, returns, color=_COLOURS[index % len(_COLOURS)], alpha=0.35, linewidth=0.6)
            _draw_series(axes, index, module_id, [point for point in points if math.isfinite(point[1])])
            _draw_level(axes, index, module_id, random_play)


def draw_sweep(
    file: Path | BinaryIO, results: Sequence[Mapping[str, Any]], names: Sequence[str], metric: str, *, lowest: bool
) -> None:
    """Draws the metric of trials in their order, with the best one so far, and over each searched setting.

    Args:
        file: The PNG file to write, or a file that is open for writing.
        results: The trials, each with its ``"value"`` and its ``"params"``.
        names: The searched settings.
        metric: The name of the metric.
        lowest: Whether the lowest value is the best.
    """
    values = [result["value"] for result in results]
    columns = min(len(names) + 1, 3)
    rows = -(-(len(names) + 1) // columns)
    figure = _new_figure(4.5 * columns, 3.6 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    best = list(itertools.accumulate(values, min if lowest else max))
    axes[0].plot(best, color=_COLOURS[1], drawstyle="steps-post", label="best so far")
    axes[0].plot(values, ".", color=_COLOURS[0], label="trial")
    axes[0].set_xlabel("complete trials")
    axes[0].legend(fontsize="small")
    for panel, name in zip(axes[1:], names, strict=False):
        given = [result["params"].get(name) for result in results]
        numbers = [each for each in given if isinstance(each, (int, float)) and not isinstance(each, bool)]
        is_number = len(numbers) == len(given)
        panel.plot(given if is_number else [str(each) for each in given], values, ".", color=_COLOURS[0])
        if is_number and min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_FROM:
            panel.set_xscale("log")
        panel.set_xlabel(_as_text(name))
    for panel in axes[: len(names) + 1]:
        panel.set_ylabel(_as_text(metric), fontsize="small")
        panel.grid(alpha=0.25)
    for panel in axes[len(names) + 1 :]:
        panel.set_visible(False)
    _paint(figure, file)


def draw_data(file: Path | BinaryIO, returns: Sequence[float], lengths: Sequence[int], title: str) -> None:
    """Draws histograms of the returns and lengths of recorded episodes.

    Args:
        file: The PNG file to write, or a file that is open for writing.
        returns: The return of each whole episode, summed over agents.
        lengths: The env steps of each whole episode.
        title: The title of the picture.
    """
    figure = _new_figure(9, 4)
    panels = figure.subplots(1, 2)
    labels = ("return of an episode, summed over agents", "env steps of an episode")
    for index, (panel, values, label) in enumerate(zip(panels, (returns, lengths), labels, strict=True)):
        if len(values):
            panel.hist(values, bins=min(40, max(1, len(set(values)))), color=_COLOURS[index])
        panel.set_xlabel(label)
        panel.set_ylabel("whole episodes")
        panel.grid(alpha=0.25)
    figure.suptitle(_as_text(title))
    _paint(figure, file)


@contextlib.contextmanager
def _drawn(file: Path | BinaryIO, title: str, label: str) -> Iterator[Any]:
    """Gives the axes of a new picture, and writes the picture at the end of the block."""
    figure = _new_figure(8, 5)
    axes = figure.add_subplot()
    yield axes
    axes.set_title(_as_text(title))
    axes.set_xlabel("agent steps")
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    _paint(figure, file)


def _new_figure(width: float, height: float) -> Any:
    """Returns a figure without axes. Its width and height are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def _paint(figure: Any, file: Path | BinaryIO) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(file)


def _draw_series(axes: Any, index: int, module_id: str, points: Sequence[tuple[float, float, float]]) -> None:
    """Draws the line of a module with its band, which has no width where the width is NaN."""
    colour, steps, means = (
        _COLOURS[index % len(_COLOURS)],
        [point[0] for point in points],
        [point[1] for point in points],
    )
    bands = [point[2] if math.isfinite(point[2]) else 0.0 for point in points]
    label = _as_text(module_id) if index < _LEGEND_ROWS else None
    axes.plot(steps, means, color=colour, label=label, marker="." if len(points) == 1 else None)
    low = [mean - band for mean, band in zip(means, bands, strict=True)]
    high = [mean + band for mean, band in zip(means, bands, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)


def _draw_level(axes: Any, index: int, module_id: str, random_play: Mapping[str, float]) -> None:
    """Draws the return of random actions as a dashed line, if it is known."""
    level = random_play.get(module_id, math.nan)
    if math.isfinite(level):
        label = f"{_as_text(module_id)}, random play" if index < _LEGEND_ROWS else None
        axes.axhline(level, color=_COLOURS[index % len(_COLOURS)], linestyle="--", linewidth=1, label=label)


def _as_text(name: str) -> str:
    """Returns a name in a form that matplotlib shows as it is, also with dollar signs and a leading underscore."""
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
