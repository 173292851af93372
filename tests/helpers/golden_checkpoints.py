"""Checkpoints that are kept with the tests, so that what is written today can be read tomorrow.

``python -m helpers.golden_checkpoints`` writes them anew, in the folder ``tests``. Do so only with another
``format_version``, which says how the former one is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import golden_checkpoints
from marl_connectors import DQNConfig, MeanStdFilter, MixedConfig, PPOConfig, QMIXConfig

FOLDER = Path(__file__).parents[1] / "golden_checkpoints"
MATCH = {"n_agents": 2, "n_actions": 2, "ep_len": 5}
_REPLAY = {"num_steps_sampled_before_learning_starts": 5, "train_batch_size_per_learner": 4}


def _small(config: Any, env: str, env_config: dict[str, Any] | None = None) -> Any:
    config.environment(env, env_config=env_config or {}).rl_module(model_config={"fcnet_hiddens": (2,)})
    return config.env_runners(num_env_workers=0, num_envs_per_env_runner=1).debugging(seed=0)


def with_filter() -> Any:
    """A connector builder that checkpoints name."""
    return MeanStdFilter()


def ppo() -> Any:
    """One agent, with a filter, in the middle of an episode."""
    config = _small(PPOConfig(), "CartPole-v1").training(train_batch_size_per_learner=15, num_epochs=1)
    return config.env_runners(env_to_module_connector=with_filter)


def lstm() -> Any:
    """Two agents with modules of their own, which have a memory."""
    config = _small(PPOConfig(), "marl_envs.match_v0", MATCH).multi_agent(policies="independent")
    config.training(train_batch_size_per_learner=8, num_epochs=1)
    return config.rl_module(model_config={"fcnet_hiddens": (2,), "use_lstm": True, "lstm_cell_size": 2})


def dqn() -> Any:
    """A replay buffer with priorities."""
    config = _small(DQNConfig(), "CartPole-v1").training(**_REPLAY)
    config.training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 20})
    return config.reporting(min_sample_timesteps_per_iteration=15)


def qmix() -> Any:
    """A team's replay buffer, and a mixer."""
    config = _small(QMIXConfig(), "marl_envs.match_v0", MATCH)
    config.training(**_REPLAY, mixing_embed_dim=2, replay_buffer_config={"capacity": 20})
    return config.reporting(min_sample_timesteps_per_iteration=15)


def mixed() -> Any:
    """PPO and DQN in one run."""
    first = DQNConfig().training(**_REPLAY, replay_buffer_config={"capacity": 20})
    second = PPOConfig().training(train_batch_size_per_learner=8, num_epochs=1)
    config = MixedConfig().algorithms({"agent_0": first, "*": second})
    return _small(config, "marl_envs.match_v0", MATCH).multi_agent(policies="independent")


CONFIGS: dict[str, Callable[[], Any]] = {each.__name__: each for each in (ppo, lstm, dqn, qmix, mixed)}


def write() -> None:
    """Writes all checkpoints, of whole algorithms and of a module and a piece alone."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, make in CONFIGS.items():
        with make().build_algo() as algo:
            algo.train()
            algo.save_to_path(FOLDER / name)
            if name == "ppo":
                algo.get_module().save_to_path(FOLDER / "module")
                algo.env_runner.env_to_module["MeanStdFilter"].save_to_path(FOLDER / "piece")


if __name__ == "__main__":
    golden_checkpoints.write()  # as this module, checkpoints could not name its functions
