"""QMIX and VDN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.build import agents_by_module, reads_env_states
from marl_connectors.algorithms.dqn.dqn import DQN
from marl_connectors.algorithms.off_policy.replay_training import ReplayTraining
from marl_connectors.algorithms.qmix.config import QMIXConfig, VDNConfig
from marl_connectors.algorithms.qmix.learner import QMIXLearner
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError
from marl_connectors.replay_buffers.prioritized_team_replay_buffer import PrioritizedTeamReplayBuffer
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.replay_buffers.team_replay_buffer import TeamReplayBuffer
from marl_connectors.typing import ModuleID


class TeamReplayTraining(ReplayTraining):
    """Keeps the steps of a team together, and draws env steps of it."""

    config: QMIXConfig
    learner: QMIXLearner
    buffer_classes = (TeamReplayBuffer, PrioritizedTeamReplayBuffer)
    can_be_mixed = False

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``.

        Raises:
            ConfigError: If agents act one after another.
        """
        if self.setup.takes_turns:
            raise ConfigError(
                f"{type(self.config).__name__}: in {self.setup.name} agents act one after another, so no env step has "
                f"the actions of a whole team. Use an environment whose agents act at the same time, or DQNConfig."
            )
        found = super().buffer_arguments()
        if reads_env_states(self.learner.pipeline):
            found["extra_columns"] = [*found["extra_columns"], Columns.ENV_STATE]
        return {**found, "agents": agents_by_module(self.config, self.setup)}

    def draw(self, module_ids: Sequence[ModuleID]) -> ReplaySample:
        """Draws env steps of the team; sequences of them if a module is stateful."""
        config, size, modules = self.config, self.config.train_batch_size_per_learner, self.learner.module
        lengths = [self.sequence_len(m) - config.burn_in_len for m in module_ids if modules[m].is_stateful()]
        buffer: Any = self.buffer
        if not lengths:
            return buffer.sample(size, n_step=config.n_step, module_ids=module_ids)
        return buffer.sample(
            math.ceil(size / min(lengths)),
            batch_length_T=min(lengths),
            n_step=config.n_step,
            burn_in_len=config.burn_in_len,
            lookback=1,
            module_ids=module_ids,
        )


class QMIX(DQN):
    """Q-learning for teams with a mixer. ``QMIXConfig().build_algo()`` makes an object of this class."""

    config: QMIXConfig
    learner: QMIXLearner
    replay_class = TeamReplayTraining

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
