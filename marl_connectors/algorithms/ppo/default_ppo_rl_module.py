"""RLlib's path to ``marl_connectors.algorithms.ppo.rl_module``."""

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule as DefaultPPORLModule
