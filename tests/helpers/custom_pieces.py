"""An environment whose agents die one after another, pieces as RLlib's documents show them, and runs with them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import PPOConfig
from marl_connectors.connectors.connector_v2 import ConnectorV2


class MortalEnv(ParallelEnv):
    """Agents a, b, c die after 2, 4 and 6 steps. Everyone sees [who, t], and is paid t for the step to t."""

    metadata = {"name": "mortal", "is_parallelizable": True}
    possible_agents = ["a", "b", "c"]

    def __init__(self, last_observations=True):
        self.last_observations = last_observations
        self.agents = []
        self.render_mode = None

    def observation_space(self, agent):
        return spaces.Box(-99.0, 99.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _see(self, agent):
        return np.array([self.possible_agents.index(agent), self.t], np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        acted = self.agents
        dies = {agent: self.t >= 2 + 2 * self.possible_agents.index(agent) for agent in acted}
        self.agents = [agent for agent in acted if not dies[agent]]
        seen = acted if self.last_observations else self.agents
        return (
            {agent: self._see(agent) for agent in seen},
            dict.fromkeys(acted, float(self.t)),
            dies,
            dict.fromkeys(acted, False),
            {agent: {} for agent in acted},
        )

    def close(self):
        pass


class AddLastRewardToObservations(ConnectorV2):
    """The documents' piece, for one agent and for many."""

    def recompute_output_observation_space(self, in_obs_space, in_act_space):
        def longer(space):
            low, high = (np.append(bound, side * np.inf) for bound, side in ((space.low, -1), (space.high, 1)))
            return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)

        if isinstance(in_obs_space, spaces.Dict):
            return spaces.Dict({agent: longer(space) for agent, space in in_obs_space.items()})
        return longer(in_obs_space)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for single_agent_episode in self.single_agent_episode_iterator(episodes):
            reward = single_agent_episode.get_reward(-1, fill=0.0)
            obs = single_agent_episode.get_observation(-1)
            single_agent_episode.set_observation(new_value=np.append(obs, reward), at_index=-1)
        return batch


class CountBasedIntrinsicRewards(ConnectorV2):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._counts = Counter()

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        for sa_episode in self.single_agent_episode_iterator(episodes=episodes, agents_that_stepped_only=False):
            observations = sa_episode.get_observations(slice(None, -1))
            for i, (obs, reward) in enumerate(zip(observations, sa_episode.get_rewards(), strict=True)):
                self._counts[tuple(obs)] += 1
                sa_episode.set_rewards(new_data=reward + 1 / self._counts[tuple(obs)], at_indices=i)
        return batch


class Spy(ConnectorV2):
    """Keeps the train batch as it stands where it is put."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def __call__(self, *, batch, **kwargs):
        self.seen = {m: {name: column.numpy().copy() for name, column in c.items()} for m, c in batch.items()}
        return batch


def config(env, **env_runners):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(**{"num_envs_per_env_runner": 1, "rollout_fragment_length": 6, **env_runners})
        .training(train_batch_size_per_learner=6, num_epochs=1, minibatch_size=4, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=1)
    )


def train_and_spy(settings):
    """One iteration; what the losses were computed from."""
    algorithm, spy = settings.build_algo(), Spy()
    algorithm.learner.pipeline.append(spy)
    algorithm.train()
    algorithm.stop()
    return spy.seen, algorithm


def by_agent(batch, name):
    """A column of the shared module of MortalEnv's agents, by agent."""
    who = batch["obs"][:, 0].astype(int)
    return {agent: batch[name][who == i].tolist() for i, agent in enumerate("abc")}
