"""How is a recorded policy cloned, and how well does the clone play?

Run ``python examples/imitation.py``. It trains a policy, records it, and clones it from the recorded episodes alone, by
behaviour cloning. It prints how likely the clone finds the actions of episodes that it was not trained on, and the
returns of random play, the recorded policy and the clone. This takes about 20 seconds.
"""

import tempfile

import torch

from marl_connectors import BCConfig, PPOConfig

ENV = {"env": "marl_envs.match_v0", "env_config": {"n_agents": 3, "n_actions": 5, "ep_len": 10}}
MODEL = {"fcnet_hiddens": (32, 32), "fcnet_activation": "tanh"}


def main(folder: str, expert_iterations: int = 20, iterations: int = 60) -> dict[str, float]:
    expert = (
        PPOConfig()
        .environment(**ENV)
        .multi_agent(policies="independent")
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(model_config=MODEL)
        .training(lr=0.01, train_batch_size_per_learner=800, minibatch_size=100, num_epochs=6)
        .debugging(seed=0)
    )
    returns = {}
    with expert.build_algo() as algo:
        returns["random play"] = algo.random_play(num_episodes=100)["env_runners"]["episode_return_mean"]
        for _ in range(expert_iterations):
            algo.train()
        recorded = algo.evaluate(num_episodes=100, explore=False)["env_runners"]
        returns["recorded policy"] = recorded["episode_return_mean"]
        algo.record(folder, num_episodes=200, explore=True)

    clone = (
        BCConfig()
        .environment(**ENV)
        .multi_agent(policies="independent")
        .rl_module(model_config=MODEL)
        .offline_data(input_=folder, held_out_fraction=0.1)
        .training(lr=0.01, train_batch_size_per_learner=500)
        .debugging(seed=0)
    )
    with clone.build_algo() as algo:
        before = algo.evaluate_offline()["learners"]
        for _ in range(iterations):
            algo.train()
        after = algo.evaluate_offline()["learners"]
        returns["clone"] = algo.evaluate(num_episodes=100, explore=False)["env_runners"]["episode_return_mean"]
    for agent_id, own in after.items():
        print(f"{agent_id}: log-likelihood {before[agent_id]['mean_logp']:.2f} before, {own['mean_logp']:.2f} after")
    print(", ".join(f"{name}: {value:.1f}" for name, value in returns.items()))
    return returns


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
