"""What a piece has worked out for rows is forgotten with the rows, and is not copied."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import AgentToModuleMapping
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.env_runners.lane_group import LaneGroup


def rows_of_a_group():
    return LaneGroup(0, spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Discrete(2), lookback=0).rows


def test_equal_rows_are_told_apart():
    memory, rows, others = RowMemory(), rows_of_a_group(), rows_of_a_group()
    memory[rows] = "known"
    assert memory.get(rows) == "known"
    assert memory.get(others) is None


def test_a_value_is_forgotten_with_its_rows():
    memory, rows = RowMemory(), rows_of_a_group()
    memory[rows] = "known"
    del rows
    gc.collect()
    assert not memory


def test_copies_are_empty_and_independent():
    memory, rows = RowMemory(), rows_of_a_group()
    memory[rows] = "known"
    for made in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert isinstance(made, RowMemory)
        assert not made
        made[rows] = "other"
    assert memory[rows] == "known"


def test_pieces_let_go_of_the_rows_of_a_train_batch():
    config = small_config(LifeEnv, disable_env_checking=True).multi_agent(policies="independent")
    algo = config.build_algo()
    algo.train()
    gc.collect()
    (piece,) = (piece for piece in algo.learner.pipeline if isinstance(piece, AgentToModuleMapping))
    assert not piece._checked
    (piece,) = (piece for piece in algo.env_runner.env_to_module if isinstance(piece, AgentToModuleMapping))
    assert piece._checked and not copy.deepcopy(piece)._checked
    algo.stop()
