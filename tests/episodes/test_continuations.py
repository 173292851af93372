"""Chunks that were put together make the batch that one sample makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import PPOConfig, PrevActionsPrevRewards
from marl_connectors.episodes.continuations import put_together
from marl_connectors.errors import EpisodeError

FRESH = fresh_seeds(40)


def random_run(seed):
    rng = np.random.default_rng(seed)
    env = [LifeEnv, RandomAEC, "CartPole-v1"][seed % 3]
    config = PPOConfig().environment(env, disable_env_checking=True).debugging(seed=seed)
    if env != "CartPole-v1":
        config.environment(env_config={"die": 0.1, "join": 0.2, "max_steps": 6})
        config.multi_agent(policies=str(rng.choice(["shared", "independent"])))
    model = {"fcnet_hiddens": (6,)}
    if rng.integers(2):
        model |= {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    return config.rl_module(model_config=model).env_runners(
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        env_to_module_connector=[None, lambda: PrevActionsPrevRewards()][int(rng.integers(2))],
        num_env_workers=0,
    )


def rows_of(learner, episodes):
    """Each module's columns, with the rows in an order that does not depend on that of the episodes."""
    found = {}
    for group in learner.make_batch(episodes).groups:
        for module_id, columns in group.module_columns():
            arrays = [
                value.double().reshape(len(value), -1) for value in columns.values() if isinstance(value, torch.Tensor)
            ]
            rows = torch.cat(arrays, 1).numpy()
            found[module_id] = rows[np.lexsort(rows.T)]
    return found


@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_a_batch_of_short_samples_is_that_of_one_sample(seed):
    config = random_run(seed)
    steps, once, often = 12 * config.num_envs, config.build_algo(), config.build_algo()
    whole = once.env_runner.sample(num_timesteps=steps)
    chunks = [chunk for _ in range(12) for chunk in often.env_runner.sample(num_timesteps=config.num_envs)]
    assert len(chunks) > len(whole)
    together = put_together(chunks)
    assert sorted(e.id_ for e in together) == sorted(e.id_ for e in whole)
    expected, found = rows_of(once.learner, whole), rows_of(often.learner, together)
    assert expected.keys() == found.keys()
    for module_id, rows in expected.items():
        np.testing.assert_allclose(found[module_id], rows, rtol=1e-4, atol=1e-5)
    once.stop()
    often.stop()


def test_a_missing_chunk_is_named():
    algo = random_run(0).build_algo()
    chunks = [algo.env_runner.sample(num_timesteps=1)[0] for _ in range(3)]
    with pytest.raises(EpisodeError, match="needs the chunk of"):
        put_together([chunks[0], chunks[2]])
    algo.stop()
