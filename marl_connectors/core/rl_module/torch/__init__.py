"""RLlib's path to ``marl_connectors.rl_module.rl_module``."""

from marl_connectors.rl_module.rl_module import TorchRLModule as TorchRLModule
