"""MultiRLModulePart: the same modules and buckets as those of the whole, but only some."""

from __future__ import annotations

import pytest
from gymnasium import spaces

from marl_connectors import MultiRLModule, MultiRLModuleSpec, RLModuleSpec
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.multi_rl_module_part import MultiRLModulePart

SPEC = RLModuleSpec(
    DefaultPPORLModule, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), model_config={"fcnet_hiddens": (3,)}
)


def whole_and_part():
    whole = MultiRLModuleSpec(rl_module_specs=dict.fromkeys(("a1", "a2", "b"), SPEC)).build()
    return whole, MultiRLModulePart(whole, lambda module_id: module_id.startswith("a"))


def test_a_part_has_the_same_modules_and_buckets():
    whole, part = whole_and_part()
    assert list(part) == ["a1", "a2"]
    assert part["a1"] is whole["a1"]
    assert part.buckets is whole.buckets
    assert [bucket.module_ids for bucket in part.buckets] == [("a1", "a2", "b")]
    named = {name for name, _ in part.named_parameters()}
    assert named == {name for name, _ in whole.named_parameters() if ".b." not in name}
    assert (part.leaves_out("b"), part.leaves_out("a1"), part.leaves_out("c")) == (True, False, False)
    assert not whole.leaves_out("b")
    assert list(part.get_state()) == ["a1", "a2"]


def test_a_part_follows_modules_that_come_and_go():
    whole, part = whole_and_part()
    part.add_module("a3", SPEC.build())
    assert "a3" in whole
    whole.add_module("a4", SPEC.build())
    whole.add_module("b2", SPEC.build())
    part.bind_buckets()
    assert list(part) == ["a1", "a2", "a3", "a4"]
    assert part.remove_module("a1") is not None
    assert "a1" not in whole
    replaced = SPEC.build()
    whole.add_module("a2", replaced, override=True)
    part.bind_buckets()
    assert part["a2"] is replaced
    with pytest.raises(ModuleError, match="'a2'"):
        part.add_module("a2", SPEC.build())


def test_a_part_is_built_again_as_what_the_whole_is():
    class Own(MultiRLModule):
        pass

    whole = MultiRLModuleSpec(Own, rl_module_specs=dict.fromkeys("ab", SPEC)).build()
    made = MultiRLModuleSpec.from_module(MultiRLModulePart(whole, lambda module_id: module_id == "a")).build()
    assert type(made) is Own
    assert list(made) == ["a"]


def test_a_part_moves_with_the_whole():
    import torch

    whole, part = whole_and_part()
    part.to(torch.float64)
    assert {p.dtype for p in whole.parameters()} == {torch.float64}


def test_modules_that_share_parameters_are_in_one_part():
    whole, _ = whole_and_part()
    whole["b"].encoder = whole["a1"].encoder
    whole._buckets = None
    with pytest.raises(ModuleError, match=r"(?s)'a1'.*'b'"):
        MultiRLModulePart(whole, lambda module_id: module_id.startswith("a"))
    together = MultiRLModulePart(whole, lambda module_id: module_id != "a2")
    assert together.joint_modules() == ["a1", "b"]
