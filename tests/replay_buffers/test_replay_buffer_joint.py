"""Steps of all agents that are drawn together are the same as those of a buffer that knows no env steps."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, EpisodeReplayBuffer
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import (
    DISCOUNTS,
    AddNStepReturnsToTrainBatch,
)
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import EpisodeError
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer

FRESH = fresh_seeds(60)
AGENTS = ["a", "b", "c"]


def played(seed, **env_config):
    """Returns chunks of random play, and the agents of each module."""
    rng = np.random.default_rng(seed)
    settings = {"die": rng.choice([0.0, 0.2]), "join": 0.0, "max_steps": int(rng.integers(2, 12))}
    config = small_config(LifeEnv, env_config=settings | env_config)
    config.environment(disable_env_checking=True).debugging(seed=seed)
    policies = str(rng.choice(["shared", "independent", "a=x,*=y"]))
    algo = config.multi_agent(policies=policies).env_runners(num_envs_per_env_runner=2).build_algo()
    agents = {}
    for agent in AGENTS:
        agents.setdefault(config.policy_mapping_fn(agent, None), []).append(agent)
    samples = [algo.env_runner.sample(num_timesteps=int(rng.integers(4, 20))) for _ in range(4)]
    algo.stop()
    return samples, agents


def steps_of(sample, n_step):
    """Returns the n-step rows of all modules, by the bytes of their observations."""
    found = {}
    for module_id in sample.segments:
        group = ColumnGroup(sample.rows([module_id]))
        AddNStepReturnsToTrainBatch(n_step=n_step, gamma=0.9).columns(group, ARRAYS)
        actions, observations = (group.rows.get(name) for name in (Columns.ACTIONS, Columns.OBS))
        for i, seen in enumerate(observations):
            row = [actions[i], group[Columns.REWARDS][i], group[DISCOUNTS][i], group[Columns.NEXT_OBS][i].tolist()]
            assert seen.tobytes() not in found
            found[seen.tobytes()] = (module_id, row)
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
@pytest.mark.parametrize("n_step", [1, 3])
def test_n_step_returns_are_those_of_each_agent_alone(seed, n_step):
    samples, agents = played(seed)
    joint, alone = JointReplayBuffer(1000, agents=agents), EpisodeReplayBuffer(1000)
    for sample in samples:
        for buffer in (joint, alone):
            buffer.add(sample)
    found, expected = (steps_of(buffer.every_step(n_step=n_step), n_step) for buffer in (joint, alone))
    assert found.keys() == expected.keys()
    for key, (module_id, (action, reward, discount, new_obs)) in expected.items():
        own_id, own = found[key]
        assert own_id == module_id and own[0] == action
        assert own[1:3] == pytest.approx([reward, discount])
        if discount:
            assert own[3] == new_obs


@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_rows_of_one_item_are_of_one_env_step(seed):
    samples, agents = played(seed, die=0.0)
    buffer = JointReplayBuffer(1000, agents=agents, seed=seed)
    for sample in samples:
        buffer.add(sample)
    drawn = buffer.sample(32, n_step=2)
    assert all((flags[:, 0] > 0).all() for flags in drawn.flags.values())
    for module_id, own in drawn.segments.items():
        observed = drawn.column(Columns.OBS, module_id)
        np.testing.assert_array_equal(own.rollout.columns[Columns.OBS][own.start], observed[own.items, 0, own.slots])
        assert len(own) == 32 * len(agents[module_id])
        assert ((own.ahead >= 1) & (own.ahead <= 2)).all()
        for name, ends in ((Columns.TERMINATEDS, own.terminated), (Columns.TRUNCATEDS, own.truncated)):
            np.testing.assert_array_equal(ends, own.rollout.columns[name][own.start])


def test_only_some_modules_have_rows_but_all_are_known():
    samples, _ = played(3)
    agents = {"x": ["a"], "y": ["b", "c"]}
    config = small_config(LifeEnv).environment(disable_env_checking=True).multi_agent(policies="a=x,*=y")
    algo = config.build_algo()
    buffer = JointReplayBuffer(100, agents=agents)
    buffer.add(algo.env_runner.sample(num_timesteps=20))
    drawn = buffer.sample(4, module_ids=["y"])
    assert list(drawn.segments) == ["y"] and list(drawn.agents) == ["x", "y"]
    with pytest.raises(EpisodeError, match="agent 'a'"):
        JointReplayBuffer(100, agents={"y": ["b", "c"]}).add(samples[0])
    algo.stop()


def test_what_it_has_no_use_for_is_an_error():
    buffer = JointReplayBuffer(30, agents={"x": ["a"]})
    with pytest.raises(EpisodeError, match="batch_length_T"):
        buffer.sample(4, batch_length_T=3)
