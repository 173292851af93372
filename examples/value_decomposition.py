"""What do agents find together that they do not find alone?

Two agents play the two-step game of QMIX's paper: a safe game pays 7, and a risky one 8 if both choose the right
action. All actions are random during training. The script prints what the agents earn with the values that they have
learned: 7 by independent Q-learning, 7 by VDN, which adds up the agents' values, and 8 by QMIX. It takes about 40
seconds.
"""

from __future__ import annotations

import torch

from marl_connectors import DQNConfig, QMIXConfig, VDNConfig


def learned(config_class: type[DQNConfig], iterations: int) -> float:
    """Trains, and returns what an agent earns in an episode without exploration."""
    config = (
        config_class()
        .environment("marl_envs.two_step_v0")
        .multi_agent(policies="independent")
        .rl_module(model_config={"fcnet_hiddens": (64,)})
        .training(lr=5e-4, epsilon=1.0, dueling=False, td_error_loss_fn="mse", target_network_update_freq=200)
        .reporting(min_sample_timesteps_per_iteration=1000)
        .debugging(seed=0)
    )
    if isinstance(config, QMIXConfig):
        config.training(mixing_embed_dim=8)
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    returns = algo.evaluate(num_episodes=1)["env_runners"]["agent_episode_returns_mean"]
    algo.stop()
    return returns["agent_0"]


def main(iterations: int = 4) -> dict[str, float]:
    """Trains with three algorithms, and returns what an agent earns by each."""
    torch.set_num_threads(1)
    algorithms = {"independent Q-learning": DQNConfig, "VDN": VDNConfig, "QMIX": QMIXConfig}
    found = {}
    for name, config_class in algorithms.items():
        found[name] = learned(config_class, iterations)
        print(f"{name}: {found[name]:g}")
    return found


if __name__ == "__main__":
    main()
