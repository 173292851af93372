"""Runs with turn-based environments can be stopped while agents wait, and go on as if they had not been."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3

from helpers.envs.random_aec import RandomAEC
from helpers.runs.turn_based_configs import ANYTHING, OddInfos, config_of, stateful_config, tictactoe
from marl_connectors import MeanStdFilter, PrevActionsPrevRewards
from marl_connectors.checkpoints import load_state, save_state


def content(chunk):
    """All that is in a chunk, lookback included."""
    parts = []
    for part in chunk.all_agent_episodes():
        storage = part.storage
        names = ("obs", "actions", "rewards", "t", "infos", *storage.extra_keys())
        head = (part.id_, part.module_id, part.t_started, storage.lookback, part.is_terminated, part.is_truncated)
        parts.append([head, part.uncredited_reward, part.custom_data, {name: storage.column(name) for name in names}])
    own = (chunk.id_, chunk.env_t_started, chunk.env_t, chunk.is_terminated, chunk.is_truncated)
    return [own, chunk.custom_data, chunk._unclaimed, parts]


def weights(algo):
    return {m: {k: v.clone() for k, v in s.items()} for m, s in algo.rl_module.get_state().items()}


CONFIGS = {
    "tictactoe": tictactoe,
    "spread": lambda: config_of(lambda: simple_spread_v3.env(max_cycles=6), policies="independent"),
    "anything": lambda: config_of(
        lambda: RandomAEC(**ANYTHING, pays_newcomers=True), lookback=3, pieces=[MeanStdFilter]
    ),
    "one mutable buffer": lambda: config_of(
        lambda: RandomAEC(**ANYTHING, mutable=True), pieces=[PrevActionsPrevRewards]
    ),
    "infos for which there is no file": lambda: config_of(lambda: OddInfos(**ANYTHING), lookback=3),
    "states": lambda: stateful_config(),
    "at a reset": lambda: config_of(lambda: RandomAEC(max_steps=7, pays_newcomers=True), copies=1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_restored_runner_goes_on_with_those_who_wait(name, tmp_path):
    runner, other = (CONFIGS[name]().build_algo().env_runner for _ in range(2))
    other.sample(num_timesteps=9)  # what it was in the middle of is forgotten
    waiting = 0
    for n, folder in ((7, "first"), (10, "second"), (1, "third")):
        runner.sample(num_timesteps=n * len(runner.vector_env.sub_envs))
        waiting += sum(lane.is_waiting for lane in runner._episodes.lanes.in_order())
        save_state(tmp_path / folder, runner.get_state())
        other.set_state(load_state(tmp_path / folder))
        for _ in range(4):
            first, second = runner.sample(num_timesteps=5), other.sample(num_timesteps=5)
            np.testing.assert_equal(list(map(content, second)), list(map(content, first)))
        np.testing.assert_equal(other.get_metrics(), runner.get_metrics())
        runner, other = other, runner
    assert waiting


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["tictactoe", "states"])
def test_the_same_seed_and_a_resumed_run_give_the_same_weights(name, tmp_path):
    whole, again = (CONFIGS[name]().build_algo() for _ in range(2))
    for _ in range(4):
        results = whole.train()
    for _ in range(2):
        again.train()
    again.save_to_path(tmp_path / "run")
    resumed = CONFIGS[name]().build_algo()
    resumed.restore_from_path(tmp_path / "run")
    for algo in (again, resumed):
        for _ in range(2):
            own = algo.train()
        np.testing.assert_equal(own["env_runners"], results["env_runners"])
        for module_id, state in weights(whole).items():
            for key, value in weights(algo)[module_id].items():
                assert torch.equal(value, state[key]), (module_id, key)
