"""How does an observation preprocessor turn whole numbers into one-hot vectors?

The piece and the config are the first ones of RLlib's documentation: a FrozenLake of 2x2 fields, whose observation is
the number of a field. The ice is slippery, so the best policy takes 4.5 steps on average, and a random one takes 8. The
script prints the mean length of the newest episodes every four iterations, and the mean length without exploration. It
takes about 20 seconds.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor


class OneHot(ObservationPreprocessor):
    """Converts int observations (Discrete) into one-hot vectors (Box)."""

    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        # The module is built for this space.
        return gym.spaces.Box(0.0, 1.0, (in_obs_space.n,), np.float32)

    def preprocess(self, observation):
        new_obs = np.zeros(shape=self.observation_space.shape, dtype=np.float32)
        new_obs[observation] = 1.0
        return new_obs


def make_config() -> PPOConfig:
    """Returns the documentation's config, with settings under which PPO converges quickly."""
    config = (
        PPOConfig()
        # ____
        # |S |  <- S=start position
        # | G|  <- G=goal position
        # ----
        .environment("FrozenLake-v1", env_config={"desc": ["SF", "FG"]})
        .env_runners(env_to_module_connector=lambda env: OneHot())
    )
    config.training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=10, lr=3e-3)
    return config.rl_module(model_config={"fcnet_hiddens": [32, 32]}).debugging(seed=0)


def main(iterations: int = 24, eval_episodes: int = 400) -> tuple[float, float]:
    """Trains, and returns the return and the length of an episode without exploration."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    algo = make_config().build()
    for iteration in range(1, iterations + 1):
        result = algo.train()
        if iteration % 4 == 0 or iteration == iterations:
            newest = result["env_runners"]
            print(f"{result['num_env_steps_sampled_lifetime']:>6,} steps, length: {newest['episode_len_mean']:.2f}")
    result = algo.evaluate(num_episodes=eval_episodes, explore=False, seed=1)["env_runners"]
    algo.stop()
    print(f"Without exploration: return {result['episode_return_mean']:.2f}, length {result['episode_len_mean']:.2f}")
    return result["episode_return_mean"], result["episode_len_mean"]


if __name__ == "__main__":
    main()
