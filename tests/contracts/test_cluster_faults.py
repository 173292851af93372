"""Whatever happens to the processes and nodes of a run on Ray, it ends with the parameters of an undisturbed run."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fresh_seeds import fresh_seeds
from helpers.runs.clusters import Harm, actor_processes, parameters, spread, trained, wait_until_gone
from helpers.runs.random_runs import counts_itself
from helpers.runs.rank_configs import random_ranks_config
from marl_connectors.cluster import actor_pool, remote_learners
from marl_connectors.seeding import global_generators_kept


def check_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def expected() -> dict[int, dict[str, np.ndarray]]:
    """The parameters of an undisturbed run in this process, by the number of iterations."""
    algo, found = spread(0, 0).build_algo(), {}
    for iteration in range(1, 41):
        algo.train()
        found[iteration] = parameters(algo)
    algo.stop()
    return found


@pytest.mark.slow
def test_a_run_whose_env_runner_is_killed_ends_like_an_undisturbed_one():
    config = spread(2, 0).env_runners(sample_timeout_s=60.0)  # nothing hangs here, but a busy machine is slow
    algo = config.fault_tolerance(env_runner_health_probe_timeout_s=30.0).build_algo()
    try:
        algo.train()
        (process,) = actor_processes("EnvRunner1")
        os.kill(process, signal.SIGKILL)
        algo.train()
        assert algo.env_runner_group.num_remote_env_runner_restarts == 1
        check_same(parameters(algo), trained(spread(0, 0), 2), 0.0)
        assert actor_processes("EnvRunner1") not in ([], [process])
    finally:
        processes = actor_processes()
        algo.stop()
    assert wait_until_gone(processes) == []


@pytest.mark.slow
@pytest.mark.parametrize(("num_learners", "atol"), [(0, 0.0), (2, 1e-5)])
def test_a_run_whose_processes_are_killed_many_times_ends_like_an_undisturbed_one(
    expected, num_learners, atol, tmp_path, monkeypatch
):
    for module in (actor_pool, remote_learners):  # on a busy machine, an actor may be killed 10 times while it starts
        monkeypatch.setattr(module, "MOST_TRIES", 10**6)
    config = spread(2, num_learners).fault_tolerance(max_num_env_runner_restarts=10**6)
    algo = config.build_algo()
    harm = Harm(signal.SIGKILL, most_s=4.0, seed=secrets.randbits(31), most=20)
    harm.start()
    try:
        iterations = 0
        while harm.is_alive() or iterations < 40:
            if iterations < 40:
                algo.train()
                iterations += 1
                algo.save_to_path(tmp_path / str(iterations))
                if iterations == 40:
                    check_same(parameters(algo), expected[40], atol)
            else:  # the run goes on, so that all kills meet something
                algo.train()
    finally:
        harm.stop()
        processes = actor_processes()
        algo.stop()
    assert algo.env_runner_group.num_remote_env_runner_restarts > 0
    assert wait_until_gone(processes) == []
    resumed = type(algo).from_checkpoint(tmp_path / "40", config=spread(0, 0))
    try:
        check_same(parameters(resumed), expected[40], atol)
    finally:
        resumed.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", fresh_seeds(4))
def test_a_random_run_whose_actor_is_killed_at_any_time_ends_like_an_undisturbed_one(seed):
    rng = np.random.default_rng(seed)
    while counts_itself(config := random_ranks_config(int(rng.integers(2**31)))):
        pass
    config.env_runners(num_envs_per_env_runner=4)
    kind, iteration, delay = rng.choice(["EnvRunner", "Learner"]), int(rng.integers(1, 4)), 0.3 * rng.random()
    divisor = 2 if kind == "Learner" else 1
    batch = config.train_batch_size_per_learner // divisor
    whole = trained(config.copy().training(train_batch_size_per_learner=batch * divisor), 4)
    config.training(train_batch_size_per_learner=batch).learners(num_learners=divisor if kind == "Learner" else 0)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2, sample_timeout_s=60.0)
    algo = config.fault_tolerance(env_runner_health_probe_timeout_s=30.0).build_algo()
    try:
        for number in range(4):
            if number == iteration:
                killed = int(rng.choice(actor_processes(kind)))
                timer = threading.Timer(delay, os.kill, (killed, signal.SIGKILL))
                timer.start()
            algo.train()
        timer.join()
        check_same(parameters(algo), whole, 1e-5 if kind == "Learner" else 0.0)
    finally:
        processes = actor_processes()
        algo.stop()
    assert wait_until_gone(processes) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EnvRunner", "Learner"])
def test_a_run_whose_processes_are_stopped_ends_like_an_undisturbed_one(expected, kind):
    algo = spread(2, 2).build_algo()
    processes: list[int] = []
    # Fewer stops than the tries of an update: on a busy machine, each try may meet one while it starts.
    harm = Harm(signal.SIGSTOP, most_s=2.0, kind=kind, seed=secrets.randbits(31), most=6)
    try:
        algo.train()
        algo.train()  # a learner or an env runner without an earlier call has no progress to compare with
        harm.start()
        iteration = 2
        while iteration < 40 and harm.is_alive():
            algo.train()
            iteration += 1
        assert harm.number > 0
        check_same(parameters(algo), expected[iteration], 1e-5)
    finally:
        if harm.is_alive():
            harm.stop()
        processes += actor_processes()
        algo.stop()
    assert wait_until_gone(processes) == []


@pytest.mark.slow
def test_a_run_that_loses_nodes_ends_like_an_undisturbed_one(expected):
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it when it starts a node in this process
    try:
        with global_generators_kept():
            lose_nodes(expected)
    finally:
        signal.signal(signal.SIGTERM, handler)


def lose_nodes(expected: dict[int, dict[str, np.ndarray]]) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(3)]
    cluster.wait_for_nodes()
    rng = random.Random(secrets.randbits(31))
    algo: Any = None
    try:
        algo = spread(2, 2, ray_address=cluster.address).build_algo()
        for iteration in range(12):
            timer = None
            if iteration in (2, 5, 8):
                lost = nodes.pop(rng.randrange(len(nodes)))
                timer = threading.Timer(rng.random(), cluster.remove_node, (lost,), {"allow_graceful": False})
                timer.start()
            algo.train()
            if timer is not None:
                timer.join()
                nodes.append(cluster.add_node(num_cpus=2))
        check_same(parameters(algo), expected[12], 1e-5)
    finally:
        if algo is not None:
            algo.stop()
        cluster.shutdown()


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from helpers.runs.clusters import spread
def main():
    algo = spread(2, 2).build_algo()
    try:
        while True:
            algo.train()
            print("trained", flush=True)
    finally:
        algo.stop()
main()
"""


NORMAL = """
import sys
sys.path.insert(0, {tests!r})
from helpers.runs.clusters import spread
def main():
    algo = spread(2, 2).evaluation(evaluation_num_env_runners=1, evaluation_duration=2).build_algo()
    algo.train()
    algo.evaluate()
    algo.stop()
    print("stopped", flush=True)
main()
"""


@pytest.mark.slow
def test_ray_reports_no_death_of_a_process_at_a_normal_end(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(NORMAL.format(tests=str(Path(__file__).parents[1])))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout.splitlines()[-1] == "stopped"
    assert "died" not in run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_interrupted_or_killed(how, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    shared_memory = set(Path("/dev/shm").iterdir())
    run = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert run.stdout is not None
    while run.stdout.readline().strip() != "trained":
        assert run.poll() is None
    processes = actor_processes()
    assert len(processes) >= 4
    run.send_signal(how)
    run.communicate(timeout=60)
    assert wait_until_gone(processes) == []
    assert set(Path("/dev/shm").iterdir()) <= shared_memory
