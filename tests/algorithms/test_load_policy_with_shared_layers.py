"""A MultiRLModule of one's own acts from a checkpoint as it did in training, with what its modules have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted_envs import small_config
from torch import nn

from marl_connectors import (
    Algorithm,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.checkpoints import save_state
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.typing import SHARED
from marl_envs import match_v0

AGENTS = ("agent_0", "agent_1", "agent_2")


class Heads(RLModule, ValueFunctionAPI):
    def setup(self):
        self.pi, self.vf = nn.Linear(4, self.action_space.n), nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["embeddings"]), "embeddings": batch["embeddings"]}

    def compute_values(self, batch, embeddings=None):
        return self.vf(embeddings).squeeze(-1)


class LayersBeside(MultiRLModule):
    """Asks its modules how large the encoder has to be."""

    def setup(self):
        super().setup()
        self.encoder = nn.Linear(next(iter(self.values())).observation_space.shape[0], 4)

    def _forward(self, batch, **kwargs):
        for columns in batch.values():
            columns["embeddings"] = torch.tanh(self.encoder(columns["obs"]))
        return super()._forward(batch, **kwargs)


class Plain(DefaultPPORLModule):
    """Runs by itself."""


class Tied(MultiRLModule):
    def setup(self):
        super().setup()
        self[AGENTS[1]].encoder = self[AGENTS[0]].encoder


class Careless(MultiRLModule):
    def setup(self):
        super().setup()
        if self.model_config.get("asks", True):
            {}["a name of its own"]


def config_of(multi_class, module_class, **of_class):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    specs = {agent: RLModuleSpec(module_class=module_class) for agent in AGENTS}
    config.multi_agent(policies="independent")
    config.rl_module(
        rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=multi_class, rl_module_specs=specs, **of_class)
    )
    return config.training(train_batch_size_per_learner=40, minibatch_size=16, lr=1e-2)


@pytest.mark.parametrize(("multi_class", "module_class"), [(LayersBeside, Heads), (Tied, Plain)])
@pytest.mark.parametrize("module_id", [None, "agent_2"])
def test_a_policy_has_the_layers_that_modules_share(multi_class, module_class, module_id, tmp_path):
    algo = config_of(multi_class, module_class).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "c"), module_id)
    expected, found = algo.rl_module.state_dict(), policy.rl_module.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    observations = np.eye(3, dtype=np.float32)
    batch = {agent: {"obs": torch.as_tensor(observations)} for agent in AGENTS}
    outputs = algo.rl_module.forward_inference(batch)
    for agent in AGENTS:
        logits = outputs[module_id or agent]["action_dist_inputs"]
        np.testing.assert_array_equal(policy(observations, agent), logits.argmax(-1).numpy())


def test_an_error_of_the_setup_is_not_taken_for_one_of_the_checkpoint(tmp_path):
    saved = config_of(Careless, Plain, model_config={"asks": False}).build_algo().save_to_path(tmp_path / "c")
    with pytest.raises(KeyError, match="a name of its own"):
        load_policy(saved, config=config_of(Careless, Plain))


@pytest.mark.parametrize("by_spec", [True, False])
def test_shared_layers_come_along_with_the_modules_to_load(by_spec, tmp_path):
    source = config_of(LayersBeside, Heads).debugging(seed=5).build_algo().rl_module
    save_state(tmp_path / "m", source.get_state())
    some = {"load_state_path": tmp_path / "m", "modules_to_load": ["agent_1"]}
    if by_spec:
        spec = MultiRLModuleSpec.from_module(source)
        spec.load_state_path, spec.modules_to_load = some.values()
        loaded = spec.build()
    else:
        loaded = config_of(LayersBeside, Heads, **some).build_algo().rl_module
    expected, found = source.get_state(), loaded.get_state()
    same = {m for m in expected if all(torch.equal(value, found[m][name]) for name, value in expected[m].items())}
    assert same == {"agent_1", SHARED}


def test_a_module_alone_can_be_loaded_where_nothing_is_shared(tmp_path):
    source = config_of(LayersBeside, Heads).build_algo().rl_module
    save_state(tmp_path / "m", source.get_state())
    spec = MultiRLModuleSpec.from_module(source)
    spec.multi_rl_module_class, spec.load_state_path, spec.modules_to_load = None, tmp_path / "m", ["agent_1"]
    assert torch.equal(spec.build().get_state()["agent_1"]["pi.weight"], source.get_state()["agent_1"]["pi.weight"])


def test_a_module_that_was_added_later_shares_them_too(tmp_path):
    algo = config_of(LayersBeside, Heads).build_algo()
    algo.add_module("late", new_agent_to_module_mapping_fn="agent_0=late,agent_1=agent_1,agent_2=agent_2")
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    found = load_policy(saved).rl_module.get_state()
    for module_id, state in Algorithm.from_checkpoint(saved).rl_module.get_state().items():
        assert all(torch.equal(value, found[module_id][name]) for name, value in state.items())
