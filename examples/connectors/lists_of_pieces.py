"""How are several pieces put into each pipeline, and where do they stand?

In all three pipelines, the builder function may return a list. The script prints the names of the pieces of each
pipeline, in order. Your pieces come first, except that they come after the choice of the action in the module-to-env
pipeline, and after the piece that makes room for bootstrapping in PPO's learner pipeline. It takes about 5 seconds.
"""

from __future__ import annotations

import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from marl_connectors.connectors.learner.clip_rewards import ClipRewards
from marl_connectors.connectors.learner.scale_rewards import ScaleRewards
from marl_connectors.core.columns import Columns


class CountActions(ConnectorV2):
    """Reads ``actions``. Keeps how often each was taken."""

    def __init__(self):
        super().__init__()
        self.counts = [0, 0]

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for _, action in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[Columns.ACTIONS]):
            self.counts[int(action)] += 1
        return batch


class Other(ConnectorV2):
    """Does nothing."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        return batch


def make_config(train_batch_size: int = 512) -> PPOConfig:
    """Returns a config of PPO on CartPole with two pieces of its own in each pipeline."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config.env_runners(
        env_to_module_connector=lambda env: [MeanStdFilter(), PrevActionsPrevRewards()],
        module_to_env_connector=lambda env: [CountActions(), Other()],
    )
    config.learners(
        learner_connector=lambda obs_space, act_space: [ScaleRewards(scale=0.1), ClipRewards(clip_rewards=1.0)]
    )
    config.training(train_batch_size_per_learner=train_batch_size, minibatch_size=128, num_epochs=4)
    return config


def main(iterations: int = 2, train_batch_size: int = 512) -> tuple[list[list[str]], list[int]]:
    """Trains a little, and returns the names of the pieces, and the number of each action."""
    torch.set_num_threads(1)
    algo = make_config(train_batch_size).build()
    for _ in range(iterations):
        algo.train()
    pipelines = algo.env_runner.env_to_module, algo.env_runner.module_to_env, algo.learner.pipeline
    names = [pipeline.names() for pipeline in pipelines]
    for pipeline in names:
        print(", ".join(pipeline))
    counts = algo.env_runner.module_to_env["CountActions"].counts
    algo.stop()
    print(f"Pushed left {counts[0]} times, right {counts[1]} times.")
    return names, counts


if __name__ == "__main__":
    main()
