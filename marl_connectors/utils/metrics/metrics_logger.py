"""RLlib's path to ``marl_connectors.metrics``."""

from marl_connectors.metrics import MetricsLogger as MetricsLogger
