"""Whatever was done to a module's parameters between samples, it acts by those that it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from helpers.envs.scripted_envs import small_config
from marl_envs import match_v0


def other(tensor):
    return torch.linspace(-1.0, 1.0, tensor.numel()).view(tensor.shape)


def as_a_vector(module):
    vector_to_parameters(other(parameters_to_vector(module.parameters())), module.parameters())


def as_new_parameters(module):
    module.load_state_dict({name: other(value) for name, value in module.state_dict().items()}, assign=True)


def as_data(module):
    for parameter in module.parameters():
        parameter.data = other(parameter)


@pytest.mark.parametrize("replace", [as_a_vector, as_new_parameters, as_data])
def test_replaced_parameters_count_from_the_next_sample_on(replace):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    algo = config.multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2).build_algo()
    algo.train()
    replace(algo.get_module("agent_1"))
    for episode in algo.env_runner.sample(num_episodes=2):
        for agent_id, own in episode.agent_episodes.items():
            obs = torch.from_numpy(np.stack([own.get_observations(t) for t in range(len(own))]))
            expected = algo.get_module(agent_id).forward_train({"obs": obs})["action_dist_inputs"]
            found = np.stack([own.get_extra_model_outputs("action_dist_inputs", t) for t in range(len(own))])
            np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)
