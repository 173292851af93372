"""Limits in seconds that depend on no machine."""

import pytest

from helpers.runs import hanging_workers


@pytest.fixture
def limits_begin_with_hangs(monkeypatch):
    """See ``hanging_workers.limits_begin_with_hangs``."""
    hanging_workers.limits_begin_with_hangs(monkeypatch)
