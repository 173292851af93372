"""Algorithms and their settings. A name is imported when it is first used."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm as Algorithm
    from marl_connectors.algorithms.bc.bc import BC as BC
    from marl_connectors.algorithms.bc.config import BCConfig as BCConfig
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig as AlgorithmConfig
    from marl_connectors.algorithms.dqn.config import DQNConfig as DQNConfig
    from marl_connectors.algorithms.dqn.learner import DQN as DQN
    from marl_connectors.algorithms.mappo.config import MAPPOConfig as MAPPOConfig
    from marl_connectors.algorithms.mappo.mappo import MAPPO as MAPPO
    from marl_connectors.algorithms.marwil.config import MARWILConfig as MARWILConfig
    from marl_connectors.algorithms.marwil.marwil import MARWIL as MARWIL
    from marl_connectors.algorithms.ppo.config import PPOConfig as PPOConfig
    from marl_connectors.algorithms.ppo.ppo import PPO as PPO
    from marl_connectors.algorithms.sac.config import SACConfig as SACConfig
    from marl_connectors.algorithms.sac.learner import SAC as SAC

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "Algorithm",
    "AlgorithmConfig",
    "BC",
    "BCConfig",
    "DQN",
    "DQNConfig",
    "MAPPO",
    "MAPPOConfig",
    "MARWIL",
    "MARWILConfig",
    "PPO",
    "PPOConfig",
    "SAC",
    "SACConfig",
)
