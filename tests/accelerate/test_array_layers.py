"""Linear layers in numpy: what comes of a row does not depend on how many other rows there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.fresh_seeds import fresh_seeds
from marl_connectors import DefaultPPORLModule
from marl_connectors.accelerate import array_layers
from marl_connectors.accelerate.array_layers import ArrayLayer, RowTile, row_tile, run_layers, tile_rows

NEEDS_TILES = pytest.mark.skipif(tile_rows() == 1, reason="this processor's matrix products have no known tiles")


@NEEDS_TILES
def test_a_plain_network_gives_rows_the_same_whatever_others_follow():
    module = DefaultPPORLModule(
        observation_space=spaces.Box(-1.0, 1.0, (18,)),
        action_space=spaces.Discrete(5),
        model_config={"fcnet_hiddens": (64, 64)},
    )
    x = torch.randn(200, 18, generator=torch.Generator().manual_seed(0))
    whole = module.forward_inference({"obs": x})["action_dist_inputs"]
    for count in range(2, 200):
        assert torch.equal(module.forward_inference({"obs": x[:count]})["action_dist_inputs"], whole[:count]), count


@NEEDS_TILES
@pytest.mark.parametrize("num_before", [1, 2, 5])
def test_whole_tiles_of_rows_before_change_nothing(num_before):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape, np.float32) for shape in ((64, 18), (64, 64), (5, 64))]
    layers = [ArrayLayer.over(weight, weight[:, 0].copy(), np.tanh) for weight in weights]
    begin = num_before * tile_rows()
    x = rng.standard_normal((begin + 29, 18), np.float32)
    np.testing.assert_array_equal(run_layers(x[begin:], layers), run_layers(x, layers)[begin:])


@NEEDS_TILES
def test_blocks_of_rows_are_whole_tiles(monkeypatch):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 18), np.float32)
    layers, x = [ArrayLayer.over(weight, weight[:, 0].copy(), None)], rng.standard_normal((301, 18), np.float32)
    whole = run_layers(x, layers)
    monkeypatch.setattr(array_layers, "BLOCK", 3 * tile_rows() + 1)
    np.testing.assert_array_equal(run_layers(x, layers), whole)


@pytest.mark.parametrize("modules", [0, 2])
def test_more_rows_than_fit_a_block_come_out_as_in_double_precision(modules):
    rng = np.random.default_rng(0)
    lead = (modules,) if modules else ()
    shapes = [(6, 3), (2, 6)]
    weights = [rng.standard_normal((*lead, *shape), np.float32) for shape in shapes]
    biases = [rng.standard_normal((*lead, shape[0]), np.float32) for shape in shapes]
    layers = [ArrayLayer.over(w, b, f) for w, b, f in zip(weights, biases, (np.tanh, None), strict=True)]
    x = rng.standard_normal((*lead, 2 * array_layers.BLOCK + 5, 3), np.float32)
    hidden, out = (w.astype(np.float64).swapaxes(-1, -2) for w in weights)
    expected = np.tanh(x @ hidden + biases[0][..., None, :]) @ out + biases[1][..., None, :]
    np.testing.assert_allclose(run_layers(x, layers), expected, atol=1e-5)


def test_numbers_that_grow_beyond_float32_are_those_of_torch_without_a_warning():
    weight, x = np.full((4, 3), 3e38, np.float32), np.array([[1.0, -1.0, 1.0], [10.0, 10.0, 10.0]], np.float32)
    layers = [ArrayLayer.over(weight, np.zeros(4, np.float32), None), ArrayLayer.over(weight.T, weight[0], None)]
    first = torch.nn.functional.linear(torch.from_numpy(x), torch.from_numpy(weight))
    by_torch = torch.nn.functional.linear(first, torch.from_numpy(weight.T.copy()), torch.from_numpy(weight[0]))
    found = run_layers(x, layers)  # warnings are errors
    assert not np.isfinite(found).any()
    np.testing.assert_array_equal(found, by_torch.numpy())


def product(tile, x, weight):
    return np.matmul(x.reshape(tile.tiled(x.shape)), tile.weights(weight)).reshape(*x.shape[:-1], weight.shape[-1])


@pytest.mark.parametrize("seed", [*range(20), *fresh_seeds(500)])
def test_a_row_of_a_tiled_product_depends_on_no_other_row_and_not_on_its_place(seed):
    rng, tile = np.random.default_rng(seed), row_tile()
    lead = [(), (3,)][int(rng.integers(2))]
    num_in, num_out = int(rng.integers(1, 300)), 16 * int(rng.integers(1, 17))
    weight = rng.standard_normal((*lead, num_in, num_out), np.float32)
    row, results = rng.standard_normal((*lead, 1, num_in), np.float32), []
    for num_tiles in (1, 2, 5, 16):
        x = rng.standard_normal((*lead, num_tiles * tile.rows, num_in), np.float32)
        at = int(rng.integers(x.shape[-2]))
        x[..., at : at + 1, :] = row
        results.append(product(tile, x, weight)[..., at, :])
    assert all(np.array_equal(own, results[0]) for own in results)


def test_products_of_single_tiles_are_those_of_all_rows():
    rng, tile = np.random.default_rng(0), RowTile(4, is_alone=True)
    x, weight = rng.integers(-9, 9, (2, 12, 3)).astype(np.float32), rng.integers(-9, 9, (2, 3, 16)).astype(np.float32)
    assert np.array_equal(product(tile, x, weight), x @ weight)
    assert np.array_equal(product(tile, x[0], weight[0]), x[0] @ weight[0])
