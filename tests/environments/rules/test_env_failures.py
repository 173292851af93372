"""An environment that fails stops the run with its name, or costs its unfinished episode and nothing else."""

from __future__ import annotations

import copy
import logging
import os
import re
import signal
import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest

from helpers.envs.failing_envs import Broken, FailingEnv, FailingResets, FailingTurns, HardToMake
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, lives_of_chunks, small_config
from helpers.modules.recurrent_modules import CounterModule
from marl_connectors import Callbacks, Columns, RLModuleSpec
from marl_connectors.environments.vector import worker_process
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.errors import ConfigError, EnvError
from marl_connectors.seeding import derived_seed

at_once = pytest.mark.usefixtures("limits_begin_with_hangs")
WAYS = ("raise", "shape", "text", "nan", "reward", "none", "four", "no rewards", "exit", "missing", "reset")
LOG = "marl_connectors.env_runners.env_runner"


def runner_of(env, *, workers=0, num_envs=3, restart=True, policies="independent", timeout_s=60.0, tolerance=100):
    config = small_config(env, disable_env_checking=True).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers, sample_timeout_s=timeout_s)
    config.fault_tolerance(restart_failed_sub_environments=restart, num_consecutive_env_failures_tolerance=tolerance)
    return config.build_algo().env_runner


def assert_all_steps_are_accounted_for(runner, samples, **expected):
    """Env steps that were sampled are in an episode or were dropped; what is in episodes is whole."""
    counts = runner.take_failure_counts()
    kept = sum(episode.env_steps() for sample in samples for episode in sample)
    assert runner.num_env_steps == kept + counts["num_dropped_env_steps"]
    assert counts | expected == counts
    by_id = {}
    for sample in samples:
        for episode in sample:
            by_id.setdefault(episode.id_, []).append(episode)
    for chunks in by_id.values():
        lives_of_chunks(chunks)  # checks the seams
        assert all(not chunk.is_done for chunk in chunks[:-1])
    for env in runner.vector_env.sub_envs:
        numbers = sorted(int(id_.split("-")[1]) for id_ in by_id if id_.startswith(f"{env.index}-"))
        assert numbers == sorted(set(numbers))
        assert max(numbers) <= env.episode_number
    return counts


# By default.


@pytest.mark.few(5)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("raise", r"(?s)step\(.*\).*ValueError"),
        ("reset", r"(?s)reset\(seed=\d+\).*RuntimeError"),
        ("exit", r"step\(.*\) raised SystemExit: 3"),
        ("none", r"(?s)step\(\).*\b5\b"),
        ("four", r"(?s)step\(\).*\b4\b.*\b5\b"),
        ("no observations", "observations are None"),
        ("no rewards", "rewards are None"),
        ("missing", "acts"),
    ],
)
def test_a_failure_stops_the_run_and_is_named(workers, way, words):
    runner = runner_of(partial(FailingEnv, ways=(way,)), workers=workers, restart=False)
    with pytest.raises(EnvError, match=words) as caught:
        runner.sample(num_timesteps=1500)
    text = str(caught.value)
    found = re.search(r"sub-environment (\d), episode (\d+), step \d+", text)
    assert found is not None
    seed = derived_seed(0, "env", int(found[1]), int(found[2]))
    assert f"seed={seed}" in text or f"seed {seed}" in text or f"seed is {seed}" in text
    runner.close()


def test_a_worker_that_hangs_stops_the_run_with_the_name_of_the_copy():
    runner = runner_of(
        partial(FailingEnv, chance=1.0, ways=("hang",)), workers=1, num_envs=2, restart=False, timeout_s=0.5
    )
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*episode 0.*step 0.*\(seed \d+\)"):
        runner.sample(num_timesteps=2)
    assert runner.vector_env.workers[0].pid is None


def test_a_worker_that_was_killed_stops_the_run_with_the_name_of_the_copy():
    runner = runner_of(partial(FailingEnv, chance=1.0, ways=("kill",)), workers=2, num_envs=2, restart=False)
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*episode 0.*step 0.*SIGKILL"):
        runner.sample(num_timesteps=2)
    assert [worker.pid for worker in runner.vector_env.workers] == [None, None]


# With restarts.


@pytest.mark.few(1)
@pytest.mark.parametrize("joining", [False, True])
def test_the_run_goes_on_and_everything_is_accounted_for(caplog, joining):
    changes = {"die": 0.1, "join": 0.4, "fixed": False} if joining else {}
    env = partial(FailingEnv, ways=WAYS, **changes)
    found = []
    for workers in (0, 1, 2):
        runner = runner_of(env, workers=workers)
        caplog.clear()
        with caplog.at_level(logging.WARNING, LOG):
            samples = [runner.sample(num_timesteps=3 * n) for n in (1, 7, 12, 5, 30, 2)]
        counts = assert_all_steps_are_accounted_for(runner, samples)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == counts["num_env_failures"]
        assert all(re.search(r"sub-environment \d, episode \d+, step \d+.*seed.*another episode", m) for m in messages)
        found.append([[episode.get_state() for episode in sample] for sample in samples])
        found[-1].append([counts, sorted(messages)])
        runner.close()
    np.testing.assert_equal(found[1], found[0])
    np.testing.assert_equal(found[2], found[0])
    counts = found[0][-1][0]
    assert counts["num_env_failures"] > counts["num_dropped_episodes"] > 5
    assert counts["num_dropped_env_steps"] > 20


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_fail_is_survived(way):
    runner = runner_of(partial(FailingEnv, ways=(way,), chance=0.2, max_steps=5))
    samples = [runner.sample(num_timesteps=30) for _ in range(5)]
    counts = assert_all_steps_are_accounted_for(runner, samples)
    assert counts["num_env_failures"] > 2
    assert (counts["num_dropped_episodes"] == 0) == (way == "reset")


def test_turn_based_environments_are_replaced_too():
    found = []
    for workers in (0, 2):
        runner = runner_of(partial(FailingTurns, die=0.1, join=0.2), workers=workers)
        samples = [runner.sample(num_timesteps=3 * n) for n in (1, 7, 12, 5, 30)]
        counts = assert_all_steps_are_accounted_for(runner, samples)
        assert counts["num_dropped_episodes"] > 3
        found.append([[episode.get_state() for episode in sample] for sample in samples] + [counts])
        runner.close()
    np.testing.assert_equal(found[1], found[0])


def test_chunks_that_were_handed_out_stay_and_the_rest_is_dropped():
    runner = runner_of(FailsAtNine, num_envs=2)
    first = runner.sample(num_timesteps=2 * 6)
    second = runner.sample(num_timesteps=2 * 6)
    assert [(e.id_, e.env_steps(), e.is_done) for e in first] == [("0-0", 6, False), ("1-0", 6, False)]
    assert [(e.id_, e.env_steps(), e.is_done) for e in second] == [("0-1", 3, False), ("1-1", 3, False)]
    assert_all_steps_are_accounted_for(runner, [first, second])
    assert runner.get_metrics()["num_episodes"] == 0


def test_metrics_tell_what_was_lost_since_the_last_call():
    runner = runner_of(FailsAtNine, num_envs=2)
    lost = [(0, 0, 0), (2, 2, 6), (2, 2, 2 * 9 - 6)]
    for failures, episodes, steps in lost:
        runner.sample(num_timesteps=2 * 6)
        metrics = runner.get_metrics()
        assert metrics["num_env_failures"] == failures
        assert metrics["num_dropped_episodes"] == episodes
        assert metrics["num_dropped_env_steps"] == steps


class FailsAtNine(LifeEnv):
    """Ends after 20 steps, if it gets there."""

    def __init__(self):
        super().__init__(max_steps=20)

    def step(self, actions):
        if self.t == 8:
            raise ValueError("nine")
        return super().step(actions)


def test_rows_of_a_dropped_episode_are_in_no_train_batch():
    config = small_config(partial(FailingEnv, ways=WAYS, chance=0.2), disable_env_checking=True)
    config.multi_agent(policies="independent").fault_tolerance(restart_failed_sub_environments=True)
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=20).training(
        train_batch_size_per_learner=40, minibatch_size=None
    )
    algo = config.build_algo()
    algo.train()
    runner, learned = algo.env_runner, Counter()
    update = algo.learner.update

    def noting(*, episodes, **rest):
        for episode in episodes:
            learned[episode.id_] += episode.env_steps()
        return update(episodes=episodes, **rest)

    algo.learner.update = noting
    before = runner.num_env_steps
    runner.take_failure_counts()
    result = algo.train()
    dropped = result["env_runners"]["num_dropped_env_steps"]
    assert dropped > 0
    assert runner.take_failure_counts()["num_dropped_env_steps"] == 0  # each is told once
    assert learned.total() == runner.num_env_steps - before - dropped
    assert all(np.isfinite(own["total_loss"]) for own in result["learners"].values() if "total_loss" in own)
    algo.stop()


def test_the_state_of_a_module_begins_anew_after_a_failure():
    config = small_config(FailsAtNine, disable_env_checking=True).env_runners(num_envs_per_env_runner=2)
    config.rl_module(rl_module_spec=RLModuleSpec(CounterModule, model_config={"max_seq_len": 4}))
    runner = config.fault_tolerance(restart_failed_sub_environments=True).build_algo().env_runner
    for episode in [e for n in (6, 6, 3, 12) for e in runner.sample(num_timesteps=2 * n)]:
        for life in episode.agent_episodes.values():
            seen = life.get_extra_model_outputs(Columns.STATE_OUT)["steps"].ravel()
            assert seen.tolist() == [life.t_started + 1 + i for i in range(len(life))]


def test_callbacks_are_told_of_new_environments():
    class Noting(Callbacks):
        made = []

        def on_environment_created(self, *, env, env_index, **kwargs):
            self.made += env.envs if env_index is None else [env.envs[env_index]]

    config = (
        small_config(FailsAtNine, disable_env_checking=True).env_runners(num_envs_per_env_runner=2).callbacks(Noting)
    )
    runner = config.fault_tolerance(restart_failed_sub_environments=True).build_algo().env_runner
    runner.sample(num_timesteps=2 * 9)
    assert Noting.made[2:] == [copy.env for copy in runner.vector_env.sub_envs]
    assert len(set(map(id, Noting.made))) == 4


def test_a_checkpoint_after_failures_is_continued_exactly():
    env = partial(FailingEnv, ways=WAYS)
    runner = runner_of(env)
    runner.sample(num_timesteps=60)
    state = copy.deepcopy(runner.get_state())
    expected = [e.get_state() for e in runner.sample(num_timesteps=60)], runner.take_failure_counts()
    for workers in (0, 2):
        other = runner_of(env, workers=workers)
        other.set_state(state)
        found = [e.get_state() for e in other.sample(num_timesteps=60)], other.take_failure_counts()
        np.testing.assert_equal(found, expected)
        other.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_is_broken_for_good_stops_the_run(workers, monkeypatch):
    monkeypatch.setattr(Broken, "steps_left", 30)
    runner = runner_of(Broken, workers=workers, num_envs=2, tolerance=7)
    with pytest.raises(
        EnvError,
        match=r"(?s)ValueError.*\b8\b.*\b7\b",
    ) as caught:
        runner.sample(num_timesteps=2000)
    assert caught.type is EnvError
    assert str(caught.value).count("This sub-environment has failed") == 1
    runner.close()


def test_a_copy_that_finishes_episodes_may_fail_for_ever():
    runner = runner_of(partial(FailingEnv, chance=0.05, max_steps=3), tolerance=5)
    samples = [runner.sample(num_timesteps=300) for _ in range(3)]
    assert assert_all_steps_are_accounted_for(runner, samples)["num_env_failures"] > 20


@pytest.mark.parametrize(
    "wrong", [{"num_consecutive_env_failures_tolerance": -1}, {"restart_failed_sub_environments": 1}]
)
def test_settings_of_the_wrong_kind_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        small_config(LifeEnv).fault_tolerance(**wrong).validate()


# Workers.


def test_copies_of_other_workers_are_not_touched():
    def played(kill):
        runner = runner_of(LifeEnv, workers=2, num_envs=4)
        samples = [runner.sample(num_timesteps=4 * 5)]
        if kill:
            os.kill(runner.vector_env.workers[1].pid, signal.SIGKILL)
        samples += [runner.sample(num_timesteps=4 * 5) for _ in range(3)]
        counts = assert_all_steps_are_accounted_for(runner, samples)
        runner.close()
        return samples, counts

    expected, _ = played(kill=False)
    found, counts = played(kill=True)
    assert (counts["num_env_failures"], counts["num_dropped_episodes"]) == (1, 2)
    for there, here in zip(expected, found, strict=True):
        states = [[e.get_state() for e in s if e.id_[0] in "01"] for s in (there, here)]
        np.testing.assert_equal(states[1], states[0])


@at_once
def test_a_worker_that_hangs_is_replaced():
    runner = runner_of(partial(FailingEnv, chance=0.1, ways=("hang",)), workers=2, num_envs=4, timeout_s=0.1)
    samples = [runner.sample(num_timesteps=4 * 4)]
    counts = assert_all_steps_are_accounted_for(runner, samples)
    assert counts["num_env_failures"] >= 1
    assert counts["num_dropped_episodes"] == 2 * counts["num_env_failures"]
    runner.close()


def test_environments_that_kill_their_process_are_survived():
    runner = runner_of(partial(FailingEnv, chance=0.05, ways=("kill", "raise")), workers=2, num_envs=4)
    samples = [runner.sample(num_timesteps=4 * 10) for _ in range(3)]
    counts = assert_all_steps_are_accounted_for(runner, samples)
    assert counts["num_env_failures"] >= 2
    runner.close()


@pytest.mark.few(3)
@at_once
@pytest.mark.parametrize("way", ["kill", "hang", "raise"])
@pytest.mark.parametrize("episode", [0, 2])
def test_a_reset_in_which_a_worker_is_lost_is_named_and_not_tried_again(caplog, way, episode):
    seed = derived_seed(0, "env", 1, episode)
    env = partial(FailingResets, seeds=(seed,), way=way, max_steps=4)
    runner = runner_of(env, workers=1, num_envs=2, timeout_s=0.1)
    with caplog.at_level(logging.WARNING, LOG):
        samples = [runner.sample(num_timesteps=2 * 20)]
    counts = assert_all_steps_are_accounted_for(runner, samples)
    assert counts["num_env_failures"] == 1
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"sub-environment 1, episode {episode}, step 0" in message
    assert str(seed) in message
    numbers = {int(e.id_.split("-")[1]) for e in samples[0] if e.id_.startswith("1-")}
    assert numbers.isdisjoint({episode})
    assert episode + 1 in numbers
    runner.close()


@at_once
@pytest.mark.parametrize("way", ["kill", "hang"])
def test_without_restarts_a_worker_lost_in_its_first_reset_is_named(way):
    env = partial(FailingResets, seeds=(derived_seed(0, "env", 0, 0),), way=way)
    runner = runner_of(env, workers=1, num_envs=2, timeout_s=0.1, restart=False)
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*episode 0.*step 0.*\(seed \d+\)"):
        runner.sample(num_timesteps=2)


def test_a_worker_that_is_lost_before_any_reset_is_replaced():
    runner = runner_of(LifeEnv, workers=2, num_envs=4)
    os.kill(runner.vector_env.workers[1].pid, signal.SIGKILL)
    samples = [runner.sample(num_timesteps=4 * 5)]
    assert assert_all_steps_are_accounted_for(runner, samples)["num_env_failures"] == 1
    assert {e.id_ for e in samples[0]} >= {f"{i}-0" for i in range(4)}
    runner.close()


@pytest.mark.few(1)
@at_once
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("raise", "RuntimeError: the licence server is busy"),
        ("hang", "did not answer for 0.2 s while it started and was ended.*set sample_timeout_s above 0.2"),
    ],
)
def test_an_environment_that_is_hard_to_make_is_tried_again(caplog, monkeypatch, tmp_path, way, words):
    file = tmp_path / "way"
    runner = runner_of(partial(HardToMake, str(file)), workers=1, num_envs=2, timeout_s=0.1)
    runner.sample(num_timesteps=4)
    if way == "hang":
        monkeypatch.setattr(worker_process, "_START_TIMEOUT_S", 0.2)
    file.write_text(way)
    os.kill(runner.vector_env.workers[0].pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, LOG):
        runner.sample(num_timesteps=20)
    messages = [record.getMessage() for record in caplog.records]
    assert runner.take_failure_counts()["num_env_failures"] == len(messages) >= 2
    assert re.search(rf"sub-environment \d, episode 0, step 2 \(seed \d+\): .*{words}", messages[1])
    runner.close()


def test_a_worker_that_hangs_while_it_starts_is_told_from_one_that_hangs_later(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_process, "_START_TIMEOUT_S", 0.1)
    (tmp_path / "way").write_text("hang")
    maker = partial(HardToMake, str(tmp_path / "way"))
    with pytest.raises(EnvError, match=r"(?s)0\.2.*sample_timeout_s.*0\.2"):
        make_vector_env(maker, num_envs=1, seed=0, num_workers=1, timeout_s=0.2)


@pytest.mark.few(1)
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env", [LifeEnv, RandomAEC], ids=["parallel", "turns"])
def test_workers_may_be_killed_at_any_time(env, kills):
    runner = runner_of(partial(env, die=0.1, join=0.3), workers=2, num_envs=4)
    rng, stop, killed = np.random.default_rng(kills), threading.Event(), []

    def kill_now_and_then():
        while len(killed) < kills and not stop.wait(rng.uniform(0.0, 0.15)):
            pid = runner.vector_env.workers[int(rng.integers(2))].pid
            if pid is not None and pid not in killed:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(pid)

    thread = threading.Thread(target=kill_now_and_then)
    thread.start()
    samples = []
    try:
        while thread.is_alive():
            samples.append(runner.sample(num_timesteps=4 * 10))
    finally:
        stop.set()
        thread.join()
    samples += [runner.sample(num_timesteps=4 * 10) for _ in range(2)]
    counts = assert_all_steps_are_accounted_for(runner, samples)
    assert len(killed) == kills
    assert kills * 0.5 <= counts["num_env_failures"] <= kills
    assert sum(episode.is_done for sample in samples for episode in sample) > 0
    runner.close()
