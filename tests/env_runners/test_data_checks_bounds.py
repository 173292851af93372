"""Finite observations beyond the bounds of a Box are a warning, once for each component, and counted."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from helpers.envs.gymnasium_envs import AutoresetMode, Walk
from helpers.envs.overstepping_envs import OversteppingEnv, OversteppingLives
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import spaces as space_tools
from marl_connectors.errors import EnvError, EnvWarning

COUNT = "num_observations_out_of_bounds"


def collected(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert all(each.category is EnvWarning for each in caught), [str(each.message) for each in caught]
    return result, [str(each.message) for each in caught]


def test_a_bound_overstepped_in_a_run_is_a_warning_once_for_each_component_and_counted():
    algo = small_config(OversteppingEnv).env_runners(rollout_fragment_length=10).build_algo()
    result, texts = collected(algo.train)
    (text,) = texts
    assert text.startswith("sub-environment 0, episode 0, agent 'default_agent', env step 2: the observation leaves")
    assert "component 1 is 2.5013, not in [-2.5, 2.5]" in text
    assert result["env_runners"][COUNT] == 3  # of steps 2, 5 and 8
    result, texts = collected(algo.train)
    assert texts == []
    assert result["env_runners"][COUNT] == 4  # of 11, 14, 17 and 20, the last one of the episode


def test_evaluation_counts_them_too_and_does_not_tell_again_what_the_run_was_told_of():
    algo = small_config(OversteppingEnv).evaluation(evaluation_interval=1, evaluation_duration=2).build_algo()
    result, texts = collected(algo.train)
    assert len(texts) == 1
    assert result["evaluation"]["env_runners"][COUNT] == 2 * 7
    assert collected(lambda: algo.evaluate(num_episodes=1))[0]["env_runners"][COUNT] == 7


def test_who_makes_errors_of_warnings_gets_an_error():
    algo = small_config(OversteppingEnv).build_algo()
    with pytest.raises(EnvWarning, match=r"component 1 is 2\.5013"):
        algo.train()


def test_without_checks_nothing_is_looked_at():
    algo = small_config(OversteppingEnv, disable_env_checking=True).build_algo()
    result, texts = collected(algo.train)
    assert texts == [] and result["env_runners"][COUNT] == 0


@pytest.mark.parametrize(
    ("values", "space", "words"),
    [
        ((0, np.nan), None, "NaN"),
        ((0, np.inf), None, "infinity"),
        ((0, -np.inf), spaces.Box(-np.inf, np.inf, (2,), np.float32), "infinity"),
        ((0, 7), spaces.Discrete(3), r"(?s)Discrete\(3\).*\b7\b.*\[0, 2\]"),
        ((0, 3), spaces.MultiDiscrete([9, 3]), r"(?s)component 1.*\b3\b.*\[0, 2\]"),
        ((0, 2), spaces.MultiBinary(2), r"(?s)component 1.*\b2\b.*\[0, 1\]"),
    ],
)
def test_what_is_not_finite_or_no_choice_stays_an_error(values, space, words):
    algo = small_config(OversteppingEnv, env_config={"values": values, "space": space}).build_algo()
    with pytest.raises(EnvError, match=words):
        collected(algo.train)


def test_a_part_of_a_nested_space_that_holds_no_choice_is_named():
    class Nested(OversteppingEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(x=spaces.Discrete(2), y=spaces.Box(0, 1, (1,), np.float32))

        def _observation(self):
            return {"x": 0 if self.is_tried_out else 5, "y": np.zeros(1, np.float32)}

    with pytest.raises(EnvError, match=r"(?s)'x'.*\b5\b"):
        small_config(Nested).build_algo().train()


def test_the_smoke_test_still_stops_as_nothing_is_lost_by_then():
    class AtOnce(OversteppingEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=1)

    with pytest.raises(EnvError, match=r"(?s)step 2.*disable_env_checking=True.*--no-env-check"):
        small_config(AtOnce).build_algo()


def test_a_float64_observation_that_is_in_bounds_once_it_is_stored_is_in_its_space():
    space, item = spaces.Box(-2.5, 2.5, (1,), np.float32), np.array([2.5 + 1e-9])
    assert space_tools.misfit(space, item) == ""
    assert "2.6" in space_tools.misfit(space, np.array([2.6]))
    assert "inf" in space_tools.misfit(space, np.array([1e300]))


def test_fractions_do_not_fit_a_box_of_whole_numbers():
    space = spaces.Box(0, 255, (2,), np.uint8)
    assert space_tools.misfit(space, np.array([1.0, 2.0])) == ""
    assert "not whole numbers, which uint8 cannot hold" in space_tools.misfit(space, np.array([1.0, 0.5]))


def test_an_image_with_many_components_out_of_bounds_gives_few_warnings():
    class Image(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 1, (20, 20), np.float32), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.value = np.float32(0 if seed == 0 else 1.5)
            return np.full((20, 20), self.value), {}

        def step(self, action):
            return np.full((20, 20), self.value), 0.0, False, False, {}

    algo = small_config(Image).env_runners(rollout_fragment_length=5).build_algo()
    result, texts = collected(algo.train)
    assert len(texts) == 8
    assert "component 0, 7 is 1.5" in texts[-1] and "nor of others of this part" in texts[-1]
    assert result["env_runners"][COUNT] == 11


def lives_config(seed, **runners):
    rng = np.random.default_rng(seed)
    env_config = {
        "nested": bool(rng.integers(2)),
        "agents": ("a", "b", "c")[: int(rng.integers(1, 4))],
        "join": float(rng.choice([0.0, 0.4])),
        "die": float(rng.choice([0.0, 0.3])),
        "fixed": bool(rng.integers(2)),
        "max_steps": int(rng.integers(2, 12)),
    }
    config = small_config(OversteppingLives, env_config=env_config).multi_agent(policies="independent")
    config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4)), **runners)
    return config.debugging(seed=seed), rng


def check_the_count(seed):
    """What is counted over some fragments, and across a checkpoint, is what the environments have given."""
    config, rng = lives_config(seed)
    runner = config.build_algo().env_runner
    OversteppingLives.beyond, found = 0, 0
    for _ in range(int(rng.integers(1, 5))):
        size = {"num_timesteps": int(rng.integers(1, 30))} if rng.random() < 0.8 else {"num_episodes": 2}
        _, texts = collected(lambda size=size: runner.sample(**size, force_reset=bool(rng.random() < 0.2)))
        assert len(texts) == len(set(texts)) <= 8
        found += runner.take_counts()[COUNT]
    assert found == OversteppingLives.beyond, seed
    return found


def test_the_count_is_that_of_the_environments_over_random_lives_and_fragments():
    assert sum(map(check_the_count, range(12))) > 0


@pytest.mark.slow
def test_the_count_is_that_of_the_environments_over_many_random_lives():
    first = int(np.random.SeedSequence().generate_state(1)[0])
    print("seeds from", first)
    for seed in range(first, first + 100):
        check_the_count(seed)


@pytest.mark.slow
def test_the_count_goes_on_after_a_checkpoint_and_is_the_same_in_workers(tmp_path):
    def counts(num_env_workers, resumes):
        config, _ = lives_config(5, num_env_workers=num_env_workers)
        found, algo = [], config.build_algo()
        for _ in range(3):
            found.append(collected(algo.train)[0]["env_runners"][COUNT])
            if resumes:
                algo.save_to_path(tmp_path / "checkpoint")
                algo.stop()
                algo = type(algo).from_checkpoint(tmp_path / "checkpoint")
        algo.stop()
        return found

    assert counts(0, False) == counts(0, True) == counts(1, False)
    assert sum(counts(0, False)) > 0


NARROW = spaces.Box(-0.7, 0.6, (2,), np.float32)
SPACES = {agent: (NARROW, spaces.Discrete(3)) for agent in "abcd"}


class NarrowWalk(Walk):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.observation_space = NARROW

    def step(self, action):
        return super().step(0)


def walks(mode):
    def make(num_envs=1, **kwargs):
        kwargs = {} if mode is None else {"autoreset_mode": mode}
        return SyncVectorEnv([NarrowWalk] * num_envs, **kwargs)

    return make


KINDS = {
    "parallel": lambda: LifeEnv(spaces_of=SPACES, agents="abcd", join=0.4, die=0.3, fixed=False),
    "turns": lambda: RandomAEC(spaces_of=SPACES, join=0.3, die=0.2, back=0.3, fixed=False),
    **{f"vector {mode}": walks(mode) for mode in (list(AutoresetMode) if AutoresetMode else [None])},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_count_does_not_depend_on_where_fragments_are_cut(kind):
    def counts(sizes):
        config = small_config(KINDS[kind], disable_env_checking=True).multi_agent(
            policies="shared" if kind.startswith("vector") else "independent"
        )
        mode = "vector_entry_point" if kind.startswith("vector") else "sync"
        config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
        algo = config.build_algo()
        runner = algo.env_runner
        runner._check_spaces = True  # but not in a smoke test
        found = 0
        for size in sizes:
            collected(lambda size=size: runner.sample(num_timesteps=size))
            found += runner.take_counts()[COUNT]
        algo.stop()
        return found

    whole = counts([60])
    assert whole > 10
    assert counts([2] * 30) == whole
    assert counts([14, 2, 24, 20]) == whole
