"""How does a module get to see its newest actions and rewards without writing a piece?

``PrevActionsPrevRewards`` appends them to the observation, as the tip in RLlib's documentation says: one-hot actions,
then rewards, the oldest first, with zeros before the first step. The script prints the module's observation space and
what was appended to the first observations of an episode. It takes about 5 seconds.
"""

from __future__ import annotations

import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards

N = 2  # rewards
M = 1  # actions


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole with the piece."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(
        env_to_module_connector=lambda env: PrevActionsPrevRewards(n_prev_rewards=N, n_prev_actions=M),
        # Chunks of an episode must reach back to the steps before them.
        episode_lookback_horizon=max(N, M),
    )
    config.training(train_batch_size_per_learner=train_batch_size, minibatch_size=128, num_epochs=4)
    return config


def main(iterations: int = 3, train_batch_size: int = 512) -> tuple[list[list[float]], list[int]]:
    """Trains a little, and returns what was appended to an episode's first observations, and its first actions."""
    torch.set_num_threads(1)
    algo = make_config(train_batch_size).build()
    print(f"The module's observation space has the shape {algo.get_module().observation_space.shape}.")
    for _ in range(iterations):
        result = algo.train()
    print(f"Return after {iterations} iterations: {result['env_runners']['episode_return_mean']:.1f}")
    (episode,) = algo.env_runner.sample(num_episodes=1)
    algo.stop()
    appended = episode.get_observations(slice(0, 4))[:, 4:].tolist()
    actions = episode.get_actions(slice(0, 3)).tolist()
    print(f"The episode's first actions: {actions}. Appended to its first observations:")
    for numbers in appended:
        print(f"    last action {numbers[:2]}, last rewards {numbers[2:]}")
    return appended, actions


if __name__ == "__main__":
    main()
