"""Figures and tables that people see."""

from __future__ import annotations

import pytest

from marl_connectors.algorithms.fitting.figures import table

HEADER = ["task", "algorithm", "return"]
ROWS = [["CartPole-v1", "ppo", "500.0 ± 0.0"], ["simple_spread_v3", "mappo", "-20.1 ± 0.3"]]


def _no_terminal(*args):
    raise OSError


def test_a_table_in_a_pipe_has_a_line_for_each_row(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", _no_terminal)
    assert table(HEADER, ROWS).splitlines() == [
        "  task               algorithm   return",
        "  CartPole-v1        ppo         500.0 ± 0.0",
        "  simple_spread_v3   mappo       -20.1 ± 0.3",
    ]


@pytest.mark.parametrize("width", [30, 40])
def test_a_table_fits_a_narrow_terminal_and_leaves_nothing_out(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = table(HEADER, ROWS).splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text == "CartPole-v1 algorithm ppo, return 500.0 ± 0.0 simple_spread_v3 algorithm mappo, return -20.1 ± 0.3"
