"""How is a single-agent environment trained, and a run saved and loaded?

A Gymnasium environment is the case of one agent: it has the same config, the same pipelines, and one module called
``default_policy``. The script prints the mean return of the newest episodes every five iterations (from about 30 to
above 300), the return without exploration (at most 500), and the return of the loaded checkpoint. It takes about 15
seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from marl_connectors import Algorithm, PPOConfig


def main(iterations: int = 45, eval_episodes: int = 10) -> tuple[float, float]:
    """Trains, and returns the return at the end and the return of the loaded checkpoint."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(
            train_batch_size_per_learner=1024,
            minibatch_size=128,
            num_epochs=10,
            lr=5e-4,
            lambda_=0.95,
            clip_param=0.2,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .debugging(seed=0)
    )
    algo = config.build_algo()
    for iteration in range(1, iterations + 1):
        result = algo.train()
        if iteration % 5 == 0 or iteration == iterations:
            steps = result["num_env_steps_sampled_lifetime"]
            print(
                f"{steps:>7,} steps, return of the newest episodes: {result['env_runners']['episode_return_mean']:.1f}"
            )

    trained = algo.evaluate(num_episodes=eval_episodes, explore=False, seed=1)["env_runners"]["episode_return_mean"]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = algo.save_to_path(Path(folder) / "cartpole")
        algo.stop()
        loaded = Algorithm.from_checkpoint(checkpoint)
    again = loaded.evaluate(num_episodes=eval_episodes, explore=False, seed=1)["env_runners"]["episode_return_mean"]
    loaded.stop()
    print(f"Without exploration: {trained:.1f}. The loaded checkpoint: {again:.1f}.")
    return trained, again


if __name__ == "__main__":
    main()
