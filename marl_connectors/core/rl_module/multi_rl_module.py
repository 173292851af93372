"""RLlib's path to ``marl_connectors.rl_module.multi_rl_module``."""

from marl_connectors.rl_module.multi_rl_module import MultiRLModule as MultiRLModule
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec as MultiRLModuleSpec
