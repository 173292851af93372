"""How does a module get to see the last reward?

The piece from RLlib's documentation appends the reward to the observation and writes the result to the episode. So the
learner sees what the policy saw, and needs no piece of its own. The script prints the module's observation space, and
what was appended to the first observations of an episode. It takes about 5 seconds.

One thing differs from the documentation: the bounds of the new Box are arrays (they were lists, which Gymnasium
refuses).
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2


class AddLastRewardToObservations(ConnectorV2):
    """Reads ``rewards``; writes ``obs`` to the episodes. Keeps no state."""

    # Define how the observation space will change because of this connector piece.
    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        # For simplicity, assert input obs space is a 1D Box
        assert isinstance(in_obs_space, gym.spaces.Box) and len(in_obs_space.shape) == 1
        return gym.spaces.Box(
            low=np.array([*in_obs_space.low, float("-inf")], in_obs_space.dtype),
            high=np.array([*in_obs_space.high, float("inf")], in_obs_space.dtype),
            shape=(in_obs_space.shape[0] + 1,),
            dtype=in_obs_space.dtype,
        )

    # Define the actual transformation.
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for single_agent_episode in self.single_agent_episode_iterator(episodes):
            # Get last reward (or 0.0 if right after `env.reset`).
            reward = single_agent_episode.get_reward(-1, fill=0.0)
            # Get last observation.
            obs = single_agent_episode.get_observation(-1)
            # Append reward to obs array.
            new_obs = np.append(obs, reward)

            # Write new observation back into the episode.
            single_agent_episode.set_observation(new_value=new_obs, at_index=-1)

        return batch


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole with the piece."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(env_to_module_connector=lambda env: AddLastRewardToObservations())
    config.training(train_batch_size_per_learner=train_batch_size, minibatch_size=128, num_epochs=4)
    return config


def main(iterations: int = 3, train_batch_size: int = 512) -> list[float]:
    """Trains a little, and returns what was appended to an episode's first four observations."""
    torch.set_num_threads(1)
    algo = make_config(train_batch_size).build()
    print(f"The module's observation space has the shape {algo.get_module().observation_space.shape}.")
    for _ in range(iterations):
        result = algo.train()
    print(f"Return after {iterations} iterations: {result['env_runners']['episode_return_mean']:.1f}")
    (episode,) = algo.env_runner.sample(num_episodes=1)
    appended = episode.get_observations(slice(0, 4))[:, -1].tolist()
    algo.stop()
    print(f"Appended to an episode's first observations: {appended}")
    return appended


if __name__ == "__main__":
    main()
