"""The videos of a run: single episodes as a GIF or an MP4 file, each with a caption that has its return."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_connectors.algorithms.config.settings import NO_VIDEO
from marl_connectors.algorithms.fitting.figures import agent_steps, number
from marl_connectors.algorithms.fitting.parts import Part
from marl_connectors.algorithms.fitting.run_files import UNTRAINED_VIDEO, VIDEOS
from marl_connectors.algorithms.rendering import checked_frame
from marl_connectors.errors import MarlConnectorsError, describe_error

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

    from marl_connectors.algorithms.algorithm import Algorithm

TRAINED_EPISODES = 3
"""The number of episodes of the trained modules in a video."""
MAX_FRAMES = 50
"""The number of frames of an episode."""
MAX_SECONDS = 10.0
"""The seconds after which an episode is stopped."""
RECORDING = f"recording a video, at most {MAX_SECONDS:.0f} s for each episode"
"""What ``record_video`` does, in words."""
MAX_WIDTH, MIN_WIDTH = 480, 240
"""The widths in pixels between which captioned frames are scaled."""
MAX_BYTES = 4_000_000
"""The size above which the frames of a video are made smaller."""
_FRAME_MS, _LAST_FRAME_MS = 100, 1200
_FONT_PX, _LINE_PX, _MARGIN_PX = 14, 18, 6
_MODULES_SHOWN = 4
_NO_PICTURES = "No video: this environment returns no pictures (render mode rgb_array)."


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """The part of a video that shows one episode.

    Attributes:
        caption: The text above each frame.
        frames: ``[height, width, 3]`` uint8 each.
    """

    caption: str
    frames: Sequence[np.ndarray]


class Videos(Part):
    """Records the policies: untrained, every ``video_every`` iterations, and at the end."""

    _has_failed = False

    def before_training(self) -> None:
        run = self.run
        if run.settings.video != NO_VIDEO:
            with run.busy(RECORDING):
                run.folder.untrained_video = record_untrained(run.algo, seed=run.algo.seed)

    def after_iteration(self, result: Mapping[str, Any]) -> None:
        run, iteration = self.run, int(result["training_iteration"])
        if not run.settings.video_every or iteration % run.settings.video_every or self._has_failed:
            return
        path = run.folder.path / VIDEOS / f"{iteration:06d}.{run.settings.video}"
        label = f"after {agent_steps(result):,} steps, "
        if failed := record_video(run.algo, path, seed=run.algo.seed, label=label):
            self._has_failed = True  # the reason is the same for all videos, and printed once
            run.say(failed)

    def at_end(self) -> None:
        run = self.run
        if run.settings.video != NO_VIDEO:
            path, untrained = run.folder.path / f"video.{run.settings.video}", run.folder.path / UNTRAINED_VIDEO
            how: dict[str, Any] = {"seed": run.algo.seed, "label": "after training, ", "untrained": untrained}
            with run.busy(RECORDING):
                run.results["video"] = record_video(run.algo, path, **how) or str(path)


def record_clips(algo: Algorithm, labels: Sequence[str], *, seed: int, explore: bool | None = None) -> list[Clip]:
    """Plays an episode for each label. Episodes of other policies with the same seed begin in the same states.

    Args:
        algo: An ``Algorithm``. Its ``render_episodes`` is called.
        labels: The beginning of the caption of each episode.
        seed: The seed of the environment and the actions.
        explore: Whether actions are drawn; None as in evaluations.

    Returns:
        The clips; ``[]`` if the environment cannot be rendered.
    """
    limits = {"max_frames": MAX_FRAMES, "max_seconds": MAX_SECONDS}
    episodes = algo.render_episodes(len(labels), seed=seed, explore=explore, **limits)
    return [
        Clip(f"{label}: {_outcome(episode)}", episode.frames)
        for label, episode in zip(labels, episodes, strict=False)  # there are no episodes without pictures
    ]


def _outcome(episode: Any) -> str:
    returns = list(episode.module_returns.items())
    if not returns:
        return f"stopped after {episode.num_steps:,} steps"
    if len(returns) == 1:
        return f"return {number(returns[0][1])}"
    more = f" and {len(returns) - _MODULES_SHOWN} more" if len(returns) > _MODULES_SHOWN else ""
    return "return " + ", ".join(f"{name} {number(mean)}" for name, mean in returns[:_MODULES_SHOWN]) + more


def record_untrained(algo: Algorithm, *, seed: int) -> bytes:
    """Returns the GIF of an episode of the untrained modules, for ``record_video``; ``b""`` if it cannot be made."""
    try:
        clips = record_clips(algo, ["before training"], seed=seed)
        return encoded(clips, with_captions=False) if clips else b""
    except Exception:  # record_video at the end of the run has the same error and names it
        return b""


def record_video(
    algo: Algorithm,
    path: Path,
    *,
    seed: int,
    explore: bool | None = None,
    label: str = "",
    untrained: Path | None = None,
) -> str:
    """Plays episodes and writes them as a video, if the environment can be rendered.

    Args:
        algo: An ``Algorithm``.
        path: The file to write. Its name ends in ``.mp4`` for an MP4; any other file is a GIF.
        seed: As for ``record_clips``.
        explore: As for ``record_clips``.
        label: The beginning of all captions, such as ``"after training, "``.
        untrained: A file with what ``record_untrained`` returned, for the beginning of the video. It may be missing.

    Returns:
        ``""`` if the video was written, else a sentence with the reason. A run must not fail because of its video.
    """
    try:
        labels = [f"{label}episode {index}" for index in range(1, TRAINED_EPISODES + 1)]
        clips = record_clips(algo, labels, seed=seed, explore=explore)
        if not clips:
            return _NO_PICTURES
        if untrained is not None and untrained.exists():
            clips.insert(0, decoded(untrained.read_bytes()))
        write_video(clips, path)
    except MarlConnectorsError as error:
        return f"No video: {' '.join(str(error).split())}"
    except Exception as error:  # an error of the environment's render(), or of the disk
        return f"No video: {describe_error(error)}."
    return ""


def is_mp4(path: Path) -> bool:
    """Whether ``write_video`` writes an MP4 to a path, which needs ``imageio_ffmpeg``."""
    return path.suffix.lower() == ".mp4"


def write_video(clips: Sequence[Clip], path: Path) -> None:
    """Writes clips one after another as an MP4, or as a GIF that loops. The last frame of each stays for a moment.

    Args:
        clips: The clips.
        path: The file to write, an MP4 if its name ends in ``.mp4``. Its folder is made if it does not exist.

    Raises:
        EnvError: If a frame has another shape or type.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    if is_mp4(path):
        _write_mp4(clips, temporary)
    else:
        temporary.write_bytes(encoded(clips))
    os.replace(temporary, path)  # a former file is kept until this one is complete


def _write_mp4(clips: Sequence[Clip], path: Path) -> None:
    """Writes an MP4 with H.264, which browsers play. Its width and height are even, as that needs."""
    imageio_ffmpeg: Any = import_module("imageio_ffmpeg")
    own = [[_scaled(_picture(frame), MAX_WIDTH) for frame in clip.frames] for clip in clips]
    captioned = [_captioned(pictures, clip.caption) for pictures, clip in zip(own, clips, strict=True)]
    pictures, durations = _film(captioned, multiple=2)
    writer = imageio_ffmpeg.write_frames(
        *(str(path), pictures[0].size),
        fps=1000 / _FRAME_MS,
        macro_block_size=2,
        output_params=["-f", "mp4", "-movflags", "+faststart"],
    )
    writer.send(None)
    try:
        for picture, duration in zip(pictures, durations, strict=True):
            for _ in range(duration // _FRAME_MS):
                writer.send(np.ascontiguousarray(picture))
    finally:
        writer.close()


def encoded(clips: Sequence[Clip], *, with_captions: bool = True) -> bytes:
    """Returns clips as a GIF. If it is larger than ``MAX_BYTES``, its frames are made smaller, down to ``MIN_WIDTH``.

    Args:
        clips: The clips.
        with_captions: Whether the captions are drawn. The comment of the GIF is the first one in any case.
    """
    pictures = [[_picture(frame) for frame in clip.frames] for clip in clips]
    width = MAX_WIDTH
    while True:
        scaled = [[_scaled(picture, width) for picture in own] for own in pictures]
        if with_captions:
            captions = [clip.caption for clip in clips]
            scaled = [_captioned(own, caption) for own, caption in zip(scaled, captions, strict=True)]
        film = _gif(scaled, clips[0].caption)
        if len(film) <= MAX_BYTES or width == MIN_WIDTH:
            return film
        width = max(round(0.7 * width), MIN_WIDTH)


def decoded(film: bytes) -> Clip:
    """Returns the clip of which ``encoded`` made a GIF without captions."""
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(film)) as gif:
        comment = gif.info.get("comment", b"").decode("utf-8", "replace")
        return Clip(comment, [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)])


def _gif(clips: Sequence[Sequence[Image]], comment: str) -> bytes:
    pictures, durations = _film(clips)
    film = io.BytesIO()
    pictures[0].save(
        film,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=durations,
        loop=0,
        comment=comment.encode()[:255],
    )
    return film.getvalue()


def _film(clips: Sequence[Sequence[Image]], multiple: int = 1) -> tuple[list[Image], list[int]]:
    """Returns the pictures of clips, centred in as much room as the largest one needs, and their milliseconds.

    Args:
        clips: The pictures of each clip.
        multiple: The number by which width and height can be divided.
    """
    from PIL import Image

    width, height = max(p.width for own in clips for p in own), max(p.height for own in clips for p in own)
    size = (-(-width // multiple) * multiple, -(-height // multiple) * multiple)
    pictures, durations = [], []
    for own in clips:
        for picture in own:
            canvas = Image.new("RGB", size, "white")
            canvas.paste(picture, ((size[0] - picture.width) // 2, size[1] - picture.height))
            pictures.append(canvas)
        durations += [_FRAME_MS] * (len(own) - 1) + [_LAST_FRAME_MS]
    return pictures, durations


def _picture(frame: Any) -> Image:
    from PIL import Image

    return Image.fromarray(checked_frame(frame, "render"))


def _scaled(picture: Image, width: int) -> Image:
    """Scales a picture to a width of at least ``MIN_WIDTH`` and at most ``width``; small ones by a whole number."""
    from PIL import Image

    if picture.width > width:
        height = max(round(picture.height * width / picture.width), 1)
        return picture.resize((width, height), Image.Resampling.BILINEAR)
    factor = min(-(-MIN_WIDTH // picture.width), max(MAX_WIDTH // max(picture.size), 1))
    return picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)


def _captioned(pictures: Sequence[Image], caption: str) -> list[Image]:
    """Returns the pictures of a clip below a white strip with the caption, on as many lines as it needs."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_FONT_PX)
    width = max(picture.width for picture in pictures)
    lines = _wrapped(caption, font, width - 2 * _MARGIN_PX)
    strip = Image.new("RGB", (width, len(lines) * _LINE_PX + _MARGIN_PX), "white")
    draw = ImageDraw.Draw(strip)
    for row, line in enumerate(lines):
        draw.text((_MARGIN_PX, _MARGIN_PX // 2 + row * _LINE_PX), line, fill="black", font=font)
    captioned = []
    for picture in pictures:
        canvas = Image.new("RGB", (width, strip.height + picture.height), "white")
        canvas.paste(strip, (0, 0))
        canvas.paste(picture, ((width - picture.width) // 2, strip.height))
        captioned.append(canvas)
    return captioned


def _wrapped(text: str, font: FreeTypeFont | ImageFont, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
