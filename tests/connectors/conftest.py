"""Lets the tests import the modules that stand beside them, and those of ``tests/helpers``."""

from __future__ import annotations

import sys
from pathlib import Path

for _folder in (Path(__file__).parent, Path(__file__).parents[1] / "helpers"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
