"""What the forward passes of an RLModule do to action masks, and specs of modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors import RLModule, RLModuleSpec
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.rl_module import is_trainable

LOGITS = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
BATCH = {
    "obs": torch.zeros(2, 1),
    "action_mask": torch.tensor([[True, False, True], [True, True, True]]),
}
PASSES = ["forward_inference", "forward_exploration", "forward_train"]


class Plain(RLModule):
    """Outputs the same logits for all rows."""

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": LOGITS}


class Lenient(Plain):
    """Takes care of masks itself, and lets forbidden actions be rare instead of impossible."""

    handles_action_masks = True

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": LOGITS - 5.0 * batch["action_mask"].logical_not()}


def module_of(cls):
    return cls(spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(3))


@pytest.mark.parametrize("forward", PASSES)
def test_forbidden_actions_become_impossible(forward):
    inputs = getattr(module_of(Plain), forward)(BATCH)["action_dist_inputs"]
    probabilities = torch.softmax(inputs, -1)
    torch.testing.assert_close(probabilities[0], torch.softmax(torch.tensor([1.0, -torch.inf, 3.0]), -1))
    torch.testing.assert_close(inputs[1], LOGITS[1])


@pytest.mark.parametrize("forward", PASSES)
def test_a_module_that_handles_masks_itself_is_not_masked_again(forward):
    inputs = getattr(module_of(Lenient), forward)(BATCH)["action_dist_inputs"]
    assert inputs.tolist() == [[1.0, -3.0, 3.0], [1.0, 2.0, 3.0]]


@pytest.mark.parametrize("cls", [Plain, Lenient])
def test_the_mask_is_among_the_outputs_for_acting_so_that_it_is_recorded(cls):
    module = module_of(cls)
    for forward in PASSES[:2]:
        assert torch.equal(getattr(module, forward)(BATCH)["action_mask"], BATCH["action_mask"])


BOX, TWO, THREE = spaces.Box(-1, 1, (2,)), spaces.Discrete(2), spaces.Discrete(3)


@pytest.mark.parametrize(("override", "expected"), [(True, (BOX, THREE, {"b": 2})), (False, (BOX, TWO, {"a": 1}))])
def test_a_spec_is_updated_with_what_another_one_sets(override, expected):
    spec = RLModuleSpec(action_space=TWO, model_config={"a": 1})
    spec.update(
        RLModuleSpec(observation_space=BOX, action_space=THREE, model_config={"b": 2}, inference_only=True), override
    )
    assert (spec.observation_space, spec.action_space, spec.model_config) == expected
    assert spec.inference_only is override and spec.module_class is None


def test_a_spec_is_updated_with_a_spec_only():
    with pytest.raises(ModuleError, match=r"(?s)RLModuleSpec.update.*RLModuleSpec"):
        RLModuleSpec().update({"model_config": {}})


def test_a_spec_becomes_the_spec_of_one_module():
    spec = RLModuleSpec(action_space=TWO)
    assert spec.as_multi_rl_module_spec().rl_module_specs == {"default_policy": spec}


@pytest.mark.parametrize("thawed", [None, "0.weight", "1.a.bias", "own"])
def test_a_module_is_trainable_if_one_of_its_parameters_is_not_frozen(thawed):
    module = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Identity()}))
    module.register_module("none", None)
    module.register_parameter("nothing", None)
    module.own = nn.Parameter(torch.zeros(1))
    module.requires_grad_(False)
    if thawed is not None:
        module.get_parameter(thawed).requires_grad_(True)
    assert is_trainable(module) is any(p.requires_grad for p in module.parameters()) is (thawed is not None)
