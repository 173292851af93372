"""RLlib's path to ``MultiRLModule`` and its spec."""

from marl_connectors.rl_module.multi_rl_module import MultiRLModule as MultiRLModule
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec as MultiRLModuleSpec
