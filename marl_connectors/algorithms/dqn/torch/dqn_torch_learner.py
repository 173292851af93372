"""RLlib's path to ``marl_connectors.algorithms.dqn.learner``."""

from marl_connectors.algorithms.dqn.learner import DQNTorchLearner as DQNTorchLearner
