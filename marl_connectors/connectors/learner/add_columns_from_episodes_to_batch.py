"""AddColumnsFromEpisodesToBatch, another name of AddColumnsFromEpisodesToTrainBatch in RLlib's documents."""

from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)

AddColumnsFromEpisodesToBatch = AddColumnsFromEpisodesToTrainBatch
