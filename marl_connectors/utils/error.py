"""RLlib's path to ``marl_connectors.errors``."""

from marl_connectors.errors import EnvError as EnvError
