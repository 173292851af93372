"""RLlib's path to ``marl_connectors.algorithms.sac.rl_module``."""

from marl_connectors.algorithms.sac.rl_module import DefaultSACRLModule as DefaultSACRLModule
