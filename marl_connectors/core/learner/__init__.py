"""RLlib's path to ``marl_connectors.learner``."""

from marl_connectors.learner.learner import Learner as Learner
from marl_connectors.learner.learner_group import LearnerGroup as LearnerGroup
