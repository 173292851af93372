"""Curves and videos."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from marl_connectors.cli.pictures import draw_curves, record_video, write_gif
from marl_connectors.errors import EnvError


def test_curves_are_drawn_with_gaps_one_point_and_nothing(tmp_path):
    series = {"a": [(100, math.nan, math.nan), (200, 1.0, 0.5), (300, 2.0, math.nan)], "b": [(100, 0.0, 1.0)], "c": []}
    draw_curves(tmp_path / "some.png", series, {"a": -1.0, "b": math.nan}, "title")
    draw_curves(tmp_path / "none.png", {}, {}, "title")
    for name in ("some.png", "none.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (960, 600)


def test_a_gif_is_narrowed_and_cut(tmp_path):
    frames = [np.full((300, 960, 3), i, np.uint8) for i in range(0, 250)]
    write_gif(frames, tmp_path / "new" / "v.gif", frames_per_second=20)
    with Image.open(tmp_path / "new" / "v.gif") as gif:
        assert gif.size == (480, 150)
        assert gif.info["duration"] == 50
        assert getattr(gif, "n_frames", 0) == 200


def test_a_small_picture_keeps_its_size(tmp_path):
    write_gif([np.zeros((7, 9, 3), np.uint8)], tmp_path / "v.gif")
    with Image.open(tmp_path / "v.gif") as gif:
        assert gif.size == (9, 7)


@pytest.mark.parametrize("frame", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_what_is_no_picture_is_refused(tmp_path, frame):
    with pytest.raises(EnvError, match="expected pictures of"):
        write_gif([frame], tmp_path / "v.gif")
    assert not (tmp_path / "v.gif").exists()


def test_an_environment_that_fails_to_render_costs_the_video_only(tmp_path):
    class Blind:
        def render_episode(self, *, max_frames):
            raise EnvError("env: render failed:\nno display")

    assert record_video(Blind(), tmp_path / "v.gif") == "No video: env: render failed: no display"
