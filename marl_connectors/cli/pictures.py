"""The pictures of a run: learning curves as a PNG file, and an episode as an animated GIF."""

from __future__ import annotations

import errno
import io
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from marl_connectors.errors import ConfigError, EnvError, MarlConnectorsError, describe_error

MAX_WIDTH = 480
MAX_FRAMES = 200
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


def record_video(algo: Any, path: Path, *, frames_per_second: float = 10.0) -> str:
    """Plays an episode and writes it as a GIF, if the environment can be rendered.

    Args:
        algo: An ``Algorithm``. Its ``render_episode`` is called.
        path: The GIF file to write.
        frames_per_second: The speed of the GIF, at most 50.

    Returns:
        ``""`` if the video was written, else a sentence with the reason. A run must not fail because of its video.
    """
    try:
        frames = algo.render_episode(max_frames=MAX_FRAMES)
        if not frames:
            return "No video: this environment returns no pictures (render mode rgb_array)."
        write_gif(frames, path, frames_per_second=frames_per_second)
    except MarlConnectorsError as error:
        return f"No video: {' '.join(str(error).split())}"
    except Exception as error:  # an error of the environment's render(), or of the disk
        return f"No video: {describe_error(error)}."
    return ""


def check_video_can_be_made(path: Path) -> None:
    """Checks that a file can be written at a path, and leaves none there.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", dir=path.parent) as folder:
            (Path(folder) / path.name).write_bytes(b"GIF")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--video: expected a file that can be written, but {str(path)!r} cannot: {why}. Choose another."
        ) from error


def write_gif(frames: Sequence[np.ndarray], path: Path, *, frames_per_second: float = 10.0) -> None:
    """Writes pictures as a GIF that loops, at most ``MAX_WIDTH`` pixels wide and ``MAX_FRAMES`` long.

    Args:
        frames: ``[H, W, 3]`` uint8 each.
        path: The file to write. Its folder is made if it does not exist.
        frames_per_second: The speed of the GIF.

    Raises:
        EnvError: If a frame has another shape or type.
    """
    from PIL import Image

    pictures = []
    for frame in frames[:MAX_FRAMES]:
        pixels = np.asarray(frame)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise EnvError(
                f"render: expected pictures of [height, width, 3] uint8, but got {list(pixels.shape)} {pixels.dtype}. "
                f"Return such an array from render() in the mode rgb_array."
            )
        picture = Image.fromarray(pixels)
        if picture.width > MAX_WIDTH:
            height = max(round(picture.height * MAX_WIDTH / picture.width), 1)
            picture = picture.resize((MAX_WIDTH, height), Image.Resampling.BILINEAR)
        pictures.append(picture)
    path.parent.mkdir(parents=True, exist_ok=True)
    film = io.BytesIO()
    pictures[0].save(
        film,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=round(1000 / frames_per_second),
        loop=0,
    )
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(film.getvalue())
    os.replace(temporary, path)  # a former file is kept until this one is complete
