"""How is a pipeline debugged?

As RLlib's documentation says, everything happens in this process if there is no remote runner and no remote learner, so
a breakpoint in a piece stops there. Before that, ``algo.explain()`` shows what each piece does to the batch, and an
error in a piece names the pipeline, the piece and the episode. The script prints the first input of a piece, the three
tables, and an error. It takes about 5 seconds.
"""

from __future__ import annotations

import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import ConnectorError


class ScaleObservations(ConnectorV2):
    """Reads ``obs``; writes it to the episodes. Keeps whether it was called before."""

    def __init__(self, factors):
        super().__init__()
        self.factors = np.array(factors, np.float32)
        self.called = False

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            observation = episode.get_observations(-1)
            if not self.called:
                # Set a breakpoint here, or write breakpoint().
                print(f"The first observation of the piece: {observation.shape} {observation.dtype}")
                self.called = True
            episode.set_observations(new_data=observation * self.factors, at_indices=-1)
        return batch


def make_config(factors, train_batch_size: int = 128) -> PPOConfig:
    """Returns a config of PPO on CartPole in this process alone."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(num_env_runners=0)
    config.learners(num_learners=0)
    config.env_runners(env_to_module_connector=lambda env: ScaleObservations(factors))
    config.training(train_batch_size_per_learner=train_batch_size, minibatch_size=64, num_epochs=2)
    return config


def main(train_batch_size: int = 128) -> tuple[list[str], str]:
    """Runs a correct piece and a wrong one, and returns the tables and the error."""
    torch.set_num_threads(1)
    algo = make_config([0.2, 0.5, 5.0, 0.5], train_batch_size).build()
    tables = [str(table) for table in algo.explain().values()]
    print("\n\n".join(tables))
    algo.train()
    algo.stop()

    algo = make_config([0.2, 0.5, 5.0], train_batch_size).build()  # one factor too few
    try:
        algo.train()
        message = ""
    except ConnectorError as error:
        message = str(error)
    algo.stop()
    print(f"\nThe wrong piece: {message}")
    return tables, message


if __name__ == "__main__":
    main()
