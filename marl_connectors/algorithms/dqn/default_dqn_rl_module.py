"""RLlib's path to ``marl_connectors.algorithms.dqn.rl_module``."""

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule as DefaultDQNRLModule
