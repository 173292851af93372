"""SIGTERM, SIGHUP and Ctrl-C: an orderly end that can be gone on from."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from marl_connectors.algorithms.fitting import saver, stop_signals, video
from marl_connectors.checkpoints import load_state
from marl_connectors.cli import evaluate
from marl_connectors.cli.main import main
from marl_connectors.errors import EnvError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
RUN = Path("runs/fake_env-shared-seed0")
BOTH = pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])


def rows(run=RUN):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def checkpoints(run=RUN):
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name != "best")


def raised(number):
    os.kill(os.getpid(), number)


def always_saving(monkeypatch):
    """A checkpoint at the end of each iteration, as if each took longer than 20 s."""
    monkeypatch.setattr(saver, "CHECKPOINT_AGE_S", 0.0)
    monkeypatch.setattr(saver, "_SAVING_SHARE", 1e9)


@pytest.mark.few(1)
@BOTH
def test_a_signal_finishes_the_iteration_saves_it_and_says_how_to_go_on(command, number, status):
    command.algo = command.fake(interrupt_at=2, number=number)
    assert command("train", "fake_env", "--steps", "500") == status
    assert (RUN / "checkpoints" / "latest").read_text() == "000002\n"
    assert f"Resume with: marl-connectors train --resume {RUN}" in command.out
    assert f"{signal.Signals(number).name}: stopping after this iteration" in command.err
    assert command.algo.stopped
    assert command("train", "--resume", str(RUN)) == 0
    assert [row["training_iteration"] for row in rows()] == [1, 2, 3, 4, 5]


@pytest.mark.few(1)
@BOTH
def test_a_second_signal_stops_at_once(command, number, status):
    command.algo = command.fake(interrupt_at=2, interrupts=2, number=number)
    assert command("train", "fake_env", "--steps", "500") == status
    assert "Stopped at once. The latest checkpoint is of iteration 1. Resume with" in command.out
    assert len(rows()) == 1
    assert command.algo.stopped


@BOTH
def test_a_signal_before_training_writes_nothing(command, number, status):
    command.algo.random_play = lambda **kwargs: raised(number)
    assert command("train", "fake_env") == status
    assert not Path("runs").exists()
    assert command.algo.stopped


def test_other_commands_end_with_the_status_of_the_signal(command, monkeypatch):
    command.algo.save_to_path("ckpt")
    monkeypatch.setattr(evaluate, "load_algorithm", lambda path, **options: raised(signal.SIGTERM))
    assert command("evaluate", "ckpt") == 143


def stopped_evaluation(command, monkeypatch, number, ended, signals=1, when_trained=True):
    """Lets signals come during an evaluation in which ``ended`` of the episodes have ended."""
    play = command.fake.evaluate

    def evaluate_until_stopped(self, *, num_episodes, is_enough=None, **kwargs):
        results = play(self, num_episodes=num_episodes, **kwargs)
        if (self.iteration > 0) is not when_trained or is_enough is None:
            return results
        assert not is_enough()
        for _ in range(signals):
            raised(number)
        assert is_enough()
        results["env_runners"]["num_episodes"] = ended
        return results

    monkeypatch.setattr(command.fake, "evaluate", evaluate_until_stopped)


@pytest.mark.few(1)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_last_evaluation_keeps_what_has_ended_and_says_so(command, monkeypatch, number, status):
    with monkeypatch.context() as patch:
        stopped_evaluation(command, patch, number, 8)
        assert command("train", "fake_env", "--steps", "300", "--eval-episodes", "20") == status
    assert "topping with the episodes that have ended" in command.err
    assert "mean ± standard deviation of 8 episodes:" in command.out
    assert "Only 8 of 20 episodes of the trained policies ended before the stop" in command.out
    assert "Training is complete" in command.out
    assert f"To measure all episodes: marl-connectors train --resume {RUN}" in command.out
    assert not (RUN / "final.json").exists()
    assert checkpoints() == ["000003", "latest"]
    assert command("train", "--resume", str(RUN)) == 0
    assert "mean ± standard deviation of 20 episodes:" in command.out
    assert (RUN / "final.json").exists()


def test_the_first_signal_ends_evaluations_within_an_iteration(command, monkeypatch):
    train, asked = command.fake.train, []

    def train_and_ask(self):
        asked.append(self.ends_evaluations())
        if len(asked) == 3:
            raised(signal.SIGINT)
            asked.append(self.ends_evaluations())
        return train(self)

    monkeypatch.setattr(command.fake, "train", train_and_ask)
    assert command("train", "fake_env", "--steps", "900") == 130
    assert asked == [False, False, False, True]


def test_a_second_signal_in_the_last_evaluation_stops_at_once(command, monkeypatch):
    stopped_evaluation(command, monkeypatch, signal.SIGINT, 8, signals=2)
    assert command("train", "fake_env", "--steps", "300") == 130
    assert "Stopped at once. The latest checkpoint is of iteration 3. Resume with" in command.out
    assert checkpoints() == ["000003", "latest"]


def test_a_signal_while_the_last_video_is_made_loses_no_results(command, monkeypatch):
    monkeypatch.setattr(video, "record_video", lambda *args, **kwargs: raised(signal.SIGTERM))
    assert command("train", "fake_env", "--steps", "300") == 143
    assert "mean ± standard deviation of 20 episodes:" in command.out
    assert f"The run is complete in {RUN}, only its video is missing." in command.out
    assert (RUN / "final.json").exists()


def test_a_signal_in_the_command_evaluate_keeps_what_has_ended_and_says_so(command, monkeypatch):
    command.algo.save_to_path("ckpt")
    stopped_evaluation(command, monkeypatch, signal.SIGTERM, 8, when_trained=False)
    monkeypatch.setattr(command.fake, "random_play", None)  # it is not called
    assert command("evaluate", "ckpt", "--episodes", "20", "--video", "play.gif") == 143
    assert "ckpt: 8 episodes" in command.out
    assert "Only 8 of 20 episodes of the policies ended before the stop" in command.out
    assert "Stopped by a signal." in command.out
    assert not Path("play.gif").exists()
    assert command("evaluate", "ckpt", "--episodes", "20", "--json") == 143
    assert json.loads(command.out)["stopped"] is True


def in_iteration(command, number, act):
    """Has the fake algorithm do something in an iteration."""
    former = command.algo.train

    def changed():
        if command.algo.iteration + 1 == number:
            act()
        return former()

    command.algo.train = changed


def blocked():
    """As an environment that takes longer than anyone waits."""
    raised(signal.SIGTERM)
    time.sleep(60)


def test_an_iteration_that_takes_too_long_is_given_up_and_the_one_before_is_what_is_saved(command, monkeypatch):
    always_saving(monkeypatch)
    monkeypatch.setattr(stop_signals.InterruptGate.__init__, "__defaults__", (0.05,))
    in_iteration(command, 3, blocked)
    assert command("train", "fake_env", "--steps", "500") == 143
    assert checkpoints() == ["000002", "latest"]
    assert "The iteration took too long and was given up. The latest checkpoint is of iteration 2." in command.out
    assert command.algo.stopped
    assert command("train", "--resume", str(RUN)) == 0
    assert [row["training_iteration"] for row in rows()] == [1, 2, 3, 4, 5]


def test_what_is_given_up_before_the_first_checkpoint_says_so(command, monkeypatch):
    monkeypatch.setattr(stop_signals.InterruptGate.__init__, "__defaults__", (0.05,))
    in_iteration(command, 1, blocked)
    assert command("train", "fake_env", "--steps", "500") == 143
    assert "given up. Nothing of it was saved." in command.out
    assert not Path("runs").exists()


def test_the_time_limit_does_not_interrupt_the_writing_of_a_checkpoint(command, monkeypatch):
    monkeypatch.setattr(stop_signals.InterruptGate.__init__, "__defaults__", (0.05,))
    command.algo = command.fake(interrupt_at=2, number=signal.SIGTERM)
    former = command.algo.save_to_path

    def slow(path):
        time.sleep(0.3)
        former(path)

    command.algo.save_to_path = slow
    assert command("train", "fake_env", "--steps", "500") == 143
    assert (RUN / "checkpoints" / "latest").read_text() == "000002\n"
    assert "Stopped at 200 agent steps." in command.out


def test_ctrl_c_waits_for_the_iteration_however_long_it_takes(command, monkeypatch):
    monkeypatch.setattr(stop_signals.threading, "Timer", None)
    command.algo = command.fake(interrupt_at=2)
    assert command("train", "fake_env", "--steps", "500") == 130
    assert (RUN / "checkpoints" / "latest").read_text() == "000002\n"


def test_an_environment_that_fails_as_the_whole_job_is_stopped_ends_the_run_as_the_signal_does(command, monkeypatch):
    """Programs that the environment has started often get the signal, too."""
    always_saving(monkeypatch)

    def lose_its_program():
        raised(signal.SIGTERM)
        raise EnvError("env: its simulator is gone.")

    in_iteration(command, 2, lose_its_program)
    assert command("train", "fake_env", "--steps", "500") == 143
    assert "The iteration was given up: env: its simulator is gone." in command.err
    assert "The latest checkpoint is of iteration 1. Resume with:" in command.out


def test_a_signal_after_the_last_iteration_leaves_a_run_that_is_finished_on_resume(command):
    """The last evaluation may be interrupted as training may be."""
    command.algo = command.fake(interrupt_at=2, number=signal.SIGTERM)
    assert command("train", "fake_env", "--steps", "200") == 143
    assert not (RUN / "final.json").exists() and not (RUN / "video.gif").exists()
    command.evaluate = None
    assert command("train", "--resume", str(RUN)) == 0
    assert (RUN / "final.json").exists() and (RUN / "video.gif").exists()
    assert "Continuing from iteration 2 at 200 agent steps." in command.out
    assert "red      0 ± 0.5    2.00 ± 0.5   -7.00 ± 0.5" in command.out
    assert len(rows()) == 2
    assert command("train", "--resume", str(RUN)) == 2  # nothing is left to do
    assert command("train", "--resume", str(RUN), "--steps", "300") == 0
    assert len(rows()) == 3


def test_a_signal_in_the_last_evaluation_after_which_all_episodes_end_completes_the_run(command, monkeypatch):
    stopped_evaluation(command, monkeypatch, signal.SIGTERM, 20)
    assert command("train", "fake_env", "--steps", "200") == 143
    assert f"Stopped. Training is complete in {RUN}.\n" in command.out
    assert checkpoints() == ["000002", "latest"]
    assert (RUN / "final.json").exists()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_the_environment_forks_can_be_terminated(command):
    """It inherits what this process does with signals."""
    statuses = []

    def fork_and_end():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"x")
            time.sleep(60)
            os._exit(0)
        os.read(reader, 1)
        os.kill(pid, signal.SIGTERM)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    in_iteration(command, 1, fork_and_end)
    assert command("train", "fake_env", "--steps", "100") == 0
    assert statuses == [-signal.SIGTERM]


def test_what_is_ignored_stays_ignored(command):
    """As SIGHUP under ``nohup``."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        command.algo = command.fake(interrupt_at=2, number=signal.SIGHUP)
        assert command("train", "fake_env", "--steps", "300") == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_afterwards_signals_do_what_they_did(command):
    before = [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS]
    command("train", "fake_env", "--steps", "100")
    command("train", "nonsense", "--nonsense")
    assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] == before


def test_the_command_line_runs_in_any_thread(command):
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(main(["train", "fake_env", "--steps", "100"])))
    thread.start()
    thread.join()
    assert statuses == [0]


# Checkpoints in between ----------------------------------------------------------------------------------------------


def test_long_iterations_leave_a_checkpoint_each_of_which_the_newest_is_kept(command, monkeypatch):
    always_saving(monkeypatch)
    assert command("train", "fake_env", "--steps", "500", "--checkpoint-every", "3") == 0
    assert checkpoints() == ["000003", "000005", "latest"]
    command.algo = command.fake(fail_at=5)
    assert command("train", "fake_env", "--steps", "500", "--checkpoint-every", "3", "--out", "failed") == 2
    assert checkpoints(Path("failed")) == ["000003", "000004", "latest"]
    assert (Path("failed/checkpoints/latest")).read_text() == "000004\n"


def test_short_iterations_leave_none_in_between(command):
    assert command("train", "fake_env", "--steps", "500", "--checkpoint-every", "3") == 0
    assert checkpoints() == ["000003", "000005", "latest"]


def test_saving_takes_no_more_than_its_share_of_the_time(command, monkeypatch):
    monkeypatch.setattr(saver, "CHECKPOINT_AGE_S", 0.0)
    clock, saved = [0.0], []
    monkeypatch.setattr(saver, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    train_once, save = command.algo.train, command.algo.save_to_path

    def slow_save(path):
        clock[0] += 1.0
        saved.append(int(Path(path).name))
        save(path)

    def slow_train():
        clock[0] += 10.0
        return train_once()

    command.algo.train, command.algo.save_to_path = slow_train, slow_save
    assert command("train", "fake_env", "--steps", "1200", "--checkpoint-every", "1000") == 0
    assert saved == [1, 6, 11, 12]  # a second of 50 is as much as it may take; the last one is that of the end


# Real processes, and all of a group ----------------------------------------------------------------------------------


def group_members(group):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        state, _, pgrp = text.rpartition(") ")[2].split()[:3]
        if int(pgrp) == group and state != "Z":
            found.append(text.split(" (")[0])
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("processes", "to", "number", "status"),
    [
        (["--num-env-workers", "0"], "process", signal.SIGTERM, 143),
        (["--num-env-workers", "0"], "group", signal.SIGHUP, 129),
        (["--num-env-workers", "2"], "process", signal.SIGINT, 130),
        (["--num-env-workers", "2"], "group", signal.SIGTERM, 143),
        (["--num-env-workers", "2"], "group", signal.SIGINT, 130),
        (["--num-env-workers", "0", "--num-env-runners", "2"], "group", signal.SIGINT, 130),
    ],
)
def test_a_real_run_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path, number, status, processes, to):
    words = [sys.executable, "-m", "marl_connectors", "train"]
    start = ["CartPole-v1", "--steps", "4000", "--num-envs", "4", *processes, "--eval-episodes", "2"]
    start += ["--set", "train_batch_size_per_learner=200", "--set", "num_epochs=1", "--no-video", "--out"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([*words, *start, "whole"], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL).returncode == 0
    process = subprocess.Popen(
        [*words, *start, "run"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    while not re.search("agent steps  ", process.stdout.readline()):
        pass
    (os.killpg if to == "group" else os.kill)(process.pid, number)
    said, _ = process.communicate()
    assert process.returncode == status, said
    assert "Resume with: marl-connectors train --resume run" in said
    until = time.monotonic() + 60
    while group_members(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert group_members(process.pid) == []
    resumed = subprocess.run([*words, "--resume", "run"], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    assert resumed.returncode == 0
    metrics = [[without_times_and_losses(row) for row in rows(tmp_path / name)] for name in ("whole", "run")]
    assert metrics[0] == metrics[1]
    assert load_state(tmp_path / "run/checkpoints/000020").keys()


def without_times_and_losses(row):
    return {key: value for key, value in row.items() if not key.startswith(("time", "fault_tolerance"))}
