import numpy as np
import pytest

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import AddNStepReturnsToTrainBatch
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.replay_buffers.replay_buffer import EpisodeReplayBuffer

FRESH = fresh_seeds(60)


def played(seed):
    """A buffer with all steps of a random run, and the steps of each agent's episode in lists."""
    rng = np.random.default_rng(seed)
    env_config = {"die": 0.15, "join": 0.2, "max_steps": int(rng.integers(2, 9))}
    config = small_config([LifeEnv, RandomAEC][seed % 2], env_config=env_config, disable_env_checking=True)
    config.multi_agent(policies=["shared", "independent"][seed // 2 % 2])
    algo = config.env_runners(num_envs_per_env_runner=2).build_algo()
    buffer, steps = EpisodeReplayBuffer(10_000, seed=seed), {}
    for _ in range(5):
        episodes = algo.env_runner.sample(num_timesteps=int(rng.integers(2, 20)))
        buffer.add(episodes)
        for own in (own for episode in episodes for own in episode.all_agent_episodes()):
            log = steps.setdefault((own.module_id, own.id_), [])
            for i in range(len(own)):
                ends = i == len(own) - 1 and own.is_terminated
                log.append((own.get_observations(i), own.get_rewards(i), own.get_observations(i + 1), ends))
    algo.stop()
    return rng, buffer, steps


@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_targets_are_sums_over_the_steps_that_follow(seed):
    rng, buffer, logs = played(seed)
    n_step, gammas = int(rng.integers(1, 5)), {m: float(rng.uniform(0.5, 1)) for m in buffer.module_ids}
    piece = AddNStepReturnsToTrainBatch(n_step=n_step, gamma=gammas.__getitem__)
    group = ColumnGroup(buffer.sample(40, n_step=n_step).rows(buffer.module_ids))
    piece.columns(group, ARRAYS)
    observations = group.rows.get(Columns.OBS)
    for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
        where = {
            np.asarray(step[0]).tobytes(): (log, i)
            for (own, _), log in logs.items()
            if own == module_id
            for i, step in enumerate(log)
        }
        for row in range(begin, end):
            log, number = where[observations[row].tobytes()]
            ahead = log[number : number + n_step]
            gamma = gammas[module_id]
            expected = sum(gamma**k * step[1] for k, step in enumerate(ahead))
            np.testing.assert_allclose(group[Columns.REWARDS][row], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(group[Columns.NEXT_OBS][row], ahead[-1][2])
            discount = 0.0 if ahead[-1][3] else gamma ** len(ahead)
            np.testing.assert_allclose(group["discounts"][row], discount, rtol=1e-5)


def test_rows_of_episodes_are_refused():
    algo = small_config(LifeEnv).build_algo()
    (group,) = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=10)).groups
    with pytest.raises(ConnectorError, match="buffer"):
        AddNStepReturnsToTrainBatch().columns(group, ARRAYS)
    algo.stop()
