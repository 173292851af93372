"""BC's default module, which is that of PPO, at RLlib's path."""

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

DefaultBCTorchRLModule = DefaultPPORLModule
"""RLlib's name."""
