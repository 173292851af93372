"""RLlib's path to ``marl_connectors.episodes.items``."""

from marl_connectors.episodes.items import batch as batch
