"""A run gives the same results with any number of learners and env runners."""

from __future__ import annotations

import pytest

from helpers.runs.rank_configs import life_config, mappo_config, normalized_config, recurrent_config
from helpers.runs.rank_processes import largest_difference


def trained(make_config, num_learners, num_env_runners):
    """The learner's state after five iterations with six sub-environments."""
    config = make_config()
    total = config.train_batch_size_per_learner
    config.training(train_batch_size_per_learner=total // max(1, num_learners)).learners(num_learners=num_learners)
    config.env_runners(
        num_env_runners=num_env_runners, num_envs_per_env_runner=config.num_envs // max(1, num_env_runners)
    )
    algo = config.build_algo()
    try:
        for _ in range(5):
            algo.train()
        return algo.learner.get_state()
    finally:
        algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("make_config", [life_config, recurrent_config, mappo_config, normalized_config])
def test_any_number_of_learners_and_env_runners_gives_the_same_parameters(make_config):
    expected = trained(make_config, 0, 0)
    for num_learners, num_env_runners in ((1, 0), (2, 3), (3, 2)):
        found = trained(make_config, num_learners, num_env_runners)
        assert largest_difference(expected["module"], found["module"]) < 1e-5
        assert expected["num_updates"] == found["num_updates"]
