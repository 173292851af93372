"""Learner at RLlib's path, with RLlib's names of loss statistics."""

from typing import Final

from marl_connectors.learner.learner import DEFAULT_OPTIMIZER as DEFAULT_OPTIMIZER
from marl_connectors.learner.learner import Learner as Learner

ENTROPY_KEY: Final = "entropy"
LR_KEY: Final = "learning_rate"
POLICY_LOSS_KEY: Final = "policy_loss"
VF_LOSS_KEY: Final = "vf_loss"
