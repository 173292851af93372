"""Statistics over seeds, and what is written and drawn of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from PIL import Image

from marl_connectors.cli import seed_summary
from marl_connectors.cli.seed_summary import (
    FINISHED,
    SeedResult,
    about_intervals,
    interquartile_mean,
    mean_curve,
    read_seeds,
    seed_statistics,
    summary_table,
    t_quantile,
    write_seeds,
)
from marl_connectors.errors import CheckpointError


@pytest.mark.parametrize(
    ("degrees_of_freedom", "quantile"),  # from the table of any textbook
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_quantiles_are_those_of_the_table_of_students_t(degrees_of_freedom, quantile):
    assert t_quantile(degrees_of_freedom) == pytest.approx(quantile, abs=5e-4)


def test_the_interval_of_a_mean_is_that_of_students_t():
    found = seed_statistics([3.0, 13.0, 23.0])
    assert (found.num_seeds, found.mean, found.std) == (3, 13.0, 10.0)
    assert found.interval == pytest.approx((13 - 4.3027 * 10 / 3**0.5, 13 + 4.3027 * 10 / 3**0.5), abs=1e-3)
    assert found.interquartile_mean is None


def test_one_seed_has_no_interval():
    found = seed_statistics([3.0])
    assert found.mean == 3.0 and math.isnan(found.std) and all(map(math.isnan, found.interval))


def test_many_seeds_have_an_interquartile_mean_that_ignores_outliers():
    values = [float(i) for i in range(11)] + [1e6]
    found = seed_statistics(values)
    assert found.interquartile_mean == 5.5 == interquartile_mean(values)  # of 3 to 8
    low, high = found.interquartile_interval
    assert 0 <= low < 5.5 < high < 1e6
    assert found == seed_statistics(values)


def test_a_mean_curve_is_interpolated_and_each_seed_counts_where_it_has_points():
    points = mean_curve([[(0, 0.0), (20, 20.0)], [(0, 2.0), (10, 12.0)], []], num_points=5)
    assert [point[0] for point in points] == [0, 5, 10, 15, 20]
    assert [point[1] for point in points] == [1.0, 6.0, 11.0, 15.0, 20.0]
    # The deviations are -1 and 1, so the standard deviation is 2 ** 0.5, and the standard error is 1.
    assert [point[2] for point in points[:3]] == pytest.approx([12.706] * 3, abs=1e-3)
    assert all(math.isnan(point[2]) for point in points[3:])
    assert mean_curve([[], []]) == []


def finished(seed, mean, success=None, by_chance=None, **more):
    measured = {
        "after_training": {"return/red": mean, "return/green": math.nan},
        "at_start": {"return/red": -5.0},
        "random_play": {"return/red": -7.0},
    }
    if success is not None:
        measured["after_training"]["success"], measured["random_play"]["success"] = success, by_chance
    return SeedResult(seed, f"seed{seed}", FINISHED, 100, measured, **more)


def test_the_table_has_seeds_statistics_and_baselines():
    lines = summary_table([finished(0, 3.0), finished(1, 13.0), finished(2, 23.0)]).splitlines()
    assert [line.split() for line in lines] == [
        ["seed", "red"],
        ["0", "3.00"],
        ["1", "13.0"],
        ["2", "23.0"],
        ["mean", "13.0"],
        ["standard", "deviation", "10.0"],
        ["95", "%", "interval", "-11.8", "to", "37.8"],
        ["untrained", "-5.00"],
        ["random", "play", "-7.00"],
    ]


def test_the_table_has_success_where_results_have_it():
    results = [finished(0, 3.0, 0.5, by_chance=0.1), finished(1, 13.0, 1.0, by_chance=0.2)]
    lines = [line.split() for line in summary_table(results).splitlines()]
    assert lines[0] == ["seed", "red", "success"]
    assert lines[1] == ["0", "3.00", "50", "%"]
    assert lines[3] == ["mean", "8.00", "75", "%"]
    assert lines[-2:] == [["untrained", "-5.00", "–"], ["random", "play", "-7.00", "15", "%"]]
    assert lines[5][-5:] == ["0", "%", "to", "100", "%"]  # Student's t knows no bounds: 75 % ± 318 %


def test_seeds_that_are_not_finished_do_not_count():
    results = [finished(0, 3.0), SeedResult(1, "seed1"), SeedResult(2, "seed2", "unfinished", error="it broke")]
    lines = summary_table(results).splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["0", "3.00"],
        ["1", "missing"],
        ["2", "failed"],
        ["mean", "3.00"],
    ]
    assert about_intervals(results) == "An interval needs two seeds or more."


def test_a_table_of_many_modules_says_how_many_are_left_out():
    result = SeedResult(0, "seed0", FINISHED, measured={"after_training": {f"return/m{i}": 1.0 for i in range(9)}})
    assert summary_table([result]).splitlines()[-1] == "  and 3 more modules: see seeds.json"


def test_many_seeds_have_more_rows():
    results = [finished(seed, float(seed)) for seed in range(10)]
    text = summary_table(results)
    assert "interquartile mean" in text and "its 95 % interval" in text
    assert "percentile bootstrap with 2,000 resamples" in about_intervals(results)


def test_seeds_are_written_as_strict_json(tmp_path):
    write_seeds(tmp_path, {"run.algo": "ppo"}, [finished(0, 3.0), finished(4, math.nan)])
    data = json.loads((tmp_path / "seeds.json").read_text(), parse_constant=pytest.fail)
    assert data["results"][1]["measured"]["after_training"] == {"return/red": None, "return/green": None}
    assert data["summary"]["return/red"]["num_seeds"] == 1
    assert "curve" not in data["results"][0]
    assert read_seeds(tmp_path) == ({"run.algo": "ppo"}, [0, 4])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON"),
        ("[]", "JSON"),
        ('{"settings": {}}', "'settings'"),
        ('{"settings": {"run": {"algo": "ppo"}}, "seeds": [-1]}', "'seeds'"),
        ('{"settings": {"run": {"algo": "ppo"}}, "seeds": []}', "'seeds'"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message):
    (tmp_path / "seeds.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_seeds(tmp_path)


def test_a_path_that_cannot_exist_is_no_folder_of_seeds(tmp_path):
    for name in ("n" * 5000, "\0"):
        assert not seed_summary.is_seeds_folder(tmp_path / name)


@pytest.fixture
def _pictures_are_not_painted():
    """They are."""


def test_learning_curves_are_drawn_with_gaps_and_of_nothing(tmp_path):
    curve = {"red": [(100, 1.0), (200, 2.0)], "green": []}
    some = [finished(0, 1.0, curve=curve), finished(1, 2.0, curve={"red": [(150, 3.0)]}), SeedResult(2, "seed2")]
    for results in (some, [SeedResult(0, "seed0")]):
        seed_summary.draw_learning_curves(tmp_path, results)
        with Image.open(tmp_path / "learning_curves.png") as picture:
            assert picture.size == (960, 600)
            assert np.asarray(picture.convert("L")).min() < 128
