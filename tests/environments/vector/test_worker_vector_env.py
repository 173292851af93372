"""What sub-environments give does not depend on the process that steps them, and no process outlives its run."""

from __future__ import annotations

import gc
import multiprocessing.forkserver
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.failing_envs import DictEnv, GrowingEnv, KeepingEnv, Unsendable, make_raising
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv, short_life, small_config
from marl_connectors import register_env
from marl_connectors.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor
from marl_connectors.environments.vector.worker_vector_env import WorkerVectorEnv, make_vector_env
from marl_connectors.errors import ConfigError, EnvError

MIXED = {
    "a": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "b": (BOX, spaces.Discrete(2, start=4)),
    "c": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "d": (spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)),
}
CASES = {
    "fixed agents": partial(LifeEnv),
    "deaths, late joiners, returns": partial(LifeEnv, die=0.3, join=0.4, fixed=False, max_steps=12),
    "different spaces": partial(LifeEnv, agents="abcd", spaces_of=MIXED, die=0.2, join=0.4, fixed=False),
    "int and tuple ids": partial(LifeEnv, agents=(7, ("x", 1), 0), die=0.3, join=0.4),
    "one mutable buffer": partial(LifeEnv, mutable=True, die=0.3, join=0.4),
    "actions that are kept": partial(KeepingEnv),
    "more and more agents": partial(GrowingEnv),
    "turns": partial(RandomAEC, die=0.2, join=0.3, back=0.3, pays_newcomers=True, mutable=True),
    "Gymnasium": "CartPole-v1",
}
SAMPLES = (1, 4, 2, 9, 1, 8)
HELPERS = str(Path(__file__).parents[2])  # where the package `helpers` is


def runner_of(env, workers, *, num_envs=3, policies="independent", **runner):
    config = small_config(env).env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers, **runner)
    if env != "CartPole-v1":
        config.multi_agent(policies=policies)
    return config.build_algo().env_runner


def played(runner, samples=SAMPLES):
    """All that a runner's episodes hold."""
    copies = len(runner.vector_env.sub_envs)
    return [[episode.get_state() for episode in runner.sample(num_timesteps=n * copies)] for n in samples]


def workers_of(runner):
    return [worker.pid for worker in runner.vector_env.workers]


def is_gone(pid):
    """Whether a process has ended; one that nobody has asked about yet is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(holds):
    while not holds():
        time.sleep(0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_transitions_do_not_depend_on_the_number_of_workers(case):
    policies = "shared" if case == "more and more agents" else "independent"
    runners = [runner_of(CASES[case], workers, policies=policies) for workers in (0, 1, 2)]
    expected, *found = [played(runner) for runner in runners]
    assert sum(map(len, expected)) > len(SAMPLES)
    for episodes in found:
        np.testing.assert_equal(episodes, expected)
    assert [len(runner.vector_env.workers) for runner in runners[1:]] == [1, 2]
    metrics = [runner.get_metrics() for runner in runners]
    for other in metrics[1:]:
        np.testing.assert_equal(other, metrics[0])
    for runner in runners:
        runner.close()


class Flat(MultiAgentObservationPreprocessor):
    """One Box for all: these modules take no others."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return spaces.Dict(dict.fromkeys(input_observation_space, BOX))

    def preprocess(self, observations, episode):
        return {a: np.array([o, 0.0], np.float32) if a == "b" else o["seen"][0] for a, o in observations.items()}


def test_nested_observations_do_not_depend_on_the_number_of_workers():
    def connector(env, spaces, device):
        return Flat()

    found = []
    for workers in (0, 2):
        runner = runner_of(
            partial(DictEnv, die=0.2, join=0.3), workers, policies="shared", env_to_module_connector=connector
        )
        found.append(played(runner))
        runner.close()
    np.testing.assert_equal(found[1], found[0])


def test_whole_episodes_and_random_actions_are_the_same_too():
    found = []
    for workers in (0, 2):
        runner = runner_of(CASES["deaths, late joiners, returns"], workers)
        whole = runner.sample(num_episodes=7, random_actions=True)
        again = runner.sample(num_timesteps=9, force_reset=True)
        found.append([episode.get_state() for episode in whole + again])
        runner.close()
    np.testing.assert_equal(found[1], found[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["deaths, late joiners, returns", "turns"])
def test_a_checkpoint_goes_on_with_any_number_of_workers(case):
    runner = runner_of(CASES[case], 2)
    played(runner, (3, 5))
    state = pickle.loads(pickle.dumps(runner.get_state()))
    expected = played(runner, (4, 9))
    runner.close()
    for workers in (0, 1, 2):
        other = runner_of(CASES[case], workers)
        other.set_state(state)
        np.testing.assert_equal(played(other, (4, 9)), expected)
        other.close()


def test_more_workers_than_copies_are_not_started():
    runner = runner_of(LifeEnv, 5, num_envs=2)
    assert [[copy.index for copy in worker.sub_envs] for worker in runner.vector_env.workers] == [[0], [1]]
    runner.close()


def test_names_that_were_registered_here_are_known_to_workers():
    register_env("my life", short_life)
    runner = runner_of("my life", 1, num_envs=1)
    assert runner.sample(num_timesteps=2)
    runner.close()
    gymnasium.register("MyOwn-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    config = small_config("MyOwn-v0").env_runners(num_env_workers=1)
    runner = config.build_algo().env_runner
    assert runner.sample(num_timesteps=2)
    runner.close()


# What cannot be done.


def test_what_cannot_be_sent_to_a_worker_is_named():
    with pytest.raises(ConfigError, match="num_env_workers=2"):
        runner_of(lambda: LifeEnv(), 2)
    config = small_config(LifeEnv, env_config={"spaces_of": {}, "agents": (i for i in "ab")}, disable_env_checking=True)
    with pytest.raises(ConfigError, match=r"(?s)num_env_workers=1.*env_config\['agents'\]"):
        config.env_runners(num_env_workers=1).multi_agent(policies=["p"], policy_mapping_fn=lambda *a: "p").build_algo()
    with pytest.raises(EnvError, match="infos"):
        runner_of(Unsendable, 1).sample(num_timesteps=3)


def test_an_environment_that_a_worker_cannot_make_is_reported():
    with pytest.raises(EnvError, match="ValueError: not today") as caught:
        make_vector_env(make_raising, num_envs=2, seed=0, num_workers=2)
    assert "make_raising" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_env_workers": -1},
        {"num_env_workers": 1.5},
        {"num_env_workers": "many"},
        {"sample_timeout_s": 0},
        {"sample_timeout_s": "long"},
    ],
)
def test_settings_of_the_wrong_kind_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        small_config(LifeEnv).env_runners(**wrong).validate()


# The end.


def test_close_ends_the_workers_and_new_episodes_start_them_anew():
    runner = runner_of(LifeEnv, 2)
    runner.sample(num_timesteps=3)
    pids = workers_of(runner)
    assert not any(map(is_gone, pids))
    runner.close()
    runner.close()
    assert all(map(is_gone, pids))
    with pytest.raises(EnvError, match="force_reset=True"):
        runner.sample(num_timesteps=3)
    assert runner.sample(num_timesteps=3, force_reset=True)
    pids = workers_of(runner)
    runner.close()
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signals_are_left_to_the_process_that_started_the_workers(number):
    """They often go to all processes of a group or job."""
    runner = runner_of(LifeEnv, 2)
    runner.sample(num_timesteps=3)
    pids = workers_of(runner)
    for pid in [*pids, multiprocessing.forkserver._forkserver._forkserver_pid]:
        os.kill(pid, number)
    runner.sample(num_timesteps=9)
    assert workers_of(runner) == pids
    runner.close()
    assert all(map(is_gone, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_of_tests_are_forked_from_a_process_that_has_torch():
    """Each would take more than a second to import it."""
    vector_env = make_vector_env(LifeEnv, num_envs=1, seed=0, num_workers=1)
    assert "libtorch" in Path(f"/proc/{multiprocessing.forkserver._forkserver._forkserver_pid}/maps").read_text()
    vector_env.close()


class StartsProcesses(LifeEnv):
    """Has a program, and a forked process, that run until they are terminated."""

    def reset(self, seed=None, options=None):
        statuses = []
        process = subprocess.Popen(["sleep", "60"])
        process.terminate()
        statuses.append(process.wait())
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"d" if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else b"h")
            time.sleep(60)
            os._exit(0)
        if os.read(reader, 1) != b"d":
            raise RuntimeError("a handler, which may run too late, decides about SIGTERM")
        os.close(reader), os.close(writer)
        os.kill(pid, signal.SIGTERM)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if statuses != [-signal.SIGTERM] * 2:
            raise RuntimeError(str(statuses))
        return super().reset(seed, options)


def test_what_an_environment_starts_in_a_worker_can_be_terminated():
    runner = runner_of(StartsProcesses, 2)
    runner.sample(num_timesteps=3)
    runner.close()


def test_a_process_that_forgets_its_workers_ends_though_they_do_not_heed_sigterm(tmp_path):
    """Also where multiprocessing's own end, which sends that and waits, is not the last thing."""
    forgetful = SHORT.replace("import sys\n", "import sys, weakref\nclass C: pass\nc = C(); weakref.finalize(c, int)\n")
    forgetful = forgetful.replace("vector_env.close()\n", "")
    found = run_script(tmp_path / "run.py", forgetful.format(helpers=HELPERS, own_env=""))
    assert found.returncode == 0, found.stderr


def test_workers_end_with_the_last_reference_to_their_copies():
    vector_env = make_vector_env(LifeEnv, num_envs=2, seed=0, num_workers=2)
    assert isinstance(vector_env, WorkerVectorEnv)
    vector_env.reset_all()
    pids = [worker.pid for worker in vector_env.workers]
    del vector_env
    gc.collect()
    assert all(map(is_gone, pids))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_step_ends_the_workers(monkeypatch, interruption):
    runner = runner_of(LifeEnv, 2)
    runner.sample(num_timesteps=3)
    pids = workers_of(runner)

    def interrupted():
        raise interruption

    monkeypatch.setattr(runner.vector_env.workers[1], "receive", interrupted)
    with pytest.raises(interruption):
        runner.sample(num_timesteps=3)
    assert all(map(is_gone, pids))
    monkeypatch.undo()
    assert runner.sample(num_timesteps=3, force_reset=True)
    runner.close()


SCRIPT = """
import sys
from functools import partial
sys.path.insert(0, {helpers!r})
from helpers.envs.failing_envs import FailingEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env

vector_env = make_vector_env(partial(FailingEnv, chance=1.0, ways=({way!r},)), num_envs=2, seed=0, num_workers=2)
vector_env.reset_all()
print(*[worker.pid for worker in vector_env.workers], flush=True)
vector_env.step([0] * sum(len(sub_env.agents) for sub_env in vector_env.sub_envs))
"""
RUN = """
import sys
sys.path.insert(0, {helpers!r})
from helpers.envs.scripted_envs import LifeEnv, small_config

config = small_config(LifeEnv).multi_agent(policies=["p"], policy_mapping_fn=lambda *a, **k: "p")
algo = config.env_runners(num_envs_per_env_runner=2, num_env_workers=2).build_algo()
print(*[worker.pid for worker in algo.env_runner.vector_env.workers], flush=True)
while True:
    algo.env_runner.sample()
"""


def _heed_ctrl_c():
    """Jobs in the background of a shell ignore Ctrl-C, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("ending", "way"),
    [
        (signal.SIGKILL, "hang"),
        (signal.SIGKILL, "lock"),
        pytest.param(signal.SIGINT, None, marks=pytest.mark.slow),
        (signal.SIGTERM, "lock"),
    ],
)
def test_no_worker_and_no_shared_memory_outlives_the_run(tmp_path, ending, way):
    script = tmp_path / "run.py"
    script.write_text((SCRIPT if way else RUN).format(helpers=HELPERS, way=way))
    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
            preexec_fn=_heed_ctrl_c,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            pids = [int(pid) for pid in process.stdout.readline().split()]
            assert len(pids) == 2, errors.read_text()
            if way is not None:
                assert [process.stdout.readline() for _ in pids] == ["hangs\n"] * 2, errors.read_text()
            for pid in pids:  # what has no name cannot be left behind
                maps = Path(f"/proc/{pid}/maps").read_text()
                assert re.search(r"/pym-\d+-\w+ \(deleted\)", maps), maps
                assert "psm_" not in maps
            if ending == signal.SIGINT:  # as a terminal does
                os.killpg(process.pid, ending)
            else:
                process.send_signal(ending)
        except BaseException:
            process.kill()
            raise
    wait_until(lambda: all(map(is_gone, pids)))


OWN_ENV = """
class LifeEnv(LifeEnv):
    pass
"""
SHORT = """
import sys
sys.path.insert(0, {helpers!r})
from helpers.envs.scripted_envs import LifeEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
{own_env}
print("imported")
vector_env = make_vector_env(LifeEnv, num_envs=2, seed=0, num_workers=2)
print(len(vector_env.reset_all()))
vector_env.close()
"""


def run_script(path, text):
    path.write_text(text)
    paths = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env)


def test_a_script_without_a_guard_may_use_environments_of_other_modules(tmp_path):
    process = run_script(tmp_path / "run.py", SHORT.format(helpers=HELPERS, own_env=""))
    assert process.stdout.split() == ["imported", "2"], process.stderr


def test_a_script_with_an_environment_of_its_own_but_no_guard_is_told_what_is_missing(tmp_path):
    process = run_script(tmp_path / "run.py", SHORT.format(helpers=HELPERS, own_env=OWN_ENV))
    assert "if __name__ == '__main__':" in process.stderr.splitlines()[-1]


def test_a_script_with_a_guard_may_have_an_environment_of_its_own(tmp_path):
    head, tail = SHORT.format(helpers=HELPERS, own_env=OWN_ENV).split('print("imported")')
    guarded = head + 'if __name__ == "__main__":' + tail.replace("\n", "\n    ")
    process = run_script(tmp_path / "run.py", guarded)
    assert process.stdout.split() == ["2"], process.stderr


class GlobalDraws(LifeEnv):
    """Pays what numpy's global random state gives, as some environments of others do."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, np.random.random()), *rest


def test_environments_of_different_processes_draw_different_numbers_from_the_global_random_state():
    vector_env = make_vector_env(GlobalDraws, num_envs=2, seed=0, num_workers=2)
    vector_env.reset_all()
    rewards = vector_env.step([0] * sum(len(sub_env.agents) for sub_env in vector_env.sub_envs)).rewards
    vector_env.close()
    assert len(set(np.ravel(rewards).tolist())) == 2
