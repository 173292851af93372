"""The tables of single settings and of defaults: worked out by hand, and the same in the files and on the pages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.runs.command_runs import tree_of

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def ablations(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import ablations

    return ablations


@pytest.fixture
def defaults(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import defaults

    return defaults


def test_a_page_has_the_table_of_the_files(ablations, defaults):
    for module in (ablations, defaults):
        page = module.DOCS.read_text()
        between = page.split(module.BEGIN)[1].split(module.END)[0]
        assert between.strip() == module.table()


def test_a_cell_has_the_mean_and_the_standard_deviation_over_seeds(ablations, monkeypatch, tmp_path):
    monkeypatch.setattr(ablations, "RESULTS", tmp_path)
    by_change = {"nothing": {"0": 1.0, "1": 3.0}, "lambda 0.9": {"0": -2.0}}
    (tmp_path / "LunarLander-v3.json").write_text(json.dumps(by_change))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ablations.table().splitlines()]
    assert rows[0] == ["changed", "`LunarLander-v3`, 300,000 steps"]
    assert ["nothing", "2.0 ± 1.4"] in rows and ["lambda 0.9", "-2.0"] in rows and ["lambda 1", "–"] in rows


@pytest.mark.slow
def test_every_change_gives_options_that_make_other_settings(ablations):
    for task in ablations.BUDGETS:
        base = tree_of(*ablations.options(task, "nothing")[1:])
        for change in set(ablations.CHANGES) - {"nothing"}:
            changed = tree_of(*ablations.options(task, change)[1:])
            assert (changed != base) == ablations.applies(task, change) or change in ablations.FOR_SEVERAL_AGENTS


def test_equal_candidates_share_their_ranks(defaults):
    assert defaults.mean_ranks(np.array([[5.0, 5.0, 1.0]])).tolist() == [1.5, 1.5, 3.0]
    assert defaults.mean_ranks(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist() == [2.0, 2.0, 2.0]
