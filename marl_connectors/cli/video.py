"""An episode as an animated GIF."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.errors import ConfigError, EnvError, MarlConnectorsError, describe_error

MAX_WIDTH = 480
MAX_FRAMES = 200


def record_video(algo: Any, path: Path, *, frames_per_second: float = 10.0) -> str:
    """Plays an episode and writes it down, where the environment can be rendered.

    Args:
        algo: An ``Algorithm``, of which ``render_episode`` is called.
        path: The GIF file to write.
        frames_per_second: How fast it plays, at most 50 for a GIF.

    Returns:
        ``""`` if the video was written, else a sentence that says why not. A video is never worth a failed run.
    """
    try:
        frames = algo.render_episode(max_frames=MAX_FRAMES)
        if not frames:
            return "No video: this environment gives no pictures (render mode rgb_array)."
        write_gif(frames, path, frames_per_second=frames_per_second)
    except MarlConnectorsError as error:
        return f"No video: {' '.join(str(error).split())}"
    except Exception as error:  # of the environment's render(), or of the disk
        return f"No video: {describe_error(error)}."
    return ""


def check_video_can_be_made(path: Path) -> None:
    """Checks that a file could be written there, and leaves none.

    Raises:
        ConfigError: If not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", dir=path.parent) as trial:
            (Path(trial) / path.name).write_bytes(b"GIF")
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
        path: The file to write; its folder is made as needed.
        frames_per_second: How fast it plays.

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
    os.replace(temporary, path)  # what was there before is kept until this one is whole
