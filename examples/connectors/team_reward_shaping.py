"""How are rewards shaped by the rewards of all agents of a team?

Each of four agents keeps a coin, which is worth 1 to itself, or gives it away, which is worth 0.5 to each of the four.
Selfish agents keep all their coins, although all of them would get twice as much if everybody gave. A learner piece
replaces each agent's reward by the team's mean of the same step. The script prints an agent's return without the piece
(nearly 10) and with it (nearly 20); both are sums of the environment's rewards. It takes about 20 seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2


class PublicGoods(ParallelEnv):
    """Action 0 keeps the coin, and action 1 gives it away. An episode has ten steps."""

    metadata = {"name": "public_goods_v0", "render_modes": []}

    def __init__(self):
        self.possible_agents = [f"agent_{i}" for i in range(4)]
        self.agents: list[str] = []
        self.t = 0

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        pot = 0.5 * sum(int(action) for action in actions.values())
        rewards = {agent: pot + 1.0 - int(actions[agent]) for agent in self.agents}
        over = dict.fromkeys(self.agents, self.t == 10)
        alive = dict.fromkeys(self.agents, False)
        result = self._observations(), rewards, alive, over, {agent: {} for agent in self.agents}
        self.agents = [] if self.t == 10 else self.agents
        return result

    def _observations(self):
        return {agent: np.ones(1, np.float32) for agent in self.agents}


class ShareRewards(ConnectorV2):
    """Replaces each reward by a mixture of it and the mean of all agents' rewards in the same env step.

    Reads ``rewards`` of all agents; writes them to the episodes. Keeps no state.
    """

    def __init__(self, share: float = 1.0):
        super().__init__()
        self.share = share  # 0: its own reward, 1: the team's mean

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:  # MultiAgentEpisodes
            mixed = {}  # each agent's new rewards, in the order of its own steps
            for step_rewards in episode.get_rewards(return_list=True):  # one env step after another
                team = sum(step_rewards.values()) / len(step_rewards) if step_rewards else 0.0
                for agent_id, own in step_rewards.items():
                    mixed.setdefault(agent_id, []).append((1 - self.share) * own + self.share * team)
            for agent_id, rewards in mixed.items():
                episode.set_rewards(new_data={agent_id: rewards}, at_indices=list(range(len(rewards))))
        return batch


def make_config(learner_connector=None) -> PPOConfig:
    """Returns a config of PPO with a module for each agent."""
    config = PPOConfig().environment(PublicGoods).multi_agent(policies="independent").debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=8).learners(learner_connector=learner_connector)
    config.training(train_batch_size_per_learner=480, minibatch_size=240, num_epochs=8, lr=3e-3, gamma=0.9)
    return config.rl_module(model_config={"fcnet_hiddens": [16]})


def train(config: PPOConfig, iterations: int) -> float:
    """Returns the mean return of an agent after training."""
    algo = config.build()
    for _ in range(iterations):
        algo.train()
    returns = algo.evaluate(num_episodes=10, explore=False, seed=1)["env_runners"]["module_episode_returns"]
    algo.stop()
    return float(np.mean([of_module["mean"] for of_module in returns.values()]))


def main(iterations: int = 15) -> tuple[float, float]:
    """Trains without the piece and with it, and returns both returns."""
    torch.set_num_threads(1)
    without = train(make_config(), iterations)
    print(f"An agent's return without the piece: {without:.1f}")
    with_piece = train(make_config(lambda obs_space, act_space: ShareRewards()), iterations)
    print(f"An agent's return with the piece:    {with_piece:.1f}")
    return without, with_piece


if __name__ == "__main__":
    main()
