"""RLlib's former name of PPO's default module, at its path."""

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

PPOTorchRLModule = DefaultPPORLModule
