"""How are settings tuned with Ray Tune, if trials are paused, copied and resumed?

Four trials train CartPole with different learning rates and entropy coefficients. Every five iterations,
population-based training lets a bad trial go on from the checkpoint of a good one, with changed settings. Trials for
which no CPU is free are paused, and go on from their own checkpoints. After Ray Tune's own tables, the script prints
the settings and the return of each trial (above 50), and the return of the best checkpoint without exploration (above
150). It takes about 20 seconds.

If you stop it with Ctrl-C and start it again with the same ``--out``, it goes on from the checkpoints. With
``--num-env-runners 1``, each trial has a remote env runner. It needs ``pip install "ray[tune]"``.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from marl_connectors import Algorithm, PPOConfig


def make_config(settings: dict[str, Any]) -> PPOConfig:
    """Returns the config of a trial. Ray Tune chooses ``lr`` and ``entropy_coeff``."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=settings["num_env_runners"], num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(
            lr=settings["lr"],
            entropy_coeff=settings["entropy_coeff"],
            train_batch_size_per_learner=1024,
            minibatch_size=128,
            num_epochs=10,
            lambda_=0.95,
            clip_param=0.2,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .debugging(seed=0)
    )


def train(settings: dict[str, Any], start: str | Path | None, report: Callable[[dict[str, Any], Path], None]) -> None:
    """Trains up to ``settings["iterations"]`` iterations, and reports each of them with a checkpoint.

    Args:
        settings: The settings of the trial.
        start: The folder of the checkpoint to go on from, which another trial may have written; None to begin.
        report: Called with the metrics and the folder of the checkpoint after each iteration.
    """
    config = make_config(settings)
    algo = config.build_algo() if start is None else Algorithm.from_checkpoint(start, config=config)
    try:
        while algo.iteration < settings["iterations"]:
            result = algo.train()
            metrics = {"iteration": algo.iteration, "episode_return_mean": result["env_runners"]["episode_return_mean"]}
            with tempfile.TemporaryDirectory() as folder:
                report(metrics, Path(algo.save_to_path(folder)))
    finally:
        algo.stop()


def trainable(settings: dict[str, Any]) -> None:
    """Trains in the process of a trial, which Ray Tune starts and ends."""
    from ray import tune

    torch.set_num_threads(1)

    def report(metrics: dict[str, Any], folder: Path) -> None:
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    checkpoint = tune.get_checkpoint()
    with nullcontext() if checkpoint is None else checkpoint.as_directory() as start:
        train(settings, start, report)


def make_tuner(out: Path, num_trials: int, iterations: int, perturb_every: int, num_env_runners: int) -> Any:
    """Returns a ``tune.Tuner`` for a new experiment, or for the one in the folder ``out``."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    # The process of the trial uses one CPU, and so does each of its remote env runners.
    resources = tune.PlacementGroupFactory([{"CPU": 1.0}] * (1 + num_env_runners))
    with_resources = tune.with_resources(trainable, resources)
    if tune.Tuner.can_restore(out):
        return tune.Tuner.restore(str(out), with_resources, resume_errored=True)
    ranges: dict[str, Any] = {"lr": tune.loguniform(1e-4, 1e-2), "entropy_coeff": tune.uniform(0.0, 0.03)}
    scheduler = PopulationBasedTraining(
        time_attr="iteration",
        perturbation_interval=perturb_every,
        hyperparam_mutations=ranges,
    )
    return tune.Tuner(
        with_resources,
        param_space={**ranges, "iterations": iterations, "num_env_runners": num_env_runners},
        tune_config=tune.TuneConfig(
            metric="episode_return_mean", mode="max", num_samples=num_trials, scheduler=scheduler, reuse_actors=True
        ),
        run_config=tune.RunConfig(name=out.name, storage_path=str(out.parent), verbose=1),
    )


def main(
    out: Path,
    num_trials: int = 4,
    iterations: int = 20,
    perturb_every: int = 5,
    num_env_runners: int = 0,
    ray_address: str = "local",
) -> tuple[float, float]:
    """Tunes, and returns the return of the best trial and the return of its checkpoint without exploration."""
    import ray

    # Without this line, Ray Tune would join any cluster that it finds on this machine.
    ray.init(address=ray_address, logging_level=logging.ERROR)
    results = make_tuner(out, num_trials, iterations, perturb_every, num_env_runners).fit()
    if results.errors:
        raise results.errors[0]
    for result in results:
        if result.checkpoint is not None:  # else it was stopped before its first report
            settings, metrics = result.config, result.metrics
            print(
                f"lr {settings['lr']:.5f}, entropy_coeff {settings['entropy_coeff']:.3f}: "
                f"return {metrics['episode_return_mean']:.1f} after {metrics['iteration']} iterations"
            )
    best = results.get_best_result()
    loaded = Algorithm.from_checkpoint(best.checkpoint.path)
    again = loaded.evaluate(num_episodes=10, explore=False, seed=1)["env_runners"]["episode_return_mean"]
    loaded.stop()
    ray.shutdown()
    print(f"Best checkpoint: {best.checkpoint.path}, return without exploration: {again:.1f}")
    return best.metrics["episode_return_mean"], again


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/tune"))
    parser.add_argument("--num-trials", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--perturb-every", type=int, default=5)
    parser.add_argument("--num-env-runners", type=int, default=0)
    parser.add_argument("--ray-address", default="local")
    options = vars(parser.parse_args())
    main(options.pop("out").resolve(), **options)
