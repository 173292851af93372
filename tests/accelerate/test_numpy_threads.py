"""follow_torch: numpy's matrix products have no more threads than torch."""

from __future__ import annotations

import pytest
import torch
from threadpoolctl import threadpool_limits

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors.accelerate.numpy_threads import _libraries, follow_torch
from marl_connectors.rl_module.layers import MLP


def numpy_threads():
    return [library["num_threads"] for library in _libraries().info()]  # not those of packages that were imported later


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("of_numpy", "of_torch", "then"), [(4, 1, 1), (4, 2, 2), (1, 3, 1)])
def test_numpy_has_at_most_the_threads_of_torch(torch_threads, of_numpy, of_torch, then):
    with threadpool_limits(of_numpy, user_api="blas"):
        torch_threads(of_torch)
        follow_torch()
        assert set(numpy_threads()) == {then}


def test_the_first_products_of_a_network_follow_torch(torch_threads):
    with threadpool_limits(4, user_api="blas"):
        torch_threads(1)
        with torch.no_grad():
            MLP(3, [16, 2], "tanh")(torch.zeros(5, 3))
        assert set(numpy_threads()) == {1}


def test_the_bound_networks_of_an_env_runner_follow_torch(torch_threads):
    runner = small_config(LifeEnv).build_algo().env_runner
    with threadpool_limits(4, user_api="blas"):
        torch_threads(1)
        runner.sample(num_timesteps=5)
        assert set(numpy_threads()) == {1}
