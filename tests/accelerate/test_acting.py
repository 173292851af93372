"""A step is a list of bound calls: what they give is what modules give, and everything of the user's is called."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import Columns, ConnectorV2, PPOConfig, RLModuleSpec
from marl_connectors.accelerate import acting, array_forward, array_layers
from marl_connectors.accelerate.array_forward import bind_forward
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.env_runners import sampling_plan
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

    def columns(self, c, xp):
        pass


class Shifted(ConnectorV2):
    """Writes other observations to the batch, as float64."""

    def columns(self, c, xp):
        c[Columns.OBS] = c.rows.get(Columns.OBS) + 0.25


class Written(ConnectorV2):
    """Writes other observations to the episodes, and remembers how often."""

    calls = 0

    def columns(self, c, xp):
        self.calls += 1
        c.rows.set(Columns.OBS, c.rows.get(Columns.OBS) * np.float32(1 + self.calls % 3))

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


class OnItems(ConnectorV2):
    """Changes nothing, item by item."""

    def __call__(self, *, batch, episodes, **kwargs):
        return batch


class ShiftedItems(ConnectorV2):
    """Writes other observations to the episodes, item by item."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1) + np.float32(0.25), at_indices=-1)
        return batch


class AddsColumn(ConnectorV2):
    """Gives modules more than observations."""

    def columns(self, c, xp):
        c["more"] = c.rows.get(Columns.OBS)


class ActionsAgain(ConnectorV2):
    """Puts other actions in the place of those that were chosen."""

    def columns(self, c, xp):
        c[Columns.ACTIONS] = np.zeros_like(c[Columns.ACTIONS])


class Unchanged(DefaultPPORLModule):
    """Overrides nothing that acting goes through."""

    def compute_values(self, batch, embeddings=None):
        return super().compute_values(batch, embeddings)


def of_class(cls):
    return lambda config: config.rl_module(rl_module_spec=RLModuleSpec(cls))


def model(**settings):
    return lambda config: config.rl_module(model_config={"fcnet_hiddens": (8,), **settings})


def both(*changes):
    def change(config):
        for one in changes:
            config = one(config)
        return config

    return change


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
    "an item piece": (LifeEnv, LIVES, to_module(OnItems)),
    "item pieces that write episodes": (LifeEnv, DEATHS, to_module(ShiftedItems, Same, ShiftedItems)),
    "an item piece to the environment": (LifeEnv, LIVES, to_env(OnItems)),
    "a piece that changes actions": (LifeEnv, LIVES, to_env(ActionsAgain)),
    "a column beside the observations": (LifeEnv, LIVES, to_module(AddsColumn)),
    "masks": (match_v0.parallel_env, {"n_agents": 3}, None),
    "a subclass of a module": (LifeEnv, LIVES, of_class(Unchanged)),
    "silu": (LifeEnv, LIVES, model(fcnet_activation="silu")),
    "elu": (LifeEnv, LIVES, model(fcnet_activation="elu")),
    "linear": (LifeEnv, LIVES, model(fcnet_activation="linear")),
    "an LSTM": (LifeEnv, DEATHS, model(use_lstm=True, lstm_cell_size=5)),
    "an LSTM of values, too": (LifeEnv, DEATHS, model(use_lstm=True, lstm_cell_size=5, vf_share_layers=False)),
    "a GRU": (LifeEnv, LIVES, model(use_gru=True, gru_cell_size=16)),
    "LSTMs as a stack": (LifeEnv, LIVES, both(independent, model(use_lstm=True, lstm_cell_size=5))),
    "LSTMs of unlike numbers of rows": (LifeEnv, LIVES, both(two_by_turns, model(use_lstm=True, lstm_cell_size=5))),
    "continuous and independent": (LifeEnv, CONTINUOUS, independent),
    "turns": (RandomAEC, {"agents": "abcd", "die": 0.1, "join": 0.2, "max_steps": 20}, None),
}
"""Environment, its settings, and what is done to the config."""


def runner_of(env, env_config, change=None, **settings):
    config = small_config(env, env_config=env_config).env_runners(
        num_envs_per_env_runner=3, rollout_fragment_length=8, **settings
    )
    return (change or (lambda config: config))(config).build_algo().env_runner


def sampled(runner, samples=4, **kwargs):
    """All that came of some samples, and how many forward passes were the modules' own."""
    found, counts = [], []
    dispatch = MultiRLModule._dispatch

    def counting(self, *args, **kwargs):
        counts.append(1)
        return dispatch(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiRLModule, "_dispatch", counting)
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
    return count == 0


@pytest.fixture
def in_tensors(monkeypatch):
    """Makes runners take all steps by tensors and the modules' own methods."""

    def switch():
        monkeypatch.setattr(acting, "bind_forward", lambda *args: None)

    return switch


@pytest.mark.few(5)
@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("case", OPEN)
def test_bound_modules_give_what_their_own_methods_give(case, explore, in_tensors):
    arrays, count = sampled(runner_of(*OPEN[case]), explore=explore)
    assert not count
    in_tensors()
    tensors, count = sampled(runner_of(*OPEN[case]), explore=explore)
    assert count >= 4 * 8
    assert_alike(arrays, tensors)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["shared", "independent, as a stack", "an LSTM"])
def test_many_rows_are_computed_in_blocks(case, monkeypatch, in_tensors):
    monkeypatch.setattr(array_forward, "BLOCK", 2)
    arrays, count = sampled(runner_of(*OPEN[case]))
    assert not count
    in_tensors()
    assert_alike(sampled(runner_of(*OPEN[case]))[0], arrays)


@pytest.mark.parametrize("case", ["shared", "independent, as a stack", "LSTMs as a stack", "an LSTM of values, too"])
def test_what_comes_of_a_row_does_not_depend_on_how_many_there_are(case):
    """To the last bit."""
    module = runner_of(*OPEN[case]).rl_module
    ids = tuple(module)
    rng = np.random.default_rng(0)
    for most in (3, 8, 61):
        whole = bind_forward(module, ids, [most * i for i in range(len(ids) + 1)])
        observations = rng.standard_normal((len(ids), most, whole.in_width), np.float32)
        initial = module[ids[0]].get_initial_state()

        def states(number, initial=initial):
            return _repeated(initial, number * len(ids)) if initial else None

        inputs, after = whole(observations.reshape(-1, whole.in_width), states(most))
        for number in (1, 2, most - 1):
            part = bind_forward(module, ids, [number * i for i in range(len(ids) + 1)])
            found, _ = part(observations[:, :number].reshape(-1, whole.in_width), states(number))
            expected = inputs.reshape(len(ids), most, -1)[:, :number].reshape(found.shape)
            np.testing.assert_array_equal(found, expected)
        assert (after is None) is (not initial)


def _repeated(state, number):
    if isinstance(state, dict):
        return {name: _repeated(part, number) for name, part in state.items()}
    return np.repeat(state[None], number, 0)


def test_a_step_calls_few_functions_of_ours():
    """Whatever is worked out once must not come back into every step."""
    runner, files, calls = runner_of(LifeEnv, LIVES), set(), []
    runner.sample()
    runner._begin(True)
    runner._plan.act(runner.times)

    def note(frame, event, argument):
        if event == "call" and "marl_connectors" in frame.f_code.co_filename:
            files.add(frame.f_code.co_filename)
            calls.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    sys.setprofile(note)
    try:
        runner._plan.act(runner.times)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 21 and len(files) <= 11, calls


def test_what_is_bound_stays_bound_while_nothing_changes(monkeypatch):
    runner, built = runner_of(LifeEnv, LIVES), []
    build = sampling_plan.SamplingPlan._build
    monkeypatch.setattr(sampling_plan.SamplingPlan, "_build", lambda plan: built.append(1) or build(plan))
    for _ in range(3):
        runner.sample()
    assert len(built) == 1
    runner.sample(explore=False)
    runner.env_to_module.prepend(Same())
    runner.sample(explore=False)
    assert len(built) == 3


def test_updates_between_samples_count_whoever_writes_to_the_memory():
    """An optimizer may write to the memory of all modules at once, which no parameter's own count shows."""
    runner = runner_of(match_v0.parallel_env, {"n_agents": 3}, independent)
    runner.sample()
    for bucket in runner.rl_module.buckets:
        with torch.no_grad():
            bucket.parameters.zero_()
    for chunk in runner.sample(num_timesteps=24, force_reset=True):
        for agent in chunk.agent_episodes.values():
            inputs = agent.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS)
            assert set(np.unique(inputs)) <= {0.0, np.finfo(np.float32).min}


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
    monkeypatch.setitem(array_layers.NUMPY_ROWS, torch.nn.ReLU, 8)
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


@pytest.mark.few(1)
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
    assert not count
    other = runner_of(LifeEnv, LIVES)
    sampled(other, samples=1)
    other.set_state(state)
    assert repr(sampled(other)[0]) == repr(expected)


def test_after_a_dropped_sample_a_checkpoint_has_no_batch():
    runner = runner_of(LifeEnv, LIVES)
    sampled(runner)
    runner.restart_episodes()
    assert runner.get_state().forward_batch is None


# Whose forward pass is called.


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


class Squares(ConnectorV2):
    """Makes images of observations."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        box = spaces.Box(-1.0, 1.0, (3, 3, 3), np.float32)
        return spaces.Dict(dict.fromkeys(input_observation_space.spaces, box))

    def columns(self, c, xp):
        c[Columns.OBS] = np.zeros((len(c.rows), 3, 3, 3), np.float32)


def images(config):
    return config.env_runners(env_to_module_connector=lambda env: Squares())


CLOSED = {
    "a module of another class": of_class(Moody),
    "layer norm": lambda c: c.rl_module(model_config={"fcnet_use_layernorm": True}),
    "another activation": lambda c: c.rl_module(model_config={"fcnet_activation": "gelu"}),
    "several modules with images": lambda c: images(c).multi_agent(policies="independent"),
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
    piece.columns = lambda c, xp: seen.append(1) or GetActions.columns(piece, c, xp)
    runner.module_to_env.set_input_spaces(None, None)


def method_of_a_pipeline(runner, seen):
    pipeline = runner.env_to_module
    pipeline.run = lambda *args, **kwargs: seen.append(1) or type(pipeline).run(pipeline, *args, **kwargs)


def test_it_is_for_one_module_with_images():
    assert is_used(runner_of(LifeEnv, LIVES, images))


@pytest.mark.few(6)
@pytest.mark.parametrize("observations", [None, images])
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
def test_what_is_changed_between_samples_is_called_in_each_step(change, observations):
    runner = runner_of(LifeEnv, LIVES, observations)
    assert is_used(runner)
    seen = []
    change(runner, seen)
    runner.sample()
    # The images come from a user's piece, which gets the observations at the end of the sample, too.
    assert len(seen) == 8 + (observations is images and change is method_of_a_pipeline)


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


class AsksTheModule(ConnectorV2):
    """Notes the module that it gets, on items."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __call__(self, *, rl_module, batch, **kwargs):
        self.seen.append(rl_module)
        return batch


class AsksTheModuleOnColumns(ConnectorV2):
    """Notes the module that it gets, on columns."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def columns(self, c, xp):
        self.seen.append(c.rl_module)
        pass


@pytest.mark.parametrize("piece", [AsksTheModule, AsksTheModuleOnColumns])
@pytest.mark.parametrize(("env", "is_single"), [("CartPole-v1", True), ("marl_envs.match_v0", False)])
def test_pieces_get_the_module_of_a_single_agent_itself(piece, env, is_single, tmp_path):
    seen = []
    algo = (
        PPOConfig()
        .environment(env)
        .env_runners(
            env_to_module_connector=lambda env: piece(seen),
            module_to_env_connector=lambda env: piece(seen),
        )
        .build_algo()
    )
    expected = algo.get_module() if is_single else algo.rl_module
    algo.env_runner.sample(num_timesteps=3)
    assert len(seen) >= 6 and all(module is expected for module in seen)
    algo.stop()
