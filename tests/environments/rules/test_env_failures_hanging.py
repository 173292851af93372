"""An environment that hangs costs no more than a limited time, wherever it does so, and leaves no process behind."""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.envs.failing_envs import HangingEnv, LeavesChild, hang
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors.algorithms import algorithm
from marl_connectors.environments.rules import env_failures
from marl_connectors.environments.rules.env_failures import EnvRestarts, Watched, alarm, close_env
from marl_connectors.environments.vector import vector_env as vector_env_module
from marl_connectors.environments.vector import worker_process
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.errors import EnvError
from marl_connectors.seeding import derived_seed

pytestmark = pytest.mark.usefixtures("limits_begin_with_hangs")

LOG = "marl_connectors"
WAYS = ("sleep", "lock", "busy")
HELPERS = str(Path(__file__).parents[2])  # where the package `helpers` is


@pytest.fixture(autouse=True)
def _ends_in_any_case():
    with alarm(300.0):  # raises what no test expects
        yield


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds):
    while not holds():
        time.sleep(0.02)


def pids_of(vector_env):
    return [worker.pid for worker in vector_env.workers]


def reset_copies(env, *, num_envs=2, workers=1, timeout_s=None, restarts=None):
    vector_env = make_vector_env(
        env, num_envs=num_envs, seed=0, num_workers=workers, timeout_s=timeout_s, restarts=restarts
    )
    vector_env.reset_all()
    return vector_env


def messages_of(caplog):
    return [record.getMessage() for record in caplog.records]


# close() in worker processes.


@pytest.mark.parametrize("way", WAYS)
def test_a_close_that_hangs_is_named_and_its_worker_is_ended(caplog, monkeypatch, way):
    monkeypatch.setattr(worker_process, "CLOSE_TIMEOUT_S", 0.1)
    vector_env = reset_copies(partial(HangingEnv, where="close", way=way), num_envs=3, workers=2)
    pids = pids_of(vector_env)
    with caplog.at_level(logging.WARNING, LOG):
        vector_env.close()
        vector_env.close()
    assert all(map(is_gone, pids))
    end = "close() did not return within 0.1 s, so its worker process was ended."
    assert messages_of(caplog) == [
        f"sub-environment 0: {end}",
        f"sub-environment 1: {end} Sub-environments [2] of that process were not closed.",
    ]


@pytest.mark.parametrize(("timeout_s", "expected"), [(None, 10.0), (60.0, 10.0), (3.0, 3.0)])
def test_closing_may_take_ten_seconds_or_as_long_as_a_step(timeout_s, expected):
    vector_env = make_vector_env(LifeEnv, num_envs=1, seed=0, num_workers=1, timeout_s=timeout_s)
    assert vector_env.workers[0].stop_timeout_s == expected
    vector_env.close()


def test_a_close_that_ends_its_process_is_named(caplog):
    vector_env = reset_copies(partial(HangingEnv, where="close", way="exit"))
    pids = pids_of(vector_env)
    with caplog.at_level(logging.WARNING, LOG):
        vector_env.close()
    assert all(map(is_gone, pids))
    assert messages_of(caplog) == [
        "sub-environment 0: close() ended its worker process. Sub-environments [1] of that process were not closed."
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_worker_that_hangs_has_started_is_ended_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_process, "CLOSE_TIMEOUT_S", 0.1)
    file = tmp_path / "child"
    vector_env = reset_copies(partial(HangingEnv, where="close", way="fork", file=str(file)))
    vector_env.close()
    wait_until(lambda: is_gone(int(file.read_text())))


def test_ctrl_c_while_copies_are_closed_ends_all_workers(monkeypatch):
    vector_env = reset_copies(partial(HangingEnv, where="close"), workers=2)
    pids = pids_of(vector_env)

    def interrupted(timeout_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(vector_env.workers[0], "finish_stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vector_env.close()
    assert all(map(is_gone, pids))


def test_garbage_collection_waits_for_no_close():
    vector_env = reset_copies(partial(HangingEnv, where="close", way="busy"))
    pids = pids_of(vector_env)
    del vector_env
    wait_until(lambda: all(map(is_gone, pids)))


SCRIPT = """
import os, sys
from functools import partial
sys.path.insert(0, {helpers!r})
from helpers.envs.failing_envs import HangingEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env

vector_env = make_vector_env(partial(HangingEnv, where="close", way="busy"), num_envs=2, seed=0, num_workers=2)
vector_env.reset_all()
print(*[worker.pid for worker in vector_env.workers], flush=True)
{end}
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "sys.exit(3)"])
def test_a_program_ends_though_its_environments_do_not_close(tmp_path, end):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(helpers=HELPERS, end=end))
    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=200,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: all(map(is_gone, pids)))


# close() in this process.


@pytest.mark.parametrize("way", ["sleep", "lock"])
def test_a_close_that_hangs_in_this_process_is_interrupted(caplog, way):
    vector_env = VectorEnv([HangingEnv(where="close", way=way), LifeEnv(), HangingEnv(where="close", way=way)], seed=0)
    vector_env.close_timeout_s = 0.2
    with caplog.at_level(logging.WARNING, LOG):
        vector_env.close()
    assert messages_of(caplog) == [
        f"sub-environment {i}: close() did not return within 0.2 s and was given up." for i in (0, 2)
    ]


def seconds_to_close(caplog, monkeypatch, envs, timeout_s):
    """The seconds that each sub-environment that hangs was given, as the log has them.

    By the clock, the first one is closed at once and uses up all the time.
    """
    vector_env = VectorEnv(envs, seed=0)
    vector_env.close_timeout_s = timeout_s
    clock = itertools.chain([0.0, 0.0], itertools.repeat(timeout_s))
    with caplog.at_level(logging.WARNING, LOG), monkeypatch.context() as patched:
        patched.setattr(vector_env_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        caplog.clear()
        vector_env.close()
    return [float(message.split("within ")[1].split(" s ")[0]) for message in messages_of(caplog)]


def stuck():
    """An environment of a class of its own."""
    return type("Stuck", (HangingEnv,), {})(where="close")


def test_sub_environments_share_the_time_for_closing(caplog, monkeypatch):
    assert seconds_to_close(caplog, monkeypatch, [stuck(), stuck(), stuck()], 0.5) == [0.5, 0.2, 0.2]


def test_a_class_that_has_hung_is_not_waited_for_again(caplog, monkeypatch):
    env = stuck()
    assert seconds_to_close(caplog, monkeypatch, [env], 0.3) == [0.3]
    assert seconds_to_close(caplog, monkeypatch, [env, type(env)(where="close")], 30.0) == [0.2, 0.2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_stops_though_no_environment_of_it_closes(caplog, monkeypatch, workers):
    monkeypatch.setattr(worker_process, "CLOSE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(VectorEnv, "close_timeout_s", 0.2)
    monkeypatch.setattr(algorithm, "close_env", partial(close_env, timeout_s=0.2))
    config = small_config(HangingEnv, env_config={"where": "close"})
    algo = config.multi_agent(policies="shared").env_runners(num_env_workers=workers).build_algo()
    algo.env_runner.sample(num_timesteps=4)
    with caplog.at_level(logging.WARNING, LOG):
        algo.stop()
    first, second = messages_of(caplog)
    assert first.startswith("sub-environment 0: close() did not return within 0.")
    assert second == "HangingEnv: close() did not return within 0.2 s and was given up."


# Resets, steps and constructors.


def runner_of(env, *, restart=True, timeout_s=0.1, tolerance=100, num_envs=2, workers=1, **evaluation):
    config = small_config(env, disable_env_checking=True).multi_agent(policies="shared")
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers, sample_timeout_s=timeout_s)
    config.fault_tolerance(restart_failed_sub_environments=restart, num_consecutive_env_failures_tolerance=tolerance)
    return config.build_algo().env_runner


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("way", WAYS)
def test_what_hangs_each_time_is_tried_as_often_as_is_tolerated(where, way):
    env = partial(HangingEnv, where=where, way=way, here=os.getpid())
    runner = runner_of(env, tolerance=1)
    pids = pids_of(runner.vector_env)
    with pytest.raises(EnvError) as caught:
        runner.sample(num_timesteps=20)
    episode = 1
    assert re.search(
        rf"^sub-environment 0, episode {episode}, step 0 \(seed {derived_seed(0, 'env', 0, episode)}\).* 0.1 s.* "
        rf"{where}\(\).* sample_timeout_s .*2 times.* num_consecutive_env_failures_tolerance is 1",
        str(caught.value),
    )
    assert all(map(is_gone, pids))
    assert pids_of(runner.vector_env) == [None]


def test_without_restarts_the_error_says_what_would_help():
    runner = runner_of(partial(HangingEnv, where="reset", here=os.getpid()), restart=False)
    with pytest.raises(
        EnvError,
        match=r"(?s)sub-environment 0.*step 0.*reset\(\).*sample_timeout_s.*restart_failed_sub_environments=True",
    ):
        runner.sample(num_timesteps=2)


@pytest.mark.parametrize("how", [{"num_timesteps": 4, "force_reset": True}, {"num_episodes": 2}])
def test_a_reset_of_all_copies_that_hangs_is_survived(tmp_path, how):
    file = tmp_path / "hangs"
    runner = runner_of(partial(HangingEnv, where="reset", here=os.getpid(), file=str(file)))
    runner.sample(num_timesteps=4)
    file.touch()
    assert runner.sample(**how)
    assert not file.exists()
    assert runner.take_failure_counts()["num_env_failures"] >= 1
    runner.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["close", "make", "reset"])
def test_what_hangs_while_another_failure_is_made_good_is_survived(tmp_path, where):
    file = tmp_path / "hangs"
    env = partial(FailsOnce, where=where, here=os.getpid(), file=str(file))
    runner = runner_of(env)
    runner.sample(num_timesteps=4)
    file.touch()
    assert runner.sample(num_timesteps=40)
    assert not file.exists()
    runner.close()


class FailsOnce(HangingEnv):
    """Raises in a step while there is the file, and hangs where it is told to after that."""

    def step(self, actions):
        if Path(self.file).exists():
            raise ValueError("the environment broke")
        return super().step(actions)


@pytest.mark.few(1)
@pytest.mark.parametrize("restart", [True, False])
def test_a_replay_that_hangs_is_an_error_that_says_how_to_go_on(tmp_path, restart):
    file = tmp_path / "hangs"
    env = partial(HangingEnv, where="step", here=os.getpid(), file=str(file))
    runner = runner_of(env, restart=restart)
    runner.sample(num_timesteps=4)
    state = runner.get_state()
    runner.close()
    other = runner_of(env, restart=restart)
    file.touch()
    with pytest.raises(
        EnvError,
        match=r"(?s)sub-environment 0.*episode 0.*0.1.*step\(\).*new_episodes=True",
    ):
        other.set_state(state)
    assert pids_of(other.vector_env) == [None]


def test_an_evaluation_survives_a_reset_that_hangs(tmp_path):
    file = tmp_path / "hangs"
    env = partial(HangingEnv, where="reset", here=os.getpid(), file=str(file))
    config = small_config(env, disable_env_checking=True).multi_agent(policies="shared")
    config.env_runners(num_env_workers=1, sample_timeout_s=0.1)
    config.fault_tolerance(restart_failed_sub_environments=True)
    algo = config.build_algo()
    file.touch()
    assert algo.evaluate(num_episodes=2)["env_runners"]["num_episodes"] >= 2
    assert not file.exists()
    algo.stop()


def test_a_constructor_that_hangs_is_named(monkeypatch):
    monkeypatch.setattr(worker_process, "_START_TIMEOUT_S", 0.2)
    make_env = partial(HangingEnv, where="make")
    with pytest.raises(EnvError, match=r"(?s)0.2.*sub-environment 0"):
        make_vector_env(make_env, num_envs=2, seed=0, num_workers=1, timeout_s=0.1, restarts=EnvRestarts())


def test_a_worker_that_is_gone_is_noticed_though_a_process_that_it_forked_is_not(tmp_path):
    file = tmp_path / "child"
    vector_env = reset_copies(partial(LeavesChild, str(file)), num_envs=1)
    child = int(file.read_text())
    try:
        os.kill(vector_env.workers[0].pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="SIGKILL"):
            vector_env.step([0, 0, 0])
        assert not is_gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


# What takes long in this process.


def test_the_log_is_told_once_of_what_takes_long(caplog, monkeypatch):
    monkeypatch.setattr(env_failures, "PATIENCE_S", 0.05)
    monkeypatch.setattr(env_failures, "_LOOK_EVERY_S", 0.01)
    env_failures._watcher = None  # one that looks as often as that
    with caplog.at_level(logging.WARNING, LOG):
        with Watched(lambda: "quick"):
            pass
        slow = Watched(lambda: "slow: reset()")
        with slow:
            wait_until(lambda: slow.is_told)
            slow.look()
    (message,) = messages_of(caplog)
    assert message.startswith("slow: reset() has not returned for 0.05 s. Only in worker processes")
    assert not env_failures._CALLS


def test_a_reset_of_a_copy_is_watched(monkeypatch):
    seen = []

    class Looking(LifeEnv):
        def reset(self, seed=None, options=None):
            seen.extend(call._what() for call in env_failures._CALLS.values())
            return super().reset(seed, options)

    VectorEnv([Looking()], seed=0).reset_all()
    assert seen == [f"sub-environment 0, episode 0, step 0: reset(seed={derived_seed(0, 'env', 0, 0)})"]


def test_an_alarm_ends_what_waits_and_leaves_what_does_not():
    with pytest.raises(env_failures.Hang), alarm(0.1):
        hang("sleep")
    with alarm(None):
        pass
