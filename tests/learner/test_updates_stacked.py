"""Modules that are updated as one computation end up where each ends up alone, and where float64 says."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.stackable_modules import StackableGRU, StackableLSTM
from marl_connectors import ConnectorV2, RLModuleSpec
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.learner.minibatches import GroupRows, minibatches_of_epoch
from marl_connectors.rl_module.distributions import apply_action_mask
from marl_connectors.seeding import stream
from marl_connectors.trees import tree_map

AGENTS = "abcdefg"
MODULE_OF = {"a": "m0", "b": "m0", "c": "m0", "d": "m1", "e": "m2", "f": "m3", "g": "m4"}
MODULES = ("m0", "m1", "m2", "m3", "m4", "idle")
"""m0 has three agents, so most rows; m3 is frozen in some tests; idle never acts."""

MODELS = {
    "mlp": RLModuleSpec(module_class=DefaultPPORLModule, model_config={"fcnet_hiddens": (5,)}),
    "mlp, own value layers": RLModuleSpec(
        module_class=DefaultPPORLModule, model_config={"fcnet_hiddens": (5,), "vf_share_layers": False}
    ),
    "gru": RLModuleSpec(module_class=StackableGRU, model_config={"max_seq_len": 3}),
    "lstm": RLModuleSpec(module_class=StackableLSTM, model_config={"max_seq_len": 4}),
    "default lstm": RLModuleSpec(
        module_class=DefaultPPORLModule,
        model_config={"fcnet_hiddens": (5,), "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3},
    ),
    "default gru": RLModuleSpec(
        module_class=DefaultPPORLModule,
        model_config={"fcnet_hiddens": (5,), "use_gru": True, "gru_cell_size": 4, "max_seq_len": 3},
    ),
    "default cnn": RLModuleSpec(
        module_class=DefaultPPORLModule, model_config={"fcnet_hiddens": (5,), "conv_filters": [[3, 3, 2]]}
    ),
}
OVERRIDES = {
    "m0": {"clip_param": 0.05, "lr": 3e-3},
    "m1": {"vf_clip_param": 0.01, "grad_clip": 0.02},
    "m2": {"vf_loss_coeff": 2.0, "entropy_coeff": 0.3, "minibatch_size": 3, "vf_loss": "huber", "vf_huber_delta": 0.05},
    "m3": {"kl_coeff": 0.9, "grad_clip": 0.3, "grad_clip_by": "value"},
    "m4": {"use_kl_loss": False, "num_epochs": 1},
}


class Lives(LifeEnv):
    """Agents that die, join late and come back; rewards of about 1."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {a: (r - 100.0) / 20.0 for a, r in rewards.items()}, *rest


class Masks(ConnectorV2):
    """Forbids some actions, never the one that was taken."""

    def columns(self, c, xp):
        actions = c.rows.get("actions")
        mask = np.random.default_rng(0).random((len(actions), 3)) < 0.6
        mask[np.arange(len(actions)), actions] = True
        c["action_mask"] = mask


class Skips(ConnectorV2):
    """Takes a third of the steps out of the loss, all of module m2 among them."""

    def columns(self, c, xp):
        keep = np.random.default_rng(1).random(len(c.rows)) < 0.7
        owners = np.repeat([e.module_id == "m2" for e in c.rows.episodes], c.rows.counts)
        c["loss_mask"] = c["loss_mask"] & keep & ~owners


class Noting(PPOLearner):
    """Keeps the gradients of each module's steps, before they are clipped."""

    def build(self):
        self.noted, self.stacks = {}, set()
        super().build()

    def compute_loss_for_stacked_modules(self, **given):
        self.stacks.add(tuple(given["module_ids"]))
        return super().compute_loss_for_stacked_modules(**given)

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
        self.noted.setdefault(module_id, []).append([gradient.clone() for gradient in module_gradients])
        super().postprocess_gradients_for_module(module_id=module_id, config=config, module_gradients=module_gradients)


def build(model, *, pieces=(), overrides=None, stack=True, **training):
    life = {"agents": list(AGENTS), "die": 0.1, "join": 0.4, "max_steps": 9}
    if model == "default cnn":
        image = spaces.Box(-1.0, 1.0, (5, 5, 2), np.float32)
        life["spaces_of"] = dict.fromkeys(AGENTS, (image, spaces.Discrete(3)))
    config = small_config(Lives, env_config=life)
    config.multi_agent(policies=MODULES, policy_mapping_fn=lambda agent_id, episode, **kw: MODULE_OF[agent_id])
    config.rl_module(rl_module_spec=MODELS[model], algorithm_config_overrides_per_module=overrides or {})
    config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=8)
    config.learners(learner_class=Noting, learner_connector=lambda: [piece() for piece in pieces], stack_modules=stack)
    settings = {"lr": 1e-3, "num_epochs": 2, "minibatch_size": 7, "gamma": 0.9, "lambda_": 0.8, "kl_coeff": 0.3}
    algo = config.training(**{**settings, **training}).build_algo()
    (bucket,) = algo.rl_module.buckets
    assert bucket.module_ids == MODULES
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # so that what was recorded is not what the modules give
        for module in algo.rl_module.values():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return algo


def plain_loss(module, config, batch, kl_coeff):
    """PPO's loss of one module in float64, one line for each equation."""
    mask = batch["loss_mask"] if "loss_mask" in batch else torch.ones_like(batch["advantages"], dtype=torch.bool)
    logits = module.forward_train(batch)["action_dist_inputs"]
    if "action_mask" in batch:
        logits = apply_action_mask(logits, batch["action_mask"])
    now, then = (torch.distributions.Categorical(logits=x[mask]) for x in (logits, batch["action_dist_inputs"]))
    ratio = (now.log_prob(batch["actions"][mask]) - batch["action_logp"][mask]).exp()
    gains = batch["advantages"][mask]
    clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
    error = (module.compute_values(batch)[mask] - batch["value_targets"][mask]) ** 2
    loss = -torch.minimum(gains * ratio, gains * clipped).mean()
    if config.vf_loss == "huber":
        far = config.vf_huber_delta * (2 * error.sqrt() - config.vf_huber_delta)
        value_loss = torch.where(error <= config.vf_huber_delta**2, error, far).mean()
    else:
        value_loss = error.clamp(max=config.vf_clip_param).mean()
    loss += config.vf_loss_coeff * value_loss
    loss -= config.entropy_coeff * now.entropy().mean()
    if config.use_kl_loss:
        loss += kl_coeff * torch.distributions.kl_divergence(then, now).mean()
    return loss


def clip(gradients, config):
    norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
    for gradient in gradients:
        if config.grad_clip is not None and config.grad_clip_by == "value":
            gradient.clamp_(-config.grad_clip, config.grad_clip)
        elif config.grad_clip is not None:
            gradient.mul_(min(1.0, config.grad_clip / (norm + 1e-6)))


class Reference:
    """Updates copies of the modules in float64, one module after another, with torch's plainest Adam."""

    def __init__(self, algo):
        self.algo = algo
        self.modules = {m: copy.deepcopy(module).double() for m, module in algo.rl_module.items()}
        self.adams = {
            m: torch.optim.Adam(
                module.parameters(), lr=algo.config.get_config_for_module(m).lr, fused=False, foreach=False
            )
            for m, module in self.modules.items()
        }
        self.steps = dict.fromkeys(self.modules, 0)

    def update(self, batch, kl_coeffs):
        """``{module_id: [gradients of each step]}``."""
        learner, found = self.algo.learner, {}
        for group in batch.groups:
            for epoch in range(learner.config.num_epochs):
                shuffle = lambda m, n, epoch=epoch: stream(0, "minibatches", m, learner.num_updates, epoch).permutation(
                    n
                )
                size_of = lambda m: learner.config.get_config_for_module(m).minibatch_size
                for minibatch in minibatches_of_epoch(GroupRows.of(group), size_of=size_of, shuffle=shuffle):
                    (module_id,) = minibatch.module_ids
                    config = learner.config.get_config_for_module(module_id)
                    if epoch < config.num_epochs:
                        columns = {name: minibatch.columns[name] for name in minibatch.columns}
                        found.setdefault(module_id, []).append(
                            self.step(module_id, config, tree_map(doubled, columns), kl_coeffs[module_id])
                        )
        return found

    def step(self, module_id, config, columns, kl_coeff):
        module = self.modules[module_id]
        module.zero_grad()
        plain_loss(module, config, columns, kl_coeff).backward()
        parameters = [p for p in module.parameters() if p.grad is not None]
        gradients = [p.grad.clone() for p in parameters]
        clip([p.grad for p in parameters], config)
        self.adams[module_id].step()
        self.steps[module_id] += 1
        return gradients


def doubled(leaf):
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


CASES = {
    "plain": {},
    "overrides": {"overrides": OVERRIDES},
    "clipped by norm": {"grad_clip": 0.05},
    "action masks": {"pieces": (Masks,), "use_kl_loss": False},
    "loss masks": {"pieces": (Skips,)},
    "whole batch": {"minibatch_size": None, "num_epochs": 6},
}


COMBINATIONS = [
    *(("mlp", case) for case in CASES),
    ("mlp, own value layers", "overrides"),
    ("gru", "overrides"),
    ("default lstm", "loss masks"),
    ("default cnn", "overrides"),
]
MORE = [
    ("gru", "action masks"),
    ("gru", "loss masks"),
    ("lstm", "plain"),
    ("default lstm", "overrides"),
    ("default gru", "plain"),
    ("default cnn", "loss masks"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "case"), [*COMBINATIONS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in MORE)]
)
def test_a_stacked_update_equals_a_float64_reference_and_one_module_after_another(model, case, monkeypatch):
    settings = CASES[case]
    stacked, alone = build(model, **settings), build(model, **settings, stack=False)
    reference = Reference(stacked)
    frozen = {m: copy.deepcopy(stacked.rl_module[m].get_state()) for m in ("m3", "idle")}
    for algo in (stacked, alone):
        for parameter in algo.rl_module["m3"].parameters():
            parameter.requires_grad_(False)
    for parameter in reference.modules["m3"].parameters():
        parameter.requires_grad_(False)
    for _ in range(2):
        episodes = stacked.env_runner.sample()
        batch = stacked.learner.make_batch(episodes)
        kl_coeffs = {m: stacked.learner.kl_coeff(m) for m in MODULES}
        with monkeypatch.context() as patch:  # modules that ask for single precision get what they are given
            patch.setattr(torch.Tensor, "float", lambda self: self)
            gradients = reference.update(batch, kl_coeffs)
        results = []
        for algo in (stacked, alone):
            algo.learner.noted.clear()
            results.append(algo.learner.update(episodes=episodes))
            assert {m: len(steps) for m, steps in algo.learner.noted.items()} == {
                m: len(steps) for m, steps in gradients.items()
            }
            for module_id, steps in gradients.items():
                for found, expected in zip(algo.learner.noted[module_id], steps, strict=True):
                    for one, other in zip(found, expected, strict=True):
                        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)
        for module_id, figures in results[0].items():
            assert figures == pytest.approx(results[1][module_id], abs=1e-5)
        for module_id, module in reference.modules.items():
            for name, expected in module.named_parameters():
                for algo in (stacked, alone):
                    now = algo.rl_module[module_id].get_parameter(name).detach().double()
                    torch.testing.assert_close(now, expected.detach(), atol=1e-5, rtol=0)
    assert max(map(len, stacked.learner.stacks)) >= 3
    assert not alone.learner.stacks
    assert max(reference.steps.values()) >= 10
    for module_id, state in frozen.items():
        for name, value in stacked.rl_module[module_id].get_state().items():
            assert torch.equal(value, state[name]), "frozen modules and those without data stay bit for bit"
