"""Modules run stacked only if one computation is what each would do by itself, also after somebody changed them."""

from __future__ import annotations

import copy
import functools
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.match_runs import build, changed, weights
from marl_connectors import RLModule, RLModuleSpec
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.architecture import is_stackable, same_architecture
from marl_connectors.rl_module.layers import MLP, Linear
from marl_connectors.rl_module.multi_rl_module import MultiRLModule

OBS, ACT = spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.Discrete(3)


class Scaled(RLModule, ValueFunctionAPI):
    """Has an attribute that it computes with."""

    stackable = True

    def setup(self):
        self.pi, self.vf = Linear(3, 3), Linear(3, 1)
        self.scale = self.model_config.get("scale")

    def _forward(self, batch, **kwargs):
        x = batch["obs"]
        if isinstance(self.scale, torch.Tensor | float):
            x = x * self.scale
        return {"action_dist_inputs": self.pi(x)}

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch["obs"]).squeeze(-1)


def default(**model_config):
    return DefaultPPORLModule(OBS, ACT, model_config={"fcnet_hiddens": (4,), **model_config})


def scaled(scale):
    module = Scaled(OBS, ACT)
    module.scale = scale
    return module


def multi_of(*modules):
    multi = MultiRLModule()
    for module_id, module in zip("abcdef", modules, strict=False):
        multi.add_module(module_id, module)
    return multi


def outputs_of(multi, method="forward_inference", *, bind=True):
    """Of all modules in one batch, and of each by itself; two rows each."""
    ids = tuple(multi)
    obs = torch.linspace(-2, 2, 6 * len(ids)).view(-1, 3)
    rows = types.SimpleNamespace(module_ids=ids, splits=tuple(range(0, len(obs) + 1, 2)), rows_per_module=2)
    group = ColumnGroup(rows)
    group["obs"] = obs
    if bind:
        multi.bind_buckets()
    together = getattr(multi, method)(ColumnBatch([group])).groups[0]["action_dist_inputs"]
    parts = zip(ids, obs.split(2), strict=True)
    single = [getattr(multi[module_id], method)({"obs": x})["action_dist_inputs"] for module_id, x in parts]
    return together.detach(), torch.cat(single).detach()


def check_each_is_itself(multi, buckets):
    """A batch of all gives what each gives by itself, and these run stacked."""
    for method in ("forward_inference", "forward_train"):
        together, single = outputs_of(multi, method)
        torch.testing.assert_close(together, single)
    assert [bucket.module_ids for bucket in multi.buckets] == buckets


def call_zeros(module, batch):
    return {"action_dist_inputs": torch.zeros(*batch["obs"].shape[:-1], 3)}


# As they are built.


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (lambda: torch.ones(3), lambda: torch.ones(3), True),
        (lambda: torch.ones(3), lambda: torch.ones(3) * 2, False),
        (lambda: torch.ones(3), lambda: torch.ones(3, dtype=torch.float64), False),
        (lambda: nn.Parameter(torch.ones(3)).data, lambda: torch.ones(3).requires_grad_(), False),
        (lambda: np.ones(3), lambda: np.ones(3), True),
        (lambda: np.ones(3), lambda: np.zeros(3), False),
        (lambda: [1, {"a": np.ones(2)}], lambda: [1, {"a": np.ones(2)}], True),
        (lambda: [1, {"a": np.ones(2)}], lambda: [1, {"a": np.zeros(2)}], False),
        (lambda: 1.0, lambda: 1, False),
        (lambda: nn.Tanh(), lambda: nn.Tanh(), True),
        (lambda: nn.Tanh(), lambda: nn.ReLU(), False),
        (lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.2), False),
        (lambda: [Linear(3, 3)], lambda: [Linear(3, 3)], False),  # no layers of the module, as it does not know them
        (lambda: np.random.default_rng(0), lambda: np.random.default_rng(0), False),
        (lambda: lambda x, k=1.0: x * k, lambda: lambda x, k=2.0: x * k, False),
        (lambda: functools.partial(torch.add, 1), lambda: functools.partial(torch.add, 1), True),
        (lambda: functools.partial(torch.add, 1), lambda: functools.partial(torch.add, 2), False),
        (lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=1), True),
        (lambda: object(), lambda: object(), False),
    ],
)
def test_attributes_are_compared(one, other, same):
    a, b = scaled(one()), scaled(other())
    assert same_architecture(a, b) is same is same_architecture(b, a)


def test_functions_are_the_same_if_what_they_hold_is():
    def times(factor):
        return lambda x: x * factor

    assert same_architecture(scaled(times(2.0)), scaled(times(2.0)))
    assert not same_architecture(scaled(times(2.0)), scaled(times(3.0)))
    a, b = scaled(None), scaled(None)
    a.scale, b.scale = a._forward, b._forward
    assert same_architecture(a, b)
    a.scale, b.scale = times(a.pi), times(b.pi)  # a copy of a would go on calling its layer
    assert not same_architecture(a, b)
    a.scale = b.scale = a.vf  # a layer that only one of them has
    assert not same_architecture(b, a)


def test_modules_with_attributes_of_their_own_do_not_run_stacked():
    multi = multi_of(scaled(torch.ones(3)), scaled(torch.full((3,), 5.0)), scaled(torch.ones(3)))
    check_each_is_itself(multi, [("a", "c"), ("b",)])


def test_a_parameter_under_two_names_is_trained_in_its_module_alone():
    modules = [scaled(None) for _ in range(2)]
    for module in modules:
        module.vf.weight = nn.Parameter(torch.ones(3, 3))
        module.pi.weight = module.vf.weight
    multi = multi_of(*modules)
    check_each_is_itself(multi, [("a",), ("b",)])


def test_parameters_of_several_types_stay_as_they_are():
    modules = [scaled(None) for _ in range(2)]
    for module in modules:
        module.extra = nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.float64))
    multi = multi_of(*modules)
    assert multi.buckets == []
    assert all(m.extra.dtype == torch.float64 and float(m.extra.detach()[0]) == 1 / 3 for m in multi.values())


class Mixed(Scaled):
    """A parameter of float64 comes first."""

    stackable = True

    def setup(self):
        self.shift = nn.Parameter(torch.zeros((), dtype=torch.float64))
        super().setup()

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(batch["obs"] + self.shift.float())}


def test_modules_with_parameters_of_several_types_are_trained():
    algo = build(module_class=Mixed)
    before = weights(algo, "agent_1")
    algo.train()
    assert changed(before, weights(algo, "agent_1")) == set(before)
    assert algo.rl_module["agent_1"].shift.dtype == torch.float64


# As they are changed.


def relu(module):
    module.encoder.activation = nn.ReLU()


def new_attribute(module):
    module._forward = types.MethodType(call_zeros, module)
    module._forward_train = types.MethodType(call_zeros, module)


def plain_torch_layer(module):
    module.pi = nn.Linear(4, 3)


def one_layer_of_several(module):
    module.encoder.layers[0] = Linear(3, 4)


def one_layer_more(module):
    module.encoder.layers.append(Linear(4, 4))


def one_layer_fewer(module):
    module.encoder.layers = module.encoder.layers[:1]


def other_layers(module):
    module.encoder = nn.Sequential(Linear(3, 4), nn.Tanh())
    module.pi = nn.Sequential(MLP(4, (4,)), MLP(4, (3,), activate_last=False))


def another_kind_of_mlp(module):
    class Doubled(MLP):
        def forward(self, x):
            return 2 * super().forward(x)

    module.pi = Doubled(4, (3,), activate_last=False)


def deeper(module):
    module.encoder = MLP(3, (4, 4), "relu")


def activation_with_parameters(module):
    module.encoder.activation = nn.PReLU()


def spectral_norm(module):
    nn.utils.parametrizations.spectral_norm(module.encoder.layers[0])


def weight_norm(module):
    nn.utils.parametrizations.weight_norm(module.encoder.layers[0])


CHANGES = [
    relu,
    new_attribute,
    plain_torch_layer,
    one_layer_of_several,
    one_layer_more,
    one_layer_fewer,
    other_layers,
    another_kind_of_mlp,
    deeper,
    activation_with_parameters,
    spectral_norm,
    weight_norm,
]


@pytest.mark.few(6)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [1, 3])
def test_changed_modules_compute_what_they_are_now(change, number):
    torch.manual_seed(0)
    multi = multi_of(*(default(fcnet_hiddens=(4, 4)) for _ in range(3)))
    for module in multi.values():
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    before, _ = outputs_of(multi)
    for module in list(multi.values())[:number]:
        change(module)
    together, single = outputs_of(multi)
    for outputs in (single, *outputs_of(multi, "forward_train")):
        torch.testing.assert_close(together, outputs)
    torch.testing.assert_close(together[2 * number :], before[2 * number :])
    if change is not spectral_norm and change is not weight_norm:  # which begins with the weights that there were
        assert not torch.allclose(together[:2], before[:2])


def test_changes_are_undone_together():
    multi = multi_of(default(), default())
    for module, buckets in ((multi["a"], [("a",), ("b",)]), (multi["b"], [("a", "b")])):
        module.encoder.activation = nn.ReLU()
        check_each_is_itself(multi, buckets)


def test_tensors_that_are_written_to_count_as_changed():
    multi = multi_of(*(scaled(torch.ones(3)) for _ in range(2)))
    check_each_is_itself(multi, [("a", "b")])
    multi["b"].scale.mul_(4)
    check_each_is_itself(multi, [("a",), ("b",)])


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]


@pytest.mark.parametrize("register", HOOKS)
def test_hooks_see_their_own_module_in_every_forward_pass(register):
    multi = multi_of(*(default() for _ in range(3)))
    check_each_is_itself(multi, [("a", "b", "c")])
    calls = []
    handle = getattr(multi["b"].encoder.layers[0], register)(lambda *args: calls.append(args[0]))
    outputs_of(multi)
    assert [bucket.module_ids for bucket in multi.buckets] == [("a", "c"), ("b",)]
    assert len(calls) == (0 if "backward" in register else 2)
    assert all(layer is multi["b"].encoder.layers[0] for layer in calls)
    handle.remove()
    check_each_is_itself(multi, [("a", "b", "c")])


@pytest.mark.few(3)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("policies", ["independent", "shared"])
def test_a_run_acts_with_changed_modules_as_they_are_now(change, policies):
    algo = build(policies=policies, model_config={"fcnet_hiddens": (4, 4)})
    algo.env_runner.sample()
    change(list(algo.rl_module.values())[-1])
    for episode in algo.env_runner.sample():
        for own in episode.agent_episodes.values():
            obs = torch.as_tensor(own.get_observations(slice(0, len(own))), dtype=torch.float32)
            recorded = own.get_extra_model_outputs("action_dist_inputs")
            now = algo.rl_module[own.module_id].forward_train({"obs": obs})["action_dist_inputs"].detach()
            torch.testing.assert_close(torch.as_tensor(np.asarray(recorded)), now, atol=1e-5, rtol=0)


def test_a_module_that_was_changed_is_trained_beside_the_others():
    algo = build()
    algo.train()
    for change in (weight_norm, relu):
        change(algo.rl_module["agent_1"])
        before = {m: weights(algo, m) for m in algo.rl_module}
        algo.train()
        for module_id, values in before.items():
            assert changed(values, weights(algo, module_id)) == set(values)


def test_a_deep_copy_computes_with_parameters_of_its_own():
    multi = multi_of(default(), default())
    outputs_of(multi)
    twin = copy.deepcopy(multi)
    with torch.no_grad():
        twin["a"].pi.layers[0].bias.fill_(7.0)
    together, single = outputs_of(twin, bind=False)
    torch.testing.assert_close(together, single)
    assert float(multi["a"].pi.layers[0].bias.detach().max()) < 7.0
    check_each_is_itself(multi, [("a", "b")])


def test_running_leaves_modules_in_their_buckets():
    recurrent = {"use_lstm": True, "lstm_cell_size": 4, "vf_share_layers": True}
    multi = multi_of(default(**recurrent), default(**recurrent))
    (bucket,) = multi.buckets
    state = {"state_in": {"h": torch.zeros(2, 4), "c": torch.zeros(2, 4)}}
    multi["a"].forward_inference({"obs": torch.zeros(2, 1, 3), **state})
    multi["a"].compute_values({"obs": torch.zeros(2, 1, 3), **state})
    multi.bind_buckets()
    assert multi.buckets[0] is bucket


class Named(DefaultPPORLModule):
    """Nothing but another name."""


class NamedAgain(Named):
    pass


class WithItsOwn(DefaultPPORLModule):
    scale = 1.0


@pytest.mark.parametrize(("module_class", "stacks"), [(Named, True), (NamedAgain, True), (WithItsOwn, False)])
def test_a_subclass_with_nothing_of_its_own_is_stacked(module_class, stacks):
    config = small_config(LifeEnv, env_config={"agents": "abc"}).multi_agent(policies="independent")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class))
    algo = config.build_algo()
    assert is_stackable(algo.rl_module["a"]) == stacks
    assert [len(bucket.module_ids) for bucket in algo.rl_module.buckets] == ([3] if stacks else [])
    algo.train()
