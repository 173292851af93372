"""RLlib's path to ``marl_connectors.learner.learner_group``."""

from marl_connectors.learner.learner_group import LearnerGroup as LearnerGroup
