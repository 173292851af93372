"""FlattenObservations for some of the agents with like spaces: they have lanes of their own, by their modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import FlattenObservations, PPOConfig, RLModule, RLModuleSpec, ValueFunctionAPI
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import ConnectorError, MappingError

SPACE = spaces.Dict({"who": spaces.Discrete(3), "see": spaces.Box(-99.0, 99.0, (2,), np.float32)})
WHO = {"x": 0, "y": 1, "z": 2, "late": 1}


class Watched(ParallelEnv):
    """Agents see who they are and what time it is. Each ends after a time of its own, "late" joins at t=2."""

    metadata = {"name": "watched", "render_modes": []}
    ends = {"x": 3, "y": 5, "z": 7, "late": 6}

    def __init__(self, agents):
        self.possible_agents = agents
        self.agents = []

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _see(self, agent):
        return {"who": WHO[agent], "see": np.array([self.t, -self.t], np.float32)}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {agent: self._see(agent) for agent in self.agents}, {}

    def step(self, actions):
        self.t += 1
        acted = list(self.agents)
        over = {agent: self.t >= self.ends[agent] for agent in acted}
        self.agents = [agent for agent in acted if not over[agent]]
        if self.t == 2:
            self.agents.append("late")
        seen = dict.fromkeys([*acted, *self.agents])
        return {a: self._see(a) for a in seen}, dict.fromkeys(acted, 1.0), over, dict.fromkeys(acted, False), {}


class SeesTheDict(RLModule, ValueFunctionAPI):
    """Takes observations as the environment gives them."""

    def setup(self):
        self.policy, self.value = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

    def _flat(self, seen):
        return torch.cat([seen["who"][:, None].float(), seen["see"]], 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.policy(self._flat(batch["obs"]))}

    def compute_values(self, batch, embeddings=None):
        return self.value(self._flat(batch["obs"]))[:, 0]


class OnItems(ConnectorV2):
    """Does nothing, on items."""

    def __call__(self, *, batch, **kwargs):
        return batch


def config(pieces=(), agents=("x", "y", "z"), flat=("x",), mapping=None):
    modules = {"flat": RLModuleSpec(model_config={"fcnet_hiddens": [4]}), "dict": RLModuleSpec(SeesTheDict)}
    return (
        PPOConfig()
        .environment(lambda config: Watched(list(agents)))
        .env_runners(
            num_envs_per_env_runner=2,
            rollout_fragment_length=4,
            env_to_module_connector=lambda env: [FlattenObservations(agent_ids=flat), *(make() for make in pieces)],
        )
        .multi_agent(
            policies=modules,
            policy_mapping_fn=mapping or (lambda agent, episode, **kwargs: "flat" if agent in flat else "dict"),
        )
        .training(train_batch_size_per_learner=40, minibatch_size=8, num_epochs=1)
        .debugging(seed=0)
    )


@pytest.mark.parametrize("pieces", [(), (OnItems,)])
def test_agents_of_different_modules_may_differ(pieces):
    algo = config(pieces).build_algo()
    assert algo.get_module("flat").observation_space.shape == (5,)
    assert algo.get_module("dict").observation_space == SPACE
    steps = 0
    for _ in range(4):
        for episode in algo.env_runner.sample():
            for life in episode.all_agent_episodes():
                for i in range(len(life) + 1):
                    seen, steps = life.get_observations(i), steps + 1
                    t = int(life.storage.column("t")[life.storage.lookback + i])
                    if life.agent_id == "x":
                        assert seen.tolist() == [t, -t, 1, 0, 0]
                    else:
                        assert (seen["who"], seen["see"].tolist()) == (WHO[life.agent_id], [t, -t])
    assert steps > 100
    results = algo.train()
    assert set(results["learners"]) >= {"flat", "dict"}
    algo.stop()


def test_it_goes_on_from_a_checkpoint(tmp_path):
    algo = config().build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "saved")
    expected = algo.train()["learners"]
    other = config().build_algo()
    other.restore_from_path(path)
    assert other.train()["learners"] == expected


def test_agents_of_one_module_must_not_differ():
    with pytest.raises(MappingError, match=r"(?s)'x'.*'y'.*'flat'"):
        config(mapping=lambda agent, episode, **kwargs: "dict" if agent in ("z", "late") else "flat").build_algo()


def test_a_late_joiner_that_nobody_named_and_who_is_mapped_to_a_module_of_flat_ones_is_an_error():
    algo = config(mapping=lambda agent, episode, **kwargs: "flat" if agent in ("x", "late") else "dict").build_algo()
    with pytest.raises(ConnectorError, match=r"(?s)agent_ids.*'x'.*'late'"):
        algo.env_runner.sample()
