"""How does one agent get to see what another one observes?

A speaker sees one of three colours. A listener sees nothing, and gets a reward for naming the colour. A piece reads the
speaker's observation, appends it to the listener's, and writes the result to the episode, so that the learner sees it
too. The script prints the listener's return without the piece (at best a third of 8) and with it (nearly 8). It takes
about 15 seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2


class NameTheColour(ParallelEnv):
    """Each step has a new colour, and an episode has eight steps. Only the listener's action counts."""

    metadata = {"name": "name_the_colour_v0", "render_modes": []}

    def __init__(self):
        self.possible_agents = ["speaker", "listener"]
        self.agents: list[str] = []
        self.t = self.colour = 0
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (3 if agent == "speaker" else 1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        rewards = {"speaker": 0.0, "listener": float(actions["listener"] == self.colour)}
        self.t += 1
        over = dict.fromkeys(self.agents, self.t == 8)
        alive = dict.fromkeys(self.agents, False)
        result = self._observations(), rewards, alive, over, {agent: {} for agent in self.agents}
        self.agents = [] if self.t == 8 else self.agents
        return result

    def _observations(self):
        self.colour = int(self.rng.integers(3))
        return {"speaker": np.eye(3, dtype=np.float32)[self.colour], "listener": np.zeros(1, np.float32)}


class ShareObservation(ConnectorV2):
    """Appends one agent's newest observation to another's, for agents that observe in the same env steps.

    Reads ``obs``; writes the receiver's ``obs`` to the episodes. Keeps no state.
    """

    def __init__(self, sender: str, receiver: str):
        super().__init__()
        self.sender, self.receiver = sender, receiver

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        by_agent = dict(input_observation_space.items())  # a Dict space by agent id
        parts = [by_agent[self.receiver], by_agent[self.sender]]
        low, high = np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts])
        return spaces.Dict({**by_agent, self.receiver: spaces.Box(low, high, dtype=np.float32)})

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in episodes:  # MultiAgentEpisodes
            newest = episode.get_observations(-1)
            together = np.concatenate([newest[self.receiver], newest[self.sender]])
            episode.set_observations(new_data={self.receiver: together}, at_indices=-1)
        return batch


def make_config(env_to_module_connector=None) -> PPOConfig:
    """Returns a config of PPO with a module for each agent."""
    config = PPOConfig().environment(NameTheColour).multi_agent(policies="independent").debugging(seed=0)
    config.env_runners(num_envs_per_env_runner=8, env_to_module_connector=env_to_module_connector)
    # Each step is a separate problem here, so later rewards say nothing about an action.
    config.training(train_batch_size_per_learner=512, minibatch_size=256, num_epochs=8, lr=2e-3, gamma=0.0, lambda_=0.0)
    return config.rl_module(model_config={"fcnet_hiddens": [32, 32]})


def train(config: PPOConfig, iterations: int) -> float:
    """Returns the listener's mean return after training."""
    algo = config.build()
    for _ in range(iterations):
        algo.train()
    returns = algo.evaluate(num_episodes=50, explore=False, seed=1)["env_runners"]["module_episode_returns"]
    algo.stop()
    return returns["listener"]["mean"]


def main(iterations: int = 15) -> tuple[float, float]:
    """Trains without the piece and with it, and returns both returns."""
    torch.set_num_threads(1)
    without = train(make_config(), iterations)
    print(f"The listener's return without the piece: {without:.1f} of 8")
    with_piece = train(make_config(lambda env: ShareObservation("speaker", "listener")), iterations)
    print(f"The listener's return with the piece:    {with_piece:.1f} of 8")
    return without, with_piece


if __name__ == "__main__":
    main()
