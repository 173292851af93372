"""A loaded policy holds what acting needs, and acts exactly as the run's own modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from marl_connectors import (
    Algorithm,
    Columns,
    DefaultDQNRLModule,
    DefaultPPORLModule,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MATD3Config,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
    load_policy,
)

SMALL = {"fcnet_hiddens": [8]}
RECURRENT = {**SMALL, "use_gru": True, "gru_cell_size": 4, "max_seq_len": 4}
OWN = {**SMALL, "vf_share_layers": False}
OFF = {"num_steps_sampled_before_learning_starts": 8}
ON = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 1}
CASES = {
    "ppo": (PPOConfig, SMALL, ON, ["vf."]),
    "ppo with layers of its own for values": (PPOConfig, OWN, ON, ["vf.", "vf_encoder."]),
    "ppo with a gru": (PPOConfig, {**RECURRENT, "vf_share_layers": False}, ON, ["vf.", "vf_encoder.", "vf_rnn."]),
    "mappo": (MAPPOConfig, SMALL, ON, ["vf.", "vf_encoder."]),
    "dqn": (DQNConfig, SMALL, OFF, ["vf.", "target_encoder.", "target_af.", "target_vf."]),
    "dqn with a gru": (
        DQNConfig,
        RECURRENT,
        OFF,
        ["vf.", "target_encoder.", "target_rnn.", "target_af.", "target_vf."],
    ),
    "qmix": (QMIXConfig, SMALL, OFF, ["target_encoder.", "target_af."]),
    "sac": (SACConfig, SMALL, OFF, ["qf.", "qf_twin.", "target_qf.", "target_qf_twin.", "log_alpha"]),
    "maddpg": (MADDPGConfig, SMALL, OFF, ["qf.", "target_encoder.", "target_pi.", "target_qf."]),
    "matd3": (MATD3Config, SMALL, OFF, ["qf.", "qf_twin.", "target_qf_twin."]),
}


def built(config_class, model_config, training):
    config = config_class().environment("marl_envs.match_v0", env_config={"n_agents": 3})
    config.multi_agent(policies="agent_0=red,agent_*=blue").rl_module(model_config=model_config).training(**training)
    if hasattr(config, "min_sample_timesteps_per_iteration"):
        config.reporting(min_sample_timesteps_per_iteration=20)
    return config.debugging(seed=0)


def played(policy, rows):
    policy.reset()
    return [policy.actions({f"agent_{i}": row[i] for i in range(3)}) for row in rows]


def whole(path, monkeypatch):
    """The same policy with all layers."""
    with monkeypatch.context() as patch:
        patch.setattr("marl_connectors.algorithms.inference.load_policy._says_what_acts", lambda cls: False)
        return load_policy(path, explore=True, seed=3)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_what_only_training_needs_is_left_out_and_actions_are_the_same(name, tmp_path, monkeypatch):
    *made, left_out = CASES[name]
    algo = built(*made).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "c"), explore=True, seed=3)
    kept = {module_id: set(module.state_dict()) for module_id, module in policy.rl_module.items()}
    for module_id, module in algo.rl_module.items():
        everything = module.state_dict()
        gone = everything.keys() - kept[module_id]
        assert all(any(known.startswith(path) for known in gone) for path in left_out)
        assert not any(own.startswith(tuple(left_out)) for own in kept[module_id])
        for own, value in policy.rl_module[module_id].state_dict().items():
            assert torch.equal(value, everything[own])
    space = algo.env_runner.vector_env.envs[0].observation_space("agent_0")
    rows = [[space.sample() for _ in range(3)] for _ in range(30)]
    full = whole(tmp_path / "c", monkeypatch)
    assert sum(p.numel() for p in full.rl_module.parameters()) > sum(p.numel() for p in policy.rl_module.parameters())
    assert played(policy, rows) == played(full, rows)
    for module_id, module in policy.rl_module.items():
        assert module.is_stateful() == algo.rl_module[module_id].is_stateful()
    algo.stop()


class Valued(DefaultPPORLModule):
    """Acts on its value estimates, although it does not say so."""

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch, **kwargs)
        return {
            **outputs,
            Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS] + self.compute_values(batch)[:, None],
        }


class Slow(DefaultDQNRLModule):
    """Has a target network that it does not name among what acting does not need."""

    def setup(self):
        super().setup()
        self.aux = nn.Linear(2, 2)

    def make_target_networks(self):
        super().make_target_networks()
        self.follower = copy.deepcopy(self.aux).requires_grad_(False)

    def get_target_network_pairs(self):
        return [*super().get_target_network_pairs(), (self.aux, self.follower)]

    def get_non_inference_attributes(self):
        return super().get_non_inference_attributes()


class Together(MultiRLModule):
    """May call anything of its modules when acting."""

    def _forward(self, batch, **kwargs):
        found = {}
        for module_id, own in batch.items():
            outputs = self[module_id].forward_inference(own)
            values = self[module_id].compute_values(own)[:, None]
            found[module_id] = {Columns.ACTION_DIST_INPUTS: outputs[Columns.ACTION_DIST_INPUTS] * values}
        return found


@pytest.mark.parametrize(
    ("config_class", "spec", "is_whole"),
    [
        (PPOConfig, RLModuleSpec(Valued), True),
        (PPOConfig, MultiRLModuleSpec(Together, rl_module_specs={"red": RLModuleSpec(), "blue": RLModuleSpec()}), True),
        (DQNConfig, RLModuleSpec(Slow), False),
    ],
    ids=["a subclass with another forward pass", "a common forward pass", "a target network that is not named"],
)
def test_modules_of_your_own_act_as_in_training(config_class, spec, is_whole, tmp_path):
    config = built(config_class, SMALL, ON if config_class is PPOConfig else OFF).rl_module(rl_module_spec=spec)
    algo = config.build_algo()
    path = algo.save_to_path(tmp_path / "c")
    policy = load_policy(path, config=config)
    sizes = [sum(p.numel() for p in modules.parameters()) for modules in (algo.rl_module, policy.rl_module)]
    assert (sizes[0] == sizes[1]) is is_whole
    space = algo.env_runner.vector_env.envs[0].observation_space("agent_0")
    for _ in range(20):
        obs = {f"agent_{i}": space.sample() for i in range(3)}
        policy.reset()
        actions = policy.actions(obs)
        batch = {"red": {Columns.OBS: torch.as_tensor(obs["agent_0"])[None]}}
        inputs = algo.rl_module.forward_inference(batch)["red"][Columns.ACTION_DIST_INPUTS]
        assert actions["agent_0"] == int(inputs[0, : algo.rl_module["red"].action_space.n].argmax())
    algo.stop()


def test_the_modules_of_a_checkpoint_are_whole_elsewhere(tmp_path):
    algo = built(*CASES["sac"][:3]).build_algo()
    path = algo.save_to_path(tmp_path / "c")
    again = Algorithm.from_checkpoint(path)
    assert again.rl_module.state_dict().keys() == algo.rl_module.state_dict().keys()
    module = MultiRLModule.from_checkpoint(f"{path}/learner_group/learner/rl_module")
    assert hasattr(module["red"], "qf")
    algo.stop(), again.stop()
