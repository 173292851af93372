"""What default modules make of observations, held against slow computations in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors.errors import ConfigError, ModuleError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.encoders import CNN, Encoder, default_filters, is_image
from marl_connectors.rl_module.layers import MLP

AS_IT_IS = DefaultModelConfig(fcnet_hiddens=())  # no hidden layers: the parts themselves


def encoded(space, observations, config=AS_IT_IS):
    return Encoder(space, config)(observations)


def test_whole_numbers_become_one_hot_vectors_from_their_start():
    assert encoded(spaces.Discrete(3, start=5), torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert encoded(spaces.Discrete(2), torch.tensor([[0], [1]])).shape == (2, 1, 2)  # with a time axis
    several = spaces.MultiDiscrete([[2, 3]], start=[[0, 1]])
    assert encoded(several, torch.tensor([[[1, 3]], [[0, 1]]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_bits_and_boxes_are_flattened_as_they_are():
    assert encoded(spaces.MultiBinary((2, 2)), torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int8)).tolist() == [
        [0, 1, 1, 1]
    ]
    matrix = spaces.Box(-9, 9, (2, 3), np.float32)
    assert encoded(matrix, torch.arange(6.0).reshape(1, 2, 3)).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert encoded(spaces.Box(-9, 9, (), np.float32), torch.tensor([4.0, 5.0])).tolist() == [[4], [5]]
    assert encoded(spaces.Box(0, 9, (2,), np.int64), torch.tensor([[4, 5]])).dtype == torch.float32


def test_bytes_are_scaled_without_convolutions_too():
    config = DefaultModelConfig(fcnet_hiddens=(), conv_filters=[])
    image = torch.arange(27, dtype=torch.uint8).reshape(1, 3, 3, 3)
    expected = image.flatten(1).float() / 255
    torch.testing.assert_close(encoded(spaces.Box(0, 255, (3, 3, 3), np.uint8), image, config), expected)
    memory = torch.tensor([[0, 128, 255]], dtype=torch.uint8)
    torch.testing.assert_close(encoded(spaces.Box(0, 255, (3,), np.uint8), memory), memory / 255)


def test_parts_stand_side_by_side_in_the_spaces_order():
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(-9, 9, (1,)), spaces.MultiBinary(2)])})
    seen = {"a": (torch.tensor([[7.0]]), torch.tensor([[1, 0]])), "b": torch.tensor([1])}
    assert encoded(space, seen).tolist() == [[7, 1, 0, 0, 1]]
    alone = spaces.Dict({"x": spaces.Tuple([spaces.Discrete(2)])})
    assert encoded(alone, {"x": (torch.tensor([1]),)}).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Graph(spaces.Discrete(2), None), "Graph"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Text(5)])}), "a/1"),
        (spaces.Dict(), "Dict"),
    ],
)
def test_spaces_without_a_fixed_size_are_refused_with_the_way_out(space, where):
    with pytest.raises(ModuleError, match=f"(?s){where}.*ObservationPreprocessor"):
        Encoder(space, AS_IT_IS)


# Images.


def convolved(image, weight, bias, stride):
    """One image, ``[C, H, W]``, by hand: zeros around it such that ``ceil(size / stride)`` places come out."""
    out, _, *kernel = weight.shape
    sizes = [math.ceil(n / s) for n, s in zip(image.shape[1:], stride, strict=True)]
    total = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(sizes, stride, kernel, image.shape[1:], strict=True)]
    padded = np.pad(image, [(0, 0), *((t // 2, t - t // 2) for t in total)])
    result = np.zeros((out, *sizes))
    for c, i, j in itertools.product(range(out), *map(range, sizes)):
        window = padded[:, i * stride[0] : i * stride[0] + kernel[0], j * stride[1] : j * stride[1] + kernel[1]]
        result[c, i, j] = (window * weight[c]).sum() + bias[c]
    return result


@pytest.mark.parametrize(
    ("shape", "filters"),
    [((5, 6, 2), [[3, 3, 1], [4, [2, 4], [1, 2]]]), ((9, 7, 1), [[2, 4, 2], [3, 3, 2]]), ((3, 3, 4), [[2, 3, 1]])],
)
def test_convolutions_are_those_by_hand(shape, filters):
    rng = np.random.default_rng(0)
    cnn = CNN(shape, filters, "tanh")
    images = rng.standard_normal((2, shape[2], *shape[:2]))
    for layer in cnn.layers:
        nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(0))
    found = cnn(torch.from_numpy(images).float())
    for i, image in enumerate(images):
        for layer in cnn.layers:
            weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
            image = np.tanh(convolved(image, weight, bias, layer.stride))
        np.testing.assert_allclose(found[i].detach().numpy(), image.ravel(), rtol=0, atol=1e-5)
    assert found.shape == (2, cnn.output_dim)


@pytest.mark.parametrize(
    "size", [(3, 3), (4, 11), (7, 7), (9, 5), (16, 16), (42, 42), (64, 64), (84, 84), (96, 60), (210, 160)]
)
def test_default_filters_make_an_image_of_any_size_small_but_not_too_small(size):
    filters = default_filters(*size)
    cnn = CNN((*size, 3), filters)
    assert 2 <= len(filters) <= 5
    assert 16 <= cnn.output_dim <= 4096
    height, width = (math.ceil(n / math.prod(f[2] for f in filters)) for n in size)
    assert max(height, width) <= 7 and max(height, width) >= 3
    assert cnn(torch.zeros(2, 3, *size)).shape == (2, cnn.output_dim)


def image_part(space, config=None):
    return Encoder(space, config or DefaultModelConfig(fcnet_hiddens=(), conv_filters=[[2, 3, 1]])).parts[0]


def test_channels_may_be_last_first_or_missing_and_bytes_are_scaled():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (2, 8, 9, 2)).astype(np.uint8)
    last = image_part(spaces.Box(0, 255, (8, 9, 2), np.uint8))
    scaled = torch.from_numpy(image / 255.0).float()
    torch.testing.assert_close(last(torch.from_numpy(image)), last.cnn(scaled.permute(0, 3, 1, 2)))
    first = image_part(spaces.Box(0.0, 1.0, (2, 8, 9), np.float32))
    first.load_state_dict(last.state_dict())
    torch.testing.assert_close(first(scaled.permute(0, 3, 1, 2)), last(torch.from_numpy(image)))
    grey = image_part(spaces.Box(0, 255, (8, 9), np.uint8))
    torch.testing.assert_close(grey(torch.from_numpy(image[..., 0])), grey.cnn(scaled[..., 0].unsqueeze(1)))
    floats = image_part(spaces.Box(0, 255, (8, 9, 2), np.float32))
    floats.load_state_dict(last.state_dict())
    torch.testing.assert_close(floats(scaled), last(torch.from_numpy(image)))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3, 3, 2), np.int8, True),
        ((210, 160, 3), np.uint8, True),
        ((4, 84, 84), np.float32, True),
        ((2, 5, 1), np.float32, False),
        ((6, 7), np.float32, False),
        ((6, 7), np.uint8, True),
        ((128,), np.uint8, False),
        ((2, 2, 2, 2), np.float32, False),
    ],
)
def test_what_counts_as_an_image(shape, dtype, expected):
    space = spaces.Box(0, 1, shape, dtype)
    assert is_image(space) is expected
    assert hasattr(Encoder(space, AS_IT_IS).parts[0], "cnn") is expected
    flat = DefaultModelConfig(fcnet_hiddens=(), conv_filters=[])
    assert Encoder(space, flat).output_dim == math.prod(shape)  # no filters, no convolutions


@pytest.mark.parametrize("spec", [[16, 3], 5, [16, 0, 1], [16, 3, "a"], ["a", 3, 1]])
def test_filters_that_are_none_are_named(spec):
    with pytest.raises(ConfigError, match=r"(?s)conv_filters.*\[channels, kernel, stride\]"):
        CNN((8, 8, 3), [spec])


# How layers begin, and layer norms.


def test_weights_begin_orthogonal_and_biases_at_0():
    config = DefaultModelConfig(fcnet_hiddens=(5, 4), conv_filters=[[4, 3, 1]])
    encoder = Encoder(spaces.Dict({"i": spaces.Box(0, 1, (3, 3, 2)), "v": spaces.Box(0, 1, (3,))}), config)
    weights = [encoder.layers[0].weight, encoder.layers[1].weight, encoder.parts[0].cnn.layers[0].weight.flatten(1)]
    for weight in weights:
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), rtol=0, atol=1e-5)
    assert all((p == 0).all() for name, p in encoder.named_parameters() if name.endswith("bias"))


def test_initializers_may_be_names_or_functions():
    config = DefaultModelConfig(
        fcnet_hiddens=(5,),
        fcnet_kernel_initializer="constant",
        fcnet_kernel_initializer_kwargs={"val": 2.0},
        fcnet_bias_initializer=lambda bias: bias.data.fill_(3.0),
        conv_filters=[[4, 3, 1]],
        conv_kernel_initializer="ones_",
        conv_bias_initializer="constant_",
        conv_bias_initializer_kwargs={"val": 4.0},
    )
    encoder = Encoder(spaces.Box(0, 1, (3, 3, 2)), config)
    found = {name: set(p.flatten().tolist()) for name, p in encoder.named_parameters()}
    expected = {"layers.0.weight": 2.0, "layers.0.bias": 3.0}
    expected |= {"parts.0.cnn.layers.0.weight": 1.0, "parts.0.cnn.layers.0.bias": 4.0}
    assert found == {name: {value} for name, value in expected.items()}
    with pytest.raises(ConfigError, match=r"(?s)fcnet_kernel_initializer.*'xavier_unifrom'.*'xavier_uniform_'"):
        DefaultModelConfig(fcnet_kernel_initializer="xavier_unifrom")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fcnet_bias_initializer": "xavier_uniform_"}, r"'xavier_uniform_'.*\[5\]"),
        ({"fcnet_kernel_initializer": "constant_"}, r"'constant_'.*{}"),
        ({"fcnet_kernel_initializer": "ones_", "fcnet_kernel_initializer_kwargs": {"to": 1}}, "'ones_'"),
    ],
)
def test_an_initializer_that_cannot_fill_a_tensor_is_named(settings, said):
    with pytest.raises(ConfigError, match=f"(?s)model_config.*{said}"):
        Encoder(spaces.Box(0, 1, (3,)), DefaultModelConfig(fcnet_hiddens=(5,), **settings))


def test_layer_norm_stands_before_each_activation():
    mlp = MLP(3, [4, 2], "relu", activate_last=False, use_layernorm=True)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    hidden = torch.relu(nn.functional.layer_norm(mlp.layers[0](x), (4,)))
    torch.testing.assert_close(mlp(x), mlp.layers[1](hidden))
    assert len(mlp.norms) == 1
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), mlp.layers[1](hidden))
