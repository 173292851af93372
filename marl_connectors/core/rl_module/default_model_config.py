"""RLlib's path to ``marl_connectors.rl_module.default_model_config``."""

from marl_connectors.rl_module.default_model_config import DefaultModelConfig as DefaultModelConfig
