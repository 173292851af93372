"""What a step gives has one form, whatever kind of environment gives it; random play holds each kind to that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from helpers.envs.batched_envs import Worlds
from helpers.envs.gymnasium_envs import vector_maker
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors.environments.rules.step_result import StepResult, joined
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.seeding import derived_seed
from marl_connectors.trees import as_list, leaves

PARALLEL = {"together": {}, "deaths": {"die": 0.15}, "joins": {"die": 0.2, "join": 0.3, "fixed": False}}
TURNS = {"turns": {}, "turns, deaths": {"die": 0.1, "join": 0.2, "back": 0.3, "fixed": False, "pays_newcomers": True}}
VECTORS = ["SAME_STEP", "NEXT_STEP", "NEXT_STEP wrapped", "DISABLED"]
KINDS = [*PARALLEL, *TURNS, "batched", *VECTORS]


def vector_env_of(kind, seed, num_envs=4, num_workers=0):
    if kind in PARALLEL:
        make = partial(LifeEnv, agents="abcd", **PARALLEL[kind])
    elif kind in TURNS:
        make = partial(RandomAEC, agents="abcd", **TURNS[kind])
    else:
        make = partial(Worlds, num_envs=num_envs) if kind == "batched" else vector_maker(kind)
    config = small_config(make).multi_agent(policies="shared").debugging(seed=seed)
    if kind in VECTORS:
        config = small_config(make).debugging(seed=seed)
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=num_workers)
    return config.build_algo().env_runner.vector_env


def test_a_reset_has_the_seed_of_its_run_copy_and_episode():
    vector_env, rng = vector_env_of("together", seed=5), np.random.default_rng(0)
    for _ in range(60):
        copy = vector_env.sub_envs[rng.integers(4)]
        number = copy.episode_number
        copy.episode_number = max(number + int(rng.choice([1, 1, 1, 7, 40, -3])), 0)
        vector_env.seed = int(rng.choice([5, 5, 5, 6]))
        seed = vector_env.reset_seed(copy)
        assert seed == derived_seed(vector_env.seed, "env", copy.index, copy.episode_number) and type(seed) is int


def acting(vector_env):
    return [(copy.index, agent) for copy in vector_env.sub_envs if not copy.is_reset_step for agent in copy.agents]


def number_of(items):
    return len(items) if isinstance(items, (list, tuple)) else len(leaves(items)[0])


def check(result, before, vector_env, waiting):
    """Holds a result to what was there before; who waits for being told changes with it."""
    after, turns = acting(vector_env), vector_env.turn_based
    assert isinstance(result, StepResult)
    assert number_of(result.observations) == len(after)
    told = before if result.rewarded is None else result.rewarded
    assert len(result.rewards) == len(told) and (result.rewarded is None) == (not turns)
    waiting.update(before)
    ended = [] if result.ends is None else result.ends.indices
    named = [*ended, *(event.index for event in result.events)]
    assert not [index for index, count in Counter(named).items() if count > 1], "one report for each sub-environment"
    assert list(result.over) == sorted(result.over) == sorted(i for i in named if i in result.over)
    for index, infos in result.infos:
        assert {(index, agent) for agent in infos} <= set(after) and all(infos.values())
    if result.ends is not None:
        agents = [who for index in ended for who in sorted(w for w in waiting if w[0] == index)]
        assert len(agents) == len(result.ends.terminated) == len(result.ends.truncated)
        assert number_of(result.ends.observations) == len(agents) and len(result.ends.t) == len(ended)
        assert (result.ends.terminated ^ result.ends.truncated).all(), "each has ended in one way"
    for event in result.events:
        flags = event.terminations, event.truncations
        gone = {(event.index, agent) for own in flags for agent, flag in own.items() if flag}
        assert {(event.index, agent) for agent in [*event.observations, *event.infos]} <= gone
        if event.is_over:
            assert gone >= {who for who in waiting if who[0] == event.index}
        waiting -= gone
        assert not event.is_dropped
    waiting -= {who for who in waiting if who[0] in result.over}
    waiting -= set(told)
    if not turns:
        stay = [who for who in before if who[0] not in named]
        assert [who for who in after if who[0] not in named] == stay, "who is not named goes on"
        assert not waiting
    return result.over


def play(kind, seed, num_steps=60, **settings):
    """All that some random steps gave, as text; each is checked."""
    vector_env = vector_env_of(kind, seed, **settings)
    rng, waiting, found, num_over = np.random.default_rng(seed), set(), [], 0
    try:
        vector_env.reset_all()
        for _ in range(num_steps):
            before = acting(vector_env)
            actions = rng.integers(0, 2, len(before))
            result = vector_env.step(actions if vector_env.is_batched else actions.tolist())
            found.append(repr((replace(result, observations=as_list(result.observations)), acting(vector_env))))
            num_over += len(check(result, before, vector_env, waiting))
    finally:
        vector_env.close()
    assert num_over > min(8, 3 * vector_env.num_envs), "episodes are short, so that many of them end"
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_kind_of_environment_gives_what_a_step_result_promises(kind, seed):
    play(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_runs_of_each_kind_do(kind):
    first = int(np.random.default_rng().integers(2**31))
    print("first seed:", first)
    for seed in range(first, first + 20):
        play(kind, seed, num_envs=1 + seed % 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PARALLEL, *TURNS])
def test_results_of_worker_processes_are_those_of_one_process(kind):
    assert play(kind, 3, num_workers=2) == play(kind, 3)


def test_ends_of_several_workers_stand_one_after_another():
    vector_env = make_vector_env(partial(LifeEnv, max_steps=1), num_envs=3, seed=0)
    vector_env.reset_all()
    ends = vector_env.step([0] * 9).ends
    parts = [
        ends._replace(indices=[i], t=[1], observations=ends.observations[3 * i : 3 * i + 3], infos=[])._replace(
            terminated=ends.terminated[3 * i : 3 * i + 3], truncated=ends.truncated[3 * i : 3 * i + 3]
        )
        for i in range(3)
    ]
    one, two, three = [StepResult([float(i)] * 3, [i] * 3, ends=part) for i, part in enumerate(parts)]
    both = joined([one, StepResult([9.0], [9]), two, three])
    assert both.rewards == [0.0] * 3 + [9.0] + [1.0] * 3 + [2.0] * 3 and both.observations[2:5] == [0, 9, 1]
    assert both.ends.indices == [0, 1, 2] and both.ends.t == [1, 1, 1] and both.ends.infos == []
    np.testing.assert_array_equal(np.stack(both.ends.observations), np.stack(ends.observations))
    np.testing.assert_array_equal(both.ends.truncated, ends.truncated)
    assert joined([one]) is one
    alone = joined([StepResult([], []), one]).ends
    assert (alone.indices, alone.observations, alone.infos) == ([0], parts[0].observations, [])
    np.testing.assert_array_equal(alone.truncated, parts[0].truncated)
    assert joined([StepResult([], []), StepResult([], [])]).ends is None
