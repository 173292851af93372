"""Saves and loads the policies of ``latency.py`` with RLlib 2.60, as its page on inference with connectors does.

It needs ``ray[rllib]==2.60.0``. The module and both pipelines are loaded from a checkpoint; an episode for each row
holds what they need of earlier steps.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import latency_cases as cases
import numpy as np
import torch
from ray.rllib.connectors.env_to_module import EnvToModulePipeline
from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


def _pieces(env: Any, spaces: Any = None, device: Any = None) -> list[Any]:
    from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter

    return [FlattenObservations(), MeanStdFilter()]


def save(case: str, folder: Path) -> None:
    """Trains for one iteration, and saves a checkpoint."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    sizes: dict[str, Any] = {"fcnet_hiddens": [cases.HIDDEN, cases.HIDDEN], "fcnet_activation": "tanh"}
    if case == "LSTM":
        sizes.update(use_lstm=True, lstm_cell_size=cases.CELLS, max_seq_len=cases.SEQUENCE)
    config = (
        PPOConfig()
        .environment(cases.env_of(case))
        .env_runners(num_env_runners=0, env_to_module_connector=_pieces if case == "pieces" else None)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1)
        .rl_module(model_config=DefaultModelConfig(**sizes))
        .debugging(log_level="ERROR", seed=0)
    )
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(str(folder.absolute()))
    algo.stop()
    ray.shutdown()


def load(case: str, folder: Path, rows: int) -> cases.Acting:
    """Loads the module and the pipelines."""
    torch.set_num_threads(1)
    path = folder.absolute()
    module: Any = RLModule.from_checkpoint(path / "learner_group" / "learner" / "rl_module" / "default_policy")
    before: Any = EnvToModulePipeline.from_checkpoint(path / "env_runner" / "env_to_module_connector")
    after: Any = ModuleToEnvPipeline.from_checkpoint(path / "env_runner" / "module_to_env_connector")
    env = cases.env_of(case)
    episodes = [
        SingleAgentEpisode(observation_space=env.observation_space, action_space=env.action_space) for _ in range(rows)
    ]
    chosen: list[tuple[Any, dict[str, Any]]] = []

    def rows_of(observation: Any) -> list[Any]:
        if rows == 1:
            return [observation]
        if isinstance(observation, dict):
            return [{key: values[i] for key, values in observation.items()} for i in range(rows)]
        return list(observation)

    @torch.no_grad()
    def act(observation: Any) -> Any:
        for i, (episode, own) in enumerate(zip(episodes, rows_of(observation), strict=True)):
            if chosen:
                action, outputs = chosen[i]
                episode.add_env_step(own, action, 0.0, extra_model_outputs=outputs)
            else:
                episode.add_env_reset(own)
        common = {"episodes": episodes, "rl_module": module, "explore": False, "shared_data": {}}
        found = after(batch=module.forward_inference(before(batch={}, **common)), **common)
        actions = found.pop(Columns.ACTIONS_FOR_ENV)
        own_actions = found.pop(Columns.ACTIONS)
        chosen[:] = [(own_actions[i], {name: _item(column, i) for name, column in found.items()}) for i in range(rows)]
        return np.asarray(actions)

    return cases.Acting(act)


def _item(column: Any, i: int) -> Any:
    return {key: value[i] for key, value in column.items()} if isinstance(column, dict) else column[i]


if __name__ == "__main__":
    cases.run(save, load)
