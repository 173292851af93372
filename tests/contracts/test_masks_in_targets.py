"""No target of an off-policy algorithm counts an action that is forbidden at the observation it continues from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.masked_envs import AloneWithToldMasks, ToldMasks
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, DQNConfig, EpisodeReader, MADDPGConfig, QMIXConfig, SACConfig, VDNConfig
from marl_connectors.algorithms.maddpg.learner import TARGET_ACTIONS
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import NEXT_ACTION_MASK
from marl_connectors.replay_buffers.ring import ACTED, ALIVE

PREFERRED = 100.0
FRESH = fresh_seeds(20)


def masked_config(config_class, rng, *, recurrent=False, **env_config):
    """A small run with ToldMasks, with fragments of random length."""
    is_alone = config_class in (DQNConfig, SACConfig) and rng.random() < 0.3
    place = str(rng.choice(["observation", "info"]))
    own = {"place": place, "die": float(rng.choice([0.0, 0.15])), "max_steps": int(rng.integers(2, 8)), **env_config}
    config = config_class().environment(
        AloneWithToldMasks if is_alone else ToldMasks,
        env_config=own,
        action_mask_key="action_mask",
        disable_env_checking=True,
    )
    if not is_alone:
        config.multi_agent(policies=str(rng.choice(["shared", "independent"])))
    model = {"fcnet_hiddens": (4,)}
    if recurrent:
        model |= {"use_gru": True, "gru_cell_size": 3, "max_seq_len": int(rng.integers(2, 6))}
    config.rl_module(model_config=model).debugging(seed=int(rng.integers(1000)))
    config.env_runners(
        num_env_workers=0,
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        rollout_fragment_length=int(rng.integers(1, 8)),
    )
    config.training(num_steps_sampled_before_learning_starts=20, train_batch_size_per_learner=8)
    return config.training(n_step=int(rng.integers(1, 4))).reporting(
        min_sample_timesteps_per_iteration=int(rng.integers(40, 60))
    )


def random_run(seed):
    rng = np.random.default_rng(seed)
    config_class = [DQNConfig, DQNConfig, SACConfig, VDNConfig, QMIXConfig, MADDPGConfig][int(rng.integers(6))]
    recurrent = config_class not in (SACConfig, MADDPGConfig) and rng.random() < 0.4
    return masked_config(config_class, rng, recurrent=bool(recurrent))


def rows_of(buffer):
    """Yields the observations and the masks of all rows of a buffer that are steps or last observations."""
    for ring in buffer._rings.values():
        rows = np.arange(len(ring.flags))
        used = rows // ring.num_lanes < ring.kept[rows % ring.num_lanes]
        if "agent_flags" not in ring.columns:
            yield ring.columns[Columns.OBS][used], ring.columns[Columns.ACTION_MASK][used]
            continue
        for module_id, flags in ring.columns["agent_flags"].items():
            there = ((flags & (ACTED | ALIVE)) > 0) & used[:, None]
            yield tuple(ring.columns[name][module_id][there] for name in (Columns.OBS, Columns.ACTION_MASK))


def check_masks(buffer):
    number = 0
    for seen, masks in rows_of(buffer):
        np.testing.assert_array_equal(masks, seen > 0)
        number += len(masks)
    assert number


def check_batch(algo):
    """Compares the masks of a train batch with the observations, from which they follow."""
    (replay,) = algo.replays.values()
    for group in algo.learner.make_batch(replay.draw(algo.replay_buffer.module_ids)).groups:
        if TARGET_ACTIONS in group:
            counts = np.asarray(group["discounts"]) > 0
            allowed = np.asarray(group[Columns.NEXT_OBS]) > 0
            assert (np.asarray(group[TARGET_ACTIONS])[counts] <= allowed[counts]).all()
        if NEXT_ACTION_MASK in group:
            seen = np.asarray(group[Columns.NEXT_OBS])
            np.testing.assert_array_equal(np.asarray(group[NEXT_ACTION_MASK]), seen > 0)
        elif TARGET_ACTIONS not in group:
            np.testing.assert_array_equal(np.asarray(group[Columns.ACTION_MASK]), np.asarray(group[Columns.OBS]) > 0)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", [*range(12), *FRESH])
def test_every_observation_in_a_buffer_has_its_mask_also_the_last_one(seed):
    with random_run(seed).build_algo() as algo:
        for _ in range(2):
            algo.train()
            check_masks(algo.replay_buffer)
            check_batch(algo)


def prefer_forbidden_action(module):
    """Makes the third action worth more than all others, to a module and to its target networks."""
    names = ("af", "target_af", "pi", "target_pi")
    heads = [head for name in names if (head := getattr(module, name, None)) is not None]
    critics = [getattr(module, f"{prefix}{name}", None) for prefix in ("", "target_") for name in ("qf", "qf_twin")]
    heads += [critic.head for critic in critics if hasattr(critic, "head")]
    with torch.no_grad():
        for head in heads:
            list(head.parameters())[-1][2] += PREFERRED


@pytest.mark.few(5)
@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig, VDNConfig, QMIXConfig])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("recurrent", [False, True])
def test_an_action_that_is_always_forbidden_has_no_effect_on_targets(config_class, seed, recurrent):
    if config_class is SACConfig:
        if recurrent:
            pytest.skip("SAC has no recurrent modules")
        frozen = {"actor_lr": 0.0, "critic_lr": 0.0, "alpha_lr": 0.0, "initial_alpha": 1e-6}
    else:
        frozen = {"lr": 0.0, "dueling": False}
    config = masked_config(config_class, np.random.default_rng(seed), recurrent=recurrent, only=(0, 1))
    config.training(**frozen)
    with config.build_algo() as algo:
        for module in algo.rl_module.values():
            prefer_forbidden_action(module)
        for result in algo.train()["learners"].values():
            assert abs(result["target_mean"]) < 0.03 * PREFERRED


def test_recorded_episodes_keep_the_masks_of_last_observations(tmp_path):
    config = masked_config(DQNConfig, np.random.default_rng(1), die=0.15)
    config.offline_data(output=str(tmp_path / "episodes"))
    with config.build_algo() as algo:
        algo.train()
    with config.copy().offline_data(output=None).build_algo() as algo:
        algo.replay_buffer.add(EpisodeReader(tmp_path / "episodes"))
        check_masks(algo.replay_buffer)


@pytest.mark.slow
def test_remote_env_runners_send_the_masks_of_last_observations():
    config = masked_config(DQNConfig, np.random.default_rng(2)).env_runners(num_env_runners=1)
    with config.build_algo() as algo:
        algo.train()
        check_masks(algo.replay_buffer)


@pytest.mark.parametrize("config_class", [DQNConfig, MADDPGConfig])
def test_targets_of_several_steps_know_what_is_allowed_where_they_end(config_class):
    config = masked_config(config_class, np.random.default_rng(1), max_steps=6).training(n_step=2)
    with config.build_algo() as algo:
        algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=30))
        check_batch(algo)
