"""Errors in a forward pass of the user's own MultiRLModule say whose it is, and the purpose of the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import ModuleError, MultiRLModule, MultiRLModuleSpec, PPOConfig, RLModuleSpec
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

SPEC = RLModuleSpec(DefaultPPORLModule, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))
BATCH = {"a": {"obs": torch.zeros(4, 2)}, "b": {"obs": torch.zeros(1, 2)}}


def built(forward, name="_forward"):
    cls = type("Team", (MultiRLModule,), {name: forward})
    return MultiRLModuleSpec(cls, rl_module_specs={"a": SPEC, "b": SPEC}).build()


def raises_key(self, batch, **kwargs):
    return {m: self[m].forward_train({"obs": columns["seen"]}) for m, columns in batch.items()}


def raises_shape(self, batch, **kwargs):
    return {m: {"action_dist_inputs": columns["obs"] @ torch.zeros(3, 3)} for m, columns in batch.items()}


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (
            raises_key,
            r"KeyError.*'seen'.*errors.py:24.*'a'.*{'obs': \(4, 2\)}.*'b'.*{'obs': \(1, 2\)}",
        ),
        (raises_shape, r"RuntimeError.*mat1.*mat2.*'a'.*{'obs': \(4, 2\)}"),
        (lambda self, batch, **kwargs: [1], r"\blist\b"),
        (lambda self, batch, **kwargs: dict.fromkeys(batch, 3), r"{'a': 'int', 'b': 'int'}"),
        (lambda self, batch, **kwargs: {"b": {}}, r"\['b'\].*'a'"),
    ],
)
def test_a_forward_pass_that_fails_is_named_with_what_it_was_asked_for(forward, message):
    multi = built(forward)
    with pytest.raises(ModuleError, match=f"(?s)^Team.*_forward.*{message}"):
        multi.forward_inference(BATCH)
    with pytest.raises(ModuleError, match=f"(?s)^Team.*_forward.*{message}"):
        multi.forward_train(BATCH)
    multi = built(forward, "_forward_exploration")
    with pytest.raises(ModuleError, match=rf"^Team: its _forward_exploration.*{message}"):
        multi.forward_exploration(BATCH)
    assert set(multi.forward_inference(BATCH)) == {"a", "b"}


def test_errors_of_the_modules_themselves_stay_as_they_are():
    def forward(self, batch, **kwargs):
        return {m: self[m].forward_train({}) for m in batch}

    with pytest.raises(ModuleError, match=r"^module 'a'"):
        built(forward).forward_train(BATCH)

    def not_there(self, batch, **kwargs):
        raise NotImplementedError("later")

    with pytest.raises(NotImplementedError, match="later"):
        built(not_there).forward_train(BATCH)


def test_a_run_says_so_too():
    class Blind(MultiRLModule):
        def _forward_exploration(self, batch, **kwargs):
            return 1 / 0

    config: PPOConfig = small_config(LifeEnv).multi_agent(policies="independent")
    algo = config.rl_module(rl_module_spec=MultiRLModuleSpec(Blind)).build_algo()
    with pytest.raises(ModuleError, match=r"(?s)Blind.*_forward_exploration.*ZeroDivisionError"):
        algo.train()
