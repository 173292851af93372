"""What can a connector piece do that neither the environment nor the module does?

In this environment all agents see the same thing, but each gets rewards for a different number. One shared policy
cannot tell them apart, and gets a return of about 2.5 of 10. A piece of twenty lines appends each agent's index to its
observation, and with it the same policy gets nearly 10. The script prints both returns. It takes about 15 seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import Columns, ConnectorV2, PPOConfig


class OwnNumber(ParallelEnv):
    """Agent ``i`` of four gets the reward 1 for action ``i``. All observations are alike. Episodes have ten steps."""

    metadata = {"name": "own_number_v0", "render_modes": []}

    def __init__(self):
        self.possible_agents = [f"agent_{i}" for i in range(4)]
        self.agents: list[str] = []
        self.t = 0

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self._observations(), {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        rewards = {a: float(actions[a] == self.possible_agents.index(a)) for a in self.agents}
        over = dict.fromkeys(self.agents, self.t == 10)
        result = self._observations(), rewards, dict.fromkeys(self.agents, False), over, {a: {} for a in self.agents}
        self.agents = [] if self.t == 10 else self.agents
        return result

    def _observations(self):
        return {a: np.ones(1, np.float32) for a in self.agents}


class AppendAgentIndex(ConnectorV2):
    """Appends the agent's index, as a one-hot vector, to its observation.

    Reads ``obs`` and writes it to the trajectories, so that the learner sees what the policy saw. Keeps no state.
    """

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        self.agents = list(input_observation_space.spaces)  # a Dict space by agent id
        return spaces.Dict(
            {
                agent: spaces.Box(-np.inf, np.inf, (space.shape[0] + len(self.agents),), np.float32)
                for agent, space in input_observation_space.items()
            }
        )

    def columns(self, c, xp):
        rows = c.rows  # one for each agent of all sub-environments
        numbers = [self.agents.index(episode.agent_id) for episode in rows.episodes]
        one_hot = np.eye(len(self.agents), dtype=np.float32)[numbers]
        rows.set(Columns.OBS, np.concatenate([rows.get(Columns.OBS), one_hot], axis=1))


def train(env_to_module_connector, iterations: int) -> float:
    """Returns the return of an agent per episode after training with a shared policy."""
    algo = (
        PPOConfig()
        .environment(OwnNumber)
        .multi_agent(policies="shared")
        .env_runners(num_envs_per_env_runner=8, env_to_module_connector=env_to_module_connector)
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .training(train_batch_size_per_learner=400, minibatch_size=200, num_epochs=8, lr=2e-3, use_kl_loss=False)
        .debugging(seed=0)
        .build_algo()
    )
    for _ in range(iterations):
        algo.train()
    returns = algo.evaluate(num_episodes=50, explore=True)["env_runners"]["module_episode_returns"]
    algo.stop()
    return returns["default_policy"]["mean"]


def main(iterations: int = 25) -> tuple[float, float]:
    """Trains without the piece and with it, and returns both returns."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    without = train(None, iterations)
    print(f"Return without the piece: {without:.1f} of 10")
    with_piece = train(lambda env: AppendAgentIndex(), iterations)
    print(f"Return with the piece:    {with_piece:.1f} of 10")
    return without, with_piece


if __name__ == "__main__":
    main()
