"""Every command that the program prints as a next step works when it is pasted into a shell.

The shell does not know the programs of this Python environment, as if a virtual environment were not active, and the
current folder and the folders of runs have blanks in their names.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marl_connectors.cli.main import main
from marl_connectors.packages import is_installed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands are quoted for POSIX shells")
TINY = "--num-envs 2 --num-env-workers 0 --hidden 4 --eval-episodes 1 --baseline-seconds 1 --no-video"
TINY += " --set train_batch_size_per_learner=20 --set minibatch_size=10 --set num_epochs=1"
PRINTED = re.compile(r"^  (\S.*)$|(?:Resume with|continue with|Train it with|Try): (.*)$", re.MULTILINE)


class Shell:
    """A shell in a folder, where only the system's programs are found by their names."""

    def __init__(self, folder: Path):
        self.folder = folder

    def run(self, line: str) -> subprocess.CompletedProcess:
        path = os.pathsep.join(filter(None, sys.path))
        env = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": path}
        return subprocess.run(line, shell=True, cwd=self.folder, env=env, capture_output=True, text=True)

    def printed_by(self, line: str, status: int = 0) -> list[str]:
        """Runs a command, and returns the commands that it prints as next steps."""
        done = self.run(line)
        assert done.returncode == status, done.stderr
        _, _, end = done.stdout.rpartition("\nNext:\n")
        found = [first or second for first, second in PRINTED.findall((end or done.stdout) + done.stderr)]
        return [each for each in found if re.search("marl.connectors |tensorboard|OnnxPolicy", each)]

    def check(self, line: str) -> list[str]:
        """Runs a command that was printed, and returns what it prints as next steps."""
        words = shlex.split(line)
        if "tensorboard" in line.partition("--logdir")[0]:  # it would serve until it is stopped
            assert (self.folder / words[-1]).is_dir() and list((self.folder / words[-1]).rglob("events.out.*"))
            line = shlex.join([*words[:-2], "--version_tb"])
        return self.printed_by(line)


class InProcess(Shell):
    """Runs the program's commands in this process and its current folder, and the others in a shell."""

    def run(self, line: str) -> subprocess.CompletedProcess:
        words = shlex.split(line)
        module = words[:3] == [sys.executable, "-m", "marl_connectors"]
        if not module and Path(words[0]).name != "marl-connectors":
            return super().run(line)
        assert module or os.access(words[0], os.X_OK)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words[3 if module else 1 :])
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


@pytest.fixture
def shell(tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    return Shell(folder)


def program(*words: str) -> str:
    return f"{shlex.quote(sys.executable)} -m marl_connectors {' '.join(words)}"


@pytest.mark.slow
def test_the_step_of_a_message_and_those_after_a_run_work(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    here = InProcess(tmp_path)
    command = program("train", "CartPole-v1", "--steps 30 --no-preset --out 'first run'", TINY)
    printed = here.printed_by(command)
    assert len(printed) == 3 and all("first run" in line for line in printed)
    [line] = here.printed_by(command, status=2)
    assert "--resume 'first run'" in line
    for each in printed:
        here.check(each)
    here.printed_by(f"{line} --steps 90")


@pytest.mark.slow
def test_the_steps_after_a_run_work(shell):
    printed = shell.printed_by(program("train", "CartPole-v1", "--steps 30 --no-preset --out 'first run'", TINY))
    assert len(printed) == 3 and all("first run" in line for line in printed)
    again = [line for command in printed for line in shell.check(command)]
    assert len(again) == 3  # of the run that was trained further


@pytest.mark.slow
def test_the_steps_after_several_seeds_work(shell):
    printed = shell.printed_by(program("train", "CartPole-v1", "--steps 30 --no-preset --seeds 0,1 --out 'a b'", TINY))
    assert len(printed) == 2
    for line in printed:
        shell.check(line)


@pytest.mark.slow
def test_the_command_in_a_message_works(shell):
    command = program("train", "CartPole-v1", "--steps 30 --no-preset --out 'first run'", TINY)
    shell.printed_by(command)
    [line] = shell.printed_by(command, status=2)
    assert "--resume 'first run'" in line
    shell.printed_by(f"{line} --steps 60")
    [line] = shell.printed_by(program("zoo", "CartPole-v1"))
    assert shell.run(f"{line} --config nowhere.yaml").returncode == 2


@pytest.mark.slow
def test_the_step_after_an_export_works(shell):
    if not is_installed("onnxscript"):
        pytest.skip("needs onnx")
    shell.printed_by(program("train", "CartPole-v1", "--steps 30 --no-preset --out 'a run'", TINY))
    for out in ("", "--out 'a robot'"):
        [line] = shell.printed_by(program("export", "'a run'", out))
        assert shell.run(line).stdout == "['default_agent']\n"


@pytest.mark.slow
def test_the_steps_after_a_sweep_work(shell):
    if not is_installed("optuna"):
        pytest.skip("needs optuna")
    words = ["sweep CartPole-v1 --steps 30 --no-preset --search lr=1e-3..1e-2 --trials 2 --out 'a sweep'", TINY]
    printed = shell.printed_by(program(*words))
    assert len(printed) == 3
    for line in printed:
        shell.check(line)


def random_words(rng: np.random.Generator) -> str:
    def maybe(*words: str) -> str:
        return str(rng.choice(words)) if rng.random() < 0.5 else ""

    env = rng.choice(["marl_envs.match_v0", "marl_envs.masked_v0 --env-config ep_len=4", "CartPole-v1 --no-preset"])
    options = [
        maybe("--policies independent", "--policies shared"),
        maybe("--out 'my run'", "--out runs/$(echo deep)/er", '--out "it\'s"'),
        maybe("--algo mappo") if "CartPole" not in env else "",  # which has one agent
        maybe("--seed 7"),
        maybe("--track none"),
        maybe("--keep-best none", "--keep-best env_runners/episode_len_mean", "--keep-checkpoints 2"),
        maybe("--env-to-module MeanStdFilter"),
        maybe("--set grad_clip=None", "--set 'lr=[[0, 1e-3], [100, 1e-4]]'"),
        maybe("--anneal-lr") if rng.random() < 0.5 else "",
    ]
    if "lr=[[" in " ".join(options):
        options = [each for each in options if each != "--anneal-lr"]
    return f"{env} --steps 30 {TINY} {' '.join(options)}"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_steps_after_random_runs_work(shell, number):
    seed = secrets.randbits(31)
    words = random_words(np.random.default_rng(seed))
    print(f"seed {seed}: train {words}")
    printed = shell.printed_by(program("train", words))
    assert len(printed) == 3 - ("--track none" in words)
    for line in printed:
        shell.check(line)
