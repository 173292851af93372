"""How are observations stacked without writing a piece?

``FrameStacking`` stands in both pipelines, as in RLlib's documentation. It also works for several agents. The script
prints the module's observation space and, from an update with one pass, the divergence of the learner's policy from the
policy that acted (0 means that both saw the same). It takes about 5 seconds.

One thing differs from the documentation: its misspelt ``as_learner_connector`` is an error here.
"""

from __future__ import annotations

import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.common.frame_stacking import FrameStacking

N = 4  # number of frames to stack


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole, with one pass over each batch without minibatches."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    # Framestacking on the EnvRunner side.
    config.env_runners(
        env_to_module_connector=lambda env, spaces, device: FrameStacking(num_frames=N),
    )
    # Then again on the Learner side.
    config.training(
        learner_connector=lambda obs_space, act_space: FrameStacking(num_frames=N, as_learner_connector=True),
    )
    # Chunks of an episode must reach back to the observations before them.
    config.env_runners(
        episode_lookback_horizon=N - 1, num_envs_per_env_runner=8, rollout_fragment_length=train_batch_size // 8
    )
    config.training(
        train_batch_size_per_learner=train_batch_size, minibatch_size=train_batch_size, num_epochs=1, lr=0.01
    )
    return config


def main(iterations: int = 3, train_batch_size: int = 512) -> tuple[tuple[int, ...], float]:
    """Trains a little, and returns the shape of the module's observations and the largest divergence."""
    torch.set_num_threads(1)
    algo = make_config(train_batch_size).build()
    shape = algo.get_module().observation_space.shape
    print(f"The module's observation space has the shape {shape}.")
    distances = [algo.train()["learners"]["default_policy"]["mean_kl_loss"] for _ in range(iterations)]
    algo.stop()
    print(f"Distance of the learner's policy from the one that acted: {max(0.0, *distances):.6f}")
    return shape, max(distances)


if __name__ == "__main__":
    main()
