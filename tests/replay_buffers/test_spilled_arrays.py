"""Replay buffers whose columns are files."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import DQNConfig
from marl_connectors.errors import ConfigError
from marl_connectors.replay_buffers.replay_buffer import (
    EpisodeReplayBuffer,
    JointReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
    TeamReplayBuffer,
)
from marl_connectors.replay_buffers.spilled_arrays import zeros
from marl_connectors.trees import leaves, tree_map

BUFFERS = (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer, TeamReplayBuffer, JointReplayBuffer)


def arrays_of(buffer):
    for ring in buffer._rings.values():
        for column in ring.columns.values():
            yield from leaves(column)


def is_file(array):
    while array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


@pytest.mark.few(1)
@pytest.mark.parametrize("cls", BUFFERS)
@pytest.mark.parametrize("seed", [0, *fresh_seeds(10)])
def test_a_buffer_in_files_holds_and_draws_the_same(cls, seed, tmp_path):
    rng = np.random.default_rng(seed)
    env_config = {"join": 0.2, "die": 0.1, "fixed": bool(rng.random() < 0.5), "max_steps": int(rng.integers(2, 12))}
    config = small_config(LifeEnv, env_config=env_config, disable_env_checking=True).debugging(seed=seed)
    config.multi_agent(policies="shared")
    algo = config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4))).build_algo()
    capacity, extra = int(rng.integers(30, 200)), {}
    if cls.unit != "agent_step":
        extra["agents"] = {"default_policy": ["a", "b", "c", "d"]}
    in_memory = cls(capacity, seed=seed, **extra)
    in_files = cls(capacity, seed=seed, spill_folder=tmp_path / "new", **extra)
    for _ in range(4):
        episodes = algo.env_runner.sample(num_timesteps=int(rng.integers(10, 80)))
        for buffer in (in_memory, in_files):
            buffer.add(episodes)
        states = [buffer.get_state() for buffer in (in_memory, in_files)]
        tree_map(np.testing.assert_array_equal, *[_arrays(state) for state in states])
        restored = cls(capacity, seed=seed, spill_folder=tmp_path, **extra)
        restored.set_state(states[1])
        for buffer in (in_files, restored):
            assert all(map(is_file, arrays_of(buffer)))
        drawn = [buffer.sample(8) for buffer in (in_memory, in_files, restored)]
        for other in drawn[1:]:
            for module_id, own in drawn[0].segments.items():
                np.testing.assert_array_equal(other.segments[module_id].positions, own.positions)
    assert in_files.nbytes == in_memory.nbytes
    assert os.listdir(tmp_path / "new") == []  # files without names, which no killed run leaves behind


def _arrays(state):
    if isinstance(state, dict):
        return {str(key): _arrays(value) for key, value in state.items()}
    return np.asarray(state) if isinstance(state, np.ndarray) else np.asarray(str(state))


@pytest.mark.slow
def test_an_algorithm_takes_the_folder_from_its_config(tmp_path):
    algo = (
        DQNConfig()
        .environment("CartPole-v1")
        .training(
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 500, "spill_folder": str(tmp_path)},
            num_steps_sampled_before_learning_starts=10,
        )
        .build_algo()
    )
    algo.train()
    assert all(map(is_file, arrays_of(algo.replay_buffer)))


def test_a_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"(?s)spill_folder=.*24"):
        zeros((3,), np.float64, tmp_path / "file")


def test_too_little_room_is_an_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(ConfigError, match=r"(?s)24.*No space left on device"):
        zeros((3,), np.float64, tmp_path)
