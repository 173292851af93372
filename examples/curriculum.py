"""How does an environment become harder as its agent learns?

A lock has twelve wheels. The agent sees at which one it is, and turns it to one of four digits. A wrong one ends the
episode, and the reward is 1 if all are right, which random play never sees. In a curriculum, only the last wheel has to
be set at first, and one more whenever 80 % of the episodes succeed. The script prints each new level, and how often the
lock is opened in the end by training without the curriculum (0 %) and with it (above 80 %). It takes about 15 seconds.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch

from marl_connectors import PPOConfig

CODE = np.random.default_rng(0).integers(4, size=12)


class Lock(gymnasium.Env):
    """Its task is the number of wheels that have to be set. A new task takes effect at the next reset."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (13,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, task: int):
        self.task = task

    def get_task(self) -> int:
        return self.task

    def set_task(self, task: int) -> None:
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wheel = 12 - self.task
        return np.eye(13, dtype=np.float32)[self.wheel], {}

    def step(self, action):
        is_right = bool(action == CODE[self.wheel])
        self.wheel += is_right
        is_open = self.wheel == 12
        return np.eye(13, dtype=np.float32)[self.wheel], float(is_open), is_open or not is_right, False, {}


def harder(*, algorithm, result, **kwargs):
    """Adds a wheel to the locks of all sub-environments when most of the newest episodes have succeeded."""
    locks = [env.unwrapped for env in algorithm.env_runner.vector_env.envs]
    result["wheels"] = task = locks[0].get_task()
    if result["env_runners"]["episode_return_mean"] > 0.8 and task < 12:
        print(f"iteration {result['training_iteration']:>3}: {task + 1} wheels")
        for lock in locks:
            lock.set_task(task + 1)


def train(task: int, iterations: int) -> tuple[float, int]:
    """Trains, beginning with a task, and returns how often the lock is opened in the end, and its number of wheels."""
    config = PPOConfig().environment(Lock, env_config={"task": task}).callbacks(on_train_result=harder)
    config.training(train_batch_size_per_learner=500, minibatch_size=250, num_epochs=8, lr=2e-3, use_kl_loss=False)
    config.env_runners(num_envs_per_env_runner=8).reporting(metrics_num_episodes_for_smoothing=40)
    algo = config.rl_module(model_config={"fcnet_hiddens": [64]}).debugging(seed=0).build_algo()
    result = [algo.train() for _ in range(iterations)][-1]
    algo.stop()
    opened, wheels = result["env_runners"]["episode_return_mean"], result["wheels"]
    print(f"Beginning with {task}, ending with {wheels} wheels: opened in {opened:.0%} of the episodes")
    return opened, wheels


def main(iterations: int = 60) -> tuple[tuple[float, int], tuple[float, int]]:
    """Trains without and with the curriculum, and returns the results of both."""
    torch.set_num_threads(1)
    return train(12, iterations), train(1, iterations)


if __name__ == "__main__":
    main()
