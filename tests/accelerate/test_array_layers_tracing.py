"""Who watches torch's calls sees all of them: modules that were traced or exported give what the modules give."""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from optree import tree_leaves, tree_structure, tree_unflatten
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from marl_connectors import Columns, DefaultPPORLModule, MultiRLModule, TorchModule
from marl_connectors.accelerate.array_layers import is_watched
from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule
from marl_connectors.trees import leaves, tree_map

BOX = spaces.Box(-2.0, 2.0, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (12, 10, 3), np.uint8)
PARTS = spaces.Dict({"b": BOX, "a": spaces.Tuple([spaces.Discrete(3), PIXELS]), "c": spaces.MultiDiscrete([2, 4])})
TO_TAKE = spaces.Dict({"go": spaces.Discrete(3), "at": spaces.Box(-1.0, 1.0, (2,), np.float32)})


def torch_layers(space, num_outputs):
    return nn.Sequential(nn.Linear(space.shape[0], 5), nn.Tanh(), nn.Linear(5, num_outputs))


KINDS = {
    "mlp": (DefaultPPORLModule, BOX, spaces.Discrete(3), {}),
    "relu": (DefaultPPORLModule, BOX, spaces.Discrete(3), {"fcnet_activation": "relu"}),
    "norms": (DefaultPPORLModule, BOX, spaces.Discrete(3), {"fcnet_use_layernorm": True}),
    "free log stds": (DefaultPPORLModule, BOX, TO_TAKE, {"free_log_std": True}),
    "no hidden layers": (DefaultPPORLModule, BOX, spaces.Discrete(3), {"fcnet_hiddens": []}),
    "number": (DefaultPPORLModule, spaces.Discrete(4, start=2), spaces.MultiBinary(2), {}),
    "cnn": (DefaultPPORLModule, PIXELS, spaces.Discrete(3), {}),
    "dict": (DefaultPPORLModule, PARTS, TO_TAKE, {}),
    "lstm": (DefaultPPORLModule, BOX, spaces.Discrete(3), {"use_lstm": True, "lstm_cell_size": 4}),
    "gru": (DefaultPPORLModule, PARTS, TO_TAKE, {"use_gru": True, "gru_cell_size": 4}),
    "lstms": (
        DefaultPPORLModule,
        BOX,
        spaces.Discrete(3),
        {"use_lstm": True, "lstm_cell_size": 4, "vf_share_layers": False},
    ),
    "mappo": (DefaultMAPPORLModule, BOX, spaces.Discrete(3), {"critic_inputs": 6}),
    "torch": (TorchModule, BOX, spaces.Discrete(3), {"policy": torch_layers}),
}


def make(kind):
    cls, observations, actions, settings = KINDS[kind]
    hiddens = {} if cls is TorchModule else {"fcnet_hiddens": [6, 5]}
    module = cls(observation_space=observations, action_space=actions, model_config={**hiddens, **settings})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def batch_for(module, rows, seed=0):
    """Columns as the pipelines give them when acting: with a time axis of one step for recurrent modules."""
    rng = np.random.default_rng(seed)
    lead = (rows, 1) if module.is_stateful() else (rows,)

    def drawn(space):
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            if isinstance(space, spaces.Tuple):
                return tuple(map(drawn, space.spaces))
            return {key: drawn(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Discrete):
            return torch.from_numpy(rng.integers(space.n, size=lead) + space.start)
        if isinstance(space, spaces.MultiDiscrete):
            return torch.from_numpy(rng.integers(space.nvec, size=(*lead, len(space.nvec))))
        if space.dtype == np.uint8:
            return torch.from_numpy(rng.integers(256, size=(*lead, *space.shape)).astype(np.uint8))
        return torch.from_numpy(rng.normal(size=(*lead, *space.shape)).astype(np.float32))

    batch = {Columns.OBS: drawn(module.observation_space)}
    if module.is_stateful():
        state = module.get_initial_state()
        batch[Columns.STATE_IN] = tree_map(
            lambda leaf: torch.from_numpy(rng.normal(size=(rows, *leaf.shape)).astype(np.float32)), state
        )
    return batch


class Acts(nn.Module):
    """What users export: from columns to what the policy puts out, the state, and the most likely action."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, batch):
        outputs = self.module.forward_inference(batch)
        inputs = outputs[Columns.ACTION_DIST_INPUTS]
        action = self.module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic()
        return inputs, *leaves(outputs.get(Columns.STATE_OUT, {})), *leaves(action)


def close(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=5e-6)  # both round differently


def same_on_fresh_batches(told, acts):
    outputs = []
    for seed, rows in enumerate((5, 1, 9), start=1):
        batch = batch_for(acts.module, rows, seed)
        close(told(batch), acts(batch))
        outputs.append(acts(batch)[0][0])
    assert not torch.allclose(outputs[0], outputs[2]), "outputs follow from observations"


class OfLeaves(nn.Module):
    """The same of the batch's tensors, one after another: traces know no trees."""

    def __init__(self, acts, batch):
        super().__init__()
        self.acts = acts
        self.tree = tree_structure(batch)

    def forward(self, *given):
        return self.acts(tree_unflatten(self.tree, given))


def traced(acts, batch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # among them those that something becomes a constant of the trace
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="`torch.jit")
        trace = torch.jit.trace(OfLeaves(acts, batch), tuple(tree_leaves(batch)), check_trace=False)
    return lambda batch: trace(*tree_leaves(batch))


def exported(acts, batch, **kwargs):
    rows = tree_map(lambda leaf: {0: torch.export.Dim.DYNAMIC}, batch)
    return torch.export.export(acts, (batch,), dynamic_shapes=(rows,), **kwargs)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_traced_module_gives_what_the_module_gives(kind):
    acts = Acts(make(kind))
    acts(batch_for(acts.module, 3))  # has been used before
    same_on_fresh_batches(traced(acts, batch_for(acts.module, 3)), acts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_module_gives_what_the_module_gives(kind):
    acts = Acts(make(kind))
    program = exported(acts, batch_for(acts.module, 3))
    same_on_fresh_batches(program.module(), acts)


@pytest.mark.slow
def test_an_exported_module_can_be_saved_and_loaded():
    acts, buffer = Acts(make("dict")), io.BytesIO()
    torch.export.save(exported(acts, batch_for(acts.module, 3)), buffer)
    buffer.seek(0)
    same_on_fresh_batches(torch.export.load(buffer).module(), acts)


@pytest.mark.parametrize("purpose", ["exploration", "train"])
def test_the_other_forward_passes_can_be_exported_too(purpose):
    class Passes(Acts):
        def forward(self, batch):
            return (getattr(self.module, f"forward_{purpose}")(batch)[Columns.ACTION_DIST_INPUTS],)

    passes = Passes(make("mlp"))
    same_on_fresh_batches(exported(passes, batch_for(passes.module, 3)).module(), passes)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["mlp", "relu", "norms", "mappo"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_module_that_is_traced_itself_without_gradients_is_no_constant(kind, mode):
    module = make(kind)
    names = ("forward", "forward_inference", "forward_exploration", "forward_train")
    with mode():
        trace = torch.jit.trace_module(module, {name: (batch_for(module, 3),) for name in names}, strict=False)
        for name in names:
            for seed, rows in enumerate((3, 5, 1), start=1):
                batch = batch_for(module, rows, seed)
                found, expected = (getattr(own, name)(batch)[Columns.ACTION_DIST_INPUTS] for own in (trace, module))
                close([found], [expected])


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("strict", [False, True])
def test_a_module_that_is_exported_itself_without_gradients_is_no_constant(mode, strict):
    module = make("mlp")
    with mode():
        program = exported(module, batch_for(module, 3), strict=strict).module()
        for seed, rows in enumerate((3, 5, 1), start=1):
            batch = batch_for(module, rows, seed)
            close(program(batch).values(), module(batch).values())


@pytest.mark.parametrize("part", ["encoder", "pi", "vf"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_layer_that_is_traced_itself_without_gradients_is_no_constant(part):
    layer = getattr(make("mlp"), part)
    rng = np.random.default_rng(0)
    rows = [torch.from_numpy(rng.normal(size=(n, layer.input_dim)).astype(np.float32)) for n in (3, 5, 1)]
    with torch.no_grad():
        layer(rows[0])  # has been used before
        trace = torch.jit.trace(layer, (rows[0],))
        for x in rows:
            close([trace(x)], [layer(x)])


def test_masks_can_be_traced_and_exported():
    acts = Acts(make("mlp"))

    def masked(rows, seed=0):
        allowed = torch.from_numpy(np.random.default_rng(seed).integers(2, size=(rows, 3))).bool()
        return {**batch_for(acts.module, rows, seed), Columns.ACTION_MASK: allowed}

    for told in (traced(acts, masked(3)), exported(acts, masked(3)).module()):
        for seed in range(1, 4):
            batch = masked(4 + seed, seed)
            close(told(batch), acts(batch))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["mlp", "dict", "gru"])
def test_a_member_of_a_bucket_can_be_traced_and_exported(kind):
    multi = MultiRLModule()
    for i in range(3):
        multi.add_module(f"m{i}", make(kind))
        with torch.no_grad():
            for parameter in multi[f"m{i}"].parameters():
                parameter.mul_(1.0 - 0.2 * i)
    assert len(multi.buckets) == 1
    acts = Acts(multi["m1"])
    program = exported(acts, batch_for(acts.module, 3))
    for told in (traced(acts, batch_for(acts.module, 3)), program.module()):
        same_on_fresh_batches(told, acts)
    size = sum(parameter.numel() for parameter in acts.module.parameters())
    assert sum(value.numel() for value in program.state_dict.values()) == size, "its own parameters, not the bucket's"


class AllAct(nn.Module):
    def __init__(self, multi):
        super().__init__()
        self.multi = multi

    def forward(self, batch):
        return {m: own[Columns.ACTION_DIST_INPUTS] for m, own in self.multi.forward_inference(batch).items()}


def test_a_multi_rl_module_can_be_exported_as_a_whole():
    multi = MultiRLModule()
    for kind in ("mlp", "cnn", "lstm"):
        multi.add_module(kind, make(kind))
    acts = AllAct(multi)

    def given(rows, seed=0):
        return {m: batch_for(module, rows, seed) for m, module in multi.items()}

    program = exported(acts, given(3))
    for rows in (2, 6):
        found, expected = program.module()(given(rows, rows)), acts(given(rows, rows))
        close(found.values(), expected.values())


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_that_make_fx_records_gives_what_the_module_gives(tracing_mode, pre_dispatch):
    acts = Acts(make("mlp"))
    record = make_fx(acts, tracing_mode=tracing_mode, pre_dispatch=pre_dispatch, _allow_non_fake_inputs=True)
    graph = record(batch_for(acts.module, 3))
    batch = batch_for(acts.module, 3, 1)
    close(graph(batch), acts(batch))


def test_a_compiled_module_gives_what_the_module_gives():
    acts = Acts(make("mlp"))
    compiled = torch.compile(acts, backend="eager", fullgraph=True, dynamic=True)
    same_on_fresh_batches(compiled, acts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "cnn", "dict", "lstm", "gru"])
def test_onnx_gives_what_the_module_gives(kind, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    acts = Acts(make(kind))
    batch = batch_for(acts.module, 3)
    rows = tree_map(lambda leaf: {0: torch.export.Dim.DYNAMIC}, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"dynamo": True, "dynamic_shapes": {"batch": rows}, "verbose": False}
        torch.onnx.export(acts, (), tmp_path / "acts.onnx", kwargs={"batch": batch}, **how)
    session = runtime.InferenceSession(tmp_path / "acts.onnx")
    names = [given.name for given in session.get_inputs()]
    for seed, count in enumerate((4, 1), start=1):
        batch = batch_for(acts.module, count, seed)
        given = dict(zip(names, (leaf.numpy() for leaf in pytree.tree_leaves(batch)), strict=True))
        for found, expected in zip(session.run(None, given), acts(batch), strict=True):
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


# torch.func, modes and copies.


def observations(rows, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32))


def inputs_of(module, obs):
    return module.forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]


def test_vmap_gives_what_the_module_gives():
    module, obs = make("mlp"), observations(8).unflatten(0, (4, 2))
    found = torch.func.vmap(lambda x: inputs_of(module, x))(obs)
    close([found], [inputs_of(module, obs.flatten(0, 1)).unflatten(0, (4, 2))])


def test_one_function_of_many_parameters_gives_what_the_modules_give():
    modules = [make("mlp") for _ in range(3)]
    for i, module in enumerate(modules):
        with torch.no_grad():
            module.pi.layers[-1].bias.fill_(float(i))
    parameters, _ = torch.func.stack_module_state(modules)
    obs = observations(4)

    class Inputs(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.m = module

        def forward(self, x):
            return inputs_of(self.m, x)

    def of_one(own, x):
        return torch.func.functional_call(Inputs(modules[0]), {f"m.{name}": p for name, p in own.items()}, (x,))

    found = torch.func.vmap(of_one, in_dims=(0, None))(parameters, obs)
    close([found], [torch.stack([inputs_of(module, obs) for module in modules])])


@pytest.mark.parametrize("change", [lambda p: 2.0 * p, lambda p: p.detach().clone().mul_(-1.0), torch.zeros_like])
def test_functional_call_computes_with_the_parameters_that_it_is_given(change):
    module, obs = make("mlp"), observations(4)
    before = inputs_of(module, obs)
    given = {name: change(parameter) for name, parameter in module.named_parameters()}
    other = copy.deepcopy(module)
    with torch.no_grad():
        found = torch.func.functional_call(module, given, ({Columns.OBS: obs},))[Columns.ACTION_DIST_INPUTS]
        for name, parameter in other.named_parameters():
            parameter.copy_(given[name])
    close([found], [inputs_of(other, obs)])
    close([inputs_of(module, obs)], [before])


def test_parameters_that_stand_in_the_same_memory_in_another_order_are_seen():
    module, obs = make("mlp"), observations(4)
    module = DefaultPPORLModule(BOX, spaces.Discrete(3), model_config={"fcnet_hiddens": [3, 3]})
    inputs_of(module, obs)
    turned = {name: p.detach().t() if p.dim() == 2 and p.shape[0] == p.shape[1] else p.detach()
              for name, p in module.named_parameters()}  # fmt: skip
    with torch.no_grad():
        found = torch.func.functional_call(module, turned, ({Columns.OBS: obs},))[Columns.ACTION_DIST_INPUTS]
        expected = torch.func.functional_call(
            module, {name: p.clone() for name, p in turned.items()}, ({Columns.OBS: obs},)
        )[Columns.ACTION_DIST_INPUTS]
    close([found], [expected])


# torch's forward-mode derivatives script some of its own functions when they are first used.
SCRIPTS = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@SCRIPTS
@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_derivatives_are_those_of_the_layers(transform):
    module, obs = make("mlp"), observations(1)[0]

    def outputs(x):
        return module.forward_train({Columns.OBS: x[None]})[Columns.ACTION_DIST_INPUTS][0]

    found, step = transform(outputs)(obs), 1e-3
    by_hand = torch.stack([(outputs(obs + step * e) - outputs(obs - step * e)) / (2 * step) for e in torch.eye(3)], 1)
    torch.testing.assert_close(found, by_hand, rtol=1e-2, atol=1e-3)


@SCRIPTS
def test_tangents_come_through_passes_without_gradients():
    """Forward-mode derivatives do not need torch's gradients to be on."""
    module, obs = make("mlp"), observations(2)
    _, expected = torch.func.jvp(
        lambda x: module.forward_train({Columns.OBS: x})[Columns.ACTION_DIST_INPUTS], (obs,), (torch.ones_like(obs),)
    )
    with torch.no_grad(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(inputs_of(module, forward_ad.make_dual(obs, torch.ones_like(obs))))
    assert found.tangent is not None
    close([found.tangent], [expected])


class Marked(torch.Tensor):
    """A tensor of another class, which all that is made of it has, too."""


def test_tensors_of_other_classes_stay_with_torch():
    module, obs = make("mlp"), observations(4)
    found = inputs_of(module, obs.as_subclass(Marked))
    assert type(found) is Marked
    close([found.as_subclass(torch.Tensor)], [inputs_of(module, obs)])


def test_modes_and_hooks_on_all_modules_see_every_call():
    module, obs, seen = make("mlp"), observations(4), []
    expected = inputs_of(module, obs)
    with FlopCounterMode(display=False) as counter:
        close([inputs_of(module, obs)], [expected])
    assert counter.get_total_flops() == 2 * 4 * (3 * 6 + 6 * 5 + 5 * 3)
    hook = nn.modules.module.register_module_forward_hook(lambda layer, *_: seen.append(type(layer).__name__))
    try:
        inputs_of(module, obs)
    finally:
        hook.remove()
    assert seen.count("Linear") == 3


def test_without_anybody_watching_numpy_may_compute():
    assert is_watched(), "gradients may be wanted"
    with torch.no_grad():
        assert not is_watched()
        with torch.device("cpu"):
            assert is_watched()
        assert torch.func.vmap(lambda x: x * is_watched())(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", ["mlp", "dict", "lstm"])
def test_copies_and_shared_memory_give_the_same(kind):
    module = make(kind)
    acts, batch = Acts(module), batch_for(module, 4)
    expected = acts(batch)
    other = copy.deepcopy(acts)
    with torch.no_grad():
        next(acts.module.pi.parameters()).zero_()
    close(other(batch), expected)
    other.share_memory()
    assert all(parameter.is_shared() for parameter in other.parameters())
    close(other(batch), expected)
    with torch.no_grad():
        for parameter in other.module.pi.parameters():
            parameter.zero_()
    assert not other(batch)[0].any(), "what is written to shared parameters is seen"


def test_members_of_a_bucket_can_be_shared():
    multi = MultiRLModule()
    for i in range(2):
        multi.add_module(f"m{i}", make("mlp"))
    obs, _ = observations(4), multi.buckets
    expected = inputs_of(multi["m0"], obs)
    multi.share_memory()
    multi.bind_buckets()
    close([inputs_of(multi["m0"], obs)], [expected])
