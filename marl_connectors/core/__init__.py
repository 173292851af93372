"""RLlib's paths to columns, modules and learners, and its names of default ids."""

from typing import Final

from marl_connectors.columns import Columns as Columns
from marl_connectors.typing import DEFAULT_AGENT_ID as DEFAULT_AGENT_ID
from marl_connectors.typing import DEFAULT_MODULE_ID as DEFAULT_MODULE_ID

DEFAULT_POLICY_ID = DEFAULT_MODULE_ID

COMPONENT_ENV_RUNNER: Final = "env_runner"
COMPONENT_ENV_TO_MODULE_CONNECTOR: Final = "env_to_module_connector"
COMPONENT_LEARNER: Final = "learner"
COMPONENT_LEARNER_GROUP: Final = "learner_group"
COMPONENT_MODULE_TO_ENV_CONNECTOR: Final = "module_to_env_connector"
COMPONENT_RL_MODULE: Final = "rl_module"
"""The places of components in an algorithm's checkpoint; see ``Checkpointable.restore_from_path``."""
