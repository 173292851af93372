"""RLlib's path to ``marl_connectors.algorithms.ppo.learner``."""

from marl_connectors.algorithms.ppo.learner import PPOTorchLearner as PPOTorchLearner
