"""What holds for all tests: no window is opened, no test depends on the one before, GPU tests need a GPU."""

from __future__ import annotations

import os
import random
import sys

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported, as the command line does
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest

pytest.register_assert_rewrite("helpers")

# The same examples in every run, and no limit on the time of one: the machine may be busy.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
# Other examples in every run, and so many that tests/contracts/test_random_histories.py lives through over 30,000.
hypothesis.settings.register_profile(
    "long",
    deadline=None,
    max_examples=2000,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items):
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _tests_without_the_mark_see_no_gpu(request, monkeypatch):
    """What a test expects of the CPU holds on machines with a GPU, too, where runs would take it by themselves."""
    if request.node.get_closest_marker("gpu") or "torch" not in sys.modules:
        return
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True)
def _library_leaves_the_global_random_state_alone():
    """Every draw comes from a named stream, so a test that changes numpy's or Python's global state fails."""
    python, (kind, keys, position, *_) = random.getstate(), np.random.get_state()
    yield
    changed = []
    if random.getstate() != python:
        changed.append("random")
    now = np.random.get_state()
    if now[0] != kind or now[2] != position or not np.array_equal(now[1], keys):
        changed.append("numpy.random")
    if changed:
        pytest.fail(f"The test changed the global state of {' and '.join(changed)}. Draw from a generator instead.")
