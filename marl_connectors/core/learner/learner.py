"""RLlib's path to ``marl_connectors.learner.learner``."""

from marl_connectors.learner.learner import Learner as Learner
