"""PPO's default module, for all spaces and settings: stacked as alone, acting as training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors import Columns, DefaultPPORLModule, MultiRLModule
from marl_connectors.errors import ConfigError, ModuleError
from marl_connectors.trees import tree_map

BOX = spaces.Box(-2.0, 2.0, (3,), np.float32)
OBSERVATIONS = {
    "vector": BOX,
    "discrete": spaces.Discrete(4, start=2),
    "several": spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]),
    "bits": spaces.MultiBinary(3),
    "image": spaces.Box(0, 255, (5, 4, 2), np.uint8),
    "large image": spaces.Box(0, 255, (40, 44, 3), np.uint8),
    "nested": spaces.Dict(
        {"a": BOX, "b": spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 1.0, (4, 4, 1), np.float32)])}
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "nested": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(0.0, 1.0, (2,)), spaces.MultiBinary(2)]),
}
SETTINGS = {
    "shared": {"vf_share_layers": True},
    "separate": {"head_fcnet_hiddens": [4]},
    "norms": {"fcnet_use_layernorm": True, "head_fcnet_hiddens": [4], "head_fcnet_use_layernorm": True},
    "free": {"free_log_std": True},
    "lstm": {"use_lstm": True, "lstm_cell_size": 5, "vf_share_layers": True},
    "gru": {"use_gru": True, "gru_cell_size": 5, "vf_share_layers": True},
    "lstms": {"use_lstm": True, "lstm_cell_size": 5},
}
CASES = [
    *[(obs, "nested", {}) for obs in OBSERVATIONS],
    *[("vector", act, {"free_log_std": free}) for act in ACTIONS for free in (False, True)],
    *[("nested", "nested", settings) for settings in SETTINGS.values()],
    *[("large image", "discrete", SETTINGS["lstm"]), ("discrete", "box", SETTINGS["gru"] | SETTINGS["free"])],
]


def make(obs, act, settings, **kwargs):
    config = {"fcnet_hiddens": [6], **settings}
    module = DefaultPPORLModule(OBSERVATIONS[obs], ACTIONS[act], model_config=config, **kwargs)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def batch_for(module, *lead, steps=None, seed=0):
    """Observations, and states where the module has some; ``steps`` for a time axis."""
    steps = steps if steps is not None or not module.is_stateful() else 4
    shape = lead if steps is None else (*lead, steps)
    space = module.observation_space
    space.seed(seed)
    items = [space.sample() for _ in range(int(np.prod(shape)))]

    def stacked(*parts):
        return torch.from_numpy(np.stack(parts)).unflatten(0, shape)

    columns = {Columns.OBS: tree_map(lambda *parts: stacked(*map(np.asarray, parts)), *items)}
    if module.is_stateful():
        rng = np.random.default_rng(seed)
        columns[Columns.STATE_IN] = tree_map(
            lambda leaf: torch.from_numpy(rng.standard_normal((*lead, *leaf.shape)).astype(np.float32)),
            module.get_initial_state(),
        )
    return columns


def part(columns, i):
    return {name: tree_map(lambda leaf: leaf[i], column) for name, column in columns.items()}


def score(module, columns):
    """A scalar that depends on all that a module puts out."""
    out = module.forward_train(columns)
    values = module.compute_values(columns, embeddings=out.get(Columns.EMBEDDINGS))
    inputs = out[Columns.ACTION_DIST_INPUTS]
    weights = torch.arange(1.0, inputs[0, 0].numel() + 1).view(inputs[0, 0].shape) if inputs.dim() > 2 else 1.0
    return inputs, values, (inputs.pow(2) * weights).sum() + (values * (1 + values)).sum()


@pytest.mark.few(11)
@pytest.mark.parametrize(("obs", "act", "settings"), CASES)
def test_stacked_modules_compute_what_each_does_alone(obs, act, settings):
    multi = MultiRLModule()
    for module_id in "abc":
        multi.add_module(module_id, make(obs, act, settings))
    with torch.no_grad():
        for i, module in enumerate(multi.values()):
            for parameter in module.parameters():
                parameter.mul_(1.0 + 0.3 * i)
    (bucket,) = multi.buckets
    assert bucket.module_ids == ("a", "b", "c")
    columns = batch_for(multi["a"], 3, 5)
    inputs, values, total = score(bucket.stacked_module, columns)
    found = torch.cat([g.flatten(1) for g in torch.autograd.grad(total, list(bucket.stacked_module.parameters()))], 1)
    for i, module in enumerate(multi.values()):
        own_inputs, own_values, _ = score(module, part(columns, i))
        torch.testing.assert_close(inputs[i], own_inputs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values[i], own_values, rtol=1e-5, atol=1e-5)
        weights = torch.arange(1.0, inputs[0, 0].numel() + 1).view(inputs[0, 0].shape)
        ((own_inputs.pow(2) * weights).sum() + (own_values * (1 + own_values)).sum()).backward()
    scale = bucket.gradients.abs().max()
    torch.testing.assert_close(found / scale, bucket.gradients / scale, rtol=1e-4, atol=1e-5)
    assert bucket.gradients.abs().sum(1).min() > 0
    acting = bucket.stacked_module.forward_exploration(columns)
    for i, module in enumerate(multi.values()):
        alone = module.forward_exploration(part(columns, i))
        torch.testing.assert_close(part(acting, i), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("obs", "act", "settings"), CASES)
def test_acting_computes_what_training_does_with_vectors_in_float64(obs, act, settings):
    module = make(obs, act, settings)
    columns = batch_for(module, 6)
    acting = module.forward_inference(columns)
    values = module.compute_values(columns)
    exact, doubles = module, columns
    if obs == "vector":
        exact = copy.deepcopy(module).double()
        doubles = {name: tree_map(torch.Tensor.double, column) for name, column in columns.items()}
    trained = exact.forward_train(doubles)
    expected = trained[Columns.ACTION_DIST_INPUTS].float()
    torch.testing.assert_close(acting[Columns.ACTION_DIST_INPUTS], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(exact.compute_values(doubles).float(), values, rtol=1e-5, atol=1e-5)
    again = exact.compute_values(doubles, embeddings=trained.get(Columns.EMBEDDINGS))
    torch.testing.assert_close(again.float(), values, rtol=1e-5, atol=1e-5)
    assert (Columns.EMBEDDINGS in trained) is settings.get("vf_share_layers", False)


@pytest.mark.parametrize("settings", [SETTINGS["lstm"], SETTINGS["gru"], SETTINGS["lstms"]])
def test_steps_one_by_one_are_the_steps_of_a_sequence(settings):
    module = make("vector", "discrete", settings)
    columns = batch_for(module, 2, steps=5)
    together = module.forward_exploration(columns)
    state = columns[Columns.STATE_IN]
    for t in range(5):
        step = {Columns.OBS: columns[Columns.OBS][:, t : t + 1], Columns.STATE_IN: state}
        values = module.compute_values(step)
        torch.testing.assert_close(values[:, 0], module.compute_values(columns)[:, t], rtol=1e-5, atol=1e-6)
        out = module.forward_exploration(step)
        torch.testing.assert_close(
            out[Columns.ACTION_DIST_INPUTS][:, 0], together[Columns.ACTION_DIST_INPUTS][:, t], rtol=1e-5, atol=1e-6
        )
        state = out[Columns.STATE_OUT]
    torch.testing.assert_close(state, together[Columns.STATE_OUT], rtol=1e-5, atol=1e-6)


def test_the_policy_begins_even_and_the_values_at_their_own_scale():
    module = DefaultPPORLModule(BOX, spaces.Discrete(3), model_config={"fcnet_hiddens": [8]})
    for head, gain in ((module.pi, 0.01), (module.vf, 1.0)):
        weight = head.layers[-1].weight
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), rtol=1e-3, atol=1e-7)
        assert (head.layers[-1].bias == 0).all()
    custom = {"head_fcnet_kernel_initializer": "ones_", "lstm_bias_initializer": "ones_", "use_lstm": True}
    module = DefaultPPORLModule(BOX, spaces.Discrete(3), model_config=custom)
    assert (module.pi.layers[-1].weight == 1).all() and (module.rnn.bias_hh_l0 == 1).all()


@pytest.mark.parametrize("free", [True, False])
def test_log_standard_deviations_are_bounded_wherever_they_stand(free):
    settings = {"fcnet_hiddens": [6], "free_log_std": free, "log_std_clip_param": 0.5}
    module = DefaultPPORLModule(BOX, ACTIONS["nested"], model_config=settings)
    with torch.no_grad():
        module.log_std.fill_(-7.0) if free else module.pi.layers[-1].bias.fill_(-7.0)
    inputs = module.forward_inference({Columns.OBS: torch.zeros(1, 3)})[Columns.ACTION_DIST_INPUTS][0].tolist()
    other = 0.0 if free else -7.0
    assert inputs == [*[other] * 5, other, other, -0.5, -0.5, *[other] * 2]  # 2 + 3 logits, 2 means, 2 bits


@pytest.mark.parametrize("name", SETTINGS)
def test_an_inference_only_module_acts_alike_without_what_it_does_not_need(name):
    whole, acting = make("vector", "box", SETTINGS[name]), make("vector", "box", SETTINGS[name], inference_only=True)
    left_out = tuple(f"{attribute}." for attribute in whole.get_non_inference_attributes())
    acting.set_state({n: p for n, p in whole.get_state().items() if not n.startswith(left_out)})
    columns = batch_for(whole, 3)
    assert not any(name.startswith("vf") for name in acting.get_state())
    expected = whole.forward_inference(columns)
    if whole.vf_rnn is not None:  # whose state only training needs
        columns = {**columns, Columns.STATE_IN: columns[Columns.STATE_IN]["actor"]}
        expected = {**expected, Columns.STATE_OUT: expected[Columns.STATE_OUT]["actor"]}
    torch.testing.assert_close(acting.forward_inference(columns), expected)


def test_wrong_settings_are_errors_that_name_them():
    with pytest.raises(ConfigError, match=r"(?s)use_lstm.*use_gru"):
        make("vector", "discrete", {"use_lstm": True, "use_gru": True})
    with pytest.raises(ModuleError, match=r"(?s)TorchBeta.*Box\(2,\).*float32"):
        DefaultPPORLModule(BOX, spaces.Box(-np.inf, np.inf, (2,)), model_config={"action_distribution": "beta"})
    with pytest.raises(ModuleError, match="Text"):
        DefaultPPORLModule(spaces.Text(3), spaces.Discrete(2))
