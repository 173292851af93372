"""Lets the tests import what stands beside them, as ``episodes.histories`` and so on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.append(_TESTS)

pytest.register_assert_rewrite("episodes.comparing")
