"""DQNLearner at RLlib's path, with RLlib's names of its loss statistics."""

from typing import Final

from marl_connectors.algorithms.dqn.learner import DQNLearner as DQNLearner
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS

QF_LOSS_KEY: Final = "qf_loss"
QF_MEAN_KEY: Final = "qf_mean"
TD_ERROR_MEAN_KEY: Final = "td_error_mean"
