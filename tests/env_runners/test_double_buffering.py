"""Halves of the copies that step in turn sample what all copies together sample."""

from __future__ import annotations

import os
import pickle
import signal
from functools import partial

import numpy as np
import pytest
import torch
from failing_envs import FailingEnv, start_workers_fast
from gymnasium import spaces
from scripted_envs import BOX, LifeEnv, small_config

from marl_connectors import Callbacks, DefaultPPORLModule, RLModuleSpec
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.env_runners.rehearsal import TriedCounts, at_place, rows_stand_alone
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, EnvError
from marl_connectors.rl_module.array_layers import tile_rows

UNLIKE = {
    "a": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "b": (BOX, spaces.Discrete(2, start=4)),
    "c": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "d": (spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)),
}
IMAGES = {a: (spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.MultiDiscrete([3, 2])) for a in "abc"}
NUMBERS = {a: (BOX, spaces.Box(-1.0, 1.0, (2,), np.float32)) for a in "abc"}
CASES = {
    "fixed agents": (LifeEnv, {}, {}),
    "deaths, late joiners, returns": (partial(LifeEnv, die=0.01, join=0.1, fixed=False, max_steps=40), {}, {}),
    "reused buffers": (partial(LifeEnv, mutable=True, max_steps=30), {}, {}),
    "episodes that end one by one": (partial(LifeEnv, agents="a", die=0.03, max_steps=200), {}, {}),
    "a module for each kind of space": (
        partial(LifeEnv, agents="abcd", spaces_of=UNLIKE, die=0.005, join=0.1, max_steps=40),
        {},
        {"policies": {"ac", "b", "d"}, "policy_mapping_fn": lambda a, *_, **__: "ac" if a in "ac" else a},
    ),
    "continuous actions": (
        partial(LifeEnv, spaces_of=NUMBERS, die=0.01, join=0.1, max_steps=40),
        {},
        {},
    ),
    "memory": (partial(LifeEnv, die=0.01, join=0.1, max_steps=40), {"use_lstm": True, "lstm_cell_size": 8}, {}),
    "images": (partial(LifeEnv, spaces_of=IMAGES), {"conv_filters": [[4, 3, 2]], "fcnet_hiddens": (8,)}, {}),
}
SAMPLES = (
    {"num_timesteps": 160},
    {},
    {"num_timesteps": 13},
    {"num_episodes": 9},
    *[{"num_episodes": 7}] * 4,
    {"num_timesteps": 160, "explore": False},
    {"num_timesteps": 20, "random_actions": True},
    {"num_timesteps": 80, "force_reset": True},
    {"num_timesteps": 1},
)
NEEDS_TILES = pytest.mark.skipif(tile_rows() == 1, reason="this processor's matrix products have no known tiles")


@pytest.fixture(autouse=True, scope="module")
def _fast_starts():
    start_workers_fast()


def config_of(env, model=None, policies=None, *, workers=2, num_envs=8, **runner):
    config = small_config(env, disable_env_checking=True).multi_agent(**(policies or {"policies": "shared"}))
    config.rl_module(model_config={"fcnet_hiddens": (64, 64), **(model or {})})
    return config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers, **runner)


def runner_of(*args, **kwargs):
    return config_of(*args, **kwargs).build_algo().env_runner


def count_turns(runner, monkeypatch):
    """How often a half was told to step, one number for each step of all copies and more."""
    env, turns = runner.vector_env, []
    begin = env.begin_step
    monkeypatch.setattr(env, "begin_step", lambda half, actions: (turns.append(half), begin(half, actions)))
    return turns


def all_of(runner, samples=SAMPLES):
    """All that a runner gives and keeps."""
    episodes = [[episode.get_state() for episode in runner.sample(**sample)] for sample in samples]
    return episodes, runner.get_state(), runner.get_metrics()


@NEEDS_TILES
@pytest.mark.parametrize("case", CASES)
def test_samples_states_and_metrics_are_the_same(case, monkeypatch):
    runner_of_7 = partial(runner_of, *CASES[case], num_envs=7)  # so the halves' rows are no whole tiles
    expected = all_of(runner_of_7(workers=0))
    for workers in (2, 3) if case == "deaths, late joiners, returns" else (2,):
        runner = runner_of_7(workers=workers)
        turns = count_turns(runner, monkeypatch)
        np.testing.assert_equal(all_of(runner), expected)
        assert turns == [0, 1] * (len(turns) // 2)
        assert len(turns) > 100
        runner.close()


@NEEDS_TILES
def test_training_is_the_same(monkeypatch):
    found = []
    for on in (False, True):
        config = config_of(partial(LifeEnv, die=0.01, join=0.1, max_steps=40), double_buffering=on)
        algo = config.training(train_batch_size_per_learner=160, minibatch_size=64).build_algo()
        turns = count_turns(algo.env_runner, monkeypatch)
        for _ in range(3):
            algo.train()
        found.append(algo.rl_module.get_state())
        assert bool(turns) == on
        algo.stop()
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@NEEDS_TILES
def test_a_checkpoint_goes_on_either_way():
    env = partial(LifeEnv, die=0.01, join=0.1, max_steps=40)
    runner = runner_of(env)
    all_of(runner, ({"num_timesteps": 60}, {"num_timesteps": 30}))
    state = pickle.loads(pickle.dumps(runner.get_state()))
    expected = all_of(runner, SAMPLES[:3])
    runner.close()
    for workers, on in ((0, True), (2, False), (2, True)):
        other = runner_of(env, workers=workers, double_buffering=on)
        other.set_state(state)
        np.testing.assert_equal(all_of(other, SAMPLES[:3]), expected)
        other.close()


class Passing(ConnectorV2):
    """Does nothing, which nobody can know."""

    def __call__(self, *, batch, **kwargs):
        return batch


class OwnModule(DefaultPPORLModule):
    """May do anything."""


class Listening(Callbacks):
    def on_episode_step(self, **kwargs):
        pass


def with_own_piece(config):
    return config.env_runners(env_to_module_connector=lambda *args: Passing())


def with_own_module(config):
    return config.rl_module(rl_module_spec=RLModuleSpec(OwnModule, model_config={"fcnet_hiddens": (16,)}))


@pytest.mark.parametrize(
    "change",
    [
        with_own_piece,
        with_own_module,
        lambda config: config.callbacks(Listening),
        lambda config: config.multi_agent(policies="independent"),
        lambda config: config.env_runners(num_env_workers=1),
        lambda config: config.env_runners(double_buffering=False),
    ],
    ids=[
        "a piece of one's own",
        "a module of one's own",
        "callbacks",
        "modules that share a group",
        "1 worker",
        "False",
    ],
)
def test_where_it_may_show_all_copies_step_together(change, monkeypatch):
    runner = change(config_of(LifeEnv)).build_algo().env_runner
    turns = count_turns(runner, monkeypatch)
    all_of(runner, SAMPLES[:2])
    assert not turns
    runner.close()


@NEEDS_TILES
def test_what_is_added_between_samples_is_seen(monkeypatch):
    runner = runner_of(partial(LifeEnv, max_steps=50))
    turns = count_turns(runner, monkeypatch)
    runner.sample(num_timesteps=80)
    used = len(turns)
    assert used == 18  # all copies act together in the first step after a beginning
    handle = runner.rl_module["default_policy"].encoder.register_forward_hook(lambda *args: None)
    runner.sample(num_timesteps=80)
    assert len(turns) == used
    handle.remove()
    runner.sample(num_timesteps=80)
    assert len(turns) == used + 20
    runner.close()


def test_it_is_on_or_off():
    with pytest.raises(ConfigError, match="double_buffering"):
        small_config(LifeEnv).env_runners(double_buffering="yes").validate()


# Whether it shows is tried.


def group_of(num_rows, seed=0):
    group = ColumnGroup(Rows((), module_ids=("m",), splits=(0, num_rows), episodes=[], counts=[]))
    group["obs"] = torch.randn(num_rows, 4, generator=torch.Generator().manual_seed(seed))
    return group


def by(fn):
    def forward(batch):
        found = [group.like() for group in batch.groups]
        for group, output in zip(batch.groups, found, strict=True):
            output["out"] = fn(group["obs"])
        return ColumnBatch(found)

    return forward


def test_rows_that_depend_on_others_are_found_out():
    assert rows_stand_alone(by(lambda x: x * 2), group_of(20), 5)
    assert not rows_stand_alone(by(lambda x: x - x.mean(0)), group_of(20), 5)
    assert not rows_stand_alone(by(lambda x: x + (len(x) == 6) * 1e-7), group_of(20), 5)


def test_rows_keep_their_place():
    placed = at_place(group_of(5), 3)
    assert len(placed.rows) == len(placed["obs"]) == 8
    assert torch.equal(placed["obs"][3:], group_of(5)["obs"])


def test_what_was_tried_is_remembered():
    tried, calls = TriedCounts(None), []
    forward = by(lambda x: (calls.append(len(x)), x * 2)[1])
    assert tried.try_out(forward, group_of(20), [8, 12, 20])
    num_calls = len(calls)
    assert tried.verdict([9, 40])
    assert tried.verdict([9, 41]) is None
    assert tried.verdict([7, 20]) is None
    assert tried.try_out(forward, group_of(20), [10, 20])
    assert len(calls) == num_calls
    bad = TriedCounts(None)
    assert not bad.try_out(by(lambda x: x + len(x)), group_of(20), [8, 12, 20])
    assert bad.verdict([8, 40]) is False
    assert bad.verdict([9, 40]) is None


@NEEDS_TILES
def test_a_plain_network_gives_rows_the_same_whatever_others_there_are():
    module = DefaultPPORLModule(
        observation_space=spaces.Box(-1.0, 1.0, (18,)),
        action_space=spaces.Discrete(5),
        model_config={"fcnet_hiddens": (64, 64)},
    )
    x = torch.randn(200, 18, generator=torch.Generator().manual_seed(0))
    whole = module.forward_inference({"obs": x})["action_dist_inputs"]
    for count in range(2, 200):
        assert torch.equal(module.forward_inference({"obs": x[:count]})["action_dist_inputs"], whole[:count]), count


# Failures.


def failing_runner(ways, *, restart=True, timeout_s=60.0, chance=0.02, **kwargs):
    config = config_of(partial(FailingEnv, chance=chance, ways=ways), sample_timeout_s=timeout_s, **kwargs)
    config.fault_tolerance(restart_failed_sub_environments=restart, num_consecutive_env_failures_tolerance=1000)
    return config.build_algo().env_runner


@NEEDS_TILES
def test_failures_are_survived_in_the_same_way(monkeypatch):
    found = []
    for workers in (0, 2):
        runner = failing_runner(("raise",), workers=workers)
        turns = count_turns(runner, monkeypatch) if workers else []
        found.append(all_of(runner))
        runner.close()
    assert len(turns) > 20
    np.testing.assert_equal(found[1], found[0])


@NEEDS_TILES
@pytest.mark.parametrize(("ways", "timeout_s"), [(("kill",), 60.0), (("hang",), 1.0)])
def test_workers_are_replaced_while_the_other_half_steps(ways, timeout_s, monkeypatch):
    runner = failing_runner(ways, timeout_s=timeout_s, chance=0.01)
    turns = count_turns(runner, monkeypatch)
    samples = [runner.sample(num_timesteps=80) for _ in range(5)]
    counts = runner.take_failure_counts()
    assert turns
    assert counts["num_env_failures"] > 0
    kept = sum(episode.env_steps() for sample in samples for episode in sample)
    assert runner.num_env_steps == kept + counts["num_dropped_env_steps"]
    runner.close()


@NEEDS_TILES
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("phase", ["begin_step", "finish_step", "_write_down", "_act"])
@pytest.mark.parametrize("ending", [KeyboardInterrupt, "kill"])
def test_it_may_end_at_any_point(half, phase, ending, monkeypatch):
    """Nothing hangs or is left over, and what was interrupted can begin anew, as if it had been interrupted before."""
    runner = runner_of(partial(LifeEnv, max_steps=50))
    runner.sample(num_timesteps=80)
    env, owner = runner.vector_env, runner.vector_env if phase.endswith("_step") else runner
    pids = [worker.pid for worker in env.workers]
    method, calls = getattr(owner, phase), []

    def interrupted(number, *args):
        calls.append(number)
        if calls.count(half) == 3 and number == half:
            if ending == "kill":
                os.kill(env.workers[1 - half].pid, signal.SIGKILL)
            else:
                raise ending
        return method(number, *args)

    monkeypatch.setattr(owner, phase, interrupted)
    with pytest.raises(EnvError if ending == "kill" else ending):
        runner.sample(num_timesteps=80)
    monkeypatch.undo()
    episodes = runner.sample(num_timesteps=80)
    assert sum(episode.env_steps() for episode in episodes) == 80
    assert not set(pids) & {worker.pid for worker in env.workers}
    runner.close()
    assert [worker.pid for worker in env.workers] == [None, None]


@NEEDS_TILES
def test_closing_amid_a_step_ends_the_workers(monkeypatch):
    runner = runner_of(partial(LifeEnv, max_steps=50))
    runner.sample(num_timesteps=80)
    monkeypatch.setattr(runner, "_write_down", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=80)
    runner.close()
    assert [worker.pid for worker in runner.vector_env.workers] == [None, None]
