"""A module whose actions are of another space than the environment's: one piece says so, another translates."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import ConnectorV2, PPOConfig

LEVELS = np.array([-1.5, 0.0, 1.5], np.float32)


class Push(ParallelEnv):
    """Agent "a" takes a force, "b" a choice of four. Every step pays the force, or the choice."""

    metadata = {"name": "push", "render_modes": []}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-2.0, 2.0, (1,), np.float32) if agent == "a" else spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents, self.t = ["a", "b"], 0
        return self._observations(), {}

    def _observations(self):
        return {agent: np.zeros(2, np.float32) for agent in ("a", "b")}

    def step(self, actions):
        assert all(self.action_space(agent).contains(actions[agent]) for agent in actions), actions
        self.t += 1
        over = self.t == 5
        self.agents = [] if over else ["a", "b"]
        rewards = {"a": float(actions["a"][0]), "b": float(actions["b"])}
        return self._observations(), rewards, dict.fromkeys("ab", False), dict.fromkeys("ab", over), {}


class Levels(ConnectorV2):
    """Says that Box actions are one of three levels."""

    def recompute_output_action_space(self, input_observation_space, input_action_space):
        return spaces.Dict(
            {a: spaces.Discrete(3) if isinstance(s, spaces.Box) else s for a, s in input_action_space.items()}
        )

    def columns(self, c, xp):
        """Nothing: the other piece translates."""


class ToForce(ConnectorV2):
    """Gives the environment the force of a level."""

    def columns(self, c, xp):
        if isinstance(c.rows.action_space, spaces.Box):
            c["actions_for_env"] = LEVELS[c["actions"]][:, None]


@pytest.mark.parametrize("policies", ["independent", "a=one,b=two"])
def test_modules_record_their_own_actions_and_the_environment_gets_its(policies):
    config = (
        PPOConfig()
        .environment(Push)
        .multi_agent(policies=policies)
        .env_runners(env_to_module_connector=lambda env: Levels(), module_to_env_connector=lambda env: ToForce())
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=2)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    assert {str(module.action_space) for module in algo.rl_module.values()} == {"Discrete(3)", "Discrete(4)"}
    for at_random in (False, True):
        for episode in algo.env_runner.sample(num_episodes=3, random_actions=at_random):
            agent = episode.agent_episodes["a"]
            assert str(agent.action_space) == "Discrete(3)"
            actions, rewards = np.array(agent.get_actions()), np.array(agent.get_rewards())
            assert set(actions.tolist()) <= {0, 1, 2}
            assert agent.get_actions(one_hot_discrete=True)[0].shape == (3,)
            if not at_random:
                np.testing.assert_array_equal(rewards, LEVELS[actions])
    results = algo.train()["learners"]
    assert all(np.isfinite(figures["total_loss"]) for figures in results.values())
    algo.stop()


def test_with_one_agent_too():
    class OneLevel(Levels):
        def recompute_output_action_space(self, input_observation_space, input_action_space):
            return spaces.Discrete(3)

    config = (
        PPOConfig()
        .environment("Pendulum-v1")
        .env_runners(env_to_module_connector=lambda env: OneLevel(), module_to_env_connector=lambda env: ToForce())
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    assert str(algo.get_module().action_space) == "Discrete(3)"
    algo.train()
    (episode,) = algo.env_runner.sample(num_timesteps=10)
    assert set(np.array(episode.get_actions()).tolist()) <= {0, 1, 2}
    algo.stop()
