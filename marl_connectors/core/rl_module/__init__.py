"""RLlib's paths to ``marl_connectors.rl_module``."""

from marl_connectors.rl_module.multi_rl_module import MultiRLModule as MultiRLModule
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec as MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule as RLModule
from marl_connectors.rl_module.rl_module import RLModuleSpec as RLModuleSpec
