"""What holds for all tests: no window is opened, no test depends on the one before, GPU tests need a GPU."""

from __future__ import annotations

import collections
import functools
import gc
import importlib.metadata
import multiprocessing.context
import os
import random
import signal
import sys

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported, as the command line does
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["COLUMNS"] = "300"  # tables and help are then the same on every terminal
# Commands that are suggested then name programs as in an active virtual environment.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])

import numpy as np
import pytest

pytest.register_assert_rewrite("helpers")

from helpers.examples import load_profile  # noqa: E402  # after the line that lets pytest rewrite its asserts

load_profile()


def pytest_configure(config):
    """Ray before 2.60 leaves its log files and processes to the garbage collector, which warns."""
    installed = list(importlib.metadata.distributions(name="ray"))
    if installed and tuple(map(int, installed[0].version.split(".")[:2])) < (2, 60):
        for what in (r"subprocess \d+ is still running", r"unclosed file <_io\.\w+ name='.*(/dev/null|/ray/.*)'"):
            config.addinivalue_line("filterwarnings", f"ignore:{what}:ResourceWarning")


@pytest.hookimpl(optionalhook=True)  # pytest runs without pytest-xdist, too
def pytest_xdist_auto_num_workers(config):
    """``-n auto`` starts two processes more than there are cores, because many tests wait for other processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items):
    _mark_all_but_a_few(items)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _mark_all_but_a_few(items):
    """Marks the cases of a function with ``few(n)`` as slow, but for ``n`` that are spread evenly over them."""
    cases_of = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases_of[item.nodeid.partition("[")[0]].append(item)
    for cases in cases_of.values():
        (number,) = cases[0].get_closest_marker("few").args
        kept = {index * len(cases) // number for index in range(number)}
        for index, item in enumerate(cases):
            if index not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Collected tests live as long as the process, so the garbage collector need not visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _worker_processes_find_everything_imported():
    """The process that workers are forked from imports torch and the library once, so that a worker starts at once."""
    preload = multiprocessing.context.BaseContext.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            multiprocessing.context.BaseContext,
            "set_forkserver_preload",
            lambda self, modules: preload(self, [*modules, "torch", "marl_connectors.algorithms.ppo.config"]),
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_signal_is_ignored():
    """A process that was started with ``nohup``, or in the background of a script, ignores some signals."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _handlers_of_signals_stay_as_they_were():
    """A handler that a test leaves behind makes another test fail, in a process that it happens to share."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)]
    former = {number: signal.getsignal(number) for number in numbers}
    yield
    assert {number: signal.getsignal(number) for number in numbers} == former


@pytest.fixture(autouse=True)
def _tests_without_the_mark_see_no_gpu(request, monkeypatch):
    """What a test expects of the CPU holds on machines with a GPU, too, where runs would take it by themselves."""
    if request.node.get_closest_marker("gpu") or "torch" not in sys.modules:
        return
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True)
def _torch_reads_the_operators_of_onnx_once():
    """Torch reads all of them anew in each export, which takes longer than all else that an export does."""
    known = getattr(sys.modules.get("torch.onnx._internal.exporter._registration"), "ONNXRegistry", None)
    if known is not None and not hasattr(known.from_torchlib, "cache_info"):
        known.from_torchlib = staticmethod(functools.cache(known.from_torchlib))


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


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Writes a module where Python finds it, and forgets it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
