"""Chunks that were put together make the batch that one sample makes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv
from helpers.envs.stated_envs import StatedAEC, StatedLife, expected_states
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import differences, plain
from marl_connectors import Columns, MAPPOConfig, PPOConfig, PrevActionsPrevRewards
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


@pytest.mark.few(1)
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


def described(episode):
    """All that an episode says about itself, but for times, and for how it is stored."""
    return plain(_without(episode.to_numpy().get_state()))


def _without(value):
    if isinstance(value, list):
        return [_without(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _without(own) for name, own in value.items() if name not in ("duration_s", "heads", "untyped")}
    return {**kept, "t": np.asarray(kept["t"]).tolist()} if "t" in kept else kept


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", [*range(12), *FRESH])
def test_chunks_that_are_put_together_are_the_episode_that_concat_episode_makes(seed):
    rng, algo = np.random.default_rng(seed), random_run(seed).build_algo()
    chunks = [chunk for _ in range(int(rng.integers(2, 9))) for chunk in algo.env_runner.sample(num_timesteps=3)]
    for chunk in chunks:
        if rng.random() < 0.2:
            chunk.custom_data["note"] = int(rng.integers(9))
        if rng.random() < 0.1:
            chunk.to_numpy()  # no rows of a rollout any more
    expected = {}
    for chunk in copy.deepcopy(chunks):
        if chunk.id_ in expected:
            expected[chunk.id_].concat_episode(chunk)
        else:
            expected[chunk.id_] = chunk
    found = put_together(chunks)
    assert [episode.id_ for episode in found] == list(expected)
    for episode in found:
        assert not differences(described(expected[episode.id_]), described(episode))
    algo.stop()


@pytest.mark.few(2)
@pytest.mark.parametrize("env", [StatedLife, StatedAEC])
@pytest.mark.parametrize("seed", [*range(3), *fresh_seeds(20)])
def test_the_states_of_the_environment_stay_with_their_rows(env, seed):
    config = MAPPOConfig().environment(env, env_config={"die": 0.1, "max_steps": 8}, disable_env_checking=True)
    config.training(critic_obs="state").env_runners(num_env_workers=0, num_envs_per_env_runner=2).debugging(seed=seed)
    algo = config.multi_agent(policies="independent").build_algo()
    chunks = [chunk for _ in range(15) for chunk in algo.env_runner.sample(num_timesteps=2)]
    together = put_together(chunks)
    assert len(together) < len(chunks)
    for group in algo.learner.make_batch(together).groups:
        rows = group.rows
        np.testing.assert_array_equal(rows.get(Columns.ENV_STATE), expected_states(rows, seed))
    algo.stop()


def test_a_missing_chunk_is_named():
    algo = random_run(0).build_algo()
    chunks = [algo.env_runner.sample(num_timesteps=1)[0] for _ in range(3)]
    with pytest.raises(EpisodeError, match="chunk"):
        put_together([chunks[0], chunks[2]])
    algo.stop()
