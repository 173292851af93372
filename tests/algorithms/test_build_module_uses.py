"""Modules for acting only, and modules that nobody acts by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors import (
    Columns,
    DefaultPPORLModule,
    InferenceOnlyAPI,
    MultiRLModuleSpec,
    PPOConfig,
    RLModule,
    RLModuleSpec,
    ValueFunctionAPI,
    load_policy,
)
from marl_connectors.errors import ConfigError

OBS, ACT = spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.Discrete(5)


class Unaware(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """Builds everything, whatever it is for."""

    def setup(self):
        self.encoder = nn.ModuleDict({"pi": nn.Linear(5, 4), "vf": nn.Linear(5, 4)})
        self.pi, self.vf = nn.Linear(4, 5), nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(self.encoder["pi"](batch[Columns.OBS]))}

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.encoder["vf"](batch[Columns.OBS])).squeeze(-1) * self.scale

    def get_non_inference_attributes(self):
        return ["vf", "encoder.vf", "scale", "aux", "aux.head"]


def make_config(specs, trained=None, mapping="agent_*=main"):
    return (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": 2})
        .multi_agent(policies=list(specs), policy_mapping_fn=mapping, policies_to_train=trained)
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs), model_config={"fcnet_hiddens": [4]})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1)
    )


def test_what_acting_does_not_need_is_taken_out():
    names = {name for name, _ in RLModuleSpec(Unaware, OBS, ACT, inference_only=True).build().named_parameters()}
    assert names == {f"{layer}.{kind}" for layer in ("encoder.pi", "pi") for kind in ("weight", "bias")}
    assert "vf.weight" in dict(RLModuleSpec(Unaware, OBS, ACT).build().named_parameters())


def test_a_spec_for_all_modules_makes_each_for_acting_only():
    specs = {name: RLModuleSpec(DefaultPPORLModule, OBS, ACT, model_config={"fcnet_hiddens": [4]}) for name in "ab"}
    for module in MultiRLModuleSpec(rl_module_specs=specs, inference_only=True).build().values():
        assert module.inference_only and not hasattr(module, "vf")


def test_a_module_for_acting_only_acts_untrained_beside_one_that_is_trained():
    specs = {"main": RLModuleSpec(), "fixed": RLModuleSpec(inference_only=True)}
    algo = make_config(specs, ["main"], "agent_0=main,agent_1=fixed").build_algo()
    assert list(algo.train()["learners"]) == ["main"]
    assert not hasattr(algo.get_module("fixed"), "vf")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (RLModuleSpec(inference_only=True), r"(?s)'main'.*inference_only"),
        (RLModuleSpec(learner_only=True), r"(?s)'main'.*learner_only.*'agent_0'"),
    ],
)
def test_a_module_for_something_else_is_refused(spec, words):
    with pytest.raises(ConfigError, match=words):
        make_config({"main": spec}).build_algo()


def test_a_policy_does_without_modules_that_nobody_acts_by(tmp_path):
    algo = make_config({"main": RLModuleSpec(), "model": RLModuleSpec(learner_only=True)}).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    assert list(policy.rl_module) == ["main"]
    assert policy(np.zeros(5, np.float32), "agent_0") in range(5)
