"""The figures of docs/zoo.md: worked out by hand, and the same in the files, on the page and in the tasks."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import numpy as np
import pytest

from marl_connectors.cli.main import main
from marl_connectors.zoo import Expected, ZooTask, find_task

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def zoo_results(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import zoo_results

    return zoo_results


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("zoo_of_benchmarks", f"{BENCHMARKS}/zoo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def zoo_report(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import zoo_report

    return zoo_report


def task(module=""):
    expected = Expected(mean_return=1, std=None, num_seeds=1, minutes=1, random_return=0, module=module)
    return ZooTask(name="game", summary="A game.", settings={"env": "my.game"}, expected=expected)


def runs(**changes):
    run = {
        "seed": 0,
        "agent_steps": 100,
        "seconds": 90.0,
        "returns": {"red": 10.0, "blue": 20.0},
        "random_play": {"red": 0.0, "blue": 0.0},
        "success": 0.5,
        "random_success": 0.1,
        "curves": {"red": [(10, 1.0), (50, 9.0), (100, 10.0)], "blue": [(10, 2.0), (50, 10.0), (100, 20.0)]},
    }
    return {"task": "game", "command": "", "commit": "", "versions": {}, "seeds": [{**run, **changes}]}


def test_returns_are_those_of_one_module_or_the_mean_of_all(zoo_results):
    assert zoo_results.final_returns(runs(), task("red")).tolist() == [10.0]
    assert zoo_results.final_returns(runs(), task()).tolist() == [15.0]
    assert zoo_results.random_return(runs(random_play={"red": -4.0, "blue": 2.0}), task()) == -1.0


def test_opponents_that_act_at_random_do_not_count(zoo_results):
    assert zoo_results.final_returns(runs(returns={"default_policy": 0.9, "random": -0.9}), task()).tolist() == [0.9]


@pytest.mark.parametrize(
    ("said", "measured", "expected"),
    [
        (0.9, 0.94, True),
        (0.9, 0.96, False),
        (0.98, 0.92, False),
        (-7.6, -7.559, True),
        (None, 0.5, False),
        (None, None, True),
    ],
)
def test_an_expected_figure_has_to_be_the_rounded_one(zoo_report, said, measured, expected):
    assert zoo_report.agrees("mean_return", said, measured) == expected


def test_a_curve_is_the_mean_of_the_modules(zoo_results):
    (curve,) = zoo_results.curves(runs(), task())
    assert curve.tolist() == [[10, 1.5], [50, 9.5], [100, 15.0]]


def test_the_steps_to_90_percent_are_counted_from_random_play(zoo_results):
    assert zoo_results.steps_to_most(runs(), task("red")) == 50  # 9 of 10
    assert zoo_results.steps_to_most(runs(), task("blue")) == 100  # 10 of 20
    assert zoo_results.steps_to_most(runs(random_play={"red": -90.0, "blue": 0.0}), task("red")) == 10  # 91 of 100


def test_success_and_time_are_means_over_seeds(zoo_results):
    two = {**runs(), "seeds": [*runs()["seeds"], *runs(success=1.0, seconds=30.0)["seeds"]]}
    assert zoo_results.successes(two).mean() == 0.75 and zoo_results.minutes(two) == 1.0
    assert zoo_results.successes(runs(success=None)) is None


def test_random_play_is_the_mean_over_the_seeds_that_measured_it(zoo_results):
    found = runs()
    found["seeds"] += [{**found["seeds"][0], "random_play": {}}, {**found["seeds"][0], "random_play": {"red": 3.0}}]
    assert zoo_results.random_return(found, task(module="red")) == 1.5


def test_runs_with_default_settings_keep_what_belongs_to_the_task(zoo_results):
    settings = {"env_config": {"size": 3}, "wrappers": ["frame_skip_v0:4"], "policies": "shared", "hidden": [8]}
    settings["eval_explore"] = True
    game = ZooTask(name="game", summary="A game.", settings={"env": "my.game", **settings}, expected=task().expected)
    words = zoo_results.command(game, "0", defaults=True)
    own = ["--env-config", "size=3", "--wrap", "frame_skip_v0:4", "--policies", "shared", "--eval-explore"]
    assert words[: words.index("--seeds")] == ["train", "game", "--no-preset", "--steps", "300000", *own]


def test_saved_runs_are_read_again(zoo_results, monkeypatch, tmp_path):
    monkeypatch.setattr(zoo_results, "RESULTS", tmp_path / "zoo")
    assert zoo_results.saved_runs(task()) is None
    zoo_results.save_runs(runs(), defaults=False)
    found = zoo_results.saved_runs(task())
    assert {**found, "seeds": None} == {**runs(), "seeds": None}
    assert np.array_equal(found["seeds"][0]["curves"]["red"], runs()["seeds"][0]["curves"]["red"])
    assert zoo_results.saved_runs(task(), defaults=True) is None


def test_the_page_and_the_tasks_say_what_the_files_say(zoo_report):
    assert zoo_report.differences() == []
    assert zoo_report.table() in zoo_report.PAGE.read_text()


@pytest.mark.slow
def test_a_folder_of_finished_runs_is_condensed(zoo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "CartPole-v1", "--seeds", "0-1", "--steps", "2500", "--eval-episodes", "2", "--no-video"]
    assert main([*words, "--no-eval-explore", "--baseline-seconds", "1", "--out", "runs"]) == 0
    capsys.readouterr()
    found = zoo.condensed(Path("runs"), find_task("CartPole-v1"))
    assert found["task"] == "CartPole-v1" and "train CartPole-v1 --no-eval-explore --seeds" in found["command"]
    assert [run["seed"] for run in found["seeds"]] == [0, 1]
    for run in found["seeds"]:
        assert run["agent_steps"] >= 2500 and run["returns"]["default_policy"] > 5 and run["seconds"] > 0
        assert len(run["curves"]["default_policy"]) >= 1


@pytest.mark.parametrize(("changed", "suffix"), [("results/zoo/game.json", ""), ("zoo.py", "-dirty")])
def test_results_do_not_make_a_commit_another_one(zoo, tmp_path, monkeypatch, changed, suffix):
    folder = tmp_path / "benchmarks"
    (folder / "results" / "zoo").mkdir(parents=True)
    for file in ("results/zoo/game.json", "zoo.py"):
        (folder / file).write_text("before")
    git = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    name = subprocess.run([*git, "describe", "--always"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(zoo, "__file__", str(folder / "zoo.py"))
    (folder / changed).write_text("after")
    assert zoo._commit() == name + suffix
