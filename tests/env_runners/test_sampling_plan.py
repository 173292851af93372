"""Steps are bound to array operations where that can be. These give what tensors give, and pass nothing over."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from random_aec import RandomAEC
from scripted_envs import LifeEnv, small_config

from marl_connectors import Columns, ConnectorV2, RLModuleSpec
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.rl_module import array_layers, layers
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_envs import match_v0

LIVES = {"agents": "abc", "die": 0.0, "max_steps": 7}
TWO_KINDS = {**LIVES, "spaces_of": {"b": (spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4))}}
DEATHS = {"agents": "abcd", "die": 0.03, "join": 0.05, "max_steps": 30, "fixed": False}
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
WIDE = spaces.Box(-1.0, 1.0, (3,), np.float64)
CONTINUOUS = {
    **LIVES,
    "spaces_of": dict.fromkeys("abc", (spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,)))),
}


def independent(config):
    return config.multi_agent(policies="independent")


def relu(config):
    return config.rl_module(model_config={"fcnet_hiddens": (4,), "fcnet_activation": "relu"})


class Same(ConnectorV2):
    """Changes nothing."""

    def on_columns(self, *, columns, **kwargs):
        pass


class Shifted(ConnectorV2):
    """Writes other observations to the batch, as float64."""

    def on_columns(self, *, columns, **kwargs):
        columns[Columns.OBS] = columns.rows.get(Columns.OBS) + 0.25


class Written(ConnectorV2):
    """Writes other observations to the episodes, and remembers how often."""

    calls = 0

    def on_columns(self, *, columns, **kwargs):
        self.calls += 1
        columns.rows.set(Columns.OBS, columns.rows.get(Columns.OBS) * np.float32(1 + self.calls % 3))

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


def to_module(*pieces):
    return lambda config: config.env_runners(env_to_module_connector=lambda env: [piece() for piece in pieces])


def to_env(*pieces):
    return lambda config: config.env_runners(module_to_env_connector=lambda env: [piece() for piece in pieces])


def two_by_turns(config):
    """Modules with unlike numbers of rows, which change with each episode."""
    by_episode = lambda agent_id, episode, **kwargs: "ab"[(ord(agent_id) + int(episode.id_[-1])) % 3 == 0]
    return config.multi_agent(policies={"a", "b"}, policy_mapping_fn=by_episode)


def acting_in(space):
    return {**LIVES, "spaces_of": dict.fromkeys("abc", (BOX, space))}


OPEN = {
    "shared": (LifeEnv, LIVES, None),
    "independent, as a stack": (LifeEnv, LIVES, independent),
    "mapped by episode": (LifeEnv, LIVES, two_by_turns),
    "two kinds of spaces": (LifeEnv, TWO_KINDS, independent),
    "deaths": (LifeEnv, DEATHS, None),
    "one agent": ("CartPole-v1", {}, None),
    "relu": (LifeEnv, LIVES, relu),
    "no hidden layers": (LifeEnv, LIVES, lambda config: config.rl_module(model_config={"fcnet_hiddens": []})),
    "batched": ("marl_envs.spread_v0:batched_env", {"n_agents": 3, "ep_len": 11}, None),
    "continuous": (LifeEnv, CONTINUOUS, None),
    "squashed": (LifeEnv, CONTINUOUS, lambda c: c.rl_module(model_config={"action_distribution": "squashed_gaussian"})),
    "beta": (LifeEnv, CONTINUOUS, lambda c: c.rl_module(model_config={"action_distribution": "beta"})),
    "counted from 1": (LifeEnv, acting_in(spaces.Discrete(3, start=1)), None),
    "several choices": (LifeEnv, acting_in(spaces.MultiDiscrete([2, 4, 3])), None),
    "bits": (LifeEnv, acting_in(spaces.MultiBinary(3)), None),
    "float64 observations": (LifeEnv, {**LIVES, "spaces_of": dict.fromkeys("abc", (WIDE, spaces.Discrete(3)))}, None),
    "an idle piece to the module": (LifeEnv, LIVES, to_module(Same)),
    "an idle piece to the environment": (LifeEnv, LIVES, to_env(Same)),
    "a piece that writes the batch": (LifeEnv, LIVES, to_module(Shifted)),
    "pieces that write episodes": (LifeEnv, DEATHS, to_module(Written, Same, Written)),
    "turns": (RandomAEC, {"agents": "abcd", "die": 0.1, "join": 0.2, "max_steps": 20}, None),
}
"""Environment, its settings, and what is done to the config."""


def runner_of(env, env_config, change=None, **settings):
    config = small_config(env, env_config=env_config).env_runners(
        num_envs_per_env_runner=3, rollout_fragment_length=8, **settings
    )
    return (change or (lambda config: config))(config).build_algo().env_runner


def sampled(runner, samples=4, **kwargs):
    """All that came of some samples, and how many steps were taken in arrays."""
    found, counts = [], []
    choose = SamplingPlan.choose

    def counting(self, batch, outputs):
        counts.append(1)
        return choose(self, batch, outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SamplingPlan, "choose", counting)
        for _ in range(samples):
            for chunk in runner.sample(**kwargs):
                parts = chunk.all_agent_episodes() if hasattr(chunk, "agent_episodes") else [chunk]
                found += [{**part.get_state(), "duration_s": None} for part in parts]
    return found, len(counts)


def assert_alike(found, expected):
    """Equal, but for the last bits of floating point numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_alike(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for own, other in zip(found, expected, strict=True):
            assert_alike(own, other)
    elif isinstance(expected, (np.ndarray, float)):
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    else:
        assert found == expected


def is_used(runner):
    """Whether steps are taken in arrays: all of them, or none."""
    _, count = sampled(runner, samples=2)
    assert count in (0, 16)
    return count == 16


@pytest.fixture
def in_tensors(monkeypatch):
    """Makes runners take all steps by tensors and the modules' own methods."""

    def switch():
        monkeypatch.setattr(SamplingPlan, "forward", lambda *args: None)

    return switch


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("case", OPEN)
def test_arrays_give_what_tensors_give(case, explore, in_tensors):
    arrays, count = sampled(runner_of(*OPEN[case]), explore=explore)
    assert count >= 4 * 8
    in_tensors()
    tensors, count = sampled(runner_of(*OPEN[case]), explore=explore)
    assert count == 0
    assert_alike(arrays, tensors)


@pytest.mark.parametrize("case", ["shared", "independent, as a stack"])
def test_many_rows_are_computed_in_blocks(case, monkeypatch, in_tensors):
    monkeypatch.setattr(array_layers, "BLOCK", 2)
    arrays, count = sampled(runner_of(*OPEN[case]))
    assert count == 4 * 8
    in_tensors()
    assert_alike(sampled(runner_of(*OPEN[case]))[0], arrays)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_blocks_of_rows_come_out_in_order(lead, monkeypatch):
    rng = np.random.default_rng(0)
    weight, bias, x = (rng.standard_normal((*lead, *shape), np.float32) for shape in ((5, 3), (5,), (7, 3)))
    layer = array_layers.ArrayLayer.over(weight, bias, np.tanh)
    whole = array_layers.run_layers(x, [layer])
    monkeypatch.setattr(array_layers, "BLOCK", 2)
    np.testing.assert_allclose(array_layers.run_layers(x, [layer]), whole, rtol=1e-5)
    by_hand = np.tanh(np.einsum("...bi,...oi->...bo", x, weight) + bias[..., None, :])
    np.testing.assert_allclose(whole, by_hand, rtol=1e-4, atol=1e-6)


def test_it_is_not_for_so_many_rows_that_torch_is_faster(monkeypatch):
    assert is_used(runner_of(LifeEnv, LIVES, relu))
    monkeypatch.setitem(layers._NUMPY_ROWS, torch.nn.ReLU, 8)
    assert not is_used(runner_of(LifeEnv, LIVES, relu))


def test_an_episode_of_each_copy_and_random_actions_in_between_are_the_same(in_tensors):
    def play():
        runner = runner_of(LifeEnv, LIVES)
        found = sampled(runner, num_episodes=3)[0]
        for kwargs in ({}, {"random_actions": True}, {"explore": False}, {"force_reset": True}, {}):
            found += sampled(runner, samples=1, **kwargs)[0]
        return found, runner.get_metrics()

    arrays = play()
    in_tensors()
    assert_alike(play(), arrays)


@pytest.mark.parametrize("case", ["shared", "continuous", "pieces that write episodes"])
def test_saving_changes_nothing_in_what_comes_next(case):
    runners = [runner_of(*OPEN[case]) for _ in range(2)]
    for _ in range(3):
        runners[0].get_state()
        first, second = (repr(sampled(runner, samples=1)[0]) for runner in runners)
        assert first == second


def test_a_runner_goes_on_from_a_checkpoint_as_if_it_had_not_stopped():
    runner = runner_of(LifeEnv, LIVES)
    sampled(runner)
    state = copy.deepcopy(runner.get_state())
    expected, count = sampled(runner)
    assert count == 4 * 8
    other = runner_of(LifeEnv, LIVES)
    sampled(other, samples=1)
    other.set_state(state)
    assert repr(sampled(other)[0]) == repr(expected)


def test_after_a_dropped_sample_a_checkpoint_has_no_batch():
    runner = runner_of(LifeEnv, LIVES)
    sampled(runner)
    runner.restart_episodes()
    assert runner.get_state()["batch"] is None


# Whose step it is not.


class OnItems(ConnectorV2):
    """Changes nothing, item by item."""

    def __call__(self, *, batch, episodes, **kwargs):
        return batch


class AddsColumn(ConnectorV2):
    """Gives modules more than observations."""

    def on_columns(self, *, columns, **kwargs):
        columns["more"] = columns.rows.get(Columns.OBS)


class Moody(DefaultPPORLModule):
    """Puts out something else in every fifth step."""

    stackable = True
    calls = 0

    def _forward_exploration(self, batch, **kwargs):
        self.calls += 1
        factor = 1.0 if self.calls % 5 else 2.0
        return {name: factor * column for name, column in super()._forward(batch, **kwargs).items()}


class OwnModules(MultiRLModule):
    """Runs its modules as it likes."""

    def _forward(self, batch, **kwargs):
        return super()._forward(batch, **kwargs)


def of_class(cls):
    return lambda config: config.rl_module(rl_module_spec=RLModuleSpec(cls))


CLOSED = {
    "a piece on items": to_module(OnItems),
    "a piece on items to the environment": to_env(OnItems),
    "a column beside the observations": to_module(AddsColumn),
    "a module of another class": of_class(Moody),
    "layer norm": lambda c: c.rl_module(model_config={"fcnet_use_layernorm": True}),
    "another activation": lambda c: c.rl_module(model_config={"fcnet_activation": "silu"}),
    "an LSTM": lambda c: c.rl_module(model_config={"use_lstm": True}),
}


@pytest.mark.parametrize("case", CLOSED)
def test_it_is_not_for(case):
    assert not is_used(runner_of(LifeEnv, LIVES, CLOSED[case]))


def test_it_is_not_for_a_multi_module_with_a_forward_pass_of_its_own():
    from marl_connectors import MultiRLModuleSpec

    spec = MultiRLModuleSpec(OwnModules, rl_module_specs={"default_policy": RLModuleSpec()})
    assert not is_used(runner_of(LifeEnv, LIVES, lambda config: config.rl_module(rl_module_spec=spec)))


def seen_by_a_hook(runner, seen):
    runner.rl_module["default_policy"].pi.register_forward_hook(lambda *args: seen.append(1))


def seen_by_a_hook_inside(runner, seen):
    encoder = runner.rl_module["default_policy"].encoder
    encoder.register_forward_pre_hook(lambda *args: seen.append(1))


def method_of_a_layer(runner, seen):
    layer = runner.rl_module["default_policy"].pi
    layer.forward = lambda x: seen.append(1) or MLP.forward(layer, x)


def method_of_the_module(runner, seen):
    module = runner.rl_module["default_policy"]
    module._forward = lambda batch, **kwargs: seen.append(1) or DefaultPPORLModule._forward(module, batch)


def method_of_all_modules(runner, seen):
    module = runner.rl_module
    module.forward_exploration = lambda batch: seen.append(1) or MultiRLModule.forward_exploration(module, batch)


def method_of_a_piece(runner, seen):
    piece = runner.module_to_env[GetActions]
    piece.on_columns = lambda **kwargs: seen.append(1) or GetActions.on_columns(piece, **kwargs)
    runner.module_to_env.set_input_spaces(None, None)


def method_of_a_pipeline(runner, seen):
    pipeline = runner.env_to_module
    pipeline.run = lambda *args, **kwargs: seen.append(1) or type(pipeline).run(pipeline, *args, **kwargs)


@pytest.mark.parametrize(
    "change",
    [
        seen_by_a_hook,
        seen_by_a_hook_inside,
        method_of_a_layer,
        method_of_the_module,
        method_of_all_modules,
        method_of_a_piece,
        method_of_a_pipeline,
    ],
)
def test_what_is_changed_between_samples_is_called_in_each_step(change):
    runner = runner_of(LifeEnv, LIVES)
    assert is_used(runner)
    seen = []
    change(runner, seen)
    runner.sample()
    assert len(seen) == 8


def test_a_hook_for_all_modules_of_torch_is_called_in_each_step():
    runner = runner_of(LifeEnv, LIVES)
    assert is_used(runner)
    seen, encoder = [], runner.rl_module["default_policy"].encoder
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(module is encoder))
    try:
        runner.sample()
    finally:
        hook.remove()
    assert sum(seen) == 8


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_updates_in_place_count_at_once(policies):
    """Even in the middle of a sample."""
    runner = runner_of(match_v0.parallel_env, {"n_agents": 3}, lambda c: c.multi_agent(policies=policies))
    assert is_used(runner)
    take_step, count = runner._take_step, 0

    def taking(*args):
        nonlocal count
        count += 1
        if count == 5:
            with torch.no_grad():
                for module in runner.rl_module.values():
                    module.pi.layers[-1].bias.copy_(torch.tensor([0.0, 50.0, *[0.0] * 10])[: module.action_space.n])
        take_step(*args)

    runner._take_step = taking
    for chunk in runner.sample(num_timesteps=24, force_reset=True):
        for agent in chunk.agent_episodes.values():
            assert list(agent.get_actions(slice(4, None))) == [1] * (len(agent) - 4)
            assert set(agent.get_actions(slice(0, 4))) != {1}
