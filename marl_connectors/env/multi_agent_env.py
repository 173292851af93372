"""RLlib's path to ``marl_connectors.environments.adapters.multi_agent_env``."""

from marl_connectors.environments.adapters.multi_agent_env import ENV_STATE as ENV_STATE
from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnv as MultiAgentEnv
from marl_connectors.environments.adapters.multi_agent_env import make_multi_agent as make_multi_agent
