"""Closing goes on where an environment's close() raises."""

from __future__ import annotations

import logging
import re
from functools import partial

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors.environments.vector.vector_env import VectorEnv


class ClosesBadly(LifeEnv):
    """Takes note of each call of close() in a file, and raises."""

    def __init__(self, *, path, error=RuntimeError, **settings):
        super().__init__(**settings)
        self._path, self._error = path, error

    def close(self):
        with open(self._path, "a") as file:
            file.write("closed\n")
        raise self._error("it is stuck")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_the_other_copies_are_closed_too(tmp_path, caplog, error):
    path = tmp_path / "closed"
    with caplog.at_level(logging.WARNING, "marl_connectors"):
        VectorEnv([ClosesBadly(path=path, error=error) for _ in range(3)], seed=0).close()
    assert path.read_text().split() == ["closed"] * 3
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    for i, message in enumerate(messages):
        said = rf"sub-environment {i}: close\(\) raised {error.__name__}: it is stuck \(.*closing\.py:\d+ in close\)\."
        assert re.fullmatch(said, message)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_is_stopped_all_the_same(tmp_path, workers):
    path = tmp_path / "closed"
    config = small_config(partial(ClosesBadly, path=path), disable_env_checking=True)
    config.multi_agent(policies="shared").env_runners(num_envs_per_env_runner=2, num_env_workers=workers)
    algo = config.build_algo()
    algo.env_runner.sample(num_timesteps=4)
    already = len(path.read_text().split()) if path.exists() else 0
    algo.stop()
    assert len(path.read_text().split()) == already + 2 + 1  # the copies, and the one that was asked for its spaces
