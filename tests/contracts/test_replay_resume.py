"""Runs with replay buffers continue exactly, whoever is absent at the checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.disturbed_runs import left_behind
from marl_connectors import (
    Algorithm,
    DQNConfig,
    MADDPGConfig,
    PrevActionsPrevRewards,
    QMIXConfig,
    SACConfig,
    VDNConfig,
)

FRESH = fresh_seeds(20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(0, 20, 2), *FRESH])
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
    fault = [None, "error", "SIGTERM", "SIGTERM twice"][seed // 5 % 4]
    whole = config.build_algo()
    whole.train()
    if fault is None:
        path = whole.save_to_path(tmp_path / "checkpoint")
    else:
        path = left_behind(config, 1 - (fault == "SIGTERM"), fault, tmp_path / "run")
    resumed = Algorithm.from_checkpoint(path, config=config)
    assert resumed.iteration == 1
    assert whole.train()["learners"] == resumed.train()["learners"]
    after = resumed.rl_module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in whole.rl_module.state_dict().items())
    whole.stop()
    resumed.stop()
