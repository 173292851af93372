"""A MultiRLModule of one's own acts from a checkpoint as it did in training, with what its modules have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.modules.shared_layers import AGENTS, Heads, LayersBeside, Sharing, sharing_config
from marl_connectors import Algorithm, MultiRLModule, MultiRLModuleSpec, load_policy
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.checkpoints import save_state
from marl_connectors.errors import ModuleError
from marl_connectors.typing import SHARED


class Plain(DefaultPPORLModule):
    """Runs by itself."""


class Careless(MultiRLModule):
    asks = False

    def setup(self):
        super().setup()
        if self.asks:
            {}["a name of its own"]


@pytest.mark.parametrize(("multi_class", "module_class"), [(LayersBeside, Heads), (Sharing, Plain)])
@pytest.mark.parametrize("module_id", [None, "agent_2"])
def test_a_policy_has_the_layers_that_modules_share(multi_class, module_class, module_id, tmp_path):
    algo = sharing_config(multi_class, module_class).build_algo()
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


def test_an_error_of_the_setup_is_not_taken_for_one_of_the_checkpoint(tmp_path, monkeypatch):
    saved = sharing_config(Careless, Plain).build_algo().save_to_path(tmp_path / "c")
    monkeypatch.setattr(Careless, "asks", True)
    with pytest.raises(KeyError, match="its own"):
        load_policy(saved, config=sharing_config(Careless, Plain))


@pytest.mark.parametrize("by_spec", [True, False])
def test_shared_layers_come_along_with_the_modules_to_load(by_spec, tmp_path):
    source = sharing_config(LayersBeside, Heads).debugging(seed=5).build_algo().rl_module
    save_state(tmp_path / "m", source.get_state())
    some = {"load_state_path": tmp_path / "m", "modules_to_load": ["agent_1"]}
    if by_spec:
        spec = MultiRLModuleSpec.from_module(source)
        spec.load_state_path, spec.modules_to_load = some.values()
        loaded = spec.build()
    else:
        loaded = sharing_config(LayersBeside, Heads, **some).build_algo().rl_module
    expected, found = source.get_state(), loaded.get_state()
    same = {m for m in expected if all(torch.equal(value, found[m][name]) for name, value in expected[m].items())}
    assert same == {"agent_1", SHARED}


def test_a_module_alone_can_be_loaded_where_nothing_is_shared(tmp_path):
    source = sharing_config(LayersBeside, Heads).build_algo().rl_module
    save_state(tmp_path / "m", source.get_state())
    spec = MultiRLModuleSpec.from_module(source)
    spec.multi_rl_module_class, spec.load_state_path, spec.modules_to_load = None, tmp_path / "m", ["agent_1"]
    assert torch.equal(spec.build().get_state()["agent_1"]["pi.weight"], source.get_state()["agent_1"]["pi.weight"])
    spec.modules_to_load = ["agent_1", "agnt_2"]
    with pytest.raises(ModuleError, match=r"(?s)modules_to_load.*'agnt_2'.*'agent_2'"):
        spec.build()


def test_a_module_that_was_added_later_shares_them_too(tmp_path):
    algo = sharing_config(LayersBeside, Heads).build_algo()
    algo.add_module("late", new_agent_to_module_mapping_fn="agent_0=late,agent_1=agent_1,agent_2=agent_2")
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    found = load_policy(saved).rl_module.get_state()
    for module_id, state in Algorithm.from_checkpoint(saved).rl_module.get_state().items():
        assert all(torch.equal(value, found[module_id][name]) for name, value in state.items())
