"""TeamReplayTraining: a replay buffer that keeps the steps of all agents together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.build import agents_by_module
from marl_connectors.algorithms.off_policy.replay_training import ReplayTraining
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.typing import ModuleID


class TeamReplayTraining(ReplayTraining):
    """Keeps the steps of all agents together, and draws env steps. A subclass names the classes of buffers."""

    can_be_mixed = False

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``."""
        return {**super().buffer_arguments(), "agents": agents_by_module(self.config, self.setup)}

    def draw(self, module_ids: Sequence[ModuleID]) -> ReplaySample:
        """Draws env steps of some modules' agents; sequences of them if a module is stateful."""
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
