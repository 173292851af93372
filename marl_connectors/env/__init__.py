"""RLlib's paths to environments, episodes and runners, and its names of their spaces."""

from typing import Final

from marl_connectors.env.wrappers.pettingzoo_env import ParallelPettingZooEnv as ParallelPettingZooEnv
from marl_connectors.env.wrappers.pettingzoo_env import PettingZooEnv as PettingZooEnv
from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnv as MultiAgentEnv

INPUT_ENV_SPACES: Final = "__env__"
"""Key of the spaces of all sub-environments in the ``spaces`` that a builder of connector pieces gets."""
INPUT_ENV_SINGLE_SPACES: Final = "__env_single__"
"""Key of the spaces of one sub-environment."""
