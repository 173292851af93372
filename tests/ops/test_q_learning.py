import numpy as np
import pytest
import torch

from marl_connectors.ops.q_learning import n_step_targets


def by_hand(rewards, values, left, n_step, gamma):
    found = np.zeros_like(rewards)
    for t in range(len(rewards)):
        steps = min(n_step, left[t])
        found[t] = sum(gamma**k * rewards[t + k] for k in range(steps)) + gamma**steps * values[t + steps]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_targets_are_sums_of_rewards_and_the_value_after_them(seed):
    rng = np.random.default_rng(seed)
    length, n_step = int(rng.integers(1, 8)), int(rng.integers(1, 11))
    lengths = rng.integers(1, length + 1, size=(2, 3))
    left = np.maximum(lengths[..., None] - 1 - np.arange(length), 0)
    rewards, values = rng.normal(size=(2, 2, 3, length))
    gammas = rng.random(2) if seed % 2 else np.full(2, 0.9)
    gamma = torch.tensor(gammas).view(2, 1, 1) if seed % 2 else 0.9
    given = (torch.tensor(column) for column in (rewards, values, left))
    found = n_step_targets(*given, n_step=n_step, gamma=gamma)
    for m, s in np.ndindex(2, 3):
        expected = by_hand(rewards[m, s], values[m, s], left[m, s], n_step, gammas[m])
        np.testing.assert_allclose(found[m, s], expected, rtol=1e-5, atol=1e-6)
