"""A run that is killed at any moment can be gone on with, and ends as one that was never disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

from marl_connectors.algorithms.fitting import run_folder, saver
from marl_connectors.checkpoints import load_state

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks"),
    # Of Python 3.12 and later. What the threads of this process may hold is not used in the children.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
KILLED = 9
RUN = Path("run")


def without_times(value):
    """Results or a state without what a clock says."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not (str(k).startswith("time") or k == "saving_s")}
    return [without_times(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcome(run):
    """Metrics, and the state of the last checkpoint."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    latest = (run / "checkpoints/latest").read_text().strip()
    return without_times(rows), latest, without_times(load_state(run / "checkpoints" / latest))


def check_checkpoints_are_whole(run):
    """Whatever has the name of a checkpoint is one, and ``latest`` names one."""
    for path in (run / "checkpoints").iterdir() if (run / "checkpoints").is_dir() else ():
        if path.name.isdigit():
            load_state(path)
    if (run / "checkpoints/latest").exists():
        load_state(run / "checkpoints" / (run / "checkpoints/latest").read_text().strip())


def leftovers(run):
    return [str(path) for path in run.rglob("*") if path.name.startswith(".")]


# At each operation on a file, with the fake algorithm ----------------------------------------------------------------


def in_child(fn):
    """The exit code of a forked process that calls ``fn``."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = fn()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_at_operation(number):
    """Ends this process, as ``kill -9`` would, before it changes any file for the nth time."""
    here, left = os.getcwd(), [number]

    def hook(event, args):
        if event == "open":
            changes = (isinstance(args[1], str) and set("wax+") & set(args[1])) or args[2] & (os.O_WRONLY | os.O_RDWR)
        else:
            changes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
        if changes and isinstance(args[0], str) and os.path.abspath(args[0]).startswith(here):
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)

    sys.addaudithook(hook)


@pytest.fixture
def killable(command, monkeypatch):
    """``killable(words, number)`` runs a command until it changes files for the nth time; gives its exit code."""
    import PIL.GifImagePlugin  # noqa: F401  # so that not each child does
    import torch.utils.tensorboard  # noqa: F401

    monkeypatch.setattr(run_folder, "draw_curves", lambda file, *args: file.write(b"curves"))
    monkeypatch.setattr(saver, "CHECKPOINT_AGE_S", 0.0)  # so there are those in between, too
    monkeypatch.setattr(saver, "_SAVING_SHARE", 1e9)
    command.algo.frames = [np.zeros((4, 4, 3), np.uint8)]

    def run(words, number=10**9):
        def child():
            die_at_operation(number)
            return command(*words)

        return in_child(child)

    return run


def begin_or_resume(run, start):
    """The words that go on with a run, or that begin it where nothing is there to go on with."""
    return ["train", "--resume", str(run)] if (run / "config.json").exists() else start


def cut_last_line(run, rng):
    """What is not in a checkpoint yet may be half-written."""
    metrics = run / "metrics.jsonl"
    if metrics.exists() and (text := metrics.read_bytes()):
        *_, last = text.splitlines()
        saved = max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)
        if json.loads(last)["training_iteration"] > saved:
            metrics.write_bytes(text[: len(text) - rng.integers(0, len(last) + 1)])


START = ["train", "fake_env", "--steps", "200", "--checkpoint-every", "2", "--out", str(RUN)]


def survives_a_kill(killable, whole, number, rng):
    """Whether a run is killed at the operation with this number; checks how it ends after it was resumed."""
    shutil.rmtree(RUN)
    code = killable(START, number)
    if code == 0:
        return False
    assert code == KILLED
    check_checkpoints_are_whole(RUN)
    cut_last_line(RUN, rng)
    if rng.random() < 0.3 and not (RUN / "final.json").exists():
        again = killable(begin_or_resume(RUN, START), int(rng.integers(0, 20)))
        assert again in (KILLED, 0)
        check_checkpoints_are_whole(RUN)
    is_filming = (RUN / "final.json").exists()  # of a finished run only the video can be missing
    if not is_filming:
        assert killable(begin_or_resume(RUN, START)) == 0, number
    assert outcome(RUN) == whole, number
    assert leftovers(RUN) in ([], ["run/.video.gif.tmp"] if is_filming else []), number
    return True


@pytest.mark.slow
def test_a_run_survives_a_kill_at_some_operations_on_files(killable):
    assert killable(START) == 0
    whole = outcome(RUN)
    for number in (2, 17, 32):
        assert survives_a_kill(killable, whole, number, np.random.default_rng(number))


@pytest.mark.slow
def test_a_run_survives_a_kill_at_each_operation_on_a_file(killable):
    assert killable(START) == 0
    whole = outcome(RUN)
    number, rng = 0, np.random.default_rng(0)
    while survives_a_kill(killable, whole, number, rng):
        number += 1
    assert number > 40  # there was something to survive


# At random moments, for good -----------------------------------------------------------------------------------------

SERVER = """
import os, signal, sys
from marl_connectors.cli.main import main
import torch, tensorboard, matplotlib.figure, PIL.Image, marl_connectors.cli.train
import torch.utils.tensorboard, marl_connectors.algorithms.mappo, marl_connectors.algorithms.ppo
import marl_connectors.algorithms.fitting.pictures

signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.setpgid(0, 0)
            log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1), os.dup2(log, 2)
            status = main(line.split())
        finally:
            os._exit(status)
    os.setpgid(pid, pid)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    """Runs command lines in processes that need not import anything first."""

    def __init__(self, folder):
        self.log = folder / "log"
        path = folder / "server.py"
        path.write_text(SERVER)
        self.process = subprocess.Popen(
            [sys.executable, str(path), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._line() == "ready"

    def _line(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __call__(self, words, kill_after=None):
        """The exit code; -9 if it was killed after so many seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        pid = int(self._line())
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):  # it was faster
                os.kill(pid, signal.SIGKILL)
        return int(self._line())

    def close(self):
        self.process.communicate("")


class FreshProcesses:
    """As Server, with the start of Python in what can be killed."""

    def __init__(self, folder):
        self.log = folder / "log"

    def __call__(self, words, kill_after=None):
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "marl_connectors", *words],
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        return process.wait()

    def close(self):
        pass


def survive_kills(folder, number, words, seed, runner=Server):
    """Kills a run at random moments, as often as wanted, and compares how each one ends with an undisturbed run."""
    rng = np.random.default_rng(seed)
    server = runner(folder)

    def start(name):
        return ["train", *words, "--out", name]

    try:
        began = time.monotonic()
        assert server(start("whole")) == 0, server.log.read_text()
        seconds, whole = time.monotonic() - began, outcome(folder / "whole")
        kills, trial = 0, 0
        while kills < number:
            run, trial = folder / f"run{trial}", trial + 1
            while kills < number and rng.random() < 0.8:
                code = server(
                    begin_or_resume(run, start(run.name)) if run.exists() else start(run.name),
                    kill_after=rng.uniform(0, 1.1) * seconds,
                )
                kills += code == -signal.SIGKILL
                check_checkpoints_are_whole(run)
                if (run / "final.json").exists():
                    break
            if not (run / "final.json").exists():
                code = server(begin_or_resume(run, start(run.name)))
                assert code == 0, (seed, trial, server.log.read_text()[-3000:])
            assert_same(outcome(run), whole, f"seed {seed}, run {trial}")
            assert leftovers(run) == []
            shutil.rmtree(run)
    finally:
        server.close()


def assert_same(found, expected, message):
    assert found[:2] == expected[:2], message
    np.testing.assert_equal(found[2], expected[2], err_msg=message)


CARTPOLE = ["CartPole-v1", "--num-envs", "2", "--num-env-workers", "0", "--no-env-check", "--no-video"]
SMALL = ["--set", "train_batch_size_per_learner=64", "--set", "num_epochs=1", "--eval-episodes", "2", "--hidden", "8"]


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_as_an_undisturbed_one(tmp_path):
    survive_kills(tmp_path, 3, [*CARTPOLE, *SMALL, "--steps", "300", "--checkpoint-every", "1"], 0)


SPREAD = ["marl_envs.spread_v0", "--num-envs", "2", "--num-env-workers", "2", "--no-env-check", "--algo", "mappo"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words", "runner"),
    [
        (15, [*CARTPOLE, *SMALL, "--steps", "1000", "--checkpoint-every", "1"], Server),
        (10, [*SPREAD, *SMALL, "--steps", "1000", "--checkpoint-every", "3"], Server),
        (5, [*CARTPOLE, *SMALL, "--steps", "600", "--checkpoint-every", "2"], FreshProcesses),
    ],
    ids=["cartpole", "spread", "fresh"],
)
def test_runs_that_are_killed_at_many_random_moments_end_as_undisturbed_ones(tmp_path, number, words, runner):
    survive_kills(tmp_path, number, words, secrets.randbits(32), runner)
