"""How does one class stack observations on both sides, for acting and for learning?

The class from RLlib's documentation has the argument ``as_learner_connector`` to tell the two apart. The script prints
the module's observation space and, from an update with one pass, the divergence of the learner's policy from the policy
that acted (0 means that both saw the same). It takes about 5 seconds.

Three things differ from the documentation. The bounds of the new Box had the shape of one observation. The
constructor's arguments got defaults, because the documentation's own config leaves them out. On the learner side, the
piece adds one stack for each observation, where it added only one for an episode.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.core.columns import Columns


class StackFourObservations(ConnectorV2):
    """A connector piece that stacks the previous four observations into one.

    Works both as Learner connector as well as env-to-module connector.
    """

    def recompute_output_observation_space(
        self,
        input_observation_space,
        input_action_space,
    ):
        # Assume the input observation space is a Box of shape (x,).
        assert isinstance(input_observation_space, gym.spaces.Box) and len(input_observation_space.shape) == 1

        # This connector concatenates the last four observations at axis=0, so the
        # output space has a shape of (4*x,).
        return gym.spaces.Box(
            low=np.tile(input_observation_space.low, 4),
            high=np.tile(input_observation_space.high, 4),
            shape=(input_observation_space.shape[0] * 4,),
            dtype=input_observation_space.dtype,
        )

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        as_learner_connector=False,
        **kwargs,
    ):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self._as_learner_connector = as_learner_connector

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        # Loop through all (single-agent) episodes.
        for sa_episode in self.single_agent_episode_iterator(episodes):
            if self._as_learner_connector:
                # One stack for each observation; negative indices are from before this chunk.
                stacks = [
                    sa_episode.get_observations(indices=[i - 3, i - 2, i - 1, i], neg_index_as_lookback=True, fill=0.0)
                    for i in range(len(sa_episode))
                ]
            else:
                # Get the four most recent observations from the episodes.
                stacks = [
                    sa_episode.get_observations(
                        indices=[-4, -3, -2, -1],
                        fill=0.0,  # Left-zero-fill in case you reach beginning of episode.
                    )
                ]
            for last_4_obs in stacks:
                # Concatenate all stacked observations.
                new_obs = np.concatenate(last_4_obs, axis=0)

                # Add the stacked observations to the `batch`. The episode keeps single observations.
                self.add_batch_item(
                    batch=batch,
                    column=Columns.OBS,
                    item_to_add=new_obs,
                    single_agent_episode=sa_episode,
                )

        # Return batch (with stacked observations).
        return batch


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole, with one pass over each batch without minibatches."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    # Enable frame-stacking on the EnvRunner side.
    config.env_runners(
        env_to_module_connector=lambda env, spaces, device: StackFourObservations(),
    )
    # And again on the Learner side.
    config.training(
        learner_connector=lambda obs_space, act_space: StackFourObservations(as_learner_connector=True),
    )
    # Chunks of an episode must reach back to the three observations before them.
    config.env_runners(
        episode_lookback_horizon=3, num_envs_per_env_runner=8, rollout_fragment_length=train_batch_size // 8
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
