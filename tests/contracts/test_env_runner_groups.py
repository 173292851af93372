"""A run gives the same results with any number of env runners, whatever happens to them."""

from __future__ import annotations

import random
import secrets
from typing import Any

import numpy as np
import pytest
from ray import exceptions

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.fake_ray import FakeRay, use_fake_ray
from helpers.runs.random_runs import counts_itself, described, differences, plain, random_config, without_times
from marl_connectors import MeanStdFilter, PPOConfig

ITERATIONS = 3


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
            "parameters": plain(state.learner),
            "runner": plain(state.env_runner),
            "evaluation": plain(without_times(algo.evaluate())),
        }
    finally:
        algo.stop()


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
        own = divided(config, total, number).evaluation(evaluation_num_env_runners=in_evaluations)
        found = trained(own.env_runners(max_requests_in_flight_per_env_runner=int(rng.integers(1, 4))))
        assert not differences(whole, found), f"seed {seed}, {number} and {in_evaluations}: {described(config)}"


def test_pieces_that_have_nothing_to_merge_yet_are_merged_after_the_first_sample(monkeypatch):
    use_fake_ray(monkeypatch)
    config = small_config(LifeEnv).env_runners(
        env_to_module_connector=lambda: MeanStdFilter(), rollout_fragment_length=2
    )
    config.training(train_batch_size_per_learner=40)
    ahead = divided(config, 4, 2).env_runners(max_requests_in_flight_per_env_runner=3)
    assert not differences(trained(divided(config, 4, 0)), trained(ahead))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_env_runners_gives_the_same_results(seed, monkeypatch):
    check_groups(seed, use_fake_ray(monkeypatch, seed), [[1], [2], [4]][seed % 3], loss=0.0)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(100, 108))
def test_a_run_that_loses_env_runners_gives_the_same_results(seed, monkeypatch):
    check_groups(seed, use_fake_ray(monkeypatch, seed), [[1], [2], [4]][seed % 3], loss=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_an_evaluation_with_a_number_of_sub_environments_of_its_own_is_the_same(number, monkeypatch):
    use_fake_ray(monkeypatch)
    config = random_config(3).env_runners(num_env_workers=0)
    config.evaluation(evaluation_duration=6, evaluation_config={"num_envs_per_env_runner": 3})
    assert differences(trained(divided(config, 4, 0)), trained(divided(config, 4, number))) == []


def filtered() -> PPOConfig:
    """A run with a filter, whose results show whether states were merged."""
    pieces = {"env_to_module_connector": lambda: MeanStdFilter(), "rollout_fragment_length": 5}
    return small_config(LifeEnv, env_config={"die": 0.2, "max_steps": 7}).env_runners(**pieces)


@pytest.mark.few(1)
@pytest.mark.parametrize("setting", ["merge_env_runner_states", "broadcast_env_runner_states"])
def test_env_runners_without_merged_states_continue_with_their_own(setting, monkeypatch):
    use_fake_ray(monkeypatch)
    whole = trained(divided(filtered(), 4, 0))
    alone = divided(filtered(), 4, 1).env_runners(**{setting: False})
    assert differences(whole, trained(alone)) == []  # what a single env runner has seen is everything
    two = divided(filtered(), 4, 2).env_runners(**{setting: False})
    assert differences(whole, trained(two)) != []


def test_several_requests_are_sent_ahead_where_a_batch_needs_several_samples(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    config = small_config(LifeEnv).env_runners(rollout_fragment_length=5).training(train_batch_size_per_learner=60)
    algo = divided(config, 4, 2).env_runners(max_requests_in_flight_per_env_runner=3).build_algo()
    sent: list[str] = []
    fake.loses = lambda name, method, arguments: sent.append(name) if arguments[:1] == ("sample",) else None
    algo.train()
    algo.stop()
    assert [name.partition(" (")[0] for name in sent] == ["env runner 0"] * 3 + ["env runner 1"] * 3


def test_together_env_runners_sample_at_least_the_steps_that_are_asked_for(monkeypatch):
    """Of 5 steps, each of 4 sub-environments gets 2, because 1 would be too few."""
    use_fake_ray(monkeypatch)
    algo = divided(small_config(LifeEnv), 4, 2).build_algo()
    requests = algo.env_runner_group._requests(5, 1)
    assert [[request.num_timesteps for request in own] for own in requests.values()] == [[4], [4]]
    algo.stop()


def test_episodes_that_are_lost_before_learners_have_them_are_sampled_again(monkeypatch, caplog):
    use_fake_ray(monkeypatch)
    whole = trained(divided(filtered(), 4, 0))
    algo = divided(filtered(), 4, 2).build_algo()
    remote: Any = algo.env_runner_group
    remote.pool._fetches_payloads = False
    update, lost = algo._update, [1, 2]

    def loses(sample: Any) -> Any:
        if algo.iteration in lost:
            lost.remove(algo.iteration)
            raise exceptions.ObjectLostError("0" * 28, None, "")
        return update(sample)

    monkeypatch.setattr(algo, "_update", loses)
    results = []
    for _ in range(ITERATIONS):
        found = without_times(algo.train())
        found.pop("fault_tolerance")
        results.append(plain(found))
    parameters = plain(algo.get_state().learner)
    algo.stop()
    assert (
        differences({"results": results, "parameters": parameters}, {k: whole[k] for k in ("results", "parameters")})
        == []
    )
    assert caplog.text.count("Episodes were lost with a node (ObjectLostError). The iteration is repeated.") == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_finished_episodes_come_in_the_order_of_one_process(number, monkeypatch):
    use_fake_ray(monkeypatch)
    config = small_config(LifeEnv, env_config={"die": 0.2, "join": 0.3, "max_steps": 7})
    config.env_runners(rollout_fragment_length=40)
    summaries = []
    for own in (divided(config, 4, 0), divided(config, 4, number)):
        algo = own.build_algo()
        group = algo.env_runner_group
        group.send_weights()
        group.sample()
        summaries.append(plain(group.take_finished()))
        algo.stop()
    assert summaries[0] == summaries[1]
    assert len(summaries[0]) > 8


class UnseededLife(LifeEnv):
    """Its episodes are not determined by seeds and actions."""

    def step(self, actions):
        found = super().step(actions)
        for agent in found[0]:
            found[0][agent] = found[0][agent] + np.float32(random.SystemRandom().random())
        return found


def test_an_env_runner_whose_episodes_cannot_be_replayed_begins_new_ones(monkeypatch, caplog):
    fake = use_fake_ray(monkeypatch)
    config = small_config(UnseededLife, env_config={"max_steps": 50}).env_runners(rollout_fragment_length=5)
    algo = divided(config, 4, 2).build_algo()
    algo.train()
    lost = [True]
    fake.loses = lambda name, method, arguments: (
        "before" if arguments[:1] == ("sample",) and lost and lost.pop() else None
    )
    result = algo.train()
    algo.stop()
    assert result["fault_tolerance"]["num_remote_worker_restarts"] == 1
    assert result["num_env_steps_sampled_lifetime"] == 40
    assert caplog.text.count("begins new episodes. Those before went differently") == 1


def test_a_callback_gets_the_indices_of_env_runners_that_were_replaced(monkeypatch):
    fake, calls = use_fake_ray(monkeypatch), []
    config = divided(small_config(LifeEnv), 4, 2).evaluation(evaluation_num_env_runners=1)
    config.callbacks(on_env_runners_recreated=lambda **given: calls.append(given))
    algo = config.build_algo()
    for method, kind in (("sample", "env runner 1"), ("play", "evaluation env runner 0")):
        lost = [True]
        fake.loses = lambda name, called, arguments, method=method, kind=kind, lost=lost: (
            "before" if name.startswith(kind) and arguments[:1] == (method,) and lost and lost.pop() else None
        )
        algo.train() if method == "sample" else algo.evaluate()
    algo.stop()
    told = [(own["env_runner_indices"], own["is_evaluation"], own["env_runner_group"]) for own in calls]
    assert told == [([1], False, algo.env_runner_group), ([0], True, algo.eval_env_runner_group)]
    assert all(own["algorithm"] is algo for own in calls)


@pytest.mark.slow
def test_many_random_runs_with_1_2_and_4_env_runners_that_are_lost(monkeypatch):
    first = secrets.randbits(31)
    for seed in range(first, first + 40):
        check_groups(seed, use_fake_ray(monkeypatch, seed), [1, 2, 4], loss=0.15)
