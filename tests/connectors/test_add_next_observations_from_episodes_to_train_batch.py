from __future__ import annotations

import numpy as np
from gymnasium import spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch,
)
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

SPACE = spaces.Box(-99.0, 99.0, (1,), np.float32)


def rows_of(*observed, lookback=0):
    """The rows of episodes with these observations."""
    episodes = [
        SingleAgentEpisode(
            str(i),
            observations=[np.array([x], np.float32) for x in own],
            observation_space=SPACE,
            actions=[0] * (len(own) - 1),
            rewards=[0.0] * (len(own) - 1),
            len_lookback_buffer=lookback,
        )
        for i, own in enumerate(observed)
    ]
    return rows_of_episodes(episodes, ["default_policy"])


def next_of(rows):
    columns = ColumnGroup(rows)
    AddNextObservationsFromEpisodesToTrainBatch().columns(columns, ARRAYS)
    return columns["new_obs"][:, 0].tolist()


def test_each_row_gets_the_observation_after_it_and_the_last_one_its_own():
    assert next_of(rows_of([1, 2, 3], [7, 8])) == [2, 3, 3, 8, 8]
    assert next_of(rows_of([1, 2, 3], [7, 8, 9], lookback=1)) == [3, 3, 9, 9]


def test_rows_of_last_observations_may_have_been_dropped_before():
    rows = rows_of([1, 2, 3], [7, 8])
    assert next_of(rows.kept(np.flatnonzero(rows.acted))) == [2, 3, 8]


def test_what_an_earlier_piece_has_added_stays():
    columns = ColumnGroup(rows_of([1, 2]))
    columns["new_obs"] = np.full((2, 1), 5.0)
    AddNextObservationsFromEpisodesToTrainBatch().columns(columns, ARRAYS)
    assert columns["new_obs"].tolist() == [[5.0], [5.0]]
