"""Updates run in train mode, all else in eval mode; what dropout draws follows from the run's seed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from helpers.envs.scripted_envs import small_config
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.rl_module.torch_module import TorchModule
from marl_envs import match_v0


def dropping(observation_space, num_outputs):
    return nn.Sequential(nn.Linear(observation_space.shape[0], 16), nn.Dropout(0.5), nn.Linear(16, num_outputs))


def normalised(observation_space, num_outputs):
    return nn.Sequential(nn.Linear(observation_space.shape[0], 16), nn.BatchNorm1d(16), nn.Linear(16, num_outputs))


class StackableDropping(DefaultPPORLModule):
    """Stacked, it draws from the stacked module's dropout."""

    stackable = True
    modes: list[tuple[int, bool]] = []

    def setup(self):
        super().setup()
        self.dropout = nn.Dropout(0.5)

    def _action_dist_inputs(self, embeddings):
        self.modes.append((embeddings.dim(), self.dropout.training))
        return super()._action_dist_inputs(self.dropout(embeddings))


class Heads(RLModule, ValueFunctionAPI):
    def setup(self):
        self.pi, self.vf = nn.Linear(4, self.action_space.n), nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["embeddings"])}

    def _forward_train(self, batch, **kwargs):
        return {**self._forward(batch), "embeddings": batch["embeddings"]}

    def compute_values(self, batch, embeddings=None):
        return self.vf(embeddings).squeeze(-1)


class DroppingTogether(MultiRLModule):
    def setup(self):
        super().setup()
        (size,) = self["agent_0"].observation_space.shape
        self.encoder = nn.Sequential(nn.Linear(size, 4), nn.Dropout(0.5))

    def _forward(self, batch, *, purpose, **kwargs):
        outputs = {}
        for module_id, columns in batch.items():
            columns["embeddings"] = self.encoder(columns["obs"])
            outputs[module_id] = getattr(self[module_id], f"_forward_{purpose}")(columns, **kwargs)
        return outputs


def of_torch(network):
    return RLModuleSpec(module_class=TorchModule, model_config={"policy": network, "value": network})


SPECS = {
    "dropout": lambda: of_torch(dropping),
    "batch norm": lambda: of_torch(normalised),
    "stacked": lambda: RLModuleSpec(module_class=StackableDropping),
    "joint": lambda: MultiRLModuleSpec(
        multi_rl_module_class=DroppingTogether,
        rl_module_specs={f"agent_{i}": RLModuleSpec(module_class=Heads) for i in range(3)},
    ),
}


def build(kind, **training):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    config.multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2, rollout_fragment_length=10)
    settings = {"train_batch_size_per_learner": 20, "minibatch_size": 10, "num_epochs": 2}
    config.training(**{**settings, **training})
    return config.rl_module(rl_module_spec=SPECS[kind]()).build_algo()


def state(algo):
    return [value for own in algo.rl_module.get_state().values() for value in own.values()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(state(a), state(b), strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", SPECS)
def test_runs_follow_from_their_seed_before_and_after_a_checkpoint(kind, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        algo = build(kind)
        algo.train()
        torch.manual_seed(2)
        other = build(kind)
        other.train()
        assert equal(algo, other)
        path = algo.save_to_path(tmp_path / "checkpoint")
        torch.manual_seed(3)
        resumed = Algorithm.from_checkpoint(path)
        before = torch.random.get_rng_state()
        for one in (algo, resumed):
            one.train()
        assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(algo, resumed)
    assert not any(module.training for module in algo.rl_module.modules())


def test_each_update_drops_other_numbers():
    algo = build("dropout", lr=0.0, num_epochs=1, shuffle_batch_per_epoch=False, minibatch_size=None)
    episodes = algo.env_runner.sample(num_timesteps=20)
    first, second = (algo.learner.update(episodes=episodes)["agent_0"]["entropy"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("network", [dropping, normalised])
def test_acting_neither_drops_nor_normalises_by_its_batch(network):
    spec = of_torch(network)
    spec.observation_space, spec.action_space = gym.spaces.Box(-1.0, 1.0, (5,), np.float32), gym.spaces.Discrete(2)
    module, obs = spec.build(), torch.eye(5)
    whole = module.forward_exploration({"obs": obs})["action_dist_inputs"]
    rows = [module.forward_inference({"obs": obs[i : i + 1]})["action_dist_inputs"] for i in range(5)]
    torch.testing.assert_close(whole, torch.cat(rows))


def test_the_twin_drops_in_updates_only():
    algo = build("stacked")
    StackableDropping.modes.clear()
    algo.env_runner.sample()
    assert set(StackableDropping.modes) == {(3, False)}
    StackableDropping.modes.clear()
    algo.learner.update(episodes=algo.env_runner.sample())
    assert (3, True) in StackableDropping.modes
    StackableDropping.modes.clear()
    algo.env_runner.sample()
    assert set(StackableDropping.modes) == {(3, False)}


def test_modules_that_somebody_left_in_train_mode_act_in_eval_mode():
    algo = build("stacked")
    algo.rl_module.train()
    algo.rl_module.buckets[0].stacked_module.train()
    StackableDropping.modes.clear()
    algo.env_runner.sample()
    assert set(StackableDropping.modes) == {(3, False)}


def test_batch_norm_learns_its_statistics_in_updates_only():
    algo = build("batch norm")

    def counts():
        return [int(module.policy[1].num_batches_tracked) for module in algo.rl_module.values()]

    algo.env_runner.sample()
    assert counts() == [0, 0, 0]
    algo.train()
    assert counts() == [4, 4, 4]  # two minibatches in two epochs
