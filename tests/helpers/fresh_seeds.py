"""Seeds for tests over random configurations, which are new in each test run."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

LARGEST_FIXED_SEED = 999_999
"""The seeds that tests name themselves are at most this large, so no fresh seed is equal to one of them."""


def fresh_seeds(number: int) -> list[Any]:
    """Returns parameters for ``number`` slow tests: seeds that are new in each test run, and all different.

    All processes of ``pytest -n`` get the same seeds, because pytest-xdist refuses to run processes that collect
    different tests.
    """
    rng = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))  # None: from the system's randomness
    return [pytest.param(s, marks=pytest.mark.slow) for s in rng.sample(range(LARGEST_FIXED_SEED + 1, 2**31), number)]
