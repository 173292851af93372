"""Frames of single episodes, each with the episode's returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.environments.rules.env_failures import errors_named
from marl_connectors.errors import EnvError
from marl_connectors.typing import ModuleID


def rendered(env: Any, name: str) -> np.ndarray | None:
    """Renders an environment in its present state.

    Args:
        env: The environment, made with the render mode ``rgb_array``.
        name: Its name in messages.

    Returns:
        ``[height, width, 3]`` uint8, which the environment cannot change any more; None if it returned None.

    Raises:
        EnvError: If ``render()`` raises, or returns anything else.
    """
    with errors_named(f"{name}: render()"):
        frame = env.render()
        return None if frame is None else checked_frame(frame, f"{name}: render")


def checked_frame(frame: Any, who: str) -> np.ndarray:
    """Returns a copy of a frame.

    Raises:
        EnvError: If it is not ``[height, width, 3]`` uint8.
    """
    pixels = np.array(frame)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise EnvError(
            f"{who}: expected pictures of [height, width, 3] uint8, but got {list(pixels.shape)} {pixels.dtype}. "
            f"Return such an array from render() in the mode rgb_array."
        )
    return pixels


@dataclass(frozen=True, slots=True)
class RenderedEpisode:
    """An episode that was rendered.

    Attributes:
        frames: ``[height, width, 3]`` uint8 each: the first after the reset, the last after the last step.
        num_steps: The number of env steps.
        module_returns: Module id to the mean return of its agents; empty if the episode was stopped before its end.
    """

    frames: list[Any]
    num_steps: int
    module_returns: dict[ModuleID, float]


class FrameRecorder:
    """Collects a limited number of frames of an episode, the same number of steps apart.

    How long the episode will be is not known. Whenever there are too many frames, every second one is dropped, and
    from then on half as many steps are rendered.

    Attributes:
        num_steps: The number of env steps of the newest episode.
        is_blank: Whether the environment returned no frame.
    """

    def __init__(self, render: Callable[[], Any], max_frames: int):
        """Creates the recorder.

        Args:
            render: A function that returns a frame.
            max_frames: The number of frames, at least 2.
        """
        self._render = render
        self._max_frames = max_frames
        self._interval = 1
        self._frames: list[tuple[int, Any]] = []
        self.num_steps = 0
        self.is_blank = False

    def start(self) -> None:
        """Records the state after a reset."""
        self._frames, self._interval, self.num_steps = [], 1, 0
        self._record()

    def step(self) -> None:
        """Records the state after a step, or leaves it out."""
        self.num_steps += 1
        if self.num_steps % self._interval == 0:
            self._record()
        if len(self._frames) == self._max_frames:  # a place is left for the last frame
            self._frames = self._frames[::2]
            self._interval *= 2

    def end(self) -> None:
        """Records the state after the last step, if it was left out."""
        if self._frames and self._frames[-1][0] != self.num_steps:
            self._record()

    @property
    def frames(self) -> list[Any]:
        """The frames of the newest episode."""
        return [frame for _, frame in self._frames]

    def _record(self) -> None:
        frame = None if self.is_blank else self._render()
        if frame is None:
            self.is_blank = True
        else:
            self._frames.append((self.num_steps, frame))


def with_recorder(config: AlgorithmConfig, recorder: FrameRecorder) -> AlgorithmConfig:
    """Returns a config whose env runner of one sub-environment records frames in the callbacks of its episodes.

    The config's own callbacks are still called.
    """

    def start(**arguments: Any) -> None:
        recorder.start()

    def step(**arguments: Any) -> None:
        recorder.step()

    def end(**arguments: Any) -> None:
        recorder.end()

    changed = config.copy()
    for name, function in (("on_episode_start", start), ("on_episode_step", step), ("on_episode_end", end)):
        given: Any = getattr(config, f"callbacks_{name}")
        own = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
        changed.callbacks(**{name: [*own, function]})
    return changed
