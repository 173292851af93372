from __future__ import annotations

import numpy as np
import pytest

from marl_connectors.algorithms.inference.observation_batches import infos_by_env
from marl_connectors.errors import EpisodeError


def test_infos_of_a_vector_environment_are_those_that_each_environment_gave():
    infos = {"speed": np.array([1.0, 0.0, 3.0]), "_speed": np.array([True, False, True]), "all": np.array([4, 5, 6])}
    assert infos_by_env(infos, 3, True) == [{"speed": 1.0, "all": 4}, {"all": 5}, {"speed": 3.0, "all": 6}]


def test_infos_in_a_list_stay_as_they_are_and_one_is_for_one():
    assert infos_by_env([{"a": 1}, {}], 2, True) == [{"a": 1}, {}]
    assert infos_by_env({"a": 1}, 1, False) == [{"a": 1}]
    with pytest.raises(EpisodeError, match=r"\b2 info"):
        infos_by_env([{}], 2, True)
