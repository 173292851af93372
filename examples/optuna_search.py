"""How are settings searched with Optuna from Python, and bad trials stopped early?

Each trial trains CartPole with another learning rate and entropy coefficient, and reports its return after each
iteration. Optuna prunes a trial whose return is below the median of the earlier ones. The script prints how each trial
ends, and the best settings and their return (above 250). It takes about 25 seconds, and needs ``pip install optuna``.

``marl-connectors sweep`` does the same from the command line, in several processes, and can be resumed.
"""

from __future__ import annotations

import optuna
import torch

from marl_connectors import PPOConfig


def objective(trial: optuna.Trial, iterations: int) -> float:
    """Trains with the settings that the trial suggests, and returns the return of the newest episodes."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(
            lr=trial.suggest_float("lr", 1e-5, 1e-2, log=True),
            entropy_coeff=trial.suggest_float("entropy_coeff", 0.0, 0.05),
            train_batch_size_per_learner=1024,
            minibatch_size=128,
            num_epochs=10,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .reporting(metrics_num_episodes_for_smoothing=20)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    try:
        for iteration in range(iterations):
            found = algo.train()["env_runners"]["episode_return_mean"]
            trial.report(found, iteration)
            if trial.should_prune():
                raise optuna.TrialPruned
    finally:
        algo.stop()
    return found


def main(trials: int = 10, iterations: int = 15) -> optuna.Study:
    """Searches, and returns the study."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(n_startup_trials=5, seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=4),
    )
    study.optimize(lambda trial: objective(trial, iterations), n_trials=trials)
    for trial in study.trials:
        settings = ", ".join(f"{name} {value:.5f}" for name, value in trial.params.items())
        after = f"{trial.state.name.lower()} after {len(trial.intermediate_values)} iterations"
        print(f"trial {trial.number}: {settings}: {after}, return {trial.value:.1f}")
    best = ", ".join(f"{name} {value:.5f}" for name, value in study.best_params.items())
    print(f"Best: {best}, return {study.best_value:.1f}")
    return study


if __name__ == "__main__":
    main()
