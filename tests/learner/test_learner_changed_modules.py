"""Modules whose layers, parameters or optimizers are replaced while training goes on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from helpers.runs.match_runs import Plain, build, changed, weights
from marl_connectors import RLModuleSpec
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.layers import MLP
from marl_connectors.typing import SHARED

STEPS = 4
"""Of each module in an update: 2 epochs of 2 minibatches."""


def step_counts(algo, module_id):
    """By parameter, in order; 0 if it was never stepped. Moments must have its shape."""
    found = {}
    named = list(algo.rl_module[module_id].named_parameters())
    for (name, parameter), moments in zip(named, algo.learner.optimizers.get_state()[module_id].adam, strict=True):
        found[name] = moments.step if moments else 0
        assert moments is None or moments.exp_avg.shape == moments.exp_avg_sq.shape == parameter.shape
    return found


def a_larger_head(algo, module):
    torch.manual_seed(1)
    module.vf = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    return "vf"


def a_head_of_another_layout(algo, module):
    torch.manual_seed(1)
    module.vf = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Unflatten(-1, (1,)), nn.Flatten(-2))
    return "vf"


def a_head_like_the_one_before(algo, module):
    module.vf = copy.deepcopy(module.vf)
    return "vf"


def a_weight_of_its_own(algo, module):
    layer = getattr(module.pi, "layers", [module.pi])[0]
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    return "pi.layers.0.weight" if isinstance(module.pi, MLP) else "pi.weight"


def other_values_of_another_shape(algo, module):
    for layer, *shape in ((module.encoder, 6, 3), (module.pi, 3, 6), (module.vf, 1, 6)):
        layer = getattr(layer, "layers", [layer])[0]
        layer.weight.data = torch.linspace(-1, 1, shape[0] * shape[1]).view(shape)
    encoder = getattr(module.encoder, "layers", [module.encoder])[0]
    encoder.bias.data = torch.zeros(6)
    return ("encoder", "pi.layers.0.weight", "pi.weight", "vf.layers.0.weight", "vf.weight")


def another_module_of_its_kind(algo, module):
    torch.manual_seed(1)
    algo.rl_module.add_module("agent_1", RLModuleSpec.from_module(module).build(), override=True)
    return ""


CHANGES = [
    a_larger_head,
    a_head_of_another_layout,
    a_head_like_the_one_before,
    a_weight_of_its_own,
    other_values_of_another_shape,
    another_module_of_its_kind,
]


@pytest.mark.few(1)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("module_class", [DefaultPPORLModule, Plain])
def test_new_parameters_begin_without_moments_and_the_others_keep_theirs(module_class, change):
    algo, alone = (build(module_class=module_class, stack=stack) for stack in (True, False))
    for one in (algo, alone):
        one.train()
        new = change(one, one.rl_module["agent_1"])
        before = {m: weights(one, m) for m in one.rl_module}
        for _ in range(2):
            one.train()
        for module_id, values in before.items():
            assert changed(values, weights(one, module_id)) == set(values)
        counts = step_counts(one, "agent_1")
        assert counts == {name: (2 if name.startswith(new) else 3) * STEPS for name in counts}
        assert set(step_counts(one, "agent_0").values()) == {3 * STEPS}
    for module_id in before:
        for name, value in weights(algo, module_id).items():
            torch.testing.assert_close(value, weights(alone, module_id)[name], atol=1e-5, rtol=0)


def test_a_new_head_is_stepped_as_a_fresh_adam_would():
    algo = build(num_epochs=1, minibatch_size=None)
    algo.train()
    module = algo.rl_module["agent_1"]
    module.vf = copy.deepcopy(module.vf)
    before = weights(algo, "agent_1")
    algo.train()
    for name in ("vf.layers.0.weight", "vf.layers.0.bias"):  # the first step is the rate times the sign
        moved = weights(algo, "agent_1")[name] - before[name]
        torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.01), atol=1e-4, rtol=0)


def test_another_architecture_under_an_id_goes_its_own_way():
    algo = build()
    algo.train()
    old = algo.rl_module["agent_1"]
    spec = RLModuleSpec(
        DefaultPPORLModule,
        old.observation_space,
        old.action_space,
        model_config={"fcnet_hiddens": (32, 32), "vf_share_layers": True},
    )
    algo.rl_module.add_module("agent_1", spec.build(), override=True)
    before = {m: weights(algo, m) for m in algo.rl_module}
    for _ in range(2):
        algo.train()
    assert [bucket.module_ids for bucket in algo.rl_module.buckets] == [("agent_0", "agent_2"), ("agent_1",)]
    for module_id, values in before.items():
        assert changed(values, weights(algo, module_id)) == set(values)
    assert set(step_counts(algo, "agent_1").values()) == {2 * STEPS}


@pytest.mark.few(1)
@pytest.mark.parametrize("module_class", [DefaultPPORLModule, Plain])
def test_layers_that_are_tied_later_are_trained_by_both_modules(module_class):
    algo, alone = (build(module_class=module_class, stack=stack) for stack in (True, False))
    for one in (algo, alone):
        one.train()
        one.rl_module["agent_1"].encoder = one.rl_module["agent_0"].encoder
        before = {m: weights(one, m) for m in one.rl_module}
        one.train()
        for module_id, values in before.items():
            assert changed(values, weights(one, module_id)) == set(values)
    state = algo.learner.optimizers.get_state()
    assert len(state[SHARED].adam) == 2
    for module_id in before:
        for name, value in weights(algo, module_id).items():
            torch.testing.assert_close(value, weights(alone, module_id)[name], atol=1e-5, rtol=0)


def test_tied_layers_take_the_gradient_of_both():
    algo = build(num_epochs=1, minibatch_size=None, grad_clip=None)
    algo.train()
    encoder = algo.rl_module["agent_1"].encoder = algo.rl_module["agent_0"].encoder
    algo.learner.register_optimizer(module_id=SHARED, optimizer=torch.optim.SGD(encoder.parameters(), lr=1.0))
    by_hand = {}

    def noted(loss, module_ids, compute=algo.learner.optimizers.compute_gradients):
        if "agent_0" in module_ids:
            wanted = list(encoder.parameters())
            by_hand.update(zip(wanted, torch.autograd.grad(loss, wanted, retain_graph=True), strict=True))
        compute(loss, module_ids)

    algo.learner.optimizers.compute_gradients = noted
    before = {p: p.detach().clone() for p in encoder.parameters()}
    algo.train()
    for parameter, gradient in by_hand.items():
        torch.testing.assert_close(parameter.detach(), before[parameter] - gradient, atol=1e-6, rtol=0)
    assert len(by_hand) == 2


def test_modules_that_come_and_go_without_the_learner_are_trained_and_forgotten():
    algo = build()
    algo.train()
    module = algo.rl_module.remove_module("agent_1")
    algo.rl_module.add_module("other", module)
    algo.set_policy_mapping_fn(lambda agent_id, episode, **kw: "other" if agent_id == "agent_1" else agent_id)
    algo.env_runner.restart_episodes()
    before = weights(algo, "other")
    algo.train()
    assert changed(before, weights(algo, "other")) == set(before)
    assert set(algo.learner.optimizers.get_state()) == {"agent_0", "agent_2", "other"}


# Optimizers of users.


class Momentum(PPOLearner):
    """SGD for each module, made anew whenever asked to."""

    def configure_optimizers_for_module(self, module_id, config):
        sgd = torch.optim.SGD(self.module[module_id].parameters(), lr=0.1, momentum=0.9)
        self.register_optimizer(module_id=module_id, optimizer=sgd)


def test_registered_optimizers_are_made_anew_for_new_layers_and_know_the_old_ones():
    algo = build(learner_class=Momentum)
    algo.train()
    module = algo.rl_module["agent_1"]
    before = {p: s["momentum_buffer"] for p, s in algo.learner.get_optimizer("agent_1").state.items()}
    others = algo.learner.get_optimizer("agent_0")
    module.vf = copy.deepcopy(module.vf)
    algo.learner._refresh_optimizers()
    kept = algo.learner.get_optimizer("agent_1").state
    assert set(kept) == {*module.encoder.parameters(), *module.pi.parameters()}
    assert all(kept[p]["momentum_buffer"] is before[p] for p in kept)
    assert algo.learner.get_optimizer("agent_0") is others
    values = weights(algo, "agent_1")
    algo.train()
    assert changed(values, weights(algo, "agent_1")) == set(values)


def test_an_optimizer_by_hand_whose_parameters_are_gone_is_an_error():
    algo = build()
    module = algo.rl_module["agent_1"]
    by_hand = torch.optim.SGD(module.vf.parameters(), lr=0.1)
    algo.learner.register_optimizer(module_id="agent_1", optimizer_name="values", optimizer=by_hand)
    algo.train()
    module.vf = copy.deepcopy(module.vf)
    with pytest.raises(LearnerError, match=r"(?s)'values'.*'agent_1'"):
        algo.train()


# Interruptions.


@pytest.mark.parametrize("frozen", [False, True])
def test_an_interrupted_step_leaves_nothing_behind(frozen):
    algo = build(overrides={"agent_0": {"num_epochs": 1}})
    if frozen:
        for module in algo.rl_module.values():
            module.encoder.requires_grad_(False)
    algo.train()
    before = {m: weights(algo, m) for m in algo.rl_module}
    adam = algo.learner.optimizers._default
    step, calls = adam.step, []

    def interrupted(*args, **kwargs):
        result = step(*args, **kwargs)
        calls.append(None)
        if len(calls) == 3:  # agent_0 has no minibatch in this epoch
            raise KeyboardInterrupt
        return result

    adam.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        algo.learner.update(episodes=algo.env_runner.sample())
    for module_id, values in before.items():
        moved = changed(values, weights(algo, module_id))
        assert moved == {name for name in values if not (frozen and name.startswith("encoder"))}
        before[module_id] = weights(algo, module_id)
    algo.train()
    for module_id, values in before.items():
        moved = changed(values, weights(algo, module_id))
        assert moved == {name for name in values if not (frozen and name.startswith("encoder"))}


# Hooks.


class Halving(PPOLearner):
    def before_gradient_based_update(self, *, timesteps):
        for module in self.module.values():
            for parameter in module.parameters():
                parameter.data = parameter.data * 0.5
        self.begun_with = {m: [p.detach().clone() for p in module.parameters()] for m, module in self.module.items()}


@pytest.mark.parametrize("stack", [True, False])
def test_parameters_replaced_before_an_update_are_those_that_it_goes_on_from(stack):
    algo = build(learner_class=Halving, stack=stack)
    algo.train()
    for module_id, begun_with in algo.learner.begun_with.items():
        for value, now in zip(begun_with, algo.rl_module[module_id].parameters(), strict=True):
            assert 0 < float((now.detach() - value).abs().max()) <= STEPS * 0.01 * 1.2


class Thawing(PPOLearner):
    """Value layers are trained from the third update on; agent_1's policy only until then."""

    def before_gradient_based_update(self, *, timesteps):
        for module in self.module.values():
            module.vf.requires_grad_(self.num_updates >= 2)
        self.module["agent_1"].pi.requires_grad_(self.num_updates < 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("stack", [True, False])
def test_what_is_frozen_or_thawed_before_an_update_is_so_in_it(stack):
    algo = build(learner_class=Thawing, stack=stack)
    for number in range(4):
        before = {m: weights(algo, m) for m in algo.rl_module}
        algo.train()
        for module_id, values in before.items():
            moved = {name.split(".")[0] for name in changed(values, weights(algo, module_id))}
            if number < 2:
                assert moved == {"encoder", "pi"}
            else:
                assert moved == ({"encoder", "vf"} if module_id == "agent_1" else {"encoder", "pi", "vf"})
    assert step_counts(algo, "agent_1")["pi.layers.0.weight"] == 2 * STEPS
    assert step_counts(algo, "agent_1")["vf.layers.0.weight"] == 2 * STEPS
    assert step_counts(algo, "agent_1")["encoder.layers.0.weight"] == 4 * STEPS


# What nothing was changed in.


@pytest.mark.few(1)
@pytest.mark.parametrize("model_config", [{}, {"vf_share_layers": True}, {"use_lstm": True, "max_seq_len": 4}], ids=str)
def test_an_ordinary_run_makes_its_buckets_once(model_config):
    algo = build(model_config={"fcnet_hiddens": (4,), **model_config})
    buckets = algo.rl_module.buckets
    assert [bucket.module_ids for bucket in buckets] == [("agent_0", "agent_1", "agent_2")]
    arranged = algo.learner.optimizers._default._runs
    for _ in range(2):
        algo.train()
        algo.evaluate(num_episodes=1)
        algo.rl_module["agent_1"].set_state(algo.rl_module["agent_0"].get_state())
        algo.learner.get_state()
    assert algo.rl_module.buckets is buckets
    assert algo.learner.optimizers._default._runs is arranged
    assert [len(runs) for runs in arranged.values()] == [1, 1, 1]
