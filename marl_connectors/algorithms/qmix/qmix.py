"""QMIX and VDN."""

from __future__ import annotations

from typing import Any

from marl_connectors.algorithms.build import reads_env_states
from marl_connectors.algorithms.dqn.dqn import DQN
from marl_connectors.algorithms.off_policy.team_replay_training import TeamReplayTraining
from marl_connectors.algorithms.qmix.config import QMIXConfig, VDNConfig
from marl_connectors.algorithms.qmix.learner import QMIXLearner
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError
from marl_connectors.replay_buffers.replay_buffer import PrioritizedTeamReplayBuffer, TeamReplayBuffer


class QMIXReplayTraining(TeamReplayTraining):
    """Keeps the steps of a team, whose agents act at the same time."""

    buffer_classes = (TeamReplayBuffer, PrioritizedTeamReplayBuffer)

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``.

        Raises:
            ConfigError: If agents act one after another.
        """
        if self.setup.takes_turns:
            raise ConfigError(
                f"{type(self.config).__name__}: in {self.setup.name} agents act one after another, so no env step has "
                f"the actions of a whole team. Use an environment whose agents act at the same time, or DQNConfig "
                f"(--algo dqn on the command line)."
            )
        found = super().buffer_arguments()
        if reads_env_states(self.learner.pipeline):
            found["extra_columns"] = [*found["extra_columns"], Columns.ENV_STATE]
        return found


class QMIX(DQN):
    """Q-learning for teams with a mixer. ``QMIXConfig().build_algo()`` makes an object of this class."""

    config: QMIXConfig
    learner: QMIXLearner
    replay_class = QMIXReplayTraining

    @classmethod
    def get_default_config(cls) -> QMIXConfig:
        """Returns a QMIXConfig with all defaults."""
        return QMIXConfig()


class VDN(QMIX):
    """Value-decomposition networks. ``VDNConfig().build_algo()`` makes an object of this class."""

    @classmethod
    def get_default_config(cls) -> VDNConfig:
        """Returns a VDNConfig with all defaults."""
        return VDNConfig()
