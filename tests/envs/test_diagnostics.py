"""Each diagnostic environment is solved within seconds by PPO as it is, and not by PPO with the fault that it is for.

The fault is planted, and everything else is the same: the environment, the settings, the seed, the number of updates.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.modules.recurrent_modules import GRUModule
from marl_connectors import ActionMasking, Columns, PPOConfig, RLModuleSpec
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.trees import tree_map
from marl_envs import first_step_v0, masked_v0, match_v0, recall_v0, stay_v0


def trained(env, env_config=None, *, updates, module=None, pieces=(), **training):
    """An Algorithm after some updates, of 400 env steps in 8 copies each."""
    config = (
        PPOConfig()
        .environment(env, env_config=env_config or {})
        .multi_agent(policies="shared")
        .env_runners(
            num_envs_per_env_runner=8,
            rollout_fragment_length=50,
            env_to_module_connector=lambda env: [make() for make in pieces],
        )
        .training(
            **{
                "train_batch_size_per_learner": 400,
                "minibatch_size": 400,
                "num_epochs": 6,
                "lr": 0.01,
                "gamma": 0.9,
                "lambda_": 0.95,
                "clip_param": 0.2,
                "vf_clip_param": float("inf"),
                "entropy_coeff": 0.01,
                "grad_clip": 0.5,
                "use_kl_loss": False,
                **training,
            }
        )
        .debugging(seed=0)
    )
    if module is None:
        config.rl_module(model_config={"fcnet_hiddens": [32], "vf_share_layers": False})
    else:
        config.rl_module(rl_module_spec=RLModuleSpec(module, model_config={"size": 16}))
    algo = config.build_algo()
    for _ in range(updates):
        algo.train()
    return algo


def mean_return(algo, num_episodes=100):
    """Of one agent in an episode, as it plays while it learns."""
    algo.env_runner.sample(num_episodes=num_episodes)
    mean = algo.env_runner.get_metrics()["module_episode_returns"]["default_policy"]["mean"]
    algo.stop()
    return mean


# Agents that get each other's actions, and rewards that come a step late.


def play_match():
    return mean_return(trained("marl_envs.match_v0", {"n_agents": 2, "n_actions": 3}, updates=10, gamma=0.0))


def swap_actions(monkeypatch):
    step = VectorEnv.step
    monkeypatch.setattr(VectorEnv, "step", lambda vector_env, actions: step(vector_env, actions[::-1]))


def pay_late(monkeypatch):
    step, late = VectorEnv.step, {}

    def paying_late(vector_env, actions):
        told = step(vector_env, actions)
        told.rewards[:], late[vector_env] = late.get(vector_env, told.rewards), list(told.rewards)
        return told

    monkeypatch.setattr(VectorEnv, "step", paying_late)


def test_matching_is_learned():
    assert play_match() > 0.9 * match_v0.parallel_env(n_agents=2, n_actions=3).optimal_return


@pytest.mark.few(1)
@pytest.mark.parametrize("spoil", [swap_actions, pay_late])
def test_matching_is_not_learned_with_actions_swapped_or_rewards_a_step_late(monkeypatch, spoil):
    env = match_v0.parallel_env(n_agents=2, n_actions=3)
    spoil(monkeypatch)
    assert play_match() < env.random_return + 0.1 * env.optimal_return


# Cuts that are taken for ends.


def share_that_stays():
    algo = trained("marl_envs.stay_v0", updates=10)
    actions = [
        np.asarray(agent_episode.get_actions())
        for episode in algo.env_runner.sample(num_episodes=50)
        for agent_episode in episode.agent_episodes.values()
    ]
    algo.stop()
    return (np.concatenate(actions) == stay_v0.STAY).mean()


def take_truncation_for_termination(monkeypatch):
    estimate = GeneralAdvantageEstimation.columns

    def spoiled(piece, c, xp):
        for episode in c.rows.episodes:
            episode.is_terminated = episode.is_terminated or episode.is_truncated
        return estimate(piece, c, xp)

    monkeypatch.setattr(GeneralAdvantageEstimation, "columns", spoiled)


@pytest.mark.slow
def test_staying_is_learned_unless_truncation_is_taken_for_termination(monkeypatch):
    assert share_that_stays() > 0.9
    take_truncation_for_termination(monkeypatch)
    assert share_that_stays() < 0.1


# States of another episode, or of another agent.


def play_first_steps():
    return mean_return(trained("marl_envs.first_step_v0", updates=6, module=GRUModule), 200)


def leak_states(monkeypatch):
    """The first step of an episode gets the state in which the row's last one ended."""
    states_before, forward = AddStatesFromEpisodesToBatch._states, GRUModule.forward_exploration
    last = {}

    def remember(module, batch, **kwargs):
        outputs = forward(module, batch, **kwargs)
        state = tree_map(lambda leaf: leaf.detach().numpy().copy(), outputs[Columns.STATE_OUT])
        last[len(state["h"])] = state
        return outputs

    def leak(piece, rl_module, columns, rows, splits, counts):
        states = states_before(piece, rl_module, columns, rows, splits, counts)
        if piece.learns or len(rows) not in last:
            return states
        fresh = ~rows.reached(-1) if rows.has(Columns.STATE_OUT) else np.ones(len(rows), bool)
        states = tree_map(np.array, states)
        tree_map(lambda leaf, old: leaf.__setitem__(fresh, old[fresh]), states, last[len(rows)])
        return states

    monkeypatch.setattr(GRUModule, "forward_exploration", remember)
    monkeypatch.setattr(AddStatesFromEpisodesToBatch, "_states", leak)


@pytest.mark.slow
def test_first_steps_are_known_unless_states_leak(monkeypatch):
    env = first_step_v0.parallel_env()
    assert play_first_steps() > 0.7 * env.optimal_return
    leak_states(monkeypatch)
    assert play_first_steps() < env.memoryless_return + 0.25 * env.optimal_return


def play_recall():
    return mean_return(trained("marl_envs.recall_v0", updates=14, module=GRUModule))


def swap_states(monkeypatch, swap):
    states_before = AddStatesFromEpisodesToBatch._states

    def swapped(piece, *args):
        states = states_before(piece, *args)
        return states if piece.learns else tree_map(swap, states)

    monkeypatch.setattr(AddStatesFromEpisodesToBatch, "_states", swapped)


def between_agents(leaf):
    """Each gets the state of the other agent of its copy: swapped twice, it has its own again."""
    return np.asarray(leaf).reshape(-1, 2, *leaf.shape[1:])[:, ::-1].reshape(leaf.shape)


def between_copies(leaf):
    return np.roll(leaf, 2, axis=0)


@pytest.mark.slow
def test_cues_are_recalled():
    assert play_recall() > 0.8 * recall_v0.parallel_env().optimal_return


@pytest.mark.slow
@pytest.mark.parametrize("swap", [between_agents, between_copies])
def test_cues_are_not_recalled_where_states_are_swapped(monkeypatch, swap):
    env = recall_v0.parallel_env()
    swap_states(monkeypatch, swap)
    assert play_recall() < env.memoryless_return + 0.2 * env.optimal_return


# Masks that are ignored.


def play_masked():
    return mean_return(trained("marl_envs.masked_v0", updates=10, pieces=[ActionMasking]))


def ignore_masks(monkeypatch):
    from_observations = ActionMasking._from_observations
    monkeypatch.setattr(ActionMasking, "_from_observations", lambda *args: np.ones_like(from_observations(*args)))


@pytest.mark.slow
def test_prices_are_earned_unless_masks_are_ignored(monkeypatch):
    env = masked_v0.parallel_env()
    assert play_masked() > 0.85 * env.optimal_return
    ignore_masks(monkeypatch)
    assert play_masked() < env.random_return / 2
