"""Modules with layers in common are trained by the losses of all of them together."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.shared_layers import AGENTS, Heads, LayersBeside, Sharing, sharing_config
from marl_connectors import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import LearnerError
from marl_connectors.typing import SHARED


class Encoder(RLModule):
    def setup(self):
        self.layer = nn.Linear(self.observation_space.shape[0], 4)

    def _forward(self, batch, **kwargs):
        return {"embeddings": torch.tanh(self.layer(batch["obs"]))}


class ModuleBeside(MultiRLModule):
    """The encoder is a module without agents, as in RLlib's example: one method for each purpose."""

    def _encoded(self, batch, method, **kwargs):
        outputs = {}
        for module_id, columns in batch.items():
            columns["embeddings"] = self._rl_modules["encoder"]._forward(columns)["embeddings"]
            outputs[module_id] = getattr(self._rl_modules[module_id], method)(columns, **kwargs)
        return outputs

    def _forward_inference(self, batch, **kwargs):
        return self._encoded(batch, "_forward_inference", **kwargs)

    def _forward_exploration(self, batch, **kwargs):
        return self._encoded(batch, "_forward_exploration", **kwargs)

    def _forward_train(self, batch, **kwargs):
        return self._encoded(batch, "_forward_train", **kwargs)


class OneLayerForAll(DefaultPPORLModule):
    """The first two modules hold the same layer object; they run by themselves."""

    stackable = True


KINDS = {
    "layers": (LayersBeside, {}),
    "module": (ModuleBeside, {"encoder": RLModuleSpec(module_class=Encoder)}),
    "held by two": (Sharing, {}),
}


def build(kind, policies_to_train=None, learner_class=PPOLearner, **training):
    multi_class, others = KINDS[kind]
    module_class = OneLayerForAll if kind == "held by two" else Heads
    config = sharing_config(multi_class, module_class, others).multi_agent(policies_to_train=policies_to_train)
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=10)
    return config.learners(learner_class=learner_class).training(**{"num_epochs": 2, **training}).build_algo()


def encoder_of(algo, kind):
    multi = algo.rl_module
    return {
        "layers": lambda: multi.encoder,
        "module": lambda: multi["encoder"],
        "held by two": lambda: multi["agent_0"].encoder,
    }[kind]()


def flat(module):
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_equals_one_of_adam_on_the_sum_of_all_losses(kind):
    algo = build(kind, num_epochs=1, minibatch_size=None, use_kl_loss=False)
    episodes = algo.env_runner.sample()
    learner = algo.learner
    batch = learner.make_batch(episodes)
    by_hand = copy.deepcopy(algo.rl_module)
    by_hand._buckets = []
    adam = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
    columns = {}
    for step in learner._steps(batch):
        for minibatch in step.minibatches:
            for i, module_id in enumerate(minibatch.module_ids):
                rows = {name: minibatch.columns[name] for name in minibatch.columns}
                columns[module_id] = {k: v[i] for k, v in rows.items()} if minibatch.is_stacked else rows
    assert set(columns) == set(AGENTS)
    outputs = by_hand.forward_train(columns)
    loss = 0.0
    for module_id, rows in columns.items():
        now = torch.distributions.Categorical(logits=outputs[module_id]["action_dist_inputs"])
        ratio = (now.log_prob(rows["actions"]) - rows["action_logp"]).exp()
        gains = rows["advantages"]
        loss = loss - torch.minimum(gains * ratio, gains * ratio.clamp(0.7, 1.3)).mean()
        values = by_hand[module_id].compute_values(rows, embeddings=outputs[module_id].get("embeddings"))
        loss = loss + (values - rows["value_targets"]).square().clamp(max=10.0).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    learner.update(episodes=episodes)
    for module_id in by_hand:
        torch.testing.assert_close(flat(algo.rl_module[module_id]), flat(by_hand[module_id]), atol=2e-5, rtol=0)
    torch.testing.assert_close(flat(algo.rl_module), flat(by_hand), atol=2e-5, rtol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_a_checkpoint(kind, tmp_path):
    algo, again = build(kind), build(kind)
    start = flat(encoder_of(algo, kind))
    algo.train()
    assert not torch.equal(flat(encoder_of(algo, kind)), start)
    algo.save_to_path(tmp_path / "c")
    again.restore_from_path(tmp_path / "c")
    assert algo.train()["learners"] == again.train()["learners"]
    assert torch.equal(flat(algo.rl_module), flat(again.rl_module))


def test_who_holds_what_decides_who_is_trained_together():
    algo = build("held by two")
    assert algo.rl_module.joint_modules() == ["agent_0", "agent_1"]
    assert [bucket.module_ids for bucket in algo.rl_module.buckets] == [("agent_2",)]
    algo.train()
    assert algo.rl_module["agent_0"].encoder is algo.rl_module["agent_1"].encoder
    assert torch.equal(flat(algo.rl_module["agent_0"].encoder), flat(algo.rl_module["agent_1"].encoder))
    assert set(algo.learner.optimizers.get_state()) == {*AGENTS, SHARED}
    assert build("layers").rl_module.joint_modules() == list(AGENTS)


def test_what_was_shared_goes_on_with_the_one_that_is_left():
    algo = build("held by two")
    algo.train()
    encoder = algo.rl_module["agent_1"].encoder
    moments = algo.learner.optimizers.get_state()[SHARED].adam[0].exp_avg
    algo.learner.remove_module("agent_0")
    assert SHARED not in algo.learner.optimizers.get_state()
    assert algo.rl_module.joint_modules() == []
    assert moments.abs().sum() > 0
    algo.env_runner.set_policy_mapping_fn(lambda agent_id, episode, **kw: "agent_1")
    algo.env_runner.restart_episodes()
    before = flat(encoder)
    algo.train()
    assert (flat(encoder) != before).all(), "the encoder is trained as a part of agent_1 now"


def without_agents(module_id, batch):
    assert set(batch) == set(AGENTS)
    return module_id in batch


@pytest.mark.few(1)
@pytest.mark.parametrize("policies_to_train", [AGENTS, without_agents])
def test_a_module_beside_that_is_not_to_be_trained_stays(policies_to_train):
    algo = build("module", policies_to_train=policies_to_train)
    encoder, heads = flat(algo.rl_module["encoder"]), flat(algo.rl_module["agent_0"])
    assert set(algo.train()["learners"]) == set(AGENTS)
    assert torch.equal(flat(algo.rl_module["encoder"]), encoder)
    assert not torch.equal(flat(algo.rl_module["agent_0"]), heads)


def test_modules_with_less_data_take_no_part_in_the_last_steps():
    algo = build("layers", num_epochs=1, minibatch_size=10)
    episodes = algo.env_runner.sample()
    for episode in episodes[4:]:
        del episode.agent_episodes["agent_1"]
    batch = algo.learner.make_batch(episodes)
    taken = [tuple(m.module_ids[0] for m in step.minibatches) for step in algo.learner._steps(batch)]
    assert taken == [AGENTS] * 2 + [("agent_0", "agent_2")] * 2
    orders = [[m.columns["obs"] for m in step.minibatches] for step in algo.learner._steps(batch)]
    assert all(len(parts[0]) == len(parts[-1]) for parts in orders)
    results = algo.learner.update(episodes=episodes)
    assert results["agent_1"]["num_module_steps_trained"] == 20
    assert results["agent_0"]["num_module_steps_trained"] == 40


def test_joint_modules_go_through_equally_many_rows_in_one_order():
    algo = build("layers", num_epochs=1, minibatch_size=10)
    batch = algo.learner.make_batch(algo.env_runner.sample())
    (group,) = batch.groups
    group["row"] = torch.arange(len(group["obs"]))
    for step in algo.learner._steps(batch):
        first, *others = [m.columns["row"] % 40 for m in step.minibatches]
        assert all(torch.equal(first, other) for other in others)
        assert first.tolist() != sorted(first.tolist())


def test_a_state_of_other_shared_layers_is_refused():
    one, other = build("layers"), build("layers")
    state = one.rl_module.get_state()
    state[SHARED]["encoder.bias"] = torch.zeros(9)
    with pytest.raises(Exception, match="architecture"):
        other.rl_module.set_state(state)


class Eyes(MultiRLModule):
    """Modules that were built for what an encoder of all makes of their observations."""

    def setup(self):
        super().setup()
        self.encoder = nn.Linear(2, 8)

    def _forward(self, batch, *, purpose, **kwargs):
        encoded = {m: {"obs": self.encoder(columns["obs"]).tanh()} for m, columns in batch.items()}
        return super()._forward(encoded, purpose=purpose, **kwargs)


def test_modules_behind_an_encoder_have_the_space_of_what_it_gives():
    box = spaces.Box(-1.0, 1.0, (8,), np.float32)
    spec = RLModuleSpec(DefaultPPORLModule, box, spaces.Discrete(3), model_config={"fcnet_hiddens": (4,)})
    config = small_config(LifeEnv).multi_agent(policies="shared")
    config.rl_module(rl_module_spec=MultiRLModuleSpec(Eyes, rl_module_specs={"default_policy": spec}))
    algo = config.build_algo()
    before = algo.rl_module.encoder.weight.clone()
    algo.train()
    assert not torch.equal(before, algo.rl_module.encoder.weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_stays_frozen_in_a_checkpoint(kind):
    algo = build(kind)
    algo.train()
    encoder_of(algo, kind).requires_grad_(False)
    state, other = algo.get_state(), build(kind)
    other.set_state(state)
    before = flat(encoder_of(other, kind))
    other.train()
    assert torch.equal(flat(encoder_of(other, kind)), before)


class NotANumber(PPOLearner):
    """A term that is 0 and has a slope that is no number, of the shared layers alone."""

    def compute_loss_for_module(self, **kwargs):
        weight = next(p for name, p in self.module.named_parameters() if "encoder" in name)
        return super().compute_loss_for_module(**kwargs) + (weight * 0.0).sum().sqrt()


@pytest.mark.parametrize(
    ("kind", "who"),
    [("layers", "the shared layers"), ("module", "module 'encoder'"), ("held by two", "the shared layers")],
)
def test_shared_layers_with_a_bad_gradient_are_named(kind, who):
    algo = build(kind, learner_class=NotANumber)
    before = flat(encoder_of(algo, kind))
    match = rf"(?s)gradients_global_norm.*{who}.*\bnan\b.*update 1.*epoch 1.*minibatch 1"
    with pytest.raises(LearnerError, match=match):
        algo.train()
    assert torch.equal(flat(encoder_of(algo, kind)), before)


class InPlace(MultiRLModule):
    """The encoder's outputs take the place of observations, in the columns that it was given."""

    def setup(self):
        super().setup()
        self.encoder = nn.Linear(3, 5)

    def _forward(self, batch, **kwargs):
        for columns in batch.values():
            columns["obs"] = torch.tanh(self.encoder(columns["obs"]))
        return super()._forward(batch, **kwargs)


class InNewColumns(InPlace):
    """The same, in a dict of its own."""

    def _forward(self, batch, **kwargs):
        encoded = {m: {"obs": torch.tanh(self.encoder(columns["obs"]))} for m, columns in batch.items()}
        return MultiRLModule._forward(self, encoded, **kwargs)


class Apart(DefaultPPORLModule):
    """Its values share no layers with its policy; notes of what they are."""

    valued: list = []

    def compute_values(self, batch, embeddings=None):
        self.valued.append((batch["obs"].detach(), batch["obs"].requires_grad, batch["rewards"]))
        return super().compute_values(batch, embeddings=embeddings)


def test_values_are_of_what_the_encoder_gave_the_policy():
    runs = []
    for multi_class in (InPlace, InNewColumns):
        Apart.valued.clear()
        config = sharing_config(multi_class, Apart)
        seen = spaces.Box(-1.0, 1.0, (5,), np.float32)
        specs = {agent: RLModuleSpec(Apart, seen, model_config={"vf_share_layers": False}) for agent in AGENTS}
        config.rl_module(rl_module_spec=MultiRLModuleSpec(multi_class, rl_module_specs=specs))
        algo = config.build_algo()
        encoded = torch.tanh(algo.rl_module.encoder(torch.eye(3))).detach()  # of each of the three observations
        algo.train()
        assert all(obs.shape[-1] == 5 and obs.abs().max() < 1.0 for obs, _, _ in Apart.valued)
        assert any(has_gradient for _, has_gradient, _ in Apart.valued)
        obs, _, _ = Apart.valued[0]  # for advantages, before any step
        assert all(any(torch.allclose(row, known) for known in encoded) for row in obs)
        runs.append(algo.rl_module.get_state())
    for one, other in zip(*(run.values() for run in runs), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
