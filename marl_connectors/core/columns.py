"""RLlib's path to ``marl_connectors.columns``."""

from marl_connectors.columns import Columns as Columns
