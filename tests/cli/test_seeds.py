"""``marl-connectors train --seeds``, with a fake Algorithm whose returns depend on the seed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.fake_algorithm import FakeAlgorithm
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.cli import run_processes
from marl_connectors.errors import ConfigError
from marl_connectors.validators import settings_of

FOLDER = Path("runs/fake_env-shared-seeds0-2")
START = ["train", "fake_env", "--steps", "300", "--no-video", "--seeds", "0-2"]


@pytest.fixture
def behaviour(command):
    """``{seed: arguments of FakeAlgorithm}``. Returns are 10 higher for each next seed."""
    behaviour = {}

    def build(config, tree):
        command.built.append(config)
        algo = FakeAlgorithm(config.env, **behaviour.get(config.seed, {}))
        vars(algo.config).update({name: getattr(config, name) for name in settings_of(RunSettings)})
        results = algo.results
        algo.results = lambda mean: results(mean + 10 * config.seed)
        return algo

    command.built = []
    command.build = build
    return behaviour


def data(folder=FOLDER):
    return json.loads((folder / "seeds.json").read_text())


def statuses(folder=FOLDER):
    return {result["seed"]: result["status"] for result in data(folder)["results"]}


# One after another ---------------------------------------------------------------------------------------------------


def test_each_seed_has_a_run_folder_and_all_have_a_summary(command, behaviour):
    assert command(*START) == 0
    names = ["learning_curves.png", "seed0", "seed1", "seed2", "seeds.json"]
    assert sorted(path.name for path in FOLDER.iterdir()) == names
    assert [(config.seed, config.steps) for config in command.built] == [(0, 300), (1, 300), (2, 300)]
    assert all((FOLDER / f"seed{seed}" / "final.json").exists() for seed in range(3))
    red = data()["summary"]["return/red"]
    assert (red["mean"], red["std"], red["num_seeds"]) == (13.0, 10.0, 3)  # of 3, 13 and 23
    assert "mean                 13.0" in command.out and "-11.8 to 37.8" in command.out
    assert "Intervals are for the mean over 3 seeds: Student's t." in command.out
    assert command.out.count("Next:") == 1


@pytest.mark.slow
def test_the_folder_of_a_seed_is_that_of_an_ordinary_run(command, behaviour):
    command(*START)
    assert command("evaluate", str(FOLDER / "seed1")) == 0
    assert command("train", "--resume", str(FOLDER / "seed1"), "--steps", "500") == 0
    assert command("evaluate", str(FOLDER)) == 2
    assert f"has several runs. Choose one: {FOLDER / 'seed0'}, {FOLDER / 'seed1'}" in command.err


@pytest.mark.slow
def test_folders_are_numbered_and_named_after_the_seeds(command, behaviour):
    words = ["train", "fake_env", "--steps", "100", "--no-video", "--seeds"]
    for given in ("4,7", "4,7", "5"):
        assert command(*words, given) == 0
    assert command(*words, "1", "--out", "own") == 0
    names = ["fake_env-shared-seeds4,7", "fake_env-shared-seeds4,7-2", "fake_env-shared-seeds5"]
    assert sorted(path.name for path in Path("runs").iterdir()) == names
    assert statuses(Path("own")) == {1: "finished"}
    assert command(*words, "1", "--out", "own") == 2
    assert "expected a new or empty folder, but own exists" in command.err
    assert "Choose another, or continue with: marl-connectors train --resume own\n" in command.err


def test_an_error_names_its_seed_and_the_others_are_trained(command, behaviour):
    behaviour[1] = {"fail_at": 3}
    assert command(*START) == 2
    assert "marl-connectors: error: seed 1: fake_env: expected finite rewards" in command.err
    assert statuses() == {0: "finished", 1: "unfinished", 2: "finished"}
    assert data()["results"][1]["error"].startswith("fake_env: expected finite rewards")
    assert "1                    failed" in command.out
    assert f"marl-connectors train --resume {FOLDER}" in command.out
    behaviour.clear()
    assert command("train", "--resume", str(FOLDER)) == 0
    assert "Training with the seeds 1, one after another" in command.out
    assert statuses() == {0: "finished", 1: "finished", 2: "finished"}
    assert data()["results"][1]["error"] == ""


def test_an_unexpected_error_of_one_seed_does_not_stop_the_others(command, behaviour):
    behaviour[0] = {"modules": None}
    assert command(*START) == 2
    assert "Traceback" in command.err and "marl-connectors: error: seed 0: TypeError" in command.err
    assert statuses() == {0: "missing", 1: "finished", 2: "finished"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_all_seeds_and_resume_continues_with_what_is_missing(command, behaviour):
    behaviour[1] = {"interrupt_at": 2}
    assert command(*START) == 130
    assert statuses() == {0: "finished", 1: "unfinished", 2: "missing"}
    assert f"Stopped. 1 of 3 seeds are finished. Resume with: marl-connectors train --resume {FOLDER}" in command.out
    behaviour.clear(), command.built.clear()
    assert command(*START, "--resume", str(FOLDER)) == 0  # the same command
    assert "Continuing from iteration 2 at 200 agent steps." in command.out
    assert [(config.seed, config.steps) for config in command.built] == [(2, 300)]
    assert set(statuses().values()) == {"finished"}


def test_a_finished_folder_is_summarised_again(command, behaviour):
    command(*START)
    command.built.clear()
    assert command("train", "--resume", str(FOLDER)) == 0
    assert f"All seeds in {FOLDER} are finished." in command.out and "-11.8 to 37.8" in command.out
    assert command.built == []


@pytest.mark.slow
def test_more_seeds_and_more_steps_can_be_trained_later(command, behaviour):
    command(*START, "--set", "lr=0.5", "--hidden", "7")
    command.built.clear()
    assert command("train", "--resume", str(FOLDER), "--seeds", "0-4") == 0
    built = [(each.seed, each.lr, each.model_config.fcnet_hiddens) for each in command.built]
    assert built == [(3, 0.5, [7]), (4, 0.5, [7])]
    assert command("train", "--resume", str(FOLDER), "--steps", "500") == 0
    assert [result["agent_steps"] for result in data()["results"]] == [500] * 5


@pytest.mark.slow
def test_changed_settings_hold_for_seeds_that_are_begun_later(command, behaviour):
    behaviour[0] = {"interrupt_at": 2}
    command(*START, "--set", "lr=0.5", "--set", "gamma=0.9")
    assert command("train", "--resume", str(FOLDER), "--set", "lr=0.25") == 0
    assert command.changed == {"training.lr": 0.25}
    assert [(each.lr, each.gamma) for each in command.built[1:]] == [(0.25, 0.9)] * 2
    assert command("train", "--resume", str(FOLDER), "--seeds", "0-3") == 0
    assert (command.built[-1].seed, command.built[-1].lr) == (3, 0.25)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "fake_env", "--seeds", "0-2", "--seed", "1"], "--seed: it cannot be given with --seeds. Use one"),
        (["train", "fake_env", "--parallel", "2"], "--parallel is for several seeds. Add --seeds"),
        (
            ["train", "fake_env", "--seeds", "3-1"],
            "--seeds: expected seeds such as 0-4 or 0,3,7, but got '3-1'",
        ),
        (["train", "fake_env", "--seeds", "1,x"], "expected seeds such as"),
        (["train", "fake_env", "--seeds", "1,0-2"], "expected each seed once, but got '1,0-2'"),
        (["train", "fake_env", "--seeds", "0-1", "--new-episodes"], "--new-episodes is for --resume"),
        (["train", "--seeds", "0-1"], "expected an environment"),
        (["train", "fake_env", "--seeds", "0-1", "--policies", "sharde"], "Did you mean 'shared'?"),
        (["train", "--resume", "nowhere", "--seeds", "0-1"], "nowhere has no seeds.json"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(command, behaviour, words, message):
    assert command(*words) == 2
    assert message in command.err and command.err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_an_option_that_cannot_change_is_refused_on_resume(command, behaviour):
    command(*START)
    for option, value, message in (
        ("--hidden", "3", "--hidden cannot be changed"),
        ("--out", "other", "--out cannot be given"),
        ("--num-envs", "4", "--num-envs cannot be changed"),
    ):
        assert command("train", "--resume", str(FOLDER), option, value) == 2
        assert message in command.err


def test_seeds_that_all_fail_at_once_leave_no_folder(command, behaviour):
    behaviour.update({seed: {"fail_at": 1} for seed in range(3)})
    assert command(*START) == 2
    assert [f"seed {seed}: fake_env: expected finite" in command.err for seed in range(3)] == [True] * 3
    assert list(Path("runs").iterdir()) == []


def test_settings_that_cannot_be_built_are_said_once(command, behaviour):
    def refuse(config, tree):
        raise ConfigError("lr: expected a number.")

    command.build = refuse
    assert command(*START) == 2
    assert command.err == "marl-connectors: error: lr: expected a number.\n"
    assert list(Path("runs").iterdir()) == []


@pytest.mark.slow
def test_a_damaged_seed_is_named_and_the_others_are_trained(command, behaviour):
    behaviour[1] = {"fail_at": 2}
    command(*START)
    (FOLDER / "seed0" / "metrics.jsonl").write_text("{}\n")
    shutil.rmtree(FOLDER / "seed2")
    behaviour.clear()
    assert command("train", "--resume", str(FOLDER)) == 2
    assert "seed 0:" in command.err and "metrics.jsonl, line 1, is damaged" in command.err
    assert statuses() == {0: "unfinished", 1: "finished", 2: "finished"}


# Several at a time ---------------------------------------------------------------------------------------------------

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
# Of Python 3.12 and later. What the threads of this process may hold is not used in the children.
quiet = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def forked(behaviour, monkeypatch):
    """Has forked processes, so that they have the fake Algorithm, too."""
    monkeypatch.setattr(run_processes, "START_METHOD", "fork")
    monkeypatch.setattr(run_processes, "POLL_S", 0.05)


@pytest.mark.few(1)
@fork
@quiet
@pytest.mark.parametrize("parallel", ["2", "5"])
def test_seeds_can_be_trained_at_the_same_time(command, forked, parallel):
    assert command(*START, "--parallel", parallel) == 0
    assert data()["summary"]["return/red"]["mean"] == 13.0
    assert [f"Seed {seed} is finished." in command.out for seed in range(3)] == [True] * 3
    assert {path.name for path in FOLDER.iterdir()} >= {"seed0.log", "seed1.log", "seed2.log"}
    assert data()["settings"]["env_runners"]["num_env_workers"] == 0


@pytest.mark.slow
@fork
@quiet
def test_an_error_in_a_process_names_its_seed(command, behaviour, forked):
    behaviour[1] = {"fail_at": 2}
    assert command(*START, "--parallel", "2") == 2
    assert "marl-connectors: error: seed 1: fake_env: expected finite rewards" in command.err
    assert statuses() == {0: "finished", 1: "unfinished", 2: "finished"}
    behaviour.clear()
    assert command("train", "--resume", str(FOLDER), "--parallel", "2") == 0
    assert set(statuses().values()) == {"finished"}


@fork
@quiet
def test_a_process_that_dies_is_named_with_its_log(command, behaviour, forked):
    former = command.build

    def die(config, tree):
        return os._exit(9) if config.seed == 2 else former(config, tree)

    command.build = die
    assert command(*START, "--parallel", "3") == 2
    assert "error: seed 2: its process has ended with the exit code 9. Its output is in" in command.err
    assert statuses() == {0: "finished", 1: "finished", 2: "missing"}


@fork
@quiet
def test_ctrl_c_is_sent_on_to_the_processes_and_no_more_are_started(command, behaviour, forked, monkeypatch):
    """Seed 0 never ends by itself; this process is interrupted once seed 0 has a checkpoint."""
    wait = run_processes.connection.wait

    def interrupted(sentinels, timeout=None):
        if (FOLDER / "seed0" / "checkpoints" / "latest").exists():
            monkeypatch.setattr(run_processes.connection, "wait", wait)
            os.kill(os.getpid(), signal.SIGINT)
        return wait(sentinels, timeout)

    monkeypatch.setattr(run_processes.connection, "wait", interrupted)
    endless = ["train", "fake_env", "--steps", "1000000000", "--checkpoint-every", "1", "--seeds", "0-2"]
    assert command(*endless, "--parallel", "2") == 130
    assert statuses()[2] == "missing" and statuses()[0] == "unfinished"
    assert "Stopped. 0 of 3 seeds are finished." in command.out and "--parallel 2" in command.out


def test_the_newest_line_of_progress_is_found_in_a_log(tmp_path):
    log = tmp_path / "seed0.log"
    assert run_processes.newest_progress(log) == ""
    log.write_text("Building ...\nMeasuring ...\n\n")
    assert run_processes.newest_progress(log) == "Measuring ..."
    log.write_text("Measuring ...\n  4%   4,096 agent steps\n 74%  73,728 agent steps\nCtrl-C\n")
    assert run_processes.newest_progress(log) == "74%  73,728 agent steps"
    log.write_text("74% of it\n" + "x" * 5000)
    assert run_processes.newest_progress(log) == "x" * 160


class FakeProcess:
    """Its output has the first line before it begins, and another line at each look, after which it ends."""

    def __init__(self, log, lines):
        log.write_text(lines[0])
        self.log, self._path, self._lines, self.signals = run_processes.Log(log), log, lines[1:], []
        self.sentinel = -1

    def has_ended(self):
        if self._lines:
            self._path.write_text(self._lines.pop(0))
            return False
        return True

    def result(self):
        return 0, "", False

    def send_signal(self, number):
        self.signals.append(number)
        self._lines = []

    def end(self):
        raise AssertionError("it has ended")


@pytest.fixture
def now(monkeypatch):
    """The clock of run processes, which shows 10 s more at each look at the processes."""
    now = [0.0]
    monkeypatch.setattr(run_processes, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait(sentinels, timeout):
        now[0] += 10.0

    monkeypatch.setattr(run_processes, "connection", SimpleNamespace(wait=wait))
    return now


def trained(processes, parallel=2, statuses=()):
    """Returns the exit status of runs in fake processes, and their names in the order of their ends."""
    ended, statuses = [], dict(statuses)

    def has_ended(name, *result):
        ended.append(name)
        return statuses.get(name, 0)

    return run_processes.train_several(iter(processes.items()), parallel, has_ended), ended


def test_news_of_runs_are_printed_once(tmp_path, now, capsys):
    old, ten, twenty = " 5%  50 agent steps", " 10%  100 agent steps", " 20%  200 agent steps"
    processes = {
        "old": FakeProcess(tmp_path / "old.log", [old, old, ten, ten, twenty]),
        "new": FakeProcess(tmp_path / "new.log", ["", "Measuring ...", "Measuring ..."]),
    }
    assert trained(processes) == (0, ["new", "old"])
    assert capsys.readouterr().out.splitlines() == [
        "new: Measuring ...",
        "old: 10%  100 agent steps",
        "old: 20%  200 agent steps",
    ]


def test_news_of_runs_are_not_printed_too_often(tmp_path, now, capsys, monkeypatch):
    monkeypatch.setattr(run_processes, "PROGRESS_S", 20.0)
    lines = [f"{percent}%  {percent} agent steps" for percent in range(5)]
    trained({"run": FakeProcess(tmp_path / "run.log", lines)})
    assert capsys.readouterr().out.splitlines() == [f"run: {lines[2]}", f"run: {lines[4]}"]


def test_a_signal_reaches_the_processes_also_after_another_run_was_interrupted_alone(tmp_path, now, monkeypatch):
    processes = {name: FakeProcess(tmp_path / name, [""] * length) for name, length in (("a", 2), ("b", 99), ("c", 99))}
    wait = run_processes.connection.wait

    def interrupted(sentinels, timeout):
        wait(sentinels, timeout)
        if now[0] == 50.0:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run_processes.connection, "wait", interrupted)
    assert trained(processes, statuses={"a": 130}) == (143, ["a", "b", "c"])
    assert [processes[name].signals for name in processes] == [[], [signal.SIGTERM], [signal.SIGTERM]]


# For good ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_processes_stop_in_order_and_go_on_as_if_never_stopped(tmp_path):
    words = [sys.executable, "-m", "marl_connectors", "train"]
    settings = "CartPole-v1 --steps 40000 --baseline-seconds 60 --eval-episodes 2 --no-video --seeds 0-1 --parallel 2"
    out = tmp_path / "stopped"
    process = subprocess.Popen([*words, *settings.split(), "--out", str(out)], start_new_session=True)
    while not all((out / f"seed{seed}" / "metrics.jsonl").exists() for seed in (0, 1)):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait() == 130
    assert statuses(out) == {0: "unfinished", 1: "unfinished"}
    assert subprocess.run([*words, "--resume", str(out), "--parallel", "2"]).returncode == 0
    whole = tmp_path / "whole"
    assert (
        subprocess.run([*words, *settings.removesuffix(" --parallel 2").split(), "--out", str(whole)]).returncode == 0
    )
    assert data(out)["results"] == data(whole)["results"]
