"""RLlib's path to ``marl_connectors.callbacks``."""

from marl_connectors.callbacks import RLlibCallback as RLlibCallback
