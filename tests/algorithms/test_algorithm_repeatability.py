"""The same seed gives the same run, bit for bit, in any process, and whether or not it was stopped and resumed."""

from __future__ import annotations

import pytest

from helpers.runs import repeatable_runs

NAMES = ["cartpole", "shared", "independent", "life"]


@pytest.fixture(scope="module")
def two_processes():
    jobs = {name: {} for name in NAMES} | {f"{name} again": {"seed": 1} for name in NAMES}
    processes = [repeatable_runs.start(jobs), repeatable_runs.start(jobs)]
    return [repeatable_runs.results_of(process) for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_run_in_new_processes(two_processes, name):
    first, second = two_processes
    assert first[name] == second[name]
    assert first[name] == repeatable_runs.run(name)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_run(two_processes, name):
    one, other = two_processes[0][name], two_processes[0][f"{name} again"]
    assert one[0] != other[0]
    assert one[1] != other[1]


@pytest.fixture(scope="module")
def stopped_and_not(tmp_path_factory):
    """Runs that went on after a checkpoint, and the same ones resumed from it in a new process."""
    jobs, expected = {}, {}
    for name in NAMES:
        for iterations in (1, 4):
            job, folder = f"{name} {iterations}", str(tmp_path_factory.mktemp("run") / "checkpoint")
            algo = repeatable_runs.config_of(name).build_algo()
            for _ in range(iterations):
                algo.train()
            algo.save_to_path(folder)
            if (name, iterations) == ("life", 4):
                algo.evaluate(num_episodes=1)
            jobs[job] = {"load": folder, "iterations": 3}
            expected[job] = repeatable_runs.fingerprint(algo, [algo.train() for _ in range(3)][-1])
    return expected, repeatable_runs.results_of(repeatable_runs.start(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumed_in_a_new_process_goes_on_as_if_it_had_never_stopped(stopped_and_not, name, iterations):
    expected, resumed = stopped_and_not
    assert resumed[f"{name} {iterations}"] == expected[f"{name} {iterations}"]


@pytest.mark.few(1)
@pytest.mark.parametrize("iterations", range(1, 9))
def test_a_run_may_be_stopped_anywhere_in_an_episode(tmp_path, iterations):
    algo, other = (repeatable_runs.config_of("life").build_algo() for _ in range(2))
    other.train()
    for _ in range(iterations):
        algo.train()
    algo.save_to_path(tmp_path / "c")
    other.restore_from_path(tmp_path / "c")
    last = [[a.train() for _ in range(4)][-1] for a in (algo, other)]
    assert repeatable_runs.fingerprint(algo, last[0]) == repeatable_runs.fingerprint(other, last[1])


def test_a_run_of_complete_episodes_resumes_too(tmp_path):
    config = repeatable_runs.config_of("shared").env_runners(batch_mode="complete_episodes")
    algo = config.build_algo()
    algo.train()
    other = type(algo).from_checkpoint(algo.save_to_path(tmp_path / "c"))
    last = [[a.train() for _ in range(2)][-1] for a in (algo, other)]
    assert repeatable_runs.fingerprint(algo, last[0]) == repeatable_runs.fingerprint(other, last[1])
