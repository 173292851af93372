"""RLlib's path to ``marl_connectors.checkpoints``."""

from marl_connectors.checkpoints import Checkpointable as Checkpointable
