"""Stateful modules in runners: each is given the state that the same agent, in the same life, was left in.

Held against the plainest reference: every life's observations, one after another, through the module, from the initial
state on.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.runs.recurrent_runs import CLASSES, WIDE_CLASSES, Account, changing, config_of
from marl_connectors import Algorithm, Columns, PPOConfig, RLModuleSpec
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.env_runners.lane_group import LaneGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.trees import leaves, tree_map


@pytest.mark.few(2)
@pytest.mark.parametrize("fragment", [1, 2, 3, 5, 7])
def test_each_step_begins_in_the_state_that_the_same_life_was_left_in(fragment):
    account = Account(config_of(fragment=fragment, max_steps=6).build_algo().env_runner)
    for _ in range(24 // fragment):
        account.sample()
    steps = account.check()
    assert set(steps) == {*CLASSES, *WIDE_CLASSES} and min(steps.values()) > 5


def test_copies_with_episodes_of_different_lengths_keep_their_states():
    account = Account(config_of(copies=5, max_steps=30, die=0.3, join=0.1).build_algo().env_runner)
    for _ in range(8):
        account.sample()
    lengths = [len(life) for life in account.lives.values()]
    assert len(set(lengths)) > 5
    account.check()


@pytest.mark.parametrize("module_id", ["gru", "lstm", "count"])
def test_a_single_agent_keeps_its_state(module_id):
    spec = RLModuleSpec(module_class=CLASSES[module_id], model_config={"max_seq_len": 4})
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .rl_module(rl_module_spec=spec)
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5)
        .debugging(seed=1)
    )
    account = Account(config.build_algo().env_runner)
    for _ in range(12):
        account.sample()
    assert len(account.lives) > 4
    account.check()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "between",
    [
        {"random_actions": True},
        {"num_episodes": 4},
        {"force_reset": True},
        {"explore": False},
        {"random_actions": True, "force_reset": True},
        {"random_actions": True, "num_episodes": 4},
        {"num_timesteps": 1},
    ],
    ids=str,
)
def test_states_survive_other_ways_of_sampling_in_between(between):
    account = Account(config_of(max_steps=9).build_algo().env_runner)
    for _ in range(2):
        account.sample()
        account.sample(**between)
        account.sample()
    account.check()


def test_a_run_that_begins_with_random_actions_goes_on_from_initial_states():
    account = Account(config_of(max_steps=9).build_algo().env_runner)
    account.sample(random_actions=True)
    account.sample()
    account.check()


def test_a_restored_runner_goes_on_bit_for_bit(tmp_path):
    config = config_of(fragment=4, max_steps=11)
    first = config.build_algo().env_runner
    for _ in range(5):
        first.sample()
    save_state(tmp_path / "state", first.get_state())
    second = config.copy().build_algo().env_runner
    second.set_state(load_state(tmp_path / "state"))
    for _ in range(8):
        for one, other in zip(first.sample(), second.sample(), strict=True):
            assert one.id_ == other.id_
            parts = zip(one.all_agent_episodes(), other.all_agent_episodes(), strict=True)
            for here, there in parts:
                assert here.module_id == there.module_id and here.storage.extra_keys() == there.storage.extra_keys()
                assert here.get_actions().tolist() == there.get_actions().tolist()
                for key in here.storage.extra_keys():
                    for a, b in zip(
                        leaves(here.get_extra_model_outputs(key)),
                        leaves(there.get_extra_model_outputs(key)),
                        strict=True,
                    ):
                        assert a.tobytes() == b.tobytes()


def test_training_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    config = config_of(fragment=4, max_steps=11, mapping=changing)
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "there")
    other = Algorithm.from_checkpoint(tmp_path / "there", config=config)
    for _ in range(2):
        algo.train()
        other.train()
    for module_id, state in algo.rl_module.get_state().items():
        for name, tensor in state.items():
            assert torch.equal(tensor, other.rl_module.get_state()[module_id][name]), (module_id, name)


def test_training_sequences_begin_in_the_states_of_the_run():
    """The first steps of sequences, also of those that go on after a cut, held against the account."""
    algo = config_of(fragment=7, max_steps=30, die=0.05).build_algo()
    account = Account(algo.env_runner)
    for _ in range(3):
        chunks = account.sample()
    before = {}
    for id_, life in account.lives.items():
        states = [algo.rl_module[account.module_of[id_]].get_initial_state()]
        for seen, outputs, _ in life:
            before[seen.tobytes()] = states[-1]
            states.append(outputs.get(Columns.STATE_OUT))
    batch, compared = algo.learner.make_batch(chunks), 0
    for group in batch.groups:
        for module_id, columns in group.module_columns():
            if algo.rl_module[module_id].is_stateful():
                for i in range(len(columns[Columns.SEQ_LENS])):
                    expected = before[columns[Columns.OBS][i, 0].numpy().tobytes()]
                    own = tree_map(lambda leaf, i=i: leaf[i].numpy(), columns[Columns.STATE_IN])
                    for here, there in zip(leaves(own), leaves(expected), strict=True):
                        np.testing.assert_array_equal(here, there)
                    compared += any(np.any(leaf) for leaf in leaves(expected))
    assert compared > 10


# Leaks: what the tests above must notice.


def wrong_first_positions(original):
    """Lives begin a row too early, so each begins in the state of the lane's former agent."""

    def first_positions(self):
        return original(self) - self.rollout.num_lanes

    return first_positions


def of_the_neighbour(original):
    """Each row is given the state of the one after it."""

    def states(self, rl_module, columns, *args):
        found = original(self, rl_module, columns, *args)
        return tree_map(lambda leaf: np.roll(leaf, 1, axis=0), found)

    return states


def forgotten(original):
    """Nobody has a state before."""

    def has(self, column):
        return column != Columns.STATE_OUT and original(self, column)

    return has


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cls", "name", "wrong"),
    [
        (LaneGroup, "first_positions", wrong_first_positions),
        (AddStatesFromEpisodesToBatch, "_states", of_the_neighbour),
        (Rows, "has", forgotten),
    ],
    ids=["former agent", "neighbour", "forgotten"],
)
def test_a_state_that_leaks_is_noticed(monkeypatch, cls, name, wrong):
    account = Account(config_of(max_steps=6).build_algo().env_runner)
    monkeypatch.setattr(cls, name, wrong(getattr(cls, name)))
    for _ in range(6):
        account.sample()
    with pytest.raises(AssertionError):
        account.check()
