"""Each agent is decided for by its own module, whatever order, length or life it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import ConnectorV2, DefaultPPORLModule, RLModuleSpec, TorchCategorical

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class OtherOrder(ParallelEnv):
    """Two agents, in another order in every other episode of three steps."""

    metadata = {"name": "other_order", "render_modes": []}
    possible_agents = ["a", "b"]

    def __init__(self):
        self.episode = 0

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(3)

    def _observations(self):
        return {agent: np.array([0.5 if agent == "a" else -0.5, self.t / 10], np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.episode += 1
        self.t = 0
        self.agents = ["a", "b"] if self.episode % 2 else ["b", "a"]
        return self._observations(), {}

    def step(self, actions):
        self.t += 1
        agents, over = self.agents, self.t == 3
        observations = self._observations()
        self.agents = [] if over else agents
        return (
            observations,
            dict.fromkeys(agents, 1.0),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {key: {} for key in agents},
        )


def assert_each_row_is_of_its_own_module(algo, episodes):
    for episode in episodes:
        for life in episode.all_agent_episodes():
            if not len(life):
                continue
            observations = torch.as_tensor(np.stack(list(life.get_observations(slice(0, len(life))))))
            expected = algo.rl_module[life.module_id].forward_exploration({"obs": observations})["action_dist_inputs"]
            seen = torch.as_tensor(np.stack(list(life.get_extra_model_outputs("action_dist_inputs"))))
            torch.testing.assert_close(seen, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    "make",
    [OtherOrder, lambda: LifeEnv(join=0.5, die=0.3, max_steps=9), lambda: LifeEnv(fixed=False, join=0.4, die=0.2)],
)
def test_agents_in_another_order_keep_their_own_modules(make, num_envs):
    config = small_config(lambda config: make()).multi_agent(policies="independent")
    algo = config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=17).build_algo()
    with torch.no_grad():
        for i, module in enumerate(algo.rl_module.values()):
            for parameter in module.parameters():
                parameter.add_(0.3 * (i + 1) * torch.ones_like(parameter))
    for _ in range(4):
        assert_each_row_is_of_its_own_module(algo, algo.env_runner.sample())


class ShortOrLong(ParallelEnv):
    """Episodes of 1 or 40 steps, each with a chance of one half."""

    metadata = {"name": "short_or_long", "render_modes": []}
    possible_agents = ["a"]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.length = 1 if np.random.default_rng(seed).random() < 0.5 else 40
        self.t, self.agents = 0, ["a"]
        return {"a": np.zeros(2, np.float32)}, {}

    def step(self, actions):
        self.t += 1
        over = self.t == self.length
        self.agents = [] if over else ["a"]
        return {"a": np.zeros(2, np.float32)}, {"a": 1.0}, {"a": over}, {"a": False}, {"a": {}}


def test_whole_episodes_come_evenly_from_the_copies_so_that_short_ones_are_not_preferred():
    algo = small_config(lambda config: ShortOrLong()).env_runners(num_envs_per_env_runner=8).build_algo()
    episodes = algo.env_runner.sample(num_episodes=20)
    first_ones = [f"{copy}-{n}" for copy in range(8) for n in range(2 + (copy < 4))]
    assert sorted(episode.id_ for episode in episodes) == sorted(first_ones)
    finished = algo.env_runner.take_finished()
    assert sorted(f.length for f in finished) == sorted(episode.env_steps() for episode in episodes)


def test_an_agent_that_is_flagged_again_and_again_stays_gone():
    script = [Step({"a": 0, "b": 0})]
    script += [Step({"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, terminated=("b",), agents=["a", "b"])]
    script += [Step({"a": t, "b": t}, {"a": 1.0}, terminated=("b",), agents=["a", "b"]) for t in (2, 3)]
    script += [Step({"a": 4}, {"a": 1.0}, terminated=("a",), agents=[])]
    algo = small_config(lambda config: ScriptEnv([script])).environment(disable_env_checking=True).build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)
    lives = [(life.agent_id, len(life)) for life in episode.all_agent_episodes()]
    assert sorted(lives) == [("a", 4), ("b", 1)]


def test_the_mapping_function_is_asked_once_also_if_an_agent_comes_back_after_a_cut():
    asked = []

    def mapping(agent_id, episode, **kwargs):
        asked.append((episode.id_, agent_id))
        return "m"

    script = [Step({"a": 0, "b": 0}), Step({"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, terminated=("b",))]
    script += [Step({"a": t}, {"a": 1.0}) for t in (2, 3)]
    script += [Step({"a": 4, "b": 4}, {"a": 1.0}), Step({"a": 5, "b": 5}, {"a": 1.0, "b": 1.0}, truncated=("a", "b"))]
    algo = small_config(lambda config: ScriptEnv([script])).multi_agent(policy_mapping_fn=mapping).build_algo()
    asked.clear()
    for _ in range(4):
        algo.env_runner.sample(num_timesteps=1)
    assert asked == [("0-0", "a"), ("0-0", "b")]


def test_returns_start_at_zero_in_each_episode_also_after_one_that_crossed_a_cut():
    ones = {"a": 1.0, "b": 1.0}
    script = [Step({"a": 0, "b": 0}), Step({"a": 1, "b": 1}, ones), Step({"a": 2, "b": 2}, ones)]
    script += [Step({"a": 3, "b": 3}, ones, truncated=("a", "b"))]
    for make in (OtherOrder, lambda: ScriptEnv([script])):
        algo = small_config(lambda config, make=make: make()).build_algo()
        for _ in range(6):
            algo.env_runner.sample(num_timesteps=2)
        returns = [entry for f in algo.env_runner.take_finished() for entry in f.agent_totals.values()]
        assert len(returns) == 8
        assert set(returns) == {(1, 3.0, 3)}


class Sharper(TorchCategorical):
    """Another distribution of the same inputs."""

    def __init__(self, logits):
        super().__init__(2.0 * logits + torch.arange(logits.shape[-1]))

    @classmethod
    def from_logits(cls, logits):
        return cls(logits)


class SharpModule(DefaultPPORLModule):
    stackable = False

    def get_exploration_action_dist_cls(self):
        return Sharper


def test_log_probabilities_are_of_the_distribution_that_each_module_acted_by():
    """Also where the mapping puts modules of different distributions into the same lane by turns."""
    specs = {"plain": RLModuleSpec(), "sharp": RLModuleSpec(module_class=SharpModule)}

    def mapping(agent_id, episode, **kwargs):
        return "plain" if int(episode.id_.split("-")[1]) % 2 else "sharp"

    config = small_config(lambda config: OtherOrder()).multi_agent(policies=specs, policy_mapping_fn=mapping)
    runner = config.env_runners(rollout_fragment_length=10).build_algo().env_runner
    modules = set()
    for episode in [*runner.sample(), *runner.sample()]:
        for life in episode.all_agent_episodes():
            modules.add(life.module_id)
            dist_cls = Sharper if life.module_id == "sharp" else TorchCategorical
            inputs = torch.as_tensor(np.stack(list(life.get_extra_model_outputs("action_dist_inputs"))))
            expected = dist_cls.from_logits(inputs).logp(torch.as_tensor(np.stack(list(life.get_actions()))))
            seen = torch.as_tensor(np.stack(list(life.get_extra_model_outputs("action_logp"))))
            torch.testing.assert_close(seen, expected)
    assert modules == {"plain", "sharp"}


def test_pieces_are_told_whether_this_sample_explores():
    told = []

    class Listening(ConnectorV2):
        def columns(self, c, xp):
            told.append(c.explore)

    config = small_config(lambda config: OtherOrder()).env_runners(env_to_module_connector=lambda env: Listening())
    config.build_algo().env_runner.sample(num_timesteps=4, explore=False)
    assert set(told) == {False}
