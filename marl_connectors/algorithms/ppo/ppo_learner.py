"""RLlib's path to ``marl_connectors.algorithms.ppo.learner``."""

from marl_connectors.algorithms.ppo.learner import PPOLearner as PPOLearner
