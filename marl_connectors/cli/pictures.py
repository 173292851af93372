"""The pictures of a run: learning curves as a PNG file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart. Curves use it in turn."""
_LEGEND_ROWS = 16

Series = Mapping[str, Sequence[tuple[int, float, float]]]
"""``{module_id: [(agent steps, mean return, standard deviation), ...]}``"""


def draw_curves(file: Path | BinaryIO, series: Series, random_play: Mapping[str, float], title: str) -> None:
    """Draws the return per module over agent steps.

    A line is the mean return of an agent per episode, over the episodes that ended in an iteration. Its band is one
    standard deviation to either side, and a dashed line is the return of random actions. Iterations in which no episode
    ended are left out.

    Args:
        file: The PNG file to write, or a file that is open for writing.
        series: The returns to draw.
        random_play: The mean return of random actions per module, if it is known.
        title: The title of the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for index, (module_id, points) in enumerate(sorted(series.items())):
        colour = _COLOURS[index % len(_COLOURS)]
        kept = [point for point in points if math.isfinite(point[1])]
        steps, means = [point[0] for point in kept], [point[1] for point in kept]
        bands = [point[2] if math.isfinite(point[2]) else 0.0 for point in kept]
        name = _as_text(module_id)
        label = name if index < _LEGEND_ROWS else None
        axes.plot(steps, means, color=colour, label=label, marker="." if len(kept) == 1 else None)
        low = [mean - band for mean, band in zip(means, bands, strict=True)]
        high = [mean + band for mean, band in zip(means, bands, strict=True)]
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        level = random_play.get(module_id, math.nan)
        if math.isfinite(level):
            label = f"{name}, random play" if index < _LEGEND_ROWS else None
            axes.axhline(level, color=colour, linestyle="--", linewidth=1, label=label)
    axes.set_title(_as_text(title))
    axes.set_xlabel("agent steps")
    axes.set_ylabel("return of an agent per episode\n(band: one standard deviation either way)")
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    if series:
        axes.legend(fontsize="small")
    FigureCanvasAgg(figure).print_png(file)


def _as_text(name: str) -> str:
    """Returns a name in a form that matplotlib shows as it is, also with dollar signs and a leading underscore."""
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
