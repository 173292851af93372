"""SACLearner at RLlib's path, with RLlib's names of its loss statistics."""

from typing import Final

from marl_connectors.algorithms.dqn.dqn_learner import QF_LOSS_KEY as QF_LOSS_KEY
from marl_connectors.algorithms.dqn.dqn_learner import QF_MEAN_KEY as QF_MEAN_KEY
from marl_connectors.algorithms.dqn.dqn_learner import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.sac.learner import SACLearner as SACLearner
from marl_connectors.algorithms.sac.rl_module import QF_TWIN_PREDS as QF_TWIN_PREDS

QF_TWIN_LOSS_KEY: Final = "qf_twin_loss"
