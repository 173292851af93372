"""The documents' other name for AddColumnsFromEpisodesToTrainBatch."""

from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)

AddColumnsFromEpisodesToBatch = AddColumnsFromEpisodesToTrainBatch
