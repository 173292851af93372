"""A run gives the same results with any number of env runners, whatever happens to them."""

from __future__ import annotations

import random
import secrets
from typing import Any

import numpy as np
import pytest

from helpers.runs.fake_ray import FakeRay, use_fake_ray
from helpers.runs.random_runs import AddsCount, described, differences, plain, random_config, without_times
from marl_connectors import PPOConfig

ITERATIONS = 3


def counts_itself(config: PPOConfig) -> bool:
    """Whether a user's piece counts all steps of its own env runner."""
    pipeline = config.env_to_module_connector
    return pipeline is not None and isinstance(pipeline(), AddsCount)


def divided(config: PPOConfig, total: int, number: int) -> PPOConfig:
    """The same run with this number of env runners; 0 is the one in this process."""
    return config.copy().env_runners(num_env_runners=number, num_envs_per_env_runner=total // max(1, number))


def trained(config: PPOConfig) -> dict[str, Any]:
    """All that must be the same."""
    algo = config.build_algo()
    try:
        results = []
        for _ in range(ITERATIONS):
            found = without_times(algo.train())
            found.pop("fault_tolerance", None)
            results.append(plain(found))
        state = algo.get_state()
        return {
            "results": results,
            "parameters": plain(state["learner"]),
            "runner": plain(without_order_of_counts(state["env_runner"])),
            "evaluation": plain(without_times(algo.evaluate())),
        }
    finally:
        algo.stop()


def without_order_of_counts(state: dict[str, Any]) -> dict[str, Any]:
    """The state of env runners, with counts sorted: agents are listed as they were first seen."""
    counts = {name: sorted(map(str, own)) if isinstance(own, list) else own for name, own in state["counts"].items()}
    return {**state, "counts": counts}


def check_groups(seed: int, fake: FakeRay, numbers: list[int], loss: float) -> None:
    rng = np.random.default_rng(seed)
    while counts_itself(config := random_config(int(rng.integers(2**31)))):
        pass
    total = 4
    config.env_runners(num_env_workers=0)
    config.evaluation(evaluation_duration=int(rng.integers(3, 9)))
    lost = random.Random(seed)

    def loses(actor: str, method: str, arguments: Any) -> str | None:
        return lost.choice(["before", "after"]) if method == "call" and lost.random() < loss else None

    fake.loses = loses
    whole = trained(divided(config, total, 0))
    for number in numbers:
        in_evaluations = int(rng.integers(0, 4))
        found = trained(divided(config, total, number).evaluation(evaluation_num_env_runners=in_evaluations))
        assert not differences(whole, found), f"seed {seed}, {number} and {in_evaluations}: {described(config)}"


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_env_runners_gives_the_same_results(seed, monkeypatch):
    check_groups(seed, use_fake_ray(monkeypatch, seed), [[1], [2], [4]][seed % 3], loss=0.0)


@pytest.mark.parametrize("seed", range(100, 108))
def test_a_run_that_loses_env_runners_gives_the_same_results(seed, monkeypatch):
    check_groups(seed, use_fake_ray(monkeypatch, seed), [[1], [2], [4]][seed % 3], loss=0.2)


@pytest.mark.parametrize("number", [1, 2])
def test_an_evaluation_with_a_number_of_sub_environments_of_its_own_is_the_same(number, monkeypatch):
    use_fake_ray(monkeypatch)
    config = random_config(3).env_runners(num_env_workers=0)
    config.evaluation(evaluation_duration=6, evaluation_config={"num_envs_per_env_runner": 3})
    assert differences(trained(divided(config, 4, 0)), trained(divided(config, 4, number))) == []


@pytest.mark.slow
def test_300_random_runs_with_1_2_and_4_env_runners_that_are_lost(monkeypatch):
    first = secrets.randbits(31)
    for seed in range(first, first + 300):
        check_groups(seed, use_fake_ray(monkeypatch, seed), [1, 2, 4], loss=0.15)
