"""How do agents with continuous actions learn from a replay buffer, each alone or with critics that see all?

Run ``python examples/continuous_actions.py``. It trains soft actor-critic, where each agent has a critic of its own
observations, and MATD3, where critics see the observations and actions of all agents, on the same task. For both it
prints the mean return of an agent in the first and the last iteration. It takes about 20 seconds.
"""

from __future__ import annotations

from marl_connectors import MATD3Config, SACConfig


def configured(config, seed: int = 0):
    """Sets what both algorithms have in common."""
    config.environment("mpe2.simple_spread_v3", env_config={"continuous_actions": True, "max_cycles": 25})
    config.multi_agent(policies="shared").env_runners(num_envs_per_env_runner=4, rollout_fragment_length=5)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]}).debugging(seed=seed)
    config.training(actor_lr=1e-3, critic_lr=1e-3, train_batch_size_per_learner=256, gamma=0.95)
    return config.training(num_steps_sampled_before_learning_starts=500)


def main(num_iterations: int = 8, num_env_steps: int = 1000) -> None:
    """Trains with both algorithms."""
    for config in (SACConfig(), MATD3Config()):
        algo = configured(config).reporting(min_sample_timesteps_per_iteration=num_env_steps).build_algo()
        results = [algo.train()["env_runners"]["module_episode_returns"] for _ in range(num_iterations)]
        returns = [result["default_policy"]["mean"] for result in results]
        print(f"{type(algo).__name__}: {returns[0]:.1f} at first, {returns[-1]:.1f} at last")
        algo.stop()


if __name__ == "__main__":
    main()
