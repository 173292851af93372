"""RLlib's path to ``marl_connectors.algorithms.marwil.learner``."""

from marl_connectors.algorithms.marwil.learner import MARWILLearner as MARWILLearner
