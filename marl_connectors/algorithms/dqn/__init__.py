"""Deep Q-learning, Mnih et al. (2015), with the extensions of Rainbow that help most, Hessel et al. (2018)."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.dqn.config import DQNConfig as DQNConfig
    from marl_connectors.algorithms.dqn.learner import DQN as DQN

__getattr__, __dir__, __all__ = re_exports(__name__, "DQN", "DQNConfig")
