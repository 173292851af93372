"""Learning curves."""

from __future__ import annotations

import math

from PIL import Image

from marl_connectors.algorithms.fitting.pictures import draw_curves


def test_curves_are_drawn_with_gaps_one_point_and_nothing(tmp_path):
    series = {"a": [(100, math.nan, math.nan), (200, 1.0, 0.5), (300, 2.0, math.nan)], "b": [(100, 0.0, 1.0)], "c": []}
    draw_curves(tmp_path / "some.png", series, {"a": -1.0, "b": math.nan}, "title")
    draw_curves(tmp_path / "none.png", {}, {}, "title")
    for name in ("some.png", "none.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (960, 600)
