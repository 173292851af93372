"""RLlib's path to ``marl_connectors.algorithms.sac.learner``."""

from marl_connectors.algorithms.sac.learner import SACTorchLearner as SACTorchLearner
