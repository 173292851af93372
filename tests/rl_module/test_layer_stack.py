"""All layers of an MLP as one operation of autograd, against one operation after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from marl_connectors.rl_module import layers
from marl_connectors.rl_module.layers import ACTIVATIONS, MLP, run_mlps

KNOWN = ("tanh", "relu", "silu", "linear")


@pytest.fixture
def stacks(monkeypatch):
    """How often the one operation was taken."""
    taken, run = [], layers.run_layer_stack

    def noted(*args):
        taken.append(args)
        return run(*args)

    monkeypatch.setattr(layers, "run_layer_stack", noted)
    return taken


def stacked(mlp: MLP, number: int) -> None:
    """Gives each layer the parameters of several."""
    for layer in mlp.layers:
        for name in ("weight", "bias"):
            value = getattr(layer, name)
            setattr(layer, name, nn.Parameter(torch.randn(number, *value.shape, dtype=value.dtype) * 0.5))


def plainly(mlps, x):
    """The outputs layer by layer, as torch's own operations."""
    for mlp in mlps:
        count = len(mlp.layers)
        for i, layer in enumerate(mlp.layers):
            weight, bias = layer.weight, layer.bias
            if weight.dim() == 2:
                x = x @ weight.mT + bias
            else:
                lead = (len(weight), *[1] * (x.dim() - 2), -1)
                x = torch.einsum("m...i,moi->m...o", x, weight) + bias.view(lead)
            if mlp.activate_last or i + 1 < count:
                x = mlp.activation(x)
    return x


def random_case(rng: np.random.Generator):
    dtype = [torch.float32, torch.float64][rng.integers(2)]
    modules = int(rng.integers(4))
    sizes = rng.integers(1, 9, rng.integers(2, 6)).tolist()
    cut = int(rng.integers(1, len(sizes)))
    names = [KNOWN[i] for i in rng.integers(len(KNOWN), size=2)]
    mlps = [MLP(sizes[0], sizes[1 : cut + 1], names[0], activate_last=bool(rng.integers(2)))]
    if cut + 1 < len(sizes):
        mlps.append(MLP(sizes[cut], sizes[cut + 1 :], names[1], activate_last=bool(rng.integers(2))))
    for mlp in mlps:
        mlp.to(dtype)
        if modules:
            stacked(mlp, modules)
    lead = [*([modules] if modules else []), *rng.integers(1, 7, rng.integers(1, 3)).tolist()]
    x = torch.from_numpy(rng.standard_normal((*lead, sizes[0]))).to(dtype)
    parameters = [p for mlp in mlps for p in mlp.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(bool(rng.random() < 0.85))
    x.requires_grad_(bool(rng.integers(2)) or not any(p.requires_grad for p in parameters))
    return mlps, x, [tensor for tensor in (x, *parameters) if tensor.requires_grad]


def check_case(rng: np.random.Generator, stacks: list) -> None:
    mlps, x, wanted = random_case(rng)
    outputs, expected = run_mlps(mlps, x), plainly(mlps, x)
    assert len(stacks) == 1
    stacks.clear()
    tolerance: Any = {"rtol": 1e-4, "atol": 1e-5} if x.dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(outputs, expected, **tolerance)
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((outputs * weights).sum(), wanted)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weights).sum(), wanted), **tolerance)


@pytest.mark.parametrize("seed", range(40))
def test_gradients_are_those_of_autograd(seed, stacks):
    torch.manual_seed(seed)
    check_case(np.random.default_rng(seed), stacks)


@pytest.mark.slow
def test_gradients_are_those_of_autograd_in_many_cases(stacks):
    first = int(np.random.SeedSequence().generate_state(1)[0])
    for seed in range(first, first + 2000):
        print("seed", seed)
        torch.manual_seed(seed)
        check_case(np.random.default_rng(seed), stacks)


@pytest.mark.parametrize("modules", [0, 3])
@pytest.mark.parametrize("activation", KNOWN)
def test_gradients_have_gradients_of_their_own(activation, modules):
    mlp = MLP(3, (4, 2), activation).double()
    if modules:
        stacked(mlp, modules)
    parameters = list(mlp.parameters())
    x = torch.randn(*([modules] if modules else []), 5, 3, dtype=torch.float64, requires_grad=True)

    def penalty(outputs):
        (slope,) = torch.autograd.grad(outputs.square().sum(), [x], create_graph=True)
        return slope.square().sum()

    # The output's bias has no part in the second derivatives of a linear stack, but it has in those of its square.
    found = torch.autograd.grad(penalty(mlp(x)), parameters, allow_unused=True)
    expected = torch.autograd.grad(penalty(plainly([mlp], x)), parameters, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other)


def test_a_graph_that_is_kept_gives_its_gradients_again():
    mlp, x = MLP(3, (4, 2)), torch.randn(5, 3)
    outputs = mlp(x).sum()
    first = torch.autograd.grad(outputs, list(mlp.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(outputs, list(mlp.parameters())), first, rtol=0, atol=0)


def test_outputs_without_an_activation_may_be_changed_in_place():
    mlp, x = MLP(3, (4, 2), activate_last=False), torch.randn(5, 3)
    outputs = mlp(x)
    outputs += 1
    outputs.sum().backward()
    torch.testing.assert_close(mlp.layers[1].bias.grad, torch.full((2,), 5.0))


def hook_on(part):
    part.register_forward_hook(lambda *args: None)


def full_backward_hook_on(part):
    part.register_full_backward_hook(lambda *args: None)


def pre_hook_on(part):
    part.register_forward_pre_hook(lambda *args: None)


def own_forward_for(part):
    part.forward = type(part).forward.__get__(part)


@pytest.mark.parametrize("change", [hook_on, full_backward_hook_on, pre_hook_on, own_forward_for])
@pytest.mark.parametrize("part", ["layers.0", "activation"])
def test_layers_that_somebody_looks_into_run_one_by_one(change, part, stacks):
    mlp = MLP(3, (4, 2))
    change(mlp.get_submodule(part))
    mlp(torch.randn(5, 3))
    assert not stacks


@pytest.mark.parametrize("change", [hook_on, full_backward_hook_on, pre_hook_on, own_forward_for])
@pytest.mark.parametrize("which", [0, 1])
def test_a_hook_on_one_of_two_mlps_is_called(change, which, stacks):
    mlps = [MLP(3, (4,)), MLP(4, (2,))]
    change(mlps[which])
    run_mlps(mlps, torch.randn(5, 3))
    assert len(stacks) == 2, "each by itself"


def other_layers():
    mlp = MLP(3, (4, 2))
    mlp.layers[1] = nn.Linear(4, 2)
    return mlp


def without_bias():
    mlp = MLP(3, (4, 2))
    mlp.layers[1].register_parameter("bias", None)
    return mlp


def mixed_precision():
    mlp = MLP(3, (4, 2))
    mlp.layers[0].half()
    return mlp


OTHERS = {
    "other layers": other_layers,
    "no bias": without_bias,
    "layer norm": lambda: MLP(3, (4, 2), use_layernorm=True),
    **{name: lambda name=name: MLP(3, (4, 2), name) for name in sorted(set(ACTIVATIONS) - {*KNOWN, "swish"})},
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_layers_of_other_kinds_run_one_by_one(make, stacks):
    make()(torch.randn(5, 3)).sum().backward()
    assert not stacks


def test_half_precision_is_left_to_torch(stacks):
    mlp = MLP(3, (4, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mlp(torch.randn(5, 3)).dtype is torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"):
        mixed_precision()(torch.randn(5, 3))
    assert not stacks


def test_transforms_see_each_operation(stacks):
    mlp, x = MLP(3, (4, 2)), torch.randn(5, 3)
    expected = mlp(x)
    stacks.clear()
    parameters = dict(mlp.named_parameters())
    torch.testing.assert_close(torch.func.vmap(mlp)(x), expected)
    per_row = torch.func.vmap(
        torch.func.grad(lambda p, row: torch.func.functional_call(mlp, p, (row,)).sum()), (None, 0)
    )(parameters, x)
    assert per_row["layers.0.weight"].shape == (5, 4, 3)
    assert not stacks


def test_parameters_given_for_one_call_get_the_gradients():
    mlp, x = MLP(3, (4, 2)), torch.randn(5, 3)
    given = {name: p.detach().clone().requires_grad_() for name, p in mlp.named_parameters()}
    torch.func.functional_call(mlp, given, (x,)).sum().backward()
    assert all(p.grad is not None for p in given.values())
    assert all(p.grad is None for p in mlp.parameters())
