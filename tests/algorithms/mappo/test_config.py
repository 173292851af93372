"""MAPPO: critics that see all agents, in training only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from helpers.envs.scripted_envs import BOX, LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import (
    Algorithm,
    Columns,
    ConfigError,
    DefaultModelConfig,
    DefaultPPORLModule,
    MAPPOConfig,
    MAPPOModelConfig,
    ModuleError,
    RLModule,
    RLModuleSpec,
    TorchModule,
    ValueFunctionAPI,
)
from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule
from marl_connectors.connectors.learner.general_advantage_estimation import compute_values


def config_of(policies="independent", **model_config):
    config = small_config(lambda: LifeEnv(agents="ab", die=0.2), algorithm=MAPPOConfig).multi_agent(policies=policies)
    config.training(vf_clip_param=1e6)
    return config.rl_module(model_config={"fcnet_hiddens": (4,), **model_config})


def weights(algo):
    return {f"{m} {k}": v.clone() for m, s in algo.rl_module.get_state().items() for k, v in s.items()}


@pytest.mark.parametrize("policies", ["independent", "shared"])
def test_policies_and_critics_learn(policies):
    algo = config_of(policies).build_algo()
    before = weights(algo)
    for _ in range(3):
        result = algo.train()
    changed = {key for key, value in weights(algo).items() if not torch.equal(value, before[key])}
    assert changed == set(before)
    assert all(np.isfinite(figures["vf_loss"]) for figures in result["learners"].values())


def test_a_critic_sees_the_other_agent_and_the_policy_does_not():
    algo = config_of().build_algo()
    module = algo.get_module("a")
    size = module.model_config.critic_inputs
    assert size == 2 + 2 + 2 + 2
    batch = {Columns.OBS: torch.zeros(1, 2), Columns.CRITIC_OBS: torch.zeros(1, size)}
    other = {**batch, Columns.CRITIC_OBS: torch.eye(size)[2:3]}  # something that agent b sees
    assert not torch.equal(module.compute_values(batch), module.compute_values(other))
    out, out_other = module.forward_train(batch), module.forward_train(other)
    torch.testing.assert_close(out[Columns.ACTION_DIST_INPUTS], out_other[Columns.ACTION_DIST_INPUTS], rtol=0, atol=0)
    algo.env_runner.sample(num_timesteps=2)
    assert Columns.CRITIC_OBS not in algo.env_runner._plan._bound().given[0]


def test_agents_stand_in_the_order_of_possible_agents():
    agents = ["z", "a10", "a2"]
    script = [[Step(dict(zip(agents, (t, t + 1, t + 2), strict=True))) for t in (1, 2, 3)]]
    script[0][-1].terminated = tuple(agents)
    config = small_config(lambda: ScriptEnv(script, possible_agents=agents), algorithm=MAPPOConfig)
    algo = config.multi_agent(policies="shared").rl_module(model_config={"fcnet_hiddens": (4,)}).build_algo()
    batch = algo.learner.make_batch(algo.env_runner.sample(num_episodes=1)).groups[0]
    row = batch[Columns.CRITIC_OBS][0].tolist()
    assert row[:6] == [1, 0, 2, 0, 3, 0]
    whose = agents.index(batch.rows.episodes[0].agent_id)
    assert row[9:] == [float(i == whose) for i in range(3)]


def test_modules_in_a_bucket_have_the_values_of_each_alone():
    algo = config_of().build_algo()
    assert len(algo.rl_module.buckets) == 1
    episodes = algo.env_runner.sample(num_timesteps=20)
    pipeline = algo.learner.pipeline
    alone = algo.rl_module["b"].compute_values
    pipeline.remove("GeneralAdvantageEstimation")
    batch = algo.learner.make_batch(episodes)
    (group,) = batch.groups
    expected = alone(dict(list(group.module_columns())[1][1])).detach().numpy()
    begin, end = group.splits[1:3]
    np.testing.assert_allclose(compute_values(algo.rl_module, group)[begin:end].numpy(), expected, atol=1e-6)


def test_a_module_for_acting_has_no_critic():
    config = MAPPOModelConfig(fcnet_hiddens=(4,), critic_inputs=5)
    module = DefaultMAPPORLModule(
        observation_space=BOX, action_space=LifeEnv().action_space("a"), inference_only=True, model_config=config
    )
    assert not hasattr(module, "vf")
    with pytest.raises(ModuleError, match=r"(?s)critic_inputs=0.*MAPPOConfig"):
        DefaultMAPPORLModule(observation_space=BOX, action_space=LifeEnv().action_space("a"), model_config={})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "model_config", [{"critic_hiddens": (7,)}, MAPPOModelConfig(fcnet_hiddens=(4,), critic_hiddens=(7,))]
)
def test_the_critic_has_layers_of_its_own_and_comes_back_from_a_checkpoint(model_config, tmp_path):
    config = small_config("marl_envs.match_v0", algorithm=MAPPOConfig).multi_agent(policies="independent")
    algo = config.rl_module(model_config=model_config).build_algo()
    algo.train()
    (module_id, *_) = algo.rl_module.keys()
    assert algo.get_module(module_id).vf_encoder.output_dim == 7
    algo.save_to_path(tmp_path / "checkpoint")
    restored = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    for key, value in weights(algo).items():
        assert torch.equal(value, weights(restored)[key])
    algo.train()
    restored.train()
    for key, value in weights(algo).items():
        assert torch.equal(value, weights(restored)[key]), key


class Team(RLModule, ValueFunctionAPI):
    """The user's own."""

    def setup(self):
        self.policy = nn.Linear(2, 3)
        self.critic = nn.Linear(self.model_config["critic_inputs"], 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.critic(batch[Columns.CRITIC_OBS]).squeeze(-1)


def test_a_module_of_the_users_own_is_told_how_much_its_critic_sees():
    config = small_config(lambda: LifeEnv(agents="abc"), algorithm=MAPPOConfig)
    config.training(vf_clip_param=1e6)
    algo = config.rl_module(rl_module_spec=RLModuleSpec(Team), model_config={}).build_algo()
    before = weights(algo)
    algo.train()
    assert algo.get_module().critic.in_features == 3 * 2 + 3 + 3
    assert not torch.equal(weights(algo)["default_policy critic.weight"], before["default_policy critic.weight"])


def test_without_a_critic_there_is_nothing_to_centralise():
    with pytest.raises(ConfigError, match="use_critic"):
        config_of().training(use_critic=False).build_algo()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_policy_with_a_memory_has_no_critic_with_one(kind):
    algo = config_of("shared", **{f"use_{kind}": True, f"{kind}_cell_size": 4, "max_seq_len": 3}).build_algo()
    module = algo.get_module()
    assert module.is_stateful() and set(module.get_initial_state()) <= {"h", "c"}
    before = weights(algo)
    algo.train()
    assert {key for key, value in weights(algo).items() if not torch.equal(value, before[key])} == set(before)


@dataclasses.dataclass
class Widths:
    critic_inputs: int = 0
    width: int = 6


@dataclasses.dataclass
class NoPlace:
    width: int = 6


class TeamOfDataclass(Team):
    def setup(self):
        self.policy = nn.Linear(2, 3)
        self.critic = nn.Linear(self.model_config.critic_inputs, 1)


class OwnHead(DefaultPPORLModule):
    """PPO's module with another critic."""

    def setup(self):
        super().setup()
        self.critic = nn.Linear(self.model_config.critic_inputs, 1)

    def compute_values(self, batch, embeddings=None):
        return self.critic(batch[Columns.CRITIC_OBS]).squeeze(-1)


def linear(space, num_outputs):
    return nn.Linear(space.shape[0], num_outputs)


@pytest.mark.parametrize(
    ("cls", "model_config", "critic"),
    [
        (Team, None, "critic"),
        (Team, {"mine": 1}, "critic"),
        (TeamOfDataclass, Widths(), "critic"),
        (TeamOfDataclass, DefaultModelConfig(fcnet_hiddens=(4,)), "critic"),
        (OwnHead, None, "critic"),
        (OwnHead, {"fcnet_hiddens": (4,)}, "critic"),
        (TorchModule, {"policy": linear, "value": linear}, "value"),
    ],
)
def test_every_kind_of_module_config_says_how_much_the_critic_sees(cls, model_config, critic):
    config = small_config(lambda: LifeEnv(agents="abc"), algorithm=MAPPOConfig).rl_module(model_config=model_config)
    algo = config.training(vf_clip_param=1e6).rl_module(rl_module_spec=RLModuleSpec(cls)).build_algo()
    before = weights(algo)
    algo.train()
    assert getattr(algo.get_module(), critic).in_features == 3 * 2 + 3 + 3
    name = f"default_policy {critic}.weight"
    assert not torch.equal(weights(algo)[name], before[name])


def test_a_module_config_without_a_place_for_it_is_named():
    config = small_config(lambda: LifeEnv(agents="abc"), algorithm=MAPPOConfig).rl_module(
        rl_module_spec=RLModuleSpec(TeamOfDataclass, model_config=NoPlace())
    )
    with pytest.raises(ConfigError, match=r"(?s)TeamOfDataclass.*model_config.*NoPlace.*critic_inputs.*int = 0"):
        config.build_algo()
