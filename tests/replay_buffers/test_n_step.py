"""The number of rewards in n-step returns may be drawn for each item of a sample."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, DQNConfig, EpisodeReplayBuffer, MADDPGConfig, QMIXConfig, SACConfig
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import (
    DISCOUNTS,
    AddNStepReturnsToTrainBatch,
)
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConfigError
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer, TeamReplayBuffer

AGENTS = {"default_policy": ["a", "b", "c"]}
FRESH = fresh_seeds(30)


def filled(buffer, seed):
    config = small_config(LifeEnv, env_config={"die": 0.1, "join": 0.2, "max_steps": 9}).debugging(seed=seed)
    config.environment(disable_env_checking=True)
    with config.env_runners(num_envs_per_env_runner=2).build_algo() as algo:
        for _ in range(4):
            buffer.add(algo.env_runner.sample(num_timesteps=20))
    return buffer


def returns_of(sample, n_step):
    """The number of rewards, the return and what follows of each row, by the bytes of its observation."""
    found = []
    for module_id, segments in sample.segments.items():
        group = ColumnGroup(sample.rows([module_id]))
        AddNStepReturnsToTrainBatch(n_step=n_step, gamma=0.9).columns(group, ARRAYS)
        ahead = (segments.last - segments.start) // segments.rollout.num_lanes
        columns = (group[Columns.REWARDS], group[DISCOUNTS], group[Columns.NEXT_OBS])
        for i, seen in enumerate(group.rows.get(Columns.OBS)):
            found.append((seen.tobytes(), int(ahead[i]), [column[i].tolist() for column in columns]))
    return found


@pytest.mark.parametrize("seed", [*range(4), *FRESH])
@pytest.mark.parametrize("make", [EpisodeReplayBuffer, lambda **own: JointReplayBuffer(agents=AGENTS, **own)])
def test_returns_of_a_range_are_those_of_the_numbers_that_were_drawn(make, seed):
    buffer = filled(make(capacity=1000, seed=seed), seed)
    of_number = {k: {seen: own for seen, _, own in returns_of(buffer.every_step(n_step=k), k)} for k in range(1, 6)}
    drawn = returns_of(buffer.sample(200, n_step=(2, 5)), 5)
    longest = {seen: ahead for seen, ahead, _ in returns_of(buffer.every_step(n_step=9), 9)}
    for seen, ahead, own in drawn:
        assert min(2, longest[seen]) <= ahead <= 5
        assert own == of_number[ahead][seen]
    whole = [ahead for seen, ahead, _ in drawn if longest[seen] >= 5]
    assert set(whole) == {2, 3, 4, 5}


@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_a_team_has_one_number_for_each_env_step(seed):
    buffer = filled(TeamReplayBuffer(1000, agents=AGENTS, seed=seed), seed)
    sample = buffer.sample(200, n_step=(2, 5))
    ahead = sample.last - sample.window.begin
    buffer.num_samples = 0  # the same env steps again
    longest = buffer.sample(200, n_step=9).last
    assert (ahead >= np.minimum(2, longest)).all() and (ahead <= 5).all()
    assert set(ahead[longest >= 5].tolist()) == {2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("cls", [DQNConfig, SACConfig, QMIXConfig, MADDPGConfig])
def test_a_range_of_one_number_is_that_number_and_one_of_several_is_not(cls):
    losses = []
    for n_step in (2, (2, 2), [1, 4]):
        config = cls().environment(LifeEnv, env_config={"max_steps": 9}, disable_env_checking=True)
        config.env_runners(num_env_workers=0).rl_module(model_config={"fcnet_hiddens": (4,)}).debugging(seed=1)
        config.training(n_step=n_step, num_steps_sampled_before_learning_starts=10, train_batch_size_per_learner=16)
        with config.reporting(min_sample_timesteps_per_iteration=30).build_algo() as algo:
            losses.append([own for _ in range(5) for own in algo.train()["learners"].values()])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("n_step", [0, (2,), (3, 2), (0, 4), (1, 2.5), "2"])
def test_what_is_no_range_is_refused(n_step):
    with pytest.raises(ConfigError, match=r"(?s)n_step.*\(least, largest\)"):
        DQNConfig().training(n_step=n_step)


def test_sequences_have_one_number():
    config = DQNConfig().environment(LifeEnv).rl_module(model_config={"use_gru": True, "max_seq_len": 4})
    with pytest.raises(ConfigError, match=r"(?s)n_step=\[2, 5\].*'default_policy'"):
        config.training(n_step=(2, 5)).build_algo()
