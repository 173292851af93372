"""RLlib's path to ``marl_connectors.rl_module.rl_module``."""

from marl_connectors.rl_module.default_model_config import DefaultModelConfig as DefaultModelConfig
from marl_connectors.rl_module.rl_module import RLModule as RLModule
from marl_connectors.rl_module.rl_module import RLModuleSpec as RLModuleSpec
