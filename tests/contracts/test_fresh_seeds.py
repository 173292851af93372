"""Tests over random configurations have seeds that are new in each run and the same in all processes of one."""

from __future__ import annotations

import os
import subprocess
import sys

from helpers.fresh_seeds import LARGEST_FIXED_SEED, fresh_seeds


def seeds(number):
    return [parameter.values[0] for parameter in fresh_seeds(number)]


def test_each_run_has_its_own_seeds(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    assert not {*seeds(50)} & {*seeds(50)}


def test_all_processes_of_a_run_have_the_same_seeds(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "one run")
    program = "from helpers.fresh_seeds import fresh_seeds; print([p.values[0] for p in fresh_seeds(50)])"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(seeds(50))
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "another run")
    assert not {*seeds(50)} & {*map(int, other.stdout.strip()[1:-1].split(","))}


def test_no_seed_is_drawn_twice_or_equal_to_one_that_a_test_names():
    drawn = seeds(1000)
    assert len({*drawn}) == 1000 and min(drawn) > LARGEST_FIXED_SEED
