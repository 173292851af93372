"""How are rewards shaped before the loss is computed?

The learner piece from RLlib's documentation adds ``1 / N(o)`` to the reward for acting on an observation ``o`` that has
been seen ``N(o)`` times, and writes the sum to the episodes. Reported returns are still the environment's. The script
prints, for a frozen lake, how many fields have been seen, and how much acting on the start and on the rarest field
would add to the next reward. It takes about 5 seconds.

Checkpoints do not contain the counts, because the class in the documentation has no ``get_state``.
"""

from __future__ import annotations

from collections import Counter

import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations


class CountBasedIntrinsicRewards(ConnectorV2):
    """Reads ``obs``; writes ``rewards`` to the episodes. Keeps the number of visits of each observation."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

        # Observation counter to compute state visitation frequencies.
        self._counts = Counter()

    def __call__(
        self,
        *,
        rl_module,
        batch,
        episodes,
        explore=None,
        shared_data=None,
        **kwargs,
    ):
        for sa_episode in self.single_agent_episode_iterator(episodes=episodes, agents_that_stepped_only=False):
            # Loop through all observations, except the last one.
            observations = sa_episode.get_observations(slice(None, -1))
            # Get all respective extrinsic rewards.
            rewards = sa_episode.get_rewards()

            for i, (obs, rew) in enumerate(zip(observations, rewards)):  # noqa: B905
                # Add 1 to obs counter.
                obs = tuple(obs)
                self._counts[obs] += 1
                # Compute the count-based intrinsic reward and add it to the extrinsic
                # reward.
                rew += 1 / self._counts[obs]
                # Store the new reward back to the episode (under the correct
                # timestep/index).
                sa_episode.set_rewards(new_data=rew, at_indices=i)

        return batch


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on FrozenLake with the piece."""
    config = PPOConfig().environment("FrozenLake-v1", env_config={"is_slippery": False}).debugging(seed=0)
    config.env_runners(env_to_module_connector=lambda env: OneHotObservations())
    config.learners(learner_connector=lambda env: CountBasedIntrinsicRewards())
    config.training(train_batch_size_per_learner=train_batch_size, minibatch_size=128, num_epochs=4)
    return config


def main(iterations: int = 4, train_batch_size: int = 512) -> dict[int, int]:
    """Trains a little, and returns the number of visits of each field that was seen."""
    torch.set_num_threads(1)
    algo = make_config(train_batch_size).build()
    for _ in range(iterations):
        algo.train()
    piece = algo.learner.pipeline["CountBasedIntrinsicRewards"]
    visits = {obs.index(1.0): count for obs, count in piece._counts.items()}
    algo.stop()
    rarest = min(visits, key=visits.__getitem__)
    print(f"Fields seen: {len(visits)} of 16.")
    print(f"Acting on field 0, seen {visits[0]} times, would add {1 / (visits[0] + 1):.4f};")
    print(f"acting on field {rarest}, seen {visits[rarest]} times, would add {1 / (visits[rarest] + 1):.4f}.")
    return visits


if __name__ == "__main__":
    main()
