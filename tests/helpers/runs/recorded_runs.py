"""Runs that learn from the recorded episodes of other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.envs.scripted_envs import LifeEnv
from helpers.runs.random_runs import random_config
from marl_connectors import AlgorithmConfig, MeanStdFilter, PPOConfig
from marl_connectors.validators import declared


def imitating(cls: Any, config: Any, folder: Path, **settings: Any) -> Any:
    """A config of a class for imitation with the settings that all algorithms have in common."""
    common = {name: value for name, value in config.to_dict().items() if name in declared(AlgorithmConfig)}
    return cls().update_from_dict({**common, "output": None, "input_": str(folder), **settings})


def recorded_run(seed: int, folder: Path, iterations: int = 2) -> PPOConfig:
    """Records a run with random settings, without filters, which imitation refuses. Returns its config."""
    config = random_config(seed).env_runners(num_env_workers=0)
    if isinstance(config.env_to_module_connector and config.env_to_module_connector(), MeanStdFilter):
        config.env_runners(env_to_module_connector=None)
    with config.copy().offline_data(output=folder).build_algo() as algo:
        for _ in range(iterations):
            algo.train()
    return config


def life_config(cls: Any = PPOConfig, **training: Any) -> Any:
    """Agents that die and join, with policies of their own."""
    settings = {"train_batch_size_per_learner": 40, "lr": 0.01, **training}
    config = cls().environment(LifeEnv, env_config={"die": 0.1, "join": 0.3, "max_steps": 6})
    config.multi_agent(policies="independent").rl_module(model_config={"fcnet_hiddens": (6,)})
    return config.env_runners(num_env_workers=0).training(**settings).debugging(seed=3)


def life_data(folder: Path, num_episodes: int = 30) -> Path:
    """Recorded episodes for ``life_config``."""
    with life_config().build_algo() as algo:
        algo.record(folder, num_episodes=num_episodes, explore=True)
    return folder
