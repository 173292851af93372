"""RLlib's path to ``marl_connectors.algorithms.config.algorithm_config``."""

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig as AlgorithmConfig
from marl_connectors.algorithms.config.sections import NotProvided as NotProvided
