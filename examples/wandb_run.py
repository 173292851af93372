"""How is a run tracked with Weights & Biases?

A callback adds a metric of its own, and the tracker behind it writes all results, and the config, to W&B. Here it works
without an account: the run is written to files, which ``wandb sync`` uploads later. The run is saved after half of its
iterations, and the loaded checkpoint continues the same tracked run. The script prints the return at the end (above
100), the id of the tracked run, and the folders to upload. It takes about 10 seconds, and needs ``pip install wandb``;
without it, the tracker warns, and training goes on.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import torch

from marl_connectors import Algorithm, Callbacks, PPOConfig
from marl_connectors.callbacks import WandbTracker


class Falls(Callbacks):
    """Logs in how many of the newest 50 episodes the pole falls, as ``env_runners/falls``."""

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        """Logs 1 for an episode that has ended before its time limit, else 0."""
        metrics_logger.log_value("falls", float(episode.is_terminated), reduce="mean", window=50, clear_on_reduce=False)


def main(folder: Path, iterations: int = 20) -> tuple[str, list[Path]]:
    """Trains, and returns the id of the tracked run, and the folders that W&B has written."""
    torch.set_num_threads(1)
    os.environ.setdefault("WANDB_MODE", "offline")  # set WANDB_MODE=online after ``wandb login``
    folder.mkdir(parents=True, exist_ok=True)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=10, lr=1e-3, use_kl_loss=False)
        .training(vf_clip_param=float("inf"))
        .callbacks([Falls, partial(WandbTracker, project="examples", name="cartpole", folder=folder)])
        .debugging(seed=0)
    )
    algo = config.build_algo()
    algo.fit(num_iterations=iterations // 2, progress=False)
    with tempfile.TemporaryDirectory() as checkpoints:
        checkpoint = algo.save_to_path(f"{checkpoints}/cartpole")
        algo.stop()  # ends the tracked run
        algo = Algorithm.from_checkpoint(checkpoint, config=config)
    result = algo.fit(num_iterations=iterations - iterations // 2, progress=False)[-1]
    algo.stop()

    runs = result["env_runners"]
    print(
        f"Return: {runs['episode_return_mean']:.1f}, and the pole falls in {runs['falls']:.0%} of the newest episodes"
    )
    print(f"Tracked run: {result['tracked_run']}")
    written = sorted(folder.glob(f"wandb/offline-run-*-{result['tracked_run']}"))
    print(*(f"wandb sync {path}" for path in written), sep="\n")
    return result["tracked_run"], written


if __name__ == "__main__":
    main(Path("runs/wandb").resolve())
