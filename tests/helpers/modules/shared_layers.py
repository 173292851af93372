"""Modules that have layers in common, in a game for three agents."""

from __future__ import annotations

import torch
from torch import nn

from helpers.envs.scripted_envs import small_config
from marl_connectors import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_envs import match_v0

AGENTS = ("agent_0", "agent_1", "agent_2")


class Heads(RLModule, ValueFunctionAPI):
    """Reads what somebody else has encoded."""

    def setup(self):
        self.pi, self.vf = nn.Linear(4, self.action_space.n), nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["embeddings"]), "embeddings": batch["embeddings"]}

    def compute_values(self, batch, embeddings=None):
        return self.vf(embeddings).squeeze(-1)


class LayersBeside(MultiRLModule):
    """The encoder is a layer of the MultiRLModule, which asks its modules how large it has to be."""

    def setup(self):
        super().setup()
        self.encoder = nn.Linear(next(iter(self.values())).observation_space.shape[0], 4)

    def _forward(self, batch, **kwargs):
        for columns in batch.values():
            columns["embeddings"] = torch.tanh(self.encoder(columns["obs"]))
        return super()._forward(batch, **kwargs)


class Sharing(MultiRLModule):
    """The first two modules hold the same layer object; they run by themselves."""

    def setup(self):
        super().setup()
        first, second, *_ = self.values()
        second.encoder = first.encoder


def sharing_config(multi_class, module_class, others=None, **of_class):
    """Independent policies of one class in a MultiRLModule of another."""
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    specs = {**{agent: RLModuleSpec(module_class=module_class) for agent in AGENTS}, **(others or {})}
    config.multi_agent(policies="independent")
    config.rl_module(
        rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=multi_class, rl_module_specs=specs, **of_class)
    )
    return config.training(train_batch_size_per_learner=40, minibatch_size=16, lr=1e-2)
