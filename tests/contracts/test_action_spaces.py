"""Actions of all spaces: what environments get, what is recorded, and what it depends on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import ConnectorV2, PPOConfig
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.trees import leaves, tree_map

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(3, start=2),
    "several": spaces.MultiDiscrete([3, 2], start=[5, 1]),
    "matrix": spaces.MultiDiscrete([[2, 2], [3, 2]]),
    "bits": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(-2.0, 5.0, (2, 2), np.float32),
    "nested": spaces.Dict(
        {
            "say": spaces.Discrete(3, start=2),
            "do": spaces.Tuple([spaces.Box(0.0, 3.0, (2,)), spaces.MultiBinary(3), spaces.MultiDiscrete([2, 4])]),
        }
    ),
}
SETTINGS = [
    *[(name, {}) for name in ACTIONS],
    ("nested", {"action_distribution": "beta"}),
    ("box", {"action_distribution": "squashed_gaussian"}),
    ("nested", {"use_lstm": True, "lstm_cell_size": 4}),
    ("nested", {"use_gru": True, "gru_cell_size": 4, "vf_share_layers": False, "free_log_std": True}),
]


def config_of(action_space, settings, *, num_envs=2, observation_space=BOX, policies="shared", **env_config):
    env_config = {"observation_space": observation_space, "action_space": action_space, **env_config}
    return (
        PPOConfig()
        .environment(SpacesEnv, env_config=env_config)
        .multi_agent(policies=policies)
        .env_runners(num_envs_per_env_runner=num_envs)
        .rl_module(model_config={"fcnet_hiddens": [8], "max_seq_len": 4, **settings})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=2, lr=0.01)
        .debugging(seed=0)
    )


class Bystander(ConnectorV2):
    """Works on items, and changes nothing. Keeps no state."""

    def __call__(self, *, batch, **kwargs):
        return batch


def chunks_of(config, num_timesteps=12):
    algo = config.build_algo()
    try:
        return algo, algo.env_runner.sample(num_timesteps=num_timesteps)
    finally:
        algo.stop()


def of_agents(chunks):
    """``{(copy, agent): what was recorded}``, one episode after another."""
    found = {}
    for chunk in chunks:
        for agent_id, episode in chunk.agent_episodes.items():
            if len(episode):
                logp = episode.get_extra_model_outputs("action_logp")
                found.setdefault((chunk.id_, agent_id), []).append((episode.get_actions(), logp))
    return found


def assert_equal(one, other):
    assert one.keys() == other.keys() and len(one)
    for key in one:
        for a, b in zip(leaves(one[key]), leaves(other[key]), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_recorded_log_probabilities_are_those_of_the_recorded_actions(name, settings):
    space = ACTIONS[name]
    algo, chunks = chunks_of(config_of(space, settings, policies="independent"))
    for chunk in chunks:
        for agent_id, episode in chunk.agent_episodes.items():
            module = algo.get_module(agent_id)
            inputs = torch.from_numpy(episode.get_extra_model_outputs("action_dist_inputs"))
            actions = tree_map(torch.from_numpy, episode.get_actions())
            expected = module.get_train_action_dist_cls().from_logits(inputs).logp(actions)
            found = torch.from_numpy(episode.get_extra_model_outputs("action_logp"))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_what_a_copy_draws_does_not_depend_on_the_others(name, settings):
    _, alone = chunks_of(config_of(ACTIONS[name], settings, num_envs=1), 12)
    _, among_three = chunks_of(config_of(ACTIONS[name], settings, num_envs=3), 36)
    first = {key: value for key, value in of_agents(among_three).items() if key[0] in {c.id_ for c in alone}}
    assert_equal(of_agents(alone), first)


def test_actions_with_parts_reach_worker_processes():
    config = config_of(ACTIONS["nested"], {})
    _, here = chunks_of(config)
    _, there = chunks_of(config.copy().env_runners(num_env_workers=2))
    assert_equal(of_agents(here), of_agents(there))


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_a_piece_on_items_sees_and_leaves_the_same_actions(name, settings):
    config = config_of(ACTIONS[name], settings)
    _, on_columns = chunks_of(config)
    _, on_items = chunks_of(config.copy().env_runners(module_to_env_connector=lambda env: Bystander()))
    assert_equal(of_agents(on_columns), of_agents(on_items))


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_a_run_learns_evaluates_and_goes_on_after_a_checkpoint(name, settings, tmp_path):
    algo = config_of(ACTIONS[name], settings).build_algo()
    result = algo.train()["learners"]["default_policy"]
    assert 0 <= result["mean_kl_loss"] < 0.05
    algo.env_runner.sample(num_timesteps=8, random_actions=True)
    algo.evaluate(num_episodes=1)
    algo.train()
    other = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"))
    for one in (algo, other):
        one.train()
    for mine, theirs in zip(algo.get_module().parameters(), other.get_module().parameters(), strict=True):
        assert torch.equal(mine, theirs)
    algo.stop()
    other.stop()


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_the_first_minibatch_finds_the_policy_that_acted(name, settings):
    config = config_of(ACTIONS[name], settings, policies="independent")
    config.training(minibatch_size=None, num_epochs=1)
    algo = config.build_algo()
    for module_id, result in algo.train()["learners"].items():
        assert abs(result["mean_kl_loss"]) < 1e-6, module_id
        assert abs(result["policy_loss"]) < 1e-5, module_id  # ratios of 1, advantages of mean 0
    algo.stop()


OBSERVATIONS = [
    spaces.Discrete(4, start=2),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(0, 255, (7, 6, 3), np.uint8),
    spaces.Tuple([BOX, spaces.Box(-1.0, 1.0, (2, 2), np.float32)]),
    spaces.Dict({"x": BOX, "y": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 255, (8, 9), np.uint8)])}),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("settings", [{}, {"use_lstm": True, "lstm_cell_size": 4}])
@pytest.mark.parametrize("observation_space", OBSERVATIONS, ids=lambda space: type(space).__name__)
def test_all_observations_go_to_default_modules(observation_space, settings):
    for policies in ("shared", "independent"):
        config = config_of(ACTIONS["several"], settings, observation_space=observation_space, policies=policies)
        algo = config.build_algo()
        for result in algo.train()["learners"].values():
            assert np.isfinite(result["total_loss"])
        algo.stop()


# Masks: the environment raises an error where a forbidden action reaches it.

MASKED = [
    (spaces.MultiDiscrete([3, 2, 4], start=[1, 0, 5]), "info"),
    (spaces.MultiDiscrete([3, 2, 4]), "tuple"),
    (spaces.MultiDiscrete([3, 2, 4]), "obs"),
    (spaces.MultiBinary(3), "info"),
    (spaces.MultiBinary(3), "obs"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("settings", [{}, {"use_gru": True, "gru_cell_size": 4}])
@pytest.mark.parametrize(("space", "masks"), MASKED, ids=lambda x: x if isinstance(x, str) else type(x).__name__)
def test_masks_over_several_choices_hold_in_acting_and_in_learning(space, masks, settings):
    config = config_of(space, settings, masks=masks, length=9)
    config.environment(action_mask_key="legal" if masks == "obs" else "action_mask").training(num_epochs=1)
    algo = config.training(minibatch_size=None, entropy_coeff=0.01).build_algo()
    assert algo.env_runner.env_to_module.names()[0] == "ActionMasking"
    result = algo.train()["learners"]["default_policy"]
    assert abs(result["mean_kl_loss"]) < 1e-6 and abs(result["policy_loss"]) < 1e-5
    free = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) else [2, 2, 2]
    assert 0 < result["entropy"] < 0.9 * np.log(free).sum()
    for _ in range(3):
        algo.train()
    algo.env_runner.sample(num_timesteps=20, random_actions=True)
    algo.evaluate(num_episodes=2)
    algo.stop()
