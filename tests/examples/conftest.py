"""Loads the examples as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Loads an example by its path below the folder, without ``.py``; restores the number of threads that it sets."""
    threads = torch.get_num_threads()

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name.replace('/', '_')}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        # A class that is made in a module which cannot be found again has no name to be saved under.
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    yield load
    torch.set_num_threads(threads)
