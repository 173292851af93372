"""Learner pieces that change rewards do so for targets from a replay buffer as a changed environment does."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    ClipRewards,
    Columns,
    ConnectorError,
    ConnectorV2,
    DQNConfig,
    LearnerError,
    MADDPGConfig,
    NormalizeRewards,
    QMIXConfig,
    SACConfig,
    ScaleRewards,
)
from marl_connectors.rl_module.module_columns import columns_by_module

ALGORITHMS = (DQNConfig, SACConfig, MADDPGConfig)
FRESH = fresh_seeds(15)


class ChangedRewards(LifeEnv):
    """The environment with the rewards that pieces make of its own."""

    def __init__(self, pieces=(), **settings):
        super().__init__(**settings)
        self.pieces = pieces

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        for piece in self.pieces:
            rewards = {agent: float(piece.changed(np.float32(reward))) for agent, reward in rewards.items()}
        return observations, rewards, *rest


class AddOne(ConnectorV2):
    """A user's piece."""

    def columns(self, c, xp):
        c[Columns.REWARDS] = c.rows.get(Columns.REWARDS).astype(np.float32) + 1


def drawn_rewards(cls, seed, n_step, *, pieces=(), in_env=()):
    """The rewards of a train batch by module, after some steps without learning."""
    env_config = {"die": 0.2, "join": 0.3, "max_steps": 9, "pieces": in_env}
    config = cls().environment(ChangedRewards, env_config=env_config, disable_env_checking=True)
    config.multi_agent(policies="independent" if seed % 2 else "shared").debugging(seed=seed)
    config.rl_module(model_config={"fcnet_hiddens": (4,)}).learners(learner_connector=lambda *_: list(pieces))
    config.reporting(min_sample_timesteps_per_iteration=60)
    config.training(n_step=n_step, num_steps_sampled_before_learning_starts=1000, train_batch_size_per_learner=16)
    with config.build_algo() as algo:
        algo.train()
        (replay,) = algo.replays.values()
        batch = replay.learner.make_batch(replay.draw(list(algo.rl_module)))
        return {m: columns[Columns.REWARDS].numpy() for m, columns in columns_by_module(batch).items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_targets_add_up_the_changed_rewards(seed):
    rng = np.random.default_rng(seed)
    cls = ALGORITHMS[seed % 3]
    n_step = [1, int(rng.integers(2, 5)), (2, 4)][rng.integers(3)]
    pieces = [
        ScaleRewards(scale=float(rng.uniform(-3, 3)), shift=float(rng.uniform(-1, 1)))
        if rng.integers(2)
        else ClipRewards(clip_rewards=[True, float(rng.uniform(0.1, 1))][rng.integers(2)])
        for _ in range(rng.integers(1, 4))
    ]
    found = drawn_rewards(cls, seed, n_step, pieces=pieces)
    expected = drawn_rewards(cls, seed, n_step, in_env=pieces)
    unchanged = drawn_rewards(cls, seed, n_step)
    assert found.keys() == expected.keys()
    for module_id, rewards in found.items():
        np.testing.assert_allclose(rewards, expected[module_id], rtol=1e-4, atol=1e-5)
        assert not np.allclose(rewards, unchanged[module_id])


@pytest.mark.slow
def test_a_piece_of_a_user_changes_the_only_reward_of_a_target_and_is_refused_for_several():
    changed, before = drawn_rewards(DQNConfig, 0, 1, pieces=[AddOne()]), drawn_rewards(DQNConfig, 0, 1)
    np.testing.assert_allclose(changed["default_policy"], before["default_policy"] + 1)
    with pytest.raises(ConnectorError, match="n_step=3"):
        drawn_rewards(DQNConfig, 0, 3, pieces=[AddOne()])


@pytest.mark.parametrize("cls", [*ALGORITHMS, QMIXConfig])
def test_normalized_rewards_need_whole_episodes(cls):
    with pytest.raises(LearnerError, match=r"(?s)NormalizeRewards.*ScaleRewards.*scale="):
        drawn_rewards(cls, 0, 1, pieces=[NormalizeRewards()])
