"""Lets the tests import the little environments of ``tests/helpers``."""

from __future__ import annotations

import sys
from pathlib import Path

_HELPERS = str(Path(__file__).parents[1] / "helpers")
if _HELPERS not in sys.path:
    sys.path.append(_HELPERS)
