"""Worker processes are started by themselves only where they are worth it and cannot do harm."""

from __future__ import annotations

import bdb
import itertools
import multiprocessing
import os
import sys
from functools import partial

import numpy as np
import pettingzoo
import pytest

from helpers.envs.scripted_envs import LifeEnv, short_life, small_config
from helpers.runs.command_runs import built
from marl_connectors import Callbacks, PPOConfig, register_env
from marl_connectors.algorithms.vectorization import auto_env_workers, looks_at_environments
from marl_connectors.cli.explain import _algorithm
from marl_connectors.cli.parser import parse
from marl_connectors.environments.registry import worker_count
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.environments.registry.worker_count import auto_num_workers, num_worth_it
from marl_connectors.environments.vector import smoke_test
from marl_connectors.environments.vector.worker_process import WorkerProcess
from marl_connectors.environments.vector.worker_vector_env import WorkerVectorEnv

COUNT_CORES = worker_count.num_cores
LIFE = "helpers.envs.scripted_envs:LifeEnv"


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch):
    monkeypatch.setattr(worker_count, "num_cores", lambda: 3)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_container_may_have_time_for_fewer_cores_than_it_sees(monkeypatch, tmp_path, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert COUNT_CORES(tmp_path) == expected


@pytest.fixture
def slow_steps(monkeypatch):
    """A clock by which each step of a smoke test takes 10 ms."""
    ticks = itertools.count()
    monkeypatch.setattr(smoke_test.time, "perf_counter", lambda: next(ticks) * 0.01)


@pytest.mark.parametrize(
    ("step_us", "num_envs", "cores", "expected"),
    [
        (3000, 16, 2, 2),
        (3000, 16, 8, 8),
        (3000, 4, 8, 4),  # a copy each
        (3000, 1, 8, 0),
        (3000, 16, 1, 0),  # they would share the core with the process that waits for them
        (200, 16, 8, 6),  # 3.2 ms of work
        (200, 4, 8, 0),  # 0.8 ms
        (99, 1000, 8, 0),
    ],
)
def test_workers_are_worth_it_where_each_has_half_a_millisecond_of_work(step_us, num_envs, cores, expected):
    assert num_worth_it(step_us * 1e-6, num_envs, cores) == expected


def test_the_median_step_of_the_smoke_test_is_measured(monkeypatch):
    now = [0.0]

    class Clocked(LifeEnv):
        def step(self, actions):
            now[0] += 5.0 if self.t == 0 else 0.003  # a first step that imports something, say
            return super().step(actions)

    monkeypatch.setattr(smoke_test.time, "perf_counter", lambda: now[0])
    setup = EnvSpec(Clocked, {})
    assert setup.step_s is None
    setup.check(0)
    assert setup.step_s == pytest.approx(0.003)


def chosen(env, num_envs=4, step_s=0.01, timeout_s=None, **env_config):
    setup = EnvSpec(env, env_config)
    if step_s is not None:
        setup.check(0)
        setup._step_times = [] if setup.is_batched else [step_s]
    return auto_num_workers(setup, num_envs, timeout_s)


def test_there_is_a_worker_for_each_core_if_environments_are_slow(monkeypatch):
    assert chosen(LIFE, die=0.1) == 3
    assert chosen("CartPole-v1", num_envs=2) == 2
    assert chosen("simple_spread_v3") == chosen("mpe2.simple_spread_v3") == 3
    assert chosen("pettingzoo.classic.connect_four_v3") == 3  # turn-based
    assert chosen(LIFE, step_s=1e-5) == 0
    monkeypatch.setattr(sys, "platform", "win32")
    assert chosen(LIFE) == 0


def test_environments_that_are_no_importable_names_stay_here():
    assert [chosen(env) for env in (LifeEnv, partial(LifeEnv, die=0.1), lambda: LifeEnv())] == [0, 0, 0]
    register_env("short life", short_life)
    assert chosen("short life") == 0


@pytest.mark.skipif(not hasattr(pettingzoo, "register"), reason="this PettingZoo has no registry")
def test_an_id_that_was_registered_with_pettingzoo_stays_here():
    pettingzoo.register("parallel", "mine/life-v0", entry_point=LifeEnv)
    try:
        assert chosen("mine/life-v0") == 0
    finally:
        pettingzoo.parallel_registry.pop("mine/life-v0")


def test_there_are_none_where_they_are_impossible_or_would_run_the_script_again(monkeypatch):
    assert chosen(LIFE, step_s=None) == 0  # it was not tried out
    assert chosen("marl_envs.spread_v0:batched_env") == 0
    assert chosen(LIFE, spaces_of={"x": lambda: None}) == 0  # cannot be sent
    own = type("OwnEnv", (LifeEnv,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "OwnEnv", own, raising=False)
    assert chosen(LIFE, spaces_of={"x": own}) == 0
    assert chosen("__main__:OwnEnv") == 0


class Watches(Callbacks):
    def on_environment_created(self, *, env, **kwargs):
        assert env is not None


class Reports(Callbacks):
    def on_train_result(self, *, result, **kwargs):
        pass


def test_callbacks_that_look_at_environments_find_them_here():
    configs = [small_config(LifeEnv).callbacks(c) for c in (Callbacks, Reports, Watches)]
    assert list(map(looks_at_environments, configs)) == [False, False, True]


@pytest.mark.parametrize(
    ("name", "looks"),
    [("on_episode_step", True), ("on_environment_created", True), ("on_train_result", False), ("on_sample_end", False)],
)
def test_so_do_functions_that_do(name, looks):
    for given in (lambda **told: None, [lambda **told: None]):
        assert looks_at_environments(small_config(LifeEnv).callbacks(**{name: given})) is looks
    assert not looks_at_environments(small_config(LifeEnv).callbacks(**{name: []}))


@pytest.mark.parametrize("watched", [None, "render_env", "render_mode"])
def test_an_environment_that_is_watched_stays_here(watched):
    setup = EnvSpec(LIFE, {})
    setup.check(0)
    setup._step_times = [0.01]
    setup.sample_env.render_mode = "human" if watched == "render_mode" else "rgb_array"
    config = small_config(LifeEnv, render_env=watched == "render_env")
    assert auto_env_workers(config, setup, 3) == (0 if watched else 3)


@pytest.mark.parametrize(("timeout_s", "expected"), [(None, 3), (0.079, 0), (0.081, 3)])
def test_no_worker_is_started_that_its_time_limit_might_end(timeout_s, expected):
    """Two copies in one worker, which take 0.01 s each, are a quarter of 0.08 s."""
    setup = EnvSpec(LIFE, {})
    setup.check(0)
    setup._step_times, setup._reset_s = [0.004, 0.004, 0.004], 0.01
    assert auto_num_workers(setup, 5, timeout_s) == expected


def test_a_process_of_a_pool_and_a_debugged_one_start_no_workers(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(worker_count.multiprocessing, "parent_process", lambda: object())
        assert chosen(LIFE) == 0
    monkeypatch.setattr(worker_count.sys, "gettrace", lambda: bdb.Bdb().trace_dispatch)
    assert chosen(LIFE) == 0
    monkeypatch.setattr(worker_count.sys, "gettrace", lambda: lambda *event: None)  # as coverage does
    assert chosen(LIFE) == 3


@pytest.mark.usefixtures("slow_steps")
def test_a_run_has_the_workers_that_auto_chooses_and_the_same_transitions():
    found = {}
    for workers, callbacks in ((0, Callbacks), (PPOConfig().num_env_workers, Reports), ("auto", Watches)):
        config = small_config(LIFE, env_config={"die": 0.2, "join": 0.3}).multi_agent(policies="independent")
        config.env_runners(num_envs_per_env_runner=2, num_env_workers=workers).callbacks(callbacks)
        runner = config.build_algo().env_runner
        assert isinstance(runner.vector_env, WorkerVectorEnv) == (callbacks is Reports)
        found[callbacks] = [episode.get_state() for _ in range(2) for episode in runner.sample(num_timesteps=20)]
        runner.close()
    np.testing.assert_equal(found[Reports], found[Callbacks])
    np.testing.assert_equal(found[Watches], found[Callbacks])


@pytest.mark.slow
@pytest.mark.usefixtures("slow_steps")
def test_evaluations_get_workers_if_they_take_five_seconds_and_looks_at_pieces_get_none(monkeypatch):
    """A step takes 10 ms; episodes are taken to have 100 steps before the first one has ended, and 4 after it has."""
    started, start = [], WorkerProcess.start
    config = small_config(LIFE, env_config={"max_steps": 4}).multi_agent(policies="shared")
    algo = config.env_runners(num_envs_per_env_runner=2, num_env_workers="auto").build_algo()
    monkeypatch.setattr(WorkerProcess, "start", lambda self: started.append(self) or start(self))

    def num_started(play):
        started.clear()
        play()
        return len(started)

    assert [num_started(lambda n=n: algo.evaluate(num_episodes=n)) for n in (4, 5)] == [0, 2]
    algo.train()
    assert [num_started(lambda n=n: algo.random_play(num_episodes=n)) for n in (5, 124, 125)] == [0, 0, 2]
    assert num_started(algo.explain) == 0
    algo.stop()
    assert not [child for child in multiprocessing.active_children() if child.name == "env-worker"]


@pytest.mark.usefixtures("slow_steps")
def test_an_environment_that_was_not_tried_out_gets_no_workers():
    config = small_config(LIFE, disable_env_checking=True).multi_agent(
        policies=["p"], policy_mapping_fn=lambda *a, **k: "p"
    )
    algo = config.env_runners(num_envs_per_env_runner=2, num_env_workers="auto").build_algo()
    assert not isinstance(algo.env_runner.vector_env, WorkerVectorEnv)


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize(
    ("mode", "env", "expected"),
    [
        ("async", "CartPole-v1", 2),
        ("sync", "CartPole-v1", 2),
        ("vector_entry_point", "CartPole-v1", 0),
        ("sync", "marl_envs.spread_v0:batched_env", 0),
    ],
)
def test_auto_minds_who_makes_the_copies(mode, env, expected):
    config = small_config(env).env_runners(
        num_envs_per_env_runner=2, num_env_workers="auto", gym_env_vectorize_mode=mode
    )
    if env != "CartPole-v1":
        config.multi_agent(policies="shared")
    algo = config.build_algo()
    assert len(getattr(algo.env_runner.vector_env, "workers", [])) == expected
    algo.stop()


@pytest.mark.usefixtures("slow_steps")
def test_training_on_the_command_line_chooses_by_itself_and_explain_starts_none():
    words = ["marl_envs.null_v0", "--hidden", "4", "--num-envs", "2"]
    for workers, expected in (("auto", 2), ("0", 0), ("1", 1)):
        algo = built(*words, "--num-env-workers", workers)
        assert len(getattr(algo.env_runner.vector_env, "workers", [])) == expected
        algo.stop()
    algo = _algorithm(vars(parse(["explain", *words])))
    assert not isinstance(algo.env_runner.vector_env, WorkerVectorEnv)
