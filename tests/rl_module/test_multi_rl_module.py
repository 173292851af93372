import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.checkpoints import save_state
from marl_connectors.errors import ConfigError, ModuleError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.rl_module.states import is_single

OBS, ACT = spaces.Box(-9.0, 9.0, (4,), np.float32), spaces.Discrete(3)
CONFIGS = [
    {"fcnet_hiddens": [6, 5]},
    {"fcnet_hiddens": [6], "vf_share_layers": False, "fcnet_activation": "relu"},
    {"fcnet_hiddens": [], "head_fcnet_hiddens": [7], "head_fcnet_activation": "silu"},
]


def make(model_config=None, act=ACT, obs=OBS, cls=DefaultPPORLModule):
    return cls(observation_space=obs, action_space=act, model_config=model_config or {"fcnet_hiddens": [6]})


def make_multi(*ids, **kwargs):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        multi = MultiRLModule()
        for module_id in ids:
            multi.add_module(module_id, make(**kwargs))
    return multi


def observations(*lead):
    return torch.from_numpy(np.random.default_rng(0).standard_normal((*lead, 4)).astype(np.float32))


def score(module, columns, weights):
    """A scalar that depends on every output of a module."""
    out = module.forward_train(columns)
    values = module.compute_values(columns, embeddings=out.get("embeddings"))
    return (out["action_dist_inputs"].pow(2).sum(-1) * weights).sum() + (values * weights).sum()


@pytest.mark.parametrize("act", [ACT, spaces.Box(-1.0, 1.0, (2,), np.float32)])
@pytest.mark.parametrize("model_config", [*CONFIGS, {"fcnet_hiddens": [6], "free_log_std": True}])
def test_the_twin_computes_what_the_members_do_one_after_another(model_config, act):
    multi = make_multi("a", "b", "c", model_config=model_config, act=act)
    (bucket,) = multi.buckets
    obs, weights = observations(3, 5), torch.arange(15.0).reshape(3, 5)
    outputs = bucket.stacked_module.forward_train({"obs": obs})
    loss = score(bucket.stacked_module, {"obs": obs}, weights)
    stacked = torch.cat([g.flatten(1) for g in torch.autograd.grad(loss, list(bucket.stacked_module.parameters()))], 1)
    for i, member in enumerate(multi.values()):
        own = member.forward_train({"obs": obs[i]})
        torch.testing.assert_close(outputs["action_dist_inputs"][i], own["action_dist_inputs"])
        score(member, {"obs": obs[i]}, weights[i]).backward()
    torch.testing.assert_close(bucket.gradients, stacked)
    assert bucket.gradients.abs().sum(1).min() > 0


@pytest.mark.parametrize("model_config", CONFIGS)
def test_a_small_batch_in_numpy_equals_torch(model_config):
    module, columns = make(model_config), {"obs": observations(5)}
    by_numpy = module.forward_inference(columns)["action_dist_inputs"]
    by_torch = module.forward_train(columns)["action_dist_inputs"]
    torch.testing.assert_close(by_numpy, by_torch.detach())
    kept = columns["obs"].clone()
    module.forward_exploration(columns)
    assert torch.equal(columns["obs"], kept)


@pytest.mark.parametrize("lead", [(5000,), (2, 4500)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_large_batch_without_gradients_equals_one_with(activation, lead):
    mlp = MLP(4, [8, 3], activation, activate_last=False)
    if len(lead) == 2:
        for layer in mlp.layers:
            layer.weight = torch.nn.Parameter(torch.stack([layer.weight, -layer.weight]).detach())
            layer.bias = torch.nn.Parameter(torch.stack([layer.bias, layer.bias + 1.0]).detach())
    with torch.no_grad():
        quick = mlp(observations(*lead))
    torch.testing.assert_close(quick, mlp(observations(*lead)).detach())


def test_an_mlp_is_its_layers_by_hand():
    mlp = MLP(2, [2], "relu")
    with torch.no_grad():
        mlp.layers[0].weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 0.0]]))
        mlp.layers[0].bias.copy_(torch.tensor([0.5, 0.5]))
        assert mlp(torch.tensor([[1.0, 1.0]])).tolist() == [[3.5, 0.0]]
    assert mlp(torch.tensor([[1.0, 1.0]])).tolist() == [[3.5, 0.0]]
    with pytest.raises(ModuleError, match=r"(?s)'rely'.*'relu'"):
        MLP(2, [2], "rely")


def test_members_are_views_whatever_writes_to_them():
    multi = make_multi("a", "b")
    (bucket,) = multi.buckets
    for write in (
        lambda m: m.load_state_dict({n: torch.full_like(p, 2.0) for n, p in m.named_parameters()}),
        lambda m: m.set_state({n: torch.full_like(p, 2.0) for n, p in m.named_parameters()}),
        lambda m: [p.data.fill_(2.0) for p in m.parameters()],
    ):
        bucket.parameters.zero_()
        write(multi["b"])
        assert bucket.is_bound
        assert (bucket.parameters == torch.tensor([[0.0], [2.0]])).all()


def test_parameters_that_were_replaced_are_bound_again():
    multi = make_multi("a", "b")
    (bucket,) = multi.buckets
    for parameter in multi["a"].parameters():
        parameter.data = torch.full_like(parameter, 5.0)
    multi["b"].zero_grad(set_to_none=True)
    assert not bucket.is_bound
    bucket.bind()
    assert bucket.is_bound
    assert (bucket.parameters[0] == 5.0).all()


def test_another_dtype_makes_new_buckets():
    multi, obs = make_multi("a", "b"), observations(2, 3)
    before = multi.buckets[0].stacked_module.forward_train({"obs": obs})["action_dist_inputs"]
    multi.to(torch.float64)
    (bucket,) = multi.buckets
    assert bucket.parameters.dtype == torch.float64
    assert bucket.is_bound
    multi.to(torch.float32)
    after = multi.buckets[0].stacked_module.forward_train({"obs": obs})["action_dist_inputs"]
    torch.testing.assert_close(after, before)


def test_adding_and_removing_keeps_the_others():
    multi = make_multi("a", "b")
    states = multi.get_state()
    multi.add_module("c", make())
    removed = multi.remove_module("a")
    (bucket,) = multi.buckets
    assert bucket.module_ids == ("b", "c")
    assert torch.equal(bucket.row("b").values, bucket.parameters[0])
    for module, module_id in ((removed, "a"), (multi["b"], "b")):
        for name, value in module.get_state().items():
            assert torch.equal(value, states[module_id][name])


def test_buckets_hold_modules_of_one_architecture_only():
    multi = MultiRLModule()
    multi.add_module("small", make())
    multi.add_module("large", make({"fcnet_hiddens": [9]}))
    multi.add_module("small_2", make())
    multi.add_module("wide", make(obs=spaces.Box(-9.0, 9.0, (5,), np.float32)))
    assert [bucket.module_ids for bucket in multi.buckets] == [("small", "small_2"), ("large",), ("wide",)]
    assert multi.bucket_of(["small"]) is multi.bucket_of(("small", "small_2")) is multi.buckets[0]
    assert multi.bucket_of(["small", "large"]) is None


def test_it_is_a_dict_of_modules():
    multi = make_multi("a", "b")
    assert (list(multi), list(multi.keys()), len(multi)) == (["a", "b"], ["a", "b"], 2)
    assert "a" in multi
    assert "z" not in multi
    assert dict(multi.items())["b"] is multi["b"]
    assert next(iter(multi.values())) is multi["a"]
    assert multi.foreach_module(lambda module_id, module: module_id) == ["a", "b"]
    assert multi.foreach_module(lambda i, m: m is multi[i], return_dict=True) == {"a": True, "b": True}
    with pytest.raises(KeyError, match="module 'c'"):
        multi["c"]
    with pytest.raises(ModuleError, match=r"(?s)'a'.*override=True"):
        multi.add_module("a", make())
    with pytest.raises(ModuleError, match=r"(?s)RLModule.*Linear"):
        multi.add_module("x", nn.Linear(1, 1))
    new = make()
    multi.add_module("a", new, override=True)
    assert multi["a"] is new


def test_state_goes_there_and_back_and_a_wrong_one_is_an_error():
    multi, other = make_multi("a", "b"), MultiRLModule()
    other.add_module("a", make())
    other.add_module("b", make())
    other.set_state(multi.get_state())
    assert all(torch.equal(p, q) for p, q in zip(multi.parameters(), other.parameters(), strict=True))
    with pytest.raises(ModuleError, match="module 'z'"):
        multi.set_state({"z": {}})
    with pytest.raises(ModuleError, match="architecture"):
        multi.set_state({"a": make({"fcnet_hiddens": [9]}).get_state()})


def test_specs_build_modules_and_name_what_is_missing():
    spec = RLModuleSpec(DefaultPPORLModule, OBS, ACT, model_config={"fcnet_hiddens": [5]})
    multi = MultiRLModuleSpec(rl_module_specs={"a": spec, "b": spec}).build()
    assert list(multi) == ["a", "b"]
    assert multi["a"] is not multi["b"]
    with pytest.raises(ModuleError, match="action_space"):
        RLModuleSpec(DefaultPPORLModule, OBS).build()
    with pytest.raises(ModuleError, match="modules"):
        MultiRLModuleSpec(rl_module_specs=spec).build()


def test_default_model_config_and_dict_say_the_same():
    config = DefaultModelConfig(fcnet_hiddens=[5], vf_share_layers=False)
    assert DefaultModelConfig.of(config.to_dict()).to_dict() == config.to_dict()
    assert make(config).encoder.output_dim == 5
    assert DefaultModelConfig.of(None).fcnet_hiddens == (256, 256)
    with pytest.raises(ConfigError, match=r"(?s)'fcnet_hidens'.*'fcnet_hiddens'"):
        make({"fcnet_hidens": [5]})


def test_an_inference_only_module_has_no_value_layers_and_the_same_actions():
    module = make({"fcnet_hiddens": [6], "vf_share_layers": False})
    acting = DefaultPPORLModule(
        observation_space=OBS, action_space=ACT, inference_only=True, model_config=module.model_config
    )
    left_out = tuple(module.get_non_inference_attributes())
    acting.set_state({n: v for n, v in module.get_state().items() if not n.startswith(left_out)})
    columns = {"obs": observations(3)}
    torch.testing.assert_close(
        acting.forward_inference(columns)["action_dist_inputs"], module.forward_inference(columns)["action_dist_inputs"]
    )


def test_a_multi_rl_module_may_share_an_encoder():
    class Shared(MultiRLModule):
        def setup(self):
            super().setup()
            self.encoder = nn.Linear(4, 6)

        def _forward(self, batch, *, purpose, **kwargs):
            encoded = {m: {"obs": self.encoder(columns["obs"])} for m, columns in batch.items()}
            return super()._forward(encoded, purpose=purpose, **kwargs)

    class Head(RLModule):
        def setup(self):
            self.layer = nn.Linear(6, 3)

        def _forward(self, batch, **kwargs):
            return {"action_dist_inputs": self.layer(batch["obs"])}

    spec = RLModuleSpec(Head, OBS, ACT)
    multi = MultiRLModuleSpec(Shared, rl_module_specs={"a": spec, "b": spec}).build()
    obs = observations(2)
    out = multi.forward_train({"b": {"obs": obs}})
    assert list(out) == ["b"]
    torch.testing.assert_close(out["b"]["action_dist_inputs"], multi["b"].layer(multi.encoder(obs)))
    out["b"]["action_dist_inputs"].sum().backward()
    assert multi.encoder.weight.grad is not None


def test_a_module_alone_becomes_the_default_policy():
    module = make()
    assert module.as_multi_rl_module()["default_policy"] is module
    assert module.unwrapped() is module
    assert not module.is_stateful()


def test_a_module_without_forward_says_what_to_override():
    with pytest.raises(NotImplementedError, match=r"(?s)RLModule.*_forward"):
        RLModule(OBS, ACT).forward_inference({"obs": observations(1)})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fcnet_hiddens", 64),
        ("fcnet_hiddens", None),
        ("fcnet_hiddens", [0]),
        ("fcnet_hiddens", [8.0]),
        ("head_fcnet_hiddens", [True]),
        ("lstm_cell_size", 0),
        ("gru_cell_size", 2.5),
        ("max_seq_len", 0),
        ("log_std_clip_param", -1.0),
        ("log_std_clip_param", float("nan")),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(setting, value):
    with pytest.raises(ConfigError, match=f"(?s)model_config.*{setting}"):
        make({setting: value})


class Scaled(DefaultPPORLModule):
    """Has a parameter that stacked columns would be broadcast against wrongly."""

    def setup(self):
        super().setup()
        self.scale = nn.Parameter(torch.arange(6.0))

    def _action_dist_inputs(self, embeddings):
        return super()._action_dist_inputs(embeddings * self.scale)


class StillStackable(DefaultPPORLModule):
    stackable = True


def test_a_subclass_is_stacked_only_if_it_says_so_itself():
    assert make_multi("a", "b", cls=Scaled).buckets == []
    assert [bucket.module_ids for bucket in make_multi("a", "b", cls=StillStackable).buckets] == [("a", "b")]


def test_a_module_starts_from_the_state_that_its_spec_names(tmp_path):
    spec = RLModuleSpec(DefaultPPORLModule, OBS, ACT, model_config={"fcnet_hiddens": [5]})
    saved = spec.build()
    save_state(tmp_path / "saved", saved.get_state())
    others = spec.build()
    spec.load_state_path = tmp_path / "saved"
    loaded = MultiRLModuleSpec(rl_module_specs={"a": spec}).build()["a"]
    for (name, one), other, random in zip(
        loaded.named_parameters(), saved.parameters(), others.parameters(), strict=True
    ):
        assert torch.equal(one, other), name
        assert not random.any() or not torch.equal(one, random), name


def specs_of(multi):
    return {module_id: spec.model_config for module_id, spec in multi.rl_module_specs.items()}


def test_specs_are_added_and_removed():
    multi = MultiRLModuleSpec(rl_module_specs={"a": RLModuleSpec(model_config={"x": 1})})
    given = multi.rl_module_specs
    multi.add_modules({"a": RLModuleSpec(model_config={"x": 2}), "b": RLModuleSpec(model_config={"x": 3})})
    assert specs_of(multi) == {"a": {"x": 2}, "b": {"x": 3}}
    assert list(given) == ["a"]
    multi.remove_modules("a")
    multi.remove_modules(["c"])
    assert specs_of(multi) == {"b": {"x": 3}} and "b" in multi and "a" not in multi


def test_specs_that_exist_are_only_filled_without_override():
    own = RLModuleSpec(model_config={"x": 1})
    multi = MultiRLModuleSpec(rl_module_specs={"a": own})
    multi.add_modules({"a": RLModuleSpec(model_config={"x": 2}, learner_only=True)}, override=False)
    assert specs_of(multi) == {"a": {"x": 1}}


def test_a_multi_spec_is_updated_with_another_one_or_with_one_for_all():
    multi = MultiRLModuleSpec(rl_module_specs={"a": RLModuleSpec(), "b": RLModuleSpec(model_config={"x": 1})})
    multi.update(RLModuleSpec(model_config={"x": 5}), override=False)
    assert specs_of(multi) == {"a": {"x": 5}, "b": {"x": 1}}
    multi.update(MultiRLModuleSpec(rl_module_specs={"c": RLModuleSpec()}))
    assert specs_of(multi) == {"a": {"x": 5}, "b": {"x": 1}, "c": None}


def test_a_spec_for_all_modules_has_no_modules_to_add_to():
    with pytest.raises(ModuleError, match=r"(?s)MultiRLModuleSpec.add_modules.*rl_module_specs.*RLModuleSpec"):
        MultiRLModuleSpec(rl_module_specs=RLModuleSpec()).add_modules({})


def test_a_multi_rl_module_is_one_already():
    multi = MultiRLModule()
    assert multi.as_multi_rl_module() is multi and multi.unwrapped() is multi


def test_a_multi_rl_module_is_an_rl_module():
    modules = MultiRLModule()
    assert isinstance(modules, RLModule) and not is_single(modules) and is_single(RLModule())
    modules.add_module("a", RLModule())
    assert modules.get_initial_state() == {"a": {}} and not modules.is_stateful()
    with pytest.raises(ModuleError, match=r"(?s)RLModule.*MultiRLModule"):
        modules.add_module("nested", MultiRLModule())


def test_the_spec_of_one_module_names_the_spec_for_several():
    with pytest.raises(ConfigError, match=r"MultiRLModuleSpec\(multi_rl_module_class=MultiRLModule\)"):
        RLModuleSpec(MultiRLModule)
    with pytest.raises(ModuleError, match=r"(?s)MultiRLModule.*MultiRLModuleSpec\.from_module"):
        RLModuleSpec.from_module(MultiRLModule())
