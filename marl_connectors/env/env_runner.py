"""RLlib's path to ``marl_connectors.env_runners.env_runner``."""

from marl_connectors.env_runners.env_runner import EnvRunner as EnvRunner
