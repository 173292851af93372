"""How does each agent learn a policy of its own?

The task is the same as in ``shared_policies.py``, and the config differs in one line. Every agent has its own module,
which has the agent's name, its own parameters and its own optimizer. All three run as one batched computation. The
script prints the return of each module every ten iterations (a rise from about -26 to about -21, because each module
has only a third of the experience), and at the end also that of random play (about -27). It takes about 25 seconds.
"""

from __future__ import annotations

import torch

from marl_connectors import PPOConfig


def main(iterations: int = 30, eval_episodes: int = 100) -> tuple[dict[str, float], dict[str, float]]:
    """Trains, and returns the returns of random play and those at the end, by module."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment("mpe2.simple_spread_v3", env_config={"N": 3, "max_cycles": 25})
        .multi_agent(policies="independent")  # the line that differs
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(
            train_batch_size_per_learner=2000,
            minibatch_size=500,  # rows of each module
            num_epochs=8,
            lr=1e-3,
            gamma=0.95,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .debugging(seed=0)
    )
    algo = config.build_algo()
    print(f"Modules: {', '.join(algo.rl_module.keys())}")
    for iteration in range(1, iterations + 1):
        result = algo.train()
        if iteration % 10 == 0 or iteration == iterations:
            steps = result["num_agent_steps_sampled_lifetime"]
            print(f"{steps:>8,} agent steps, return: {_text(_means(result))}")

    trained = _means(algo.evaluate(num_episodes=eval_episodes, explore=False))
    at_random = _means(algo.random_play(num_episodes=eval_episodes))
    algo.stop()
    print(f"Without exploration: {_text(trained)}. Random play: {_text(at_random)}.")
    return at_random, trained


def _means(results: dict) -> dict[str, float]:
    return {module_id: stats["mean"] for module_id, stats in results["env_runners"]["module_episode_returns"].items()}


def _text(means: dict[str, float]) -> str:
    return ", ".join(f"{module_id} {mean:.1f}" for module_id, mean in means.items())


if __name__ == "__main__":
    main()
