"""RLlib's path to ``marl_connectors.learner.learner``."""

from marl_connectors.learner.learner import TorchLearner as TorchLearner
