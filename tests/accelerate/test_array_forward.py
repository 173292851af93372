"""Bound forward passes are those of the modules, for random networks, numbers of modules and numbers of rows."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors.accelerate import array_forward
from marl_connectors.accelerate.array_forward import bind_forward, can_bind_mlp
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.columns import Columns
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.trees import tree_map


def random_modules(rng):
    width = int(rng.integers(1, 20))
    actions = [spaces.Discrete(int(rng.integers(2, 40))), spaces.Box(-1.0, 1.0, (int(rng.integers(1, 5)),))]
    config = {
        "fcnet_hiddens": rng.integers(1, 40, rng.integers(0, 3)).tolist(),
        "fcnet_activation": str(rng.choice(["tanh", "relu", "silu", "elu", "linear"])),
        "head_fcnet_hiddens": rng.integers(1, 20, rng.integers(0, 2)).tolist(),
        "free_log_std": bool(rng.integers(2)),
        "vf_share_layers": bool(rng.integers(2)),
    }
    recurrent = str(rng.choice(["", "lstm", "gru"]))
    if recurrent:
        config |= {f"use_{recurrent}": True, f"{recurrent}_cell_size": int(rng.integers(1, 36))}
    modules = MultiRLModule()
    action_space = actions[rng.integers(2)]
    for i in range(rng.integers(1, 5)):
        box = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        modules.add_module(f"m{i}", DefaultPPORLModule(box, action_space, model_config=dict(config)))
    with torch.no_grad():
        for parameter in modules.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0.0, 0.5, tuple(parameter.shape)).astype(np.float32)))
    return modules


def assert_close(found, expected, seed=None):
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4, err_msg=f"seed {seed}")


def check(seed):
    rng = np.random.default_rng(seed)
    modules = random_modules(rng)
    ids = tuple(modules)
    counts = rng.integers(1, 30, len(ids)) if rng.integers(2) else np.full(len(ids), rng.integers(1, 30))
    splits = [0, *np.cumsum(counts).tolist()]
    forward = bind_forward(modules, ids, splits)
    assert forward is not None
    for _ in range(2):  # what one call leaves in its buffers is nothing to the next one
        observations = rng.normal(0.0, 1.0, (splits[-1], forward.in_width)).astype(rng.choice(["f", "d"]))
        kind = modules[ids[0]].get_initial_state()
        state = tree_map(lambda leaf: rng.normal(0.0, 1.0, (splits[-1], *leaf.shape)).astype(np.float32), kind)
        inputs, after = forward(observations, state or None)
        assert inputs.shape == (splits[-1], forward.num_inputs)
        for module_id, begin, end in zip(ids, splits, splits[1:], strict=False):
            rows = slice(begin, end)
            batch = {Columns.OBS: torch.from_numpy(observations[rows].astype(np.float32))}
            if state:
                batch[Columns.OBS] = batch[Columns.OBS][:, None]
                batch[Columns.STATE_IN] = tree_map(lambda leaf, own=rows: torch.from_numpy(leaf[own]), state)
            expected = modules[module_id].forward_inference(batch)
            wanted = expected[Columns.ACTION_DIST_INPUTS].reshape(end - begin, -1).numpy()
            assert_close(inputs[rows], wanted, seed)
            if state:
                tree_map(
                    lambda own, other, at=rows: np.testing.assert_allclose(
                        own[at], other.numpy(), rtol=1e-3, atol=2e-4
                    ),
                    after,
                    expected[Columns.STATE_OUT],
                )


@pytest.mark.parametrize("seed", range(12))
def test_bound_networks_are_those_of_torch(seed):
    check(seed)


@pytest.mark.parametrize("use_gru", [False, True])
def test_rows_beyond_a_block_are_computed_block_by_block(monkeypatch, use_gru):
    monkeypatch.setattr(array_forward, "BLOCK", 16)
    modules, counts = MultiRLModule(), {"a": 40, "b": 20}
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    for module_id in counts:
        config = {"fcnet_hiddens": [5], "use_gru": use_gru, "gru_cell_size": 4, "vf_share_layers": True}
        modules.add_module(module_id, DefaultPPORLModule(box, spaces.Discrete(4), model_config=config))
    forward = bind_forward(modules, tuple(counts), [0, 40, 60])
    observations = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    state = {"h": np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)} if use_gru else None
    inputs, after = forward(observations, state)
    for module_id, rows in (("a", slice(0, 40)), ("b", slice(40, 60))):
        seen = torch.from_numpy(observations[rows])
        batch = {Columns.OBS: seen}
        if state is not None:
            batch = {Columns.OBS: seen[:, None], Columns.STATE_IN: {"h": torch.from_numpy(state["h"][rows])}}
        expected = modules[module_id].forward_inference(batch)
        assert_close(inputs[rows], expected[Columns.ACTION_DIST_INPUTS].reshape(-1, 4).numpy())
        if state is not None:
            assert_close(after["h"][rows], expected[Columns.STATE_OUT]["h"].numpy())


def test_parameters_that_change_in_place_are_those_of_the_next_call():
    modules, box = MultiRLModule(), spaces.Box(-np.inf, np.inf, (3,), np.float32)
    modules.add_module("a", DefaultPPORLModule(box, spaces.Discrete(4), model_config={"fcnet_hiddens": [5]}))
    forward = bind_forward(modules, ("a",), [0, 2])
    observations = np.ones((2, 3), np.float32)
    forward(observations)
    with torch.no_grad():
        for parameter in modules.parameters():
            parameter.mul_(-2.0)
    expected = modules["a"].forward_inference({Columns.OBS: torch.from_numpy(observations)})
    assert_close(forward(observations)[0], expected[Columns.ACTION_DIST_INPUTS].numpy())


@pytest.mark.slow
def test_many_bound_networks_are_those_of_torch():
    for _ in range(400):
        check(secrets.randbelow(2**31))


def test_only_layers_as_they_were_built_can_be_bound():
    for change in (
        lambda mlp: setattr(mlp, "activation", torch.nn.Softplus()),
        lambda mlp: mlp.layers[0].register_forward_hook(lambda *_: None),
        lambda mlp: mlp.layers.__setitem__(1, torch.nn.Linear(5, 2)),
    ):
        mlp = MLP(3, (5, 2), "tanh")
        assert can_bind_mlp(mlp, 4)
        change(mlp)
        assert not can_bind_mlp(mlp, 4)
