"""How does a piece change the action logits before an action is chosen?

The module-to-env pipeline begins with ``GetActions``, and your pieces come after it. So this script turns the default
pieces off and lists them by hand, with its own piece first. The piece lets an agent on a frozen lake go only right and
down. The script prints how often each action is taken without the piece and with it. It takes about 5 seconds.

The learner does not see the piece, because it computes the module's own probabilities. To train with forbidden actions,
use ActionMasking (``action_masking.py``).
"""

from __future__ import annotations

import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from marl_connectors.core.columns import Columns

LEFT, DOWN, RIGHT, UP = range(4)


class ForbidActions(ConnectorV2):
    """Reads and writes ``action_dist_inputs``, each module's tensor of logits. Keeps no state."""

    def __init__(self, forbidden: list[int]):
        super().__init__()
        self.forbidden = forbidden

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for columns in batch.values():
            logits = columns[Columns.ACTION_DIST_INPUTS].clone()
            logits[:, self.forbidden] = -torch.inf
            columns[Columns.ACTION_DIST_INPUTS] = logits
        return batch


def make_config() -> PPOConfig:
    """Returns a config of a lake without cracks, for an untrained module."""
    config = PPOConfig().environment("FrozenLake-v1", env_config={"is_slippery": False})
    return config.env_runners(env_to_module_connector=lambda env: OneHotObservations()).debugging(seed=0)


def with_piece(config: PPOConfig) -> PPOConfig:
    """Returns the config with the piece before the default ones of a single-agent environment."""
    return config.copy().env_runners(
        add_default_connectors_to_module_to_env_pipeline=False,
        module_to_env_connector=lambda env, spaces: [
            ForbidActions([LEFT, UP]),
            GetActions(),
            TensorToNumpy(),
            UnBatchToIndividualItems(),
            NormalizeAndClipActions(),
            ListifyDataForVectorEnv(),
        ],
    )


def shares(config: PPOConfig, num_episodes: int) -> np.ndarray:
    """Returns how often each action is taken, as shares of 1."""
    algo = config.build()
    episodes = algo.env_runner.sample(num_episodes=num_episodes)
    algo.stop()
    actions = np.concatenate([episode.get_actions() for episode in episodes])
    return np.bincount(actions, minlength=4) / len(actions)


def main(num_episodes: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Plays without the piece and with it, and returns the shares of left, down, right, up."""
    torch.set_num_threads(1)
    config = make_config()
    without, with_it = shares(config, num_episodes), shares(with_piece(config), num_episodes)
    for name, found in (("Without", without), ("With", with_it)):
        print(f"{name:<7} the piece: left {found[0]:.0%}, down {found[1]:.0%}, right {found[2]:.0%}, up {found[3]:.0%}")
    return without, with_it


if __name__ == "__main__":
    main()
