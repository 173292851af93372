"""The statistics of values that all losses with a critic have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import small_config
from marl_connectors.algorithms.actor_critic.learner import explained_variance, value_moments
from marl_envs import match_v0


def test_the_explained_variance_follows_from_means():
    targets, values = torch.tensor([1.0, 4.0, 2.0, 0.0]), torch.tensor([2.0, 5.0, 3.0, 2.0])
    moments = [float(mean) for mean in value_moments(values, targets, None)]
    assert moments == [1.75, 5.25, -1.25, 1.75]  # variances 2.1875 and 0.1875
    assert explained_variance(*moments) == pytest.approx(1 - 0.1875 / 2.1875)
    assert explained_variance(1.75, 5.25, -0.75, 5.25) == -1.0  # variance 4.6875
    assert explained_variance(3.0, 9.0, 1.0, 2.0) == 0.0  # targets that do not vary


def test_the_moments_of_values_are_weighted_and_one_for_each_module():
    targets = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    of_tensors = value_moments(torch.zeros(2, 2), targets, weights)
    of_arrays = value_moments(np.zeros((2, 2)), targets.numpy(), weights.numpy())
    for means in of_tensors, of_arrays:
        assert [mean.tolist() for mean in means] == [[2.5, 6.0], [7.0, 37.0]] * 2


def test_modules_that_are_updated_together_have_their_own_coefficients():
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3}).multi_agent(policies="independent")
    config.rl_module(algorithm_config_overrides_per_module={"agent_1": {"clip_param": 0.5}})
    algo = config.training(clip_param=0.25, vf_loss_coeff=2.0).build_algo()
    found = algo.learner.coefficients(("agent_0", "agent_1", "agent_2"))
    assert found.clip_param.tolist() == [0.25, 0.5, 0.25] and found.vf_loss_coeff == 2.0
