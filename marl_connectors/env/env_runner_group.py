"""RLlib's path to ``marl_connectors.env_runners.env_runner_group``."""

from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup as EnvRunnerGroup
