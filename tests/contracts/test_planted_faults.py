"""The faults that benchmarks/planted_faults.py plants can be planted in the library as it is now."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def planted_faults():
    spec = importlib.util.spec_from_file_location("planted_faults", ROOT / "benchmarks" / "planted_faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.accelerated
def test_each_fault_can_be_planted_in_one_place():
    module = planted_faults()
    faults = module.all_faults()
    assert module.wrong_in(faults) == []
    assert len({fault.name for fault in faults}) == len(faults) >= 120


def test_each_fault_changes_one_line():
    for fault in planted_faults().all_faults():
        assert fault.old != fault.new and "\n" not in fault.old + fault.new, fault.name


def test_there_are_faults_of_each_area():
    areas = "advantages cuts mapping masks credit bootstraps optimizers buckets seeds state replay targets recordings"
    counts = Counter(fault.area for fault in planted_faults().all_faults())
    assert all(counts[area] >= 5 for area in [*areas.split(), "export", "cluster"])


def test_a_fault_whose_line_has_changed_is_named():
    module = planted_faults()
    fault = module.all_faults()[0]
    (gone,) = module.wrong_in([fault._replace(old="no such line")])
    assert fault.name in gone and "0 times" in gone
    (lost,) = module.wrong_in([fault._replace(look_first=["tests/no_such_file.py"])])
    assert "tests/no_such_file.py" in lost
