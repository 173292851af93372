"""LSTM and GRU layers are torch's, alone and stacked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from marl_connectors.rl_module.layers import GRU, LSTM, LayerNorm

BOTH = [(LSTM, nn.LSTM), (GRU, nn.GRU)]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(layer, seed):
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_(0.5 * random(*parameter.shape, seed=10 * seed + i))
    return layer


def states(layer, *lead):
    return {key: random(*lead, layer.size, seed=i + 5) for i, key in enumerate(layer.initial_state())}


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_a_layer_computes_what_torchs_does_in_float64(ours, theirs):
    layer, reference = filled(ours(3, 4), 0), theirs(3, 4, batch_first=True).double()
    reference.load_state_dict(layer.state_dict())
    x, state = random(2, 5, 3), states(layer, 2)
    before = [leaf.double().unsqueeze(0) for leaf in state.values()]
    outputs, after = reference(x.double(), tuple(before) if len(before) > 1 else before[0])
    found, found_state = layer(x, state)
    torch.testing.assert_close(found.double(), outputs, rtol=0, atol=1e-5)
    after = after if isinstance(after, tuple) else (after,)
    for leaf, expected in zip(found_state.values(), after, strict=True):
        torch.testing.assert_close(leaf.double(), expected.squeeze(0), rtol=0, atol=1e-5)
    in_steps = layer._alone_in_steps(x, state, list(layer.parameters()))  # as on other devices than the CPU
    torch.testing.assert_close(in_steps, (found, found_state), rtol=0, atol=1e-5)


@pytest.mark.parametrize("ours", [LSTM, GRU])
def test_stacked_layers_compute_what_each_does_alone(ours):
    layers = [filled(ours(3, 4), seed) for seed in range(3)]
    stacked = copy.deepcopy(layers[0])
    for name, _ in layers[0].named_parameters():
        stacked._parameters[name] = nn.Parameter(torch.stack([layer.get_parameter(name).detach() for layer in layers]))
    x, state = random(3, 2, 5, 3), states(layers[0], 3, 2)
    outputs, after = stacked(x, state)
    outputs.square().sum().backward()
    for i, layer in enumerate(layers):
        own, own_after = layer(x[i], {key: leaf[i] for key, leaf in state.items()})
        torch.testing.assert_close(outputs[i], own, rtol=0, atol=1e-5)
        torch.testing.assert_close({key: leaf[i] for key, leaf in after.items()}, own_after, rtol=0, atol=1e-5)
        own.square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(stacked.get_parameter(name).grad[i], parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ours", [LSTM, GRU])
def test_each_gate_begins_orthogonal(ours):
    layer = ours(6, 4)
    for weight in (layer.weight_ih_l0, layer.weight_hh_l0):
        for gate in weight.chunk(ours._num_gates):
            torch.testing.assert_close(gate @ gate.T, torch.eye(4), rtol=0, atol=1e-5)
    assert (layer.bias_ih_l0 == 0).all() and (layer.bias_hh_l0 == 0).all()


def test_stacked_layer_norms_compute_what_each_does_alone():
    stacked = LayerNorm(2, eps=0.0)
    stacked._parameters["weight"] = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    stacked._parameters["bias"] = nn.Parameter(torch.tensor([[0.0, 1.0], [10.0, 20.0]]))
    found = stacked(torch.tensor([[[1.0, 3.0]], [[5.0, 1.0]]]))  # which are -1, 1 and 1, -1 once they are normal
    assert found.tolist() == [[[-1.0, 3.0]], [[13.0, 16.0]]]
