"""How does a piece show the module the ten newest observations, and the learner the same?

The env-to-module piece from RLlib's documentation puts the stack into the batch and does not change the episodes,
because a stack in an episode would be stacked again. Batches are not kept, so the learner pipeline stacks once more,
with a piece that adds one stack for each observation of an episode. The script prints the module's observation space
and, from an update with one pass, the divergence of the learner's policy from the policy that acted (0 means that both
saw the same). It takes about 5 seconds.

Two things differ from the documentation: the names of the parameters of ``recompute_output_observation_space``, which
differ from those in its body, and the bounds of the new Box, which had the shape of one observation. The documentation
leaves the learner's piece to the reader.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.core.columns import Columns


class StackLast10Observations(ConnectorV2):
    """Reads ``obs`` of the episodes; writes ``obs`` to the batch. Keeps no state."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        # Assume the input observation space is a Box of shape (N,).
        assert isinstance(input_observation_space, gym.spaces.Box) and len(input_observation_space.shape) == 1

        # This connector concatenates the last 10 observations at axis=0, so the
        # output space has a shape of (10*N,).
        return gym.spaces.Box(
            low=np.tile(input_observation_space.low, 10),
            high=np.tile(input_observation_space.high, 10),
            shape=(input_observation_space.shape[0] * 10,),
            dtype=input_observation_space.dtype,
        )

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        # Assume that the input `batch` is empty. Note that this may not be the case
        # if you have other custom connector pieces before this one.
        assert not batch

        # Loop through all (single-agent) episodes.
        for single_agent_episode in self.single_agent_episode_iterator(episodes):
            # Get the 10 most recent observations from the episodes.
            last_10_obs = single_agent_episode.get_observations(
                indices=[-10, -9, -8, -7, -6, -5, -4, -3, -2, -1], fill=0.0
            )
            # Concatenate the observations.
            new_obs = np.concatenate(last_10_obs, axis=0)

            # Add the new observation to the `batch` using the
            # `ConnectorV2.add_batch_item()` utility.
            self.add_batch_item(
                batch=batch,
                column=Columns.OBS,
                item_to_add=new_obs,
                single_agent_episode=single_agent_episode,
            )

        # Return batch (with stacked observations).
        return batch


class StackLast10ObservationsInLearner(StackLast10Observations):
    """Adds one stack for each observation of the episodes, which have an additional artificial step here."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for single_agent_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            for i in range(len(single_agent_episode)):
                # Negative indices are observations from before this chunk of the episode.
                last_10_obs = single_agent_episode.get_observations(
                    indices=list(range(i - 9, i + 1)), neg_index_as_lookback=True, fill=0.0
                )
                self.add_batch_item(batch, Columns.OBS, np.concatenate(last_10_obs, axis=0), single_agent_episode)
        return batch


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole, with one pass over each batch without minibatches."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(
        env_to_module_connector=lambda env: StackLast10Observations(),
        # Chunks of an episode must reach back to the nine observations before them.
        episode_lookback_horizon=9,
        rollout_fragment_length=train_batch_size // 8,
        num_envs_per_env_runner=8,
    )
    config.learners(learner_connector=lambda obs_space, act_space: StackLast10ObservationsInLearner())
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
