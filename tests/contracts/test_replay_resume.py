"""Runs with replay buffers continue exactly, whoever is absent at the checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    Algorithm,
    DQNConfig,
    MADDPGConfig,
    PrevActionsPrevRewards,
    QMIXConfig,
    SACConfig,
    VDNConfig,
)

FRESH = fresh_seeds(30)


@pytest.mark.parametrize("seed", [*range(5), *FRESH])
def test_a_piece_that_asks_for_spaces_continues_for_agents_that_are_dead_at_the_checkpoint(seed, tmp_path):
    rng = np.random.default_rng(seed)
    config = [DQNConfig, VDNConfig, MADDPGConfig, SACConfig, QMIXConfig][seed % 5]()
    config.environment(
        LifeEnv, env_config={"die": 0.3, "join": 0.0, "max_steps": 40}, disable_env_checking=True
    ).multi_agent(policies="independent").rl_module(model_config={"fcnet_hiddens": (4,)})
    config.env_runners(
        num_env_workers=0, env_to_module_connector=lambda: PrevActionsPrevRewards(), rollout_fragment_length=1
    ).learners(learner_connector=lambda: PrevActionsPrevRewards())
    config.training(num_steps_sampled_before_learning_starts=5, train_batch_size_per_learner=4)
    config.reporting(min_sample_timesteps_per_iteration=int(rng.integers(17, 30))).debugging(seed=seed)
    whole = config.build_algo()
    whole.train()
    resumed = Algorithm.from_checkpoint(whole.save_to_path(tmp_path / "checkpoint"), config=config)
    assert whole.train()["learners"] == resumed.train()["learners"]
    after = resumed.rl_module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in whole.rl_module.state_dict().items())
    whole.stop()
    resumed.stop()
