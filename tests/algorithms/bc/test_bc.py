"""Behaviour cloning: clones play as the policies that were recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.spaces_env import SpacesEnv
from helpers.runs.recorded_runs import life_config, life_data
from marl_connectors import (
    BC,
    PPO,
    BCConfig,
    DefaultPPORLModule,
    EpisodeWriter,
    FitResults,
    MARWILConfig,
    MultiAgentEpisode,
    OnnxPolicy,
    PPOConfig,
    load_policy,
)
from marl_connectors.errors import ConfigError, OfflineDataError

AGENTS = ("a", "b")
SEEN = spaces.Box(-1, 1, (2,), np.float32)


def game(action_space, length=4):
    return {"env": SpacesEnv, "env_config": {"observation_space": SEEN, "action_space": action_space, "length": length}}


def rule(agent_id, obs):
    """What the recorded policies do: agent a goes by the first number, agent b by the second one."""
    return int(obs[AGENTS.index(agent_id)] > 0)


def write_rule(folder, action_of=rule, num_episodes=60):
    """Episodes in which agents follow a rule."""
    rng, episodes = np.random.default_rng(0), []
    for number in range(num_episodes):
        episode = MultiAgentEpisode(f"e{number}")
        seen = {agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in AGENTS}
        episode.add_env_reset(observations=seen)
        for t in range(4):
            actions = {agent: action_of(agent, seen[agent]) for agent in AGENTS}
            seen = {agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in AGENTS}
            truncateds = {"__all__": t == 3}
            episode.add_env_step(seen, actions, dict.fromkeys(AGENTS, 0.0), truncateds=truncateds)
        episodes.append(episode)
    with EpisodeWriter(folder) as writer:
        writer.write(episodes)
    return folder


def cloning(folder, action_space=None, **model):
    config = BCConfig().environment(**game(action_space or spaces.Discrete(2))).multi_agent(policies="independent")
    config.environment(disable_env_checking=True).env_runners(num_env_workers=0).debugging(seed=0)
    config.rl_module(model_config={"fcnet_hiddens": (16,), "fcnet_activation": "tanh", **model})
    return config.training(lr=0.02, train_batch_size_per_learner=60).offline_data(input_=folder)


def accuracy(algo):
    """How often each module does what the rule says."""
    seen = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (500, 2)).astype(np.float32))
    found = {}
    for agent in AGENTS:
        module = algo.get_module(agent)
        logits = module.forward_inference({"obs": seen})["action_dist_inputs"]
        found[agent] = np.mean([rule(agent, x) == int(c) for x, c in zip(seen.numpy(), logits.argmax(-1), strict=True)])
    return found


def test_each_agent_learns_its_own_rule_and_what_it_has_not_seen(tmp_path):
    config = cloning(write_rule(tmp_path), spaces.Discrete(2)).offline_data(held_out_fraction=0.2)
    with config.evaluation(offline_evaluation_interval=20).build_algo() as algo:
        before = algo.evaluate_offline()["learners"]
        results = algo.fit(num_iterations=60, progress=False)
        held_out = results[-1]["offline_evaluation"]["learners"]
        for agent, correct in accuracy(algo).items():
            assert correct > 0.93
            assert before[agent]["mean_logp"] == pytest.approx(-np.log(2), abs=0.1)
            assert held_out[agent]["mean_logp"] > -0.3
    assert isinstance(results, FitResults)
    assert [i for i, own in enumerate(results) if "offline_evaluation" in own] == [19, 39, 59]


def test_recurrent_modules_learn_the_rule(tmp_path):
    config = cloning(write_rule(tmp_path), use_lstm=True, lstm_cell_size=16, max_seq_len=3)
    with config.build_algo() as algo:
        for _ in range(60):
            result = algo.train()
        assert all(own["mean_logp"] > -0.35 for own in result["learners"].values())


@pytest.mark.few(1)
@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "beta"])
def test_continuous_actions_are_cloned(tmp_path, distribution):
    box = spaces.Box(-1, 1, (1,), np.float32)
    folder = write_rule(tmp_path, lambda agent, obs: 0.5 * obs[AGENTS.index(agent)][None].astype(np.float32))
    config = cloning(folder, box, action_distribution=distribution)
    with config.build_algo() as algo:
        first = algo.train()["learners"]["a"]["mean_logp"]
        for _ in range(60):
            last = algo.train()["learners"]["a"]["mean_logp"]
        assert last > first + 0.8


@pytest.mark.slow
def test_masked_actions_are_cloned_and_never_chosen(tmp_path):
    config = PPOConfig().environment("marl_envs.masked_v0").debugging(seed=0)
    config.training(lr=0.01, train_batch_size_per_learner=400, minibatch_size=100, num_epochs=5)
    with config.build_algo() as algo:
        assert algo.masking.sentence
        for _ in range(5):
            algo.train()
        algo.record(tmp_path / "data", num_episodes=30, explore=True)
    config = BCConfig().environment("marl_envs.masked_v0").offline_data(input_=tmp_path / "data")
    with config.training(lr=0.01, train_batch_size_per_learner=100).build_algo() as algo:
        losses = [next(iter(algo.train()["learners"].values()))["policy_loss"] for _ in range(10)]
        assert np.isfinite(losses).all() and losses[-1] < losses[0]
        algo.evaluate(num_episodes=5, explore=True)  # a forbidden action would be an error


@pytest.mark.slow
def test_a_clone_is_saved_loaded_and_exported_as_any_policy(tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    with cloning(write_rule(tmp_path / "data")).build_algo() as algo:
        assert type(algo) is BC
        algo.fit(num_iterations=3, progress=False, folder=tmp_path / "run")
        obs = np.array([0.5, -0.5], np.float32)
        logits = algo.get_module("a").forward_inference({"obs": torch.from_numpy(obs[None])})["action_dist_inputs"]
    policy = load_policy(tmp_path / "run")
    expected = {"a": int(logits.argmax())}
    assert policy.actions({"a": obs}) == expected
    assert OnnxPolicy(policy.export_onnx(tmp_path / "onnx")).actions({"a": obs}) == expected


def test_ppo_continues_from_a_clone(tmp_path):
    with cloning(write_rule(tmp_path)).build_algo() as algo:
        algo.train()
        state = algo.rl_module.get_state()
        assert isinstance(algo.get_module("a").unwrapped(), DefaultPPORLModule)
    config = PPOConfig().environment(**game(spaces.Discrete(2)), disable_env_checking=True)
    config.multi_agent(policies="independent").env_runners(num_env_workers=0)
    config.rl_module(model_config={"fcnet_hiddens": (16,), "fcnet_activation": "tanh"})
    with config.training(train_batch_size_per_learner=20, minibatch_size=10).build_algo() as algo:
        assert type(algo) is PPO
        algo.rl_module.set_state(state)
        algo.train()


def test_the_value_head_stays_as_it_was(tmp_path):
    with life_config(BCConfig).offline_data(input_=life_data(tmp_path)).build_algo() as algo:
        before = {name: value.clone() for name, value in algo.rl_module.state_dict().items()}
        algo.train()
        changed = {name for name, value in algo.rl_module.state_dict().items() if not torch.equal(value, before[name])}
        assert changed and not any(".vf." in name for name in changed)


# Mistakes.


def test_advantages_play_no_part():
    with pytest.raises(ConfigError, match=r"(?s)beta=0\.5.*MARWILConfig"):
        life_config(BCConfig, beta=0.5).offline_data(input_="data").build_algo()


def test_a_clone_does_not_imitate_itself():
    with pytest.raises(ConfigError, match=r"live_fraction=0\.5"):
        life_config(BCConfig).offline_data(input_="data", live_fraction=0.5).build_algo()


def test_a_run_without_recorded_episodes_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)BCConfig.*recorded"):
        life_config(BCConfig).build_algo()


@pytest.mark.parametrize("cls", [BCConfig, MARWILConfig])
def test_data_of_another_environment_are_refused(tmp_path, cls):
    config = cls().environment("CartPole-v1").offline_data(input_=write_rule(tmp_path))
    with pytest.raises(OfflineDataError, match=r"(?s)'e0'.*'a'"):
        config.build_algo()
