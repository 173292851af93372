"""RLlib's path to ``marl_connectors.rl_module.distributions``."""

from marl_connectors.rl_module.distributions import Distribution as Distribution
