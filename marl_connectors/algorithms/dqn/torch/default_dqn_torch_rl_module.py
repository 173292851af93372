"""RLlib's path to ``marl_connectors.algorithms.dqn.rl_module``."""

from marl_connectors.algorithms.dqn.rl_module import DefaultDQNTorchRLModule as DefaultDQNTorchRLModule
