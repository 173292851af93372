"""The table of what BC and MARWIL reach: worked out by hand, and the same in the file of results and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def imitation(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import imitation

    return imitation


def test_the_page_has_the_table_of_the_file(imitation):
    results = json.loads(imitation.RESULTS.read_text())
    assert list(results) == list(imitation.TASKS)
    assert imitation.table(results) in (ROOT / "docs" / "imitation.md").read_text(encoding="utf-8")
    for own in results.values():
        assert all({one["seed"] for one in own[name]} == {0, 1, 2} for name in ("BC", "MARWIL"))


def test_a_cell_has_the_mean_and_the_standard_deviation_over_seeds(imitation):
    clones = {"BC": [{"return": 1.0}, {"return": 3.0}], "MARWIL": [{"return": -2.5}]}
    lines = imitation.table({"game": {"untrained": 0.0, "recorded": 1.0, "expert": 2.0, **clones}}).splitlines()
    assert lines[-1] == "| game | 0.00 | 1.00 | 2.00 | 2.00 ± 1.00 | -2.50 ± 0.00 |"
