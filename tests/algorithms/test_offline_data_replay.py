"""Recorded episodes go to replay buffers, in place of sampled ones or beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete

from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.envs.spaces_env import SpacesEnv
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import differences, plain
from marl_connectors import (
    Algorithm,
    DQNConfig,
    EpisodeReader,
    FlattenObservations,
    MADDPGConfig,
    MeanStdFilter,
    MixedConfig,
    QMIXConfig,
    SACConfig,
    VDNConfig,
)
from marl_connectors.errors import ConfigError, OfflineDataError

ALGORITHMS = (DQNConfig, SACConfig, VDNConfig, QMIXConfig, MADDPGConfig)
FRESH = fresh_seeds(10)


def small(cls, seed=0, **training):
    config = cls().environment(LifeEnv, env_config={"die": 0.2, "join": 0.3, "max_steps": 9}, disable_env_checking=True)
    config.multi_agent(policies="independent" if seed % 2 else "shared").env_runners(num_env_workers=0)
    config.rl_module(model_config={"fcnet_hiddens": (4,)}).debugging(seed=seed)
    config.reporting(min_sample_timesteps_per_iteration=40)
    return config.training(
        **{"num_steps_sampled_before_learning_starts": 10, "train_batch_size_per_learner": 4, **training}
    )


def recorded(folder, seed=0, **runners):
    """Episodes in chunks, some without an end."""
    config = small(DQNConfig, seed + 100).env_runners(num_envs_per_env_runner=3, **runners)
    with config.offline_data(output=str(folder)).build_algo() as algo:
        algo.train()
    return str(folder)


def steps_of(episodes):
    """Each step of the episodes' agents, with the observation that follows. No two observations are alike."""
    found = set()
    for episode in episodes:
        for own in [episode] if hasattr(episode, "agent_id") else episode.all_agent_episodes():
            seen = [np.asarray(o).tobytes() for o in own.get_observations()]
            found |= set(zip(seen, seen[1:], np.asarray(own.get_rewards()).tolist(), strict=False))
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(10), *FRESH])
def test_all_recorded_steps_are_learned_from_without_an_environment_and_exactly_again(seed, tmp_path):
    rng = np.random.default_rng(seed)
    data = recorded(tmp_path / "data", seed, rollout_fragment_length=int(rng.integers(1, 4)))
    cls = ALGORITHMS[seed % 5]
    config = small(cls, seed, n_step=int(rng.integers(1, 3)))
    config.offline_data(input_=data, input_order=str(rng.choice(["shuffled", "in_order", "as_recorded"])))
    whole = config.build_algo()
    results = [whole.train() for _ in range(3)]
    assert whole.env_runner_group.num_env_steps == 0
    assert results[-1]["offline_data"]["num_passes"] >= 1
    reader = EpisodeReader(data, join_chunks=config.input_order != "as_recorded", order=config.input_order)
    if cls in (DQNConfig, SACConfig, MADDPGConfig):  # those of teams have rewards of the team
        expected, kept = steps_of(reader), steps_of(whole.replay_buffer.every_step())
        assert len(expected) == reader.num_agent_steps and kept <= expected
        forgotten = whole.replay_buffer.has_forgotten
        assert forgotten or kept == expected or results[-1]["offline_data"]["num_passes"] < 1
    path = whole.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(path, config=config)
    assert whole.train()["learners"] == resumed.train()["learners"]
    assert not differences(plain(whole.get_state().replays), plain(resumed.get_state().replays))
    after = resumed.rl_module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in whole.rl_module.state_dict().items())
    whole.stop()
    resumed.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(5), *FRESH])
def test_recorded_and_sampled_steps_stay_apart_and_have_their_shares(seed, tmp_path):
    rng = np.random.default_rng(seed)
    data = recorded(tmp_path / "data", seed, rollout_fragment_length=int(rng.integers(1, 4)))
    fraction = float(rng.choice([0.25, 0.5, 0.75]))
    config = small(ALGORITHMS[seed % 5], seed).offline_data(input_=data, live_fraction=fraction)
    config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4)))
    with config.build_algo() as algo:
        sampled, add = [], algo.replay_buffer.add

        def adds(episodes, **kwargs):
            sampled.extend(e for e in episodes if not e.id_.startswith("recorded/"))
            add(episodes, **kwargs)

        algo.replay_buffer.add = adds
        for _ in range(3):
            algo.train()
        read, live = algo.offline_data.reader.num_env_steps_read, algo.env_runner_group.num_env_steps
        assert abs(live - fraction * (read + live)) <= 9
        if type(config) in (DQNConfig, SACConfig):
            expected = steps_of(EpisodeReader(data, join_chunks=True)) | steps_of(sampled)
            assert steps_of(algo.replay_buffer.every_step()) <= expected
        path, state = tmp_path / "checkpoint", plain(algo.get_state().replays)
        algo.save_to_path(path)
        result = algo.train()
        with Algorithm.from_checkpoint(path, config=config) as resumed:
            assert not differences(plain(resumed.get_state().replays), state)
            assert resumed.train()["learners"] == result["learners"]


@pytest.mark.slow
def test_a_read_step_counts_like_a_sampled_one(tmp_path):
    data = recorded(tmp_path / "data")
    updates = []
    for live in (False, True):
        config = small(DQNConfig, training_intensity=8.0)
        with (config if live else config.offline_data(input_=data)).build_algo() as algo:
            for _ in range(10):
                result = algo.train()
            updates.append(algo.learner.num_updates)
            steps = result["num_env_steps_sampled_lifetime"]
            assert updates[-1] == pytest.approx(2 * (steps - 10), abs=20)
    assert updates[0] == pytest.approx(updates[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("fragment", [1, 25, 1000])
@pytest.mark.parametrize("cls", [DQNConfig, MADDPGConfig])
def test_a_buffer_that_holds_all_recorded_steps_gets_none_of_them_twice(cls, fragment, tmp_path):
    data = recorded(tmp_path / "data")
    with small(cls).offline_data(input_=data).env_runners(rollout_fragment_length=fragment).build_algo() as algo:
        while algo.train()["offline_data"]["num_passes"] < 3:
            pass
        reader = EpisodeReader(data)
        steps = reader.num_agent_steps if cls is DQNConfig else reader.num_env_steps
        assert len(algo.replay_buffer) == steps == algo.replay_buffer.get_added_timesteps()
    little = small(DQNConfig, replay_buffer_config={"capacity": 20}).offline_data(input_=data)
    with little.build_algo() as algo:
        while algo.train()["offline_data"]["num_passes"] < 3:
            pass
        assert algo.replay_buffer.get_added_timesteps() > 2 * EpisodeReader(data).num_agent_steps


def test_chunks_are_put_together_before_they_are_shuffled_so_that_returns_of_several_steps_are_whole(tmp_path):
    data = recorded(tmp_path / "data", rollout_fragment_length=1)
    assert EpisodeReader(data).num_episodes > 3 * EpisodeReader(data, join_chunks=True).num_episodes
    with small(DQNConfig, n_step=3).offline_data(input_=data).build_algo() as algo:
        while algo.train()["offline_data"]["num_passes"] < 1:
            pass
        reached = [own.last - own.start for own in algo.replay_buffer.every_step(n_step=3).segments.values()]
    lives = [own for e in EpisodeReader(data, join_chunks=True) for own in e.all_agent_episodes()]
    expected = [min(3, len(own) - t) for own in lives for t in range(len(own))]
    assert sorted(np.concatenate(reached).tolist()) == sorted(expected)


def test_what_cannot_be_read_into_a_buffer_is_refused(tmp_path):
    data = recorded(tmp_path / "data")
    with_memory = small(DQNConfig).rl_module(model_config={"use_gru": True, "max_seq_len": 4})
    with_filter = small(DQNConfig).env_runners(env_to_module_connector=lambda: MeanStdFilter())
    other, mixed = DQNConfig().environment("CartPole-v1"), MixedConfig().environment(LifeEnv)
    mixed.algorithms({"*": DQNConfig()})
    for config, settings, error, message in [
        (small(DQNConfig), {"held_out_fraction": 0.1}, ConfigError, r"(?s)held_out_fraction.*held_out_input_"),
        (
            with_memory,
            {"live_fraction": 0.5},
            ConfigError,
            r"(?s)live_fraction=0.5.*'default_policy'",
        ),
        (with_filter, {}, ConfigError, r"(?s)MeanStdFilter.*DQN"),
        (other, {}, OfflineDataError, "agent 'a'"),
        (mixed, {}, ConfigError, "input_"),
    ]:
        config.offline_data(input_=data, **settings)
        with pytest.raises(error, match=message):
            config.build_algo()


def test_episodes_without_the_masks_or_states_that_a_run_needs_are_refused(tmp_path):
    def config(cls, env):
        return cls().environment(env).env_runners(num_env_workers=0).debugging(seed=0)

    masked = "marl_envs.masked_v0"
    without = config(DQNConfig, masked).environment(action_mask_key=False)
    with without.build_algo() as algo:
        algo.record(tmp_path / "masked", num_episodes=2)
    with pytest.raises(OfflineDataError, match="ActionMasking"):
        config(DQNConfig, masked).offline_data(input_=str(tmp_path / "masked")).build_algo()
    with config(VDNConfig, "mpe2.simple_spread_v3").build_algo() as algo:
        algo.record(tmp_path / "spread", num_episodes=2)
    needs_states = config(QMIXConfig, "mpe2.simple_spread_v3").training(mixer_state="state")
    with pytest.raises(OfflineDataError, match="'env_state'"):
        needs_states.offline_data(input_=str(tmp_path / "spread")).build_algo()


@pytest.mark.slow
def test_recurrent_modules_learn_from_recorded_episodes_of_others(tmp_path):
    data = recorded(tmp_path / "data")
    config = small(DQNConfig).rl_module(model_config={"use_gru": True, "max_seq_len": 4})
    with config.offline_data(input_=data).build_algo() as algo:
        losses = [own["qf_loss"] for _ in range(3) for own in algo.train()["learners"].values()]
    assert losses and np.isfinite(losses).all()


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_learner_pieces_do_not_stand_in_for_pieces_that_recorded_episodes_lack(cls, tmp_path):
    own = {"observation_space": Dict({"x": BOX}), "action_space": Discrete(3)}
    config = small(cls).environment(SpacesEnv, env_config=own)
    with config.copy().build_algo() as algo:
        algo.record(tmp_path, num_episodes=3, at_random=True)
    config.env_runners(env_to_module_connector=lambda *_: FlattenObservations())
    config.learners(learner_connector=lambda *_: FlattenObservations()).offline_data(input_=str(tmp_path))
    with pytest.raises(OfflineDataError, match="FlattenObservations"):
        config.build_algo()


@pytest.mark.learning
def test_cart_pole_is_learned_from_random_play_alone(tmp_path):
    config = (
        DQNConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": (64, 64)}).debugging(seed=1)
    )
    with config.build_algo() as algo:
        assert algo.evaluate(num_episodes=20)["env_runners"]["episode_return_mean"] < 50
        algo.record(tmp_path, num_episodes=300, at_random=True)
    config.training(lr=1e-3, gamma=0.97, n_step=3, train_batch_size_per_learner=64, target_network_update_freq=200)
    config.training(num_steps_sampled_before_learning_starts=6000).offline_data(input_=str(tmp_path))
    with config.build_algo() as algo:
        while algo.learner.num_updates < 2000:
            algo.train()
        assert algo.env_runner_group.num_env_steps == 0
        assert algo.evaluate(num_episodes=20)["env_runners"]["episode_return_mean"] > 100
