"""How do all agents of an environment learn one policy together?

Three agents have to cover three landmarks (``simple_spread_v3``). One module decides for all of them, and learns from
the experience of all of them. The script prints the return of an agent per episode every ten iterations (a rise from
about -25 to -19 or better), and at the end also that of random play (about -27). It takes about 25 seconds.
"""

from __future__ import annotations

import torch

from marl_connectors import PPOConfig


def main(iterations: int = 30, eval_episodes: int = 100) -> tuple[float, float]:
    """Trains, and returns the return of random play and the return at the end."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment("mpe2.simple_spread_v3", env_config={"N": 3, "max_cycles": 25})
        .multi_agent(policies="shared")  # this line decides who shares a policy; see independent_policies.py
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .training(
            train_batch_size_per_learner=2000,  # env steps: 80 episodes, so 6,000 agent steps
            minibatch_size=500,
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
    for iteration in range(1, iterations + 1):
        result = algo.train()
        if iteration % 10 == 0 or iteration == iterations:
            returns = result["env_runners"]["module_episode_returns"]
            steps = result["num_agent_steps_sampled_lifetime"]
            print(f"{steps:>8,} agent steps, return: default_policy {returns['default_policy']['mean']:.1f}")

    played = algo.evaluate(num_episodes=eval_episodes, explore=False), algo.random_play(num_episodes=eval_episodes)
    trained, at_random = (own["env_runners"]["module_episode_returns"]["default_policy"]["mean"] for own in played)
    algo.stop()
    print(f"Without exploration: {trained:.1f}. Random play: {at_random:.1f}.")
    return at_random, trained


if __name__ == "__main__":
    main()
