"""A resumed run goes on as if it had never stopped, bit for bit: tried in configurations that are drawn at random."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Discrete

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.disturbed_runs import FAULTS, left_behind
from helpers.runs.random_runs import (
    WIDE,
    AddsCount,
    described,
    differences,
    plain,
    random_config,
    rows_of,
    without_times,
)
from marl_connectors import Algorithm, Callbacks, FlattenObservations
from marl_connectors.errors import CheckpointError
from marl_connectors.state import fields_of


def go_on(algo, iterations):
    """Everything that comes of some iterations and a sample."""
    results = [without_times(algo.train()) for _ in range(iterations)]
    episodes = rows_of(algo.env_runner.sample())
    state = without_times(fields_of(algo.get_state()))
    return plain({"results": results, "episodes": episodes, "state": state})


def check_resume(seed, folder):
    """Trains, saves, and holds the run that goes on against the one that is loaded."""
    rng = np.random.default_rng(seed + 1)
    config, before, after = random_config(seed), int(rng.integers(0, 4)), int(rng.integers(1, 4))
    algo = config.copy().build_algo()
    try:
        for _ in range(before):
            algo.train()
        if rng.random() < 0.2:
            algo.evaluate(num_episodes=2)
        path = algo.save_to_path(folder / str(seed))
        expected = go_on(algo, after)
    finally:
        algo.stop()
    resumed = type(algo).from_checkpoint(path, config=config)
    try:
        found = go_on(resumed, after)
    finally:
        resumed.stop()
    assert not differences(expected, found), (seed, described(config), differences(expected, found)[:5])


@pytest.mark.parametrize("seed", range(30))
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(seed, tmp_path):
    check_resume(seed, tmp_path)


def test_observations_with_a_part_of_no_numbers_are_restored(tmp_path):
    seen = spaces.Dict({"none": spaces.Box(-1.0, 1.0, (0,)), "some": spaces.Box(-1.0, 1.0, (2,))})
    settings = {"observation_space": seen, "action_space": Discrete(2), "length": 9}
    config = small_config("helpers.runs.random_runs:make", env_config={"kind": "spaces", "settings": settings})
    config.env_runners(env_to_module_connector=lambda: FlattenObservations(), rollout_fragment_length=4)
    algo = config.build_algo()
    algo.train()
    resumed = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"), config=config)
    assert not differences(go_on(algo, 1), go_on(resumed, 1))
    algo.stop()
    resumed.stop()


FIRST_SEED = int(os.environ.get("FIRST_SEED", np.random.SeedSequence().entropy % 2**30))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_resumed_runs_go_on_as_if_they_had_never_stopped(part, tmp_path):
    first = FIRST_SEED + 30 * part
    print(f"FIRST_SEED={FIRST_SEED}")
    for seed in range(first, first + 30):
        check_resume(seed, tmp_path)


def check_left_behind(seed, fault, folder):
    """Holds a run that a fault has ended, and that is resumed, against an undisturbed one."""
    rng = np.random.default_rng(seed + 2)
    config, before, after = random_config(seed), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    if fault == "death":  # CartPole is too fast to be worth a process, but can be in one
        config.env_runners(num_envs_per_env_runner=max(2, config.num_envs_per_env_runner), num_env_workers=2)
    run = left_behind(config, before, fault, folder / str(seed))
    resumed = Algorithm.from_checkpoint(run, config=config)
    algo = config.copy().build_algo()
    try:
        assert resumed.iteration == before + (fault == "SIGTERM")
        for _ in range(resumed.iteration):
            algo.train()
        expected, found = go_on(algo, after), go_on(resumed, after)
    finally:
        algo.stop()
        resumed.stop()
    assert not differences(expected, found), (seed, described(config), differences(expected, found)[:5])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "fault"), [(7, "error"), (12, "SIGTERM"), (13, "SIGTERM twice"), (15, "death"), (10046436, "error")]
)
def test_what_a_fault_leaves_behind_goes_on_as_if_there_had_been_none(seed, fault, tmp_path):
    """Observations of 7 and 15 are tuples, as are the states of the pieces of 12 and 13. The last is turn-based."""
    check_left_behind(seed, fault, tmp_path)


@pytest.mark.parametrize("seed", fresh_seeds(25))
def test_what_many_faults_leave_behind_goes_on_as_if_there_had_been_none(seed, tmp_path):
    check_left_behind(seed, FAULTS[seed % len(FAULTS)], tmp_path)


class FirstOneThenAll(LifeEnv):
    """Each episode begins with its last agent alone; the others join in the first step and all end together."""

    def reset(self, seed=None, options=None):
        found = super().reset(seed, options)
        self.agents = self.agents[-1:]
        return tuple({agent: own[agent] for agent in self.agents} for own in found)


def test_a_piece_that_counts_its_calls_goes_on_whoever_of_agents_with_several_spaces_joined_first(tmp_path):
    """After a restore nobody knows who joined first, so the order of its calls must not follow from it."""
    env_config = {"agents": "ab", "spaces_of": {"a": (WIDE, Discrete(3))}, "join": 1.0, "max_steps": 3}
    config = small_config(FirstOneThenAll, env_config=env_config).multi_agent(policies="independent")
    config.env_runners(env_to_module_connector=lambda: AddsCount())
    algo = config.build_algo()
    algo.train()
    resumed = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"), config=config)
    assert not differences(go_on(algo, 2), go_on(resumed, 2))


class Lesson(LifeEnv):
    """Its observations tell its task."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.task = self.at_reset = 0

    def get_task(self):
        return {"level": self.task}

    def set_task(self, task):
        self.task = task["level"]

    def reset(self, seed=None, options=None):
        self.at_reset = self.task
        return super().reset(seed=seed, options=options)

    def _observe(self, agent):
        seen, info = super()._observe(agent)
        return (seen + self.at_reset).astype(seen.dtype), info


class Harder(Callbacks):
    def on_train_result(self, *, algorithm, result, **kwargs):
        for env in algorithm.env_runner.vector_env.envs:
            env.set_task({"level": algorithm.iteration})


class Meddles(Callbacks):
    """Changes environments in a way that nobody can know of."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        for env in algorithm.env_runner.vector_env.envs:
            env.task = algorithm.iteration


class Secret(Lesson):
    get_task = None


def lesson_config(env_class, callbacks):
    config = small_config(lambda: env_class(max_steps=9, die=0.1), disable_env_checking=True)
    return config.callbacks(callbacks).env_runners(num_envs_per_env_runner=2).multi_agent(policies="shared")


@pytest.mark.few(1)
@pytest.mark.parametrize("iterations", range(1, 5))
def test_a_curriculum_by_set_task_is_resumed_in_the_middle_of_episodes(iterations, tmp_path):
    config = lesson_config(Lesson, Harder)
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    resumed = type(algo).from_checkpoint(algo.save_to_path(tmp_path / "c"), config=config)
    assert not differences(go_on(algo, 3), go_on(resumed, 3))


def test_an_environment_that_was_changed_in_secret_is_refused_with_a_way_to_go_on(tmp_path):
    config = lesson_config(Secret, Meddles)
    algo = config.build_algo()
    for _ in range(4):
        algo.train()
    path = algo.save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"new_episodes=True"):
        type(algo).from_checkpoint(path, config=config)
    resumed = type(algo).from_checkpoint(path, config=config, new_episodes=True)
    assert resumed.train()["training_iteration"] == 5
    assert plain(resumed.rl_module.get_state()) != plain(algo.rl_module.get_state())


def test_saving_says_once_that_episodes_of_a_vector_environment_are_not_kept(tmp_path):
    config = small_config("CartPole-v1").env_runners(
        num_envs_per_env_runner=2, gym_env_vectorize_mode="vector_entry_point"
    )
    algo = config.build_algo()
    algo.train()
    with pytest.warns(UserWarning, match="replayed"):
        path = algo.save_to_path(tmp_path / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        algo.save_to_path(tmp_path / "d")
    with pytest.warns(UserWarning, match="continues"):
        resumed = type(algo).from_checkpoint(path)
    assert plain(resumed.rl_module.get_state()) == plain(algo.rl_module.get_state())
    assert resumed.train()["training_iteration"] == 2
