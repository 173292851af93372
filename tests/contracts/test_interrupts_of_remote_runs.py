"""After Ctrl-C, a run with remote env runners continues as if it had not been interrupted, or ends completely."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.fake_ray import use_fake_ray
from helpers.runs.random_runs import differences, plain, without_times
from marl_connectors import Callbacks, MeanStdFilter, PPOConfig, RLModuleSpec
from marl_connectors.cluster import ray_cluster
from marl_connectors.errors import ConfigError


def life(number: int, in_evaluations: int = 0) -> PPOConfig:
    """Four sub-environments, with a filter that learns from all of them. An iteration has one sample."""
    config = small_config(LifeEnv, env_config={"join": 0.3, "die": 0.1, "max_steps": 9})
    config.env_runners(
        num_env_runners=number,
        num_envs_per_env_runner=4 // max(1, number),
        env_to_module_connector=lambda: MeanStdFilter(),
    )
    config.training(train_batch_size_per_learner=20, minibatch_size=10)
    return config.evaluation(evaluation_duration=5, evaluation_num_env_runners=in_evaluations)


def trained(algo: Any) -> Any:
    """The results of an iteration, without times and replacements."""
    results = without_times(algo.train())
    results.pop("fault_tolerance", None)
    return plain(results)


def states(algo: Any) -> Any:
    """What a checkpoint has of the env runners and the learner."""
    state = algo.get_state()
    return plain({"runner": state.env_runner, "learner": state.learner})


def interrupts(function: Callable[..., Any], is_before: bool, count: int = 1) -> Callable[..., Any]:
    """Raises KeyboardInterrupt once, in the n-th call of a function."""
    calls = 0

    def interrupted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        found = None if is_before and calls == count else function(*arguments, **named)
        if calls == count:
            raise KeyboardInterrupt
        return found

    return interrupted


@pytest.mark.few(2)
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("method", ["_keep", "_note", "_note_times", "_merge"])
def test_an_interrupted_sample_is_sampled_again(method, is_before, monkeypatch):
    use_fake_ray(monkeypatch)
    alone = life(0).build_algo()
    expected = [trained(alone) for _ in range(3)]
    algo = life(2).build_algo()
    found = [trained(algo)]
    remote: Any = algo.env_runner_group
    count = 2 if method == "_keep" else 1  # of the two env runners, one has its state already
    monkeypatch.setattr(remote, method, interrupts(getattr(remote, method), is_before, count))
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    found += [trained(algo) for _ in range(2)]
    assert not differences(expected, found)
    assert not differences(states(alone), states(algo))
    alone.stop()
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("call", [1, 2])
def test_a_sample_that_was_sent_to_some_env_runners_only_is_sampled_again(call, monkeypatch):
    fake = use_fake_ray(monkeypatch)
    alone = life(0).build_algo()
    expected = [trained(alone) for _ in range(2)]
    algo = life(2).build_algo()
    interrupted = interrupts(lambda: None, True, call)
    fake.loses = lambda who, method, arguments: interrupted() if arguments[:1] == ("sample",) else None
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    assert not differences(expected, [trained(algo) for _ in range(2)])
    alone.stop()
    algo.stop()


def test_an_env_runner_whose_replacement_was_interrupted_is_replaced_later(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    alone = life(0).build_algo()
    expected = [trained(alone) for _ in range(2)]
    algo = life(2).build_algo()
    lost = [True]
    fake.loses = lambda who, method, arguments: (
        "before" if arguments[:1] == ("sample",) and lost and lost.pop() else None
    )
    pool: Any = algo.env_runner_group.pool
    monkeypatch.setattr(pool, "_start", interrupts(pool._start, True))
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    assert not differences(expected, [trained(algo) for _ in range(2)])
    alone.stop()
    algo.stop()


def test_the_call_of_an_interrupted_function_is_not_waited_for(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    alone = life(0).build_algo()
    expected = [trained(alone) for _ in range(2)]
    algo = life(2).build_algo()
    found = [trained(algo)]
    is_interrupted = []

    def hangs(who: str, method: str, arguments: Any) -> str | None:
        if arguments[:1] != ("apply",):
            return None
        is_interrupted.append(True)
        return "hangs"

    fake.loses = hangs
    wait = fake.wait
    monkeypatch.setattr(
        fake, "wait", lambda refs, **settings: interrupt() if is_interrupted else wait(refs, **settings)
    )
    with pytest.raises(KeyboardInterrupt):
        algo.env_runner_group.foreach_env_runner(lambda env_runner: None)
    monkeypatch.setattr(fake, "wait", wait)
    found.append(trained(algo))
    assert algo.env_runner_group.num_remote_env_runner_restarts == 0  # nobody has waited for a time limit
    assert not differences(expected, found)
    alone.stop()
    algo.stop()


def interrupt() -> Any:
    raise KeyboardInterrupt


class ChangesThenFails(Callbacks):
    """Adds a module with a memory, removes another one, and fails, if ``fails`` says so."""

    fails = True

    def on_train_result(self, *, algorithm, **kwargs):
        if self.fails:
            spec = RLModuleSpec(model_config={"use_lstm": True, "lstm_cell_size": 2})
            algorithm.add_module("new", spec, new_agent_to_module_mapping_fn="*=new")
            algorithm.remove_module("first")
            raise ZeroDivisionError("a fault of the test")


def test_a_change_of_the_modules_goes_back_in_all_env_runners(monkeypatch):
    use_fake_ray(monkeypatch)
    config = life(2).callbacks(ChangesThenFails).multi_agent(policies="a=first,*=others")
    algo, other = config.copy().build_algo(), life(2).multi_agent(policies="a=first,*=others").build_algo()
    before = states(algo)
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert not differences(before, states(algo))
    monkeypatch.setattr(ChangesThenFails, "fails", False)
    for _ in range(2):
        assert not differences(trained(other), trained(algo))
    assert not differences(states(other), states(algo))
    algo.stop()
    other.stop()


# Evaluations beside training.


@pytest.mark.slow
@pytest.mark.parametrize("method", ["_sample", "_update"])
def test_an_evaluation_beside_an_interrupted_iteration_is_begun_anew(method, monkeypatch):
    use_fake_ray(monkeypatch)
    found = {}
    for is_interrupted in (False, True):
        seen: list[str] = []
        config = life(2, in_evaluations=2).evaluation(evaluation_interval=1, evaluation_parallel_to_training=True)
        config.callbacks(
            on_evaluate_start=lambda seen=seen, **kwargs: seen.append("start"),
            on_evaluate_end=lambda seen=seen, **kwargs: seen.append("end"),
        )
        algo: Any = config.build_algo()
        found[is_interrupted] = [trained(algo)["evaluation"]]
        if is_interrupted:
            monkeypatch.setattr(algo, method, interrupts(getattr(algo, method), True))
            with pytest.raises(KeyboardInterrupt):
                algo.train()
            assert seen == ["start", "end", "start"]
        repeated = trained(algo)["evaluation"]
        if method == "_sample":  # an update's sample has changed the filter already
            found[is_interrupted].append(repeated)
        assert seen == ["start", "end"] * 2
        assert algo._num_evaluations == 2
        algo.stop()
    assert not differences(found[False], found[True])


# stop().


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupted_stop_ends_everything_else(place, monkeypatch):
    use_fake_ray(monkeypatch)
    before = ray_cluster.RayCluster._num_users
    algo: Any = life(2, in_evaluations=1).build_algo()
    groups = [algo.env_runner_group, algo.eval_env_runner_group]
    monkeypatch.setattr(groups[place], "stop", interrupts(groups[place].stop, True))
    env = algo._setup.sample_env
    closed: list[bool] = []
    monkeypatch.setattr(env, "close", lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt):
        algo.stop()
    assert groups[1 - place].num_healthy_remote_env_runners == 0
    assert ray_cluster.RayCluster._num_users == before
    assert closed == [True]
    algo.stop()


def test_an_interrupted_end_of_env_runners_kills_them(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    killed = []
    monkeypatch.setattr(fake, "kill", lambda actor, no_restart: killed.append(actor.made))
    algo = life(2).build_algo()
    fake.loses = lambda who, method, arguments: interrupt() if arguments[:1] == ("close",) else None
    with pytest.raises(KeyboardInterrupt):
        algo.stop()
    assert len(killed) == 2
    fake.loses = lambda *call: None
    algo.stop()
    assert len(killed) == 2


# Functions that are called in env runners.


def test_a_function_that_cannot_be_sent_is_named(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = life(2).build_algo()
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"(?s)foreach_env_runner.*'_thread\.lock'"):
        algo.env_runner_group.foreach_env_runner(lambda env_runner: lock)
    with pytest.raises(ConfigError, match=r"(?s)foreach_env_runner.*'_thread\.lock'"):
        algo.env_runner_group.foreach_env_runner(lambda env_runner: threading.Lock())
    assert algo.env_runner_group.foreach_env_runner(lambda env_runner: env_runner.num_env_steps) == [0, 0]
    algo.stop()


class ReadableThereOnly:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self):
        return __import__, ("a_module_that_only_the_node_has",)


def test_a_result_that_cannot_be_received_is_named(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = life(2).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)foreach_env_runner.*only_the_node"):
        algo.env_runner_group.foreach_env_runner(lambda env_runner: ReadableThereOnly())
    assert algo.env_runner_group.num_remote_env_runner_restarts == 0
    algo.stop()
