"""What remote env runners do can be watched and ended while they do it, as what an env runner in this process does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.fake_ray import FakeRay, use_fake_ray
from helpers.runs.random_runs import differences, plain, without_times
from marl_connectors import PPOConfig
from marl_connectors.cli.main import main
from marl_connectors.cluster import actor_pool


class LengthsEnv(gymnasium.Env):
    """Episodes of as many steps as the reset's seed says, 3 to 12; or endless ones, which wait in step 20."""

    observation_space = spaces.Box(-1.0, 1e9, (1,), np.float32)
    action_space = spaces.Discrete(2)
    may_go_on: ClassVar[threading.Event] = threading.Event()

    def __init__(self, is_endless: bool = False):
        self.is_endless = is_endless

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(3, 13)), 0
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        if self.is_endless and self.t == 20:
            assert self.may_go_on.wait(60.0)
        is_over = not self.is_endless and self.t >= self.length
        return np.array([self.t], np.float32), float(action), False, is_over, {}


def config_of(num_envs: int, in_evaluations: int, **settings: Any) -> PPOConfig:
    config = small_config(LengthsEnv, env_config=settings, disable_env_checking=True).debugging(seed=3)
    config.env_runners(num_envs_per_env_runner=num_envs)
    return config.evaluation(evaluation_num_env_runners=in_evaluations)


@pytest.fixture
def fake(monkeypatch) -> FakeRay:
    """Env runners play while this process watches them, all the time."""
    monkeypatch.setattr(actor_pool, "_WATCH_S", 1e-3)
    monkeypatch.setattr(LengthsEnv, "may_go_on", threading.Event())
    fake = use_fake_ray(monkeypatch)
    fake.loses = lambda who, method, arguments: "slowly" if arguments[:1] in (("play",), ("sample",)) else None
    return fake


@pytest.mark.parametrize("seed", [0, *fresh_seeds(4)])
@pytest.mark.parametrize("name", ["evaluate", "random_play"])
def test_the_caller_sees_episodes_end_and_can_end_the_rest(name, seed, fake):
    rng = np.random.default_rng(seed)
    num_envs, enough = int(rng.integers(1, 5)), int(rng.integers(1, 30))
    algo = config_of(num_envs, int(rng.integers(1, num_envs + 1))).build_algo()
    told: list[tuple[int, str]] = []
    found = getattr(algo, name)(
        num_episodes=20_000,
        seed=seed,
        on_progress=lambda num_done: told.append((num_done, algo.activity)),
        is_enough=lambda: told[-1][0] >= enough,
    )["env_runners"]
    numbers, what = [number for number, _ in told], "evaluating" if name == "evaluate" else "playing at random"
    assert numbers == sorted(numbers) and numbers[-1] >= enough
    assert told[-1][1] == f"{what}, {numbers[-1]} of 20000 episodes"
    assert algo.activity == ""
    ended = found["num_episodes"]
    assert ended < 20_000 and ended % num_envs == 0
    local = config_of(num_envs, 0).build_algo()
    if ended:
        expected = getattr(local, name)(num_episodes=max(ended, num_envs), seed=seed)["env_runners"]
        of_episodes = ("num_episodes", "episode_return_mean", "episode_len_mean", "module_episode_returns")
        assert {key: found[key] for key in of_episodes} == {key: expected[key] for key in of_episodes}
    local.stop()
    algo.stop()


def test_episodes_that_never_end_are_ended_also_if_an_env_runner_is_lost_meanwhile(fake):
    fake_loses, lost = fake.loses, []

    def loses(who: str, method: str, arguments: Any) -> str | None:
        if arguments[:1] == ("play",) and not lost:
            lost.append(who)
            return "before"
        return fake_loses(who, method, arguments)

    fake.loses = loses
    LengthsEnv.may_go_on.set()
    algo = config_of(2, 2, is_endless=True).build_algo()
    assert algo.evaluate(num_episodes=4, is_enough=lambda: True)["env_runners"]["num_episodes"] == 0
    group = algo.eval_env_runner_group
    assert lost and group is not None and group.num_remote_env_runner_restarts == 1
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("in_parallel", [True, False])
def test_an_evaluation_of_train_that_is_ended_is_left_out_of_its_results(in_parallel, fake):
    config = config_of(2, 2).evaluation(
        evaluation_interval=1, evaluation_duration=2000, evaluation_parallel_to_training=in_parallel
    )
    algo, asked = config.build_algo(), []
    algo.ends_evaluations = lambda: not asked.append(algo.activity)
    result = algo.train()
    assert asked and "evaluation" not in result and result["training_iteration"] == 1
    algo.ends_evaluations = None
    assert algo.train()["evaluation"]["env_runners"]["num_episodes"] == 2000
    algo.stop()


def test_the_end_of_an_evaluation_does_not_end_the_next_one(fake):
    algo = config_of(2, 2).build_algo()
    expected = plain(without_times(algo.evaluate(num_episodes=6, seed=1)))
    algo.evaluate(num_episodes=20_000, seed=1, is_enough=lambda: True)
    assert not differences(expected, plain(without_times(algo.evaluate(num_episodes=6, seed=1))))
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", ["env_steps", "agent_steps"])
def test_the_steps_of_an_ongoing_sample_are_shown(steps, fake, monkeypatch):
    config = config_of(1, 0, is_endless=True).env_runners(num_env_runners=2, rollout_fragment_length=30)
    config.training(train_batch_size_per_learner=60, minibatch_size=60).multi_agent(count_steps_by=steps)
    algo = config.build_algo()
    pool: Any = algo.env_runner_group.pool  # type: ignore[union-attr]
    progress, seen = pool.progress, []

    def watched(indices: Any) -> Any:
        seen.append(algo.activity)
        if algo.activity.endswith(f": sampling, 40 of 60 {steps.replace('_', ' ')}"):  # both wait in step 20
            LengthsEnv.may_go_on.set()
        return progress(indices)

    monkeypatch.setattr(pool, "progress", watched)
    algo.train()
    assert seen[0].startswith("iteration 1: sampling, 0 of 60") and LengthsEnv.may_go_on.is_set()
    assert algo.env_runner_group.num_steps_so_far == (60, 60)
    algo.stop()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_ends_the_evaluation_of_a_run_from_the_command_line(fake, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    played = []

    def loses(who: str, method: str, arguments: Any) -> str | None:
        if arguments[:1] != ("play",):
            return None
        played.append(who)
        if len(played) == 3:  # after random play and the untrained policies
            os.kill(os.getpid(), signal.SIGTERM)
        return "slowly"

    fake.loses = loses
    words = ["train", "marl_envs.match_v0", "--num-envs", "2", "--num-env-workers", "0", "--hidden", "4", "--no-video"]
    words += ["--no-env-check", "--eval-episodes", "1000000", "--baseline-seconds", "1", "--steps", "48"]
    words += ["--set", "train_batch_size_per_learner=48", "--set", "minibatch_size=24", "--out", "run"]
    assert main([*words, "--set", "evaluation_num_env_runners=1"]) == 143
    said = capsys.readouterr()
    assert "Stopped. Training is complete in run. To measure all episodes: " in said.out
    assert (Path("run/checkpoints") / Path("run/checkpoints/latest").read_text().strip()).is_dir()
