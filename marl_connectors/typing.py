"""Types and constants that every layer shares."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeAlias

AgentID: TypeAlias = Hashable
"""An agent's id: usually a string; any hashable object is allowed."""
ModuleID: TypeAlias = str
EpisodeID: TypeAlias = str
ItemKey: TypeAlias = tuple
"""``(episode_id,)`` or ``(episode_id, agent_id, module_id)``: whose item it is in a batch."""
Tree: TypeAlias = Any
"""An array, or a dict or tuple of trees: a batch of items of a (nested) space."""

DEFAULT_AGENT_ID: Final = "default_agent"
"""The one agent of a Gymnasium environment."""
DEFAULT_MODULE_ID: Final = "default_policy"
"""The module of single-agent use, and the one shared by all agents unless mapped otherwise."""
DEFAULT_POLICY_ID: Final = DEFAULT_MODULE_ID
"""RLlib's name."""
COMPONENT_ENV_RUNNER: Final = "env_runner"
COMPONENT_ENV_TO_MODULE_CONNECTOR: Final = "env_to_module_connector"
COMPONENT_LEARNER: Final = "learner"
COMPONENT_LEARNER_GROUP: Final = "learner_group"
COMPONENT_MODULE_TO_ENV_CONNECTOR: Final = "module_to_env_connector"
COMPONENT_RL_MODULE: Final = "rl_module"
"""The places of components in an algorithm's checkpoint; see ``Checkpointable.restore_from_path``."""
SHARED: Final = "__shared__"
"""Stands for a module id where parameters belong to several modules, or to the MultiRLModule itself."""
