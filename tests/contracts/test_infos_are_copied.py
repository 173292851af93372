"""What an environment writes into the arrays of its infos after a step does not change that step's infos."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.reusing_envs import ReusingInfos, ReusingVector
from helpers.envs.scripted_envs import small_config
from marl_connectors.trees import copied, leaves


@pytest.mark.parametrize(("env", "workers"), [(ReusingInfos, 0), (ReusingInfos, 2), (ReusingVector, 0)])
def test_arrays_in_infos_are_those_of_their_step(env, workers):
    config = small_config(env).env_runners(num_envs_per_env_runner=2, num_env_workers=workers)
    runner = config.build_algo().env_runner
    episodes = runner.sample(num_timesteps=40)
    runner.close()
    assert sum(episode.is_done for episode in episodes) >= 5
    for episode in episodes:
        for t, info in enumerate(episode.get_infos(), start=episode.t_started):
            assert {int(clock[0]) for clock in leaves(info)} == {t}


def test_copied_keeps_the_kinds_of_containers():
    array, thing = np.zeros(2), object()
    given = {"list": [array, 1], "tuple": (array, "x"), "thing": thing, "number": np.float32(2)}
    result = copied(given)
    array += 1
    assert result["list"][0].tolist() == result["tuple"][0].tolist() == [0, 0]
    assert (type(result["list"]), type(result["tuple"]), result["thing"]) == (list, tuple, thing)
    assert result["number"] == 2
