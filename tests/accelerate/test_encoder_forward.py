"""Bound forward passes over images, whole numbers, Dicts and Tuples are those of the modules, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors import spaces as own_spaces
from marl_connectors.accelerate.array_forward import bind_forward
from marl_connectors.accelerate.encoder_forward import EncoderForward
from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.columns import Columns
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.trees import tree_map

IMAGE = spaces.Box(0, 255, (9, 12, 3), np.uint8)
SPACES = {
    "image": IMAGE,
    "image without channels": spaces.Box(0, 255, (8, 7), np.uint8),
    "image with channels first": spaces.Box(-1.0, 1.0, (2, 12, 10), np.float32),
    "board of int8": spaces.Box(0, 1, (3, 3, 2), np.int8),
    "matrix": spaces.Box(-5.0, 5.0, (2, 3), np.float64),
    "bytes": spaces.Box(0, 9, (5,), np.uint8),
    "Discrete": spaces.Discrete(4, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "MultiBinary": spaces.MultiBinary(6),
    "Tuple": spaces.Tuple([spaces.Box(-1.0, 1.0, (), np.float32), spaces.Tuple([spaces.Discrete(3)])]),
    "Dict": spaces.Dict(
        {"z": spaces.Discrete(5), "a": IMAGE, "in": spaces.Dict({"x": spaces.Box(-1.0, 1.0, (4,), np.float32)})}
    ),
}


def module_for(space, module_class=DefaultPPORLModule, action_space=None, **config):
    torch.manual_seed(0)
    module = module_class(space, action_space or spaces.Discrete(4), model_config={"fcnet_hiddens": [24, 20], **config})
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.3)
    modules = MultiRLModule()
    modules.add_module("m", module)
    return modules


def some(space, rows, seed=0):
    space.seed(seed)
    return own_spaces.stack([space.sample() for _ in range(rows)], space)


def of_module(modules, observations):
    def tensor(leaf):
        return torch.from_numpy(leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf)

    return modules["m"].forward_inference({Columns.OBS: tree_map(tensor, observations)})[Columns.ACTION_DIST_INPUTS]


def check(modules, space, rows, seed=0):
    forward = bind_forward(modules, ("m",), [0, rows])
    assert isinstance(forward, EncoderForward)
    for drawn in (seed, seed + 1):  # what one call leaves in its buffers is nothing to the next one
        observations = some(space, rows, drawn)
        assert forward.accepts(observations)
        inputs, state = forward(observations)
        expected = of_module(modules, observations).numpy()
        assert state is None and inputs.shape == (rows, forward.num_inputs) == expected.shape
        np.testing.assert_array_equal(inputs, expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("kind", SPACES)
def test_the_inputs_are_those_of_the_module(kind, rows):
    check(module_for(SPACES[kind]), SPACES[kind], rows)


@pytest.mark.parametrize(
    "config",
    [
        {"conv_filters": [[5, [3, 4], [2, 1]], [7, 2, 2], [6, 1, 1]], "conv_activation": "silu"},
        {"conv_filters": [[16, 8, 4], [32, 4, 2]], "conv_activation": "tanh"},
        {"fcnet_hiddens": []},
        {"head_fcnet_hiddens": [9], "head_fcnet_activation": "relu"},
        {"fcnet_activation": "relu", "head_fcnet_hiddens": [8], "head_fcnet_activation": "tanh"},
    ],
)
@pytest.mark.parametrize("rows", [1, 5])
def test_any_filters_and_hidden_layers_are_bound(config, rows):
    check(module_for(SPACES["Dict"], **config), SPACES["Dict"], rows)


@pytest.mark.parametrize("free", [False, True])
def test_log_standard_deviations_are_put_in_and_clipped(free):
    config = {"free_log_std": free, "log_std_clip_param": 0.1}
    check(module_for(IMAGE, action_space=spaces.Box(-1.0, 1.0, (3,)), **config), IMAGE, 3)


def test_modules_of_dqn_are_bound():
    check(module_for(IMAGE, DefaultDQNRLModule), IMAGE, 3)


def test_parameters_that_change_are_those_of_the_next_call():
    modules = module_for(SPACES["Dict"], action_space=spaces.Box(-1.0, 1.0, (3,)), free_log_std=True)
    forward, observations = bind_forward(modules, ("m",), [0, 2]), some(SPACES["Dict"], 2)
    before = forward(observations)[0].copy()
    with torch.no_grad():
        for parameter in modules.parameters():
            parameter.mul_(-2.0).add_(0.1)
    after = forward(observations)[0]
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, of_module(modules, observations).numpy())


def test_load_binds_parameters_that_have_got_other_memory():
    modules = module_for(SPACES["Dict"])
    forward, observations = bind_forward(modules, ("m",), [0, 2]), some(SPACES["Dict"], 2)
    for parameter in modules.parameters():
        parameter.data = parameter.data * 0.5
    forward.load()
    np.testing.assert_array_equal(forward(observations)[0], of_module(modules, observations).numpy())


def test_observations_of_another_kind_are_not_accepted():
    space = SPACES["Dict"]
    forward, observations = bind_forward(module_for(space), ("m",), [0, 2]), some(space, 2)
    others = [
        some(space, 3),
        {key: part for key, part in observations.items() if key != "z"},
        {**observations, "z": observations["z"].astype(np.float32)},
        {**observations, "a": observations["a"][:, 1:]},
        {**observations, "in": observations["in"]["x"]},
        {**observations, "a": torch.from_numpy(observations["a"])},
        observations["a"],
        None,
    ]
    assert forward.accepts(observations)
    assert not any(map(forward.accepts, others))


def bound(modules):
    return bind_forward(modules, ("m",), [0, 2])


@pytest.mark.parametrize("config", [{"use_lstm": True}, {"fcnet_activation": "gelu"}, {"fcnet_use_layernorm": True}])
def test_modules_that_torch_computes_are_not_bound(config):
    assert bound(module_for(IMAGE, **config)) is None


def test_replaced_layers_and_hooks_are_not_bound():
    def hook(*args):
        return None

    changes = [
        lambda cnn: setattr(cnn, "activation", nn.Sigmoid()),
        lambda cnn: cnn.layers[0].register_forward_hook(hook),
        lambda cnn: setattr(cnn, "forward", lambda x: x),
        lambda cnn: cnn.double(),
    ]
    for change in changes:
        modules = module_for(IMAGE)
        assert bound(modules) is not None
        change(modules["m"].encoder.parts[0].cnn)
        assert bound(modules) is None


def test_modules_whose_rows_stand_in_one_group_are_called():
    modules = module_for(IMAGE)
    modules.add_module("n", module_for(IMAGE)["m"])
    assert bind_forward(modules, ("m", "n"), [0, 2, 4]) is None
