"""OffPolicyAlgorithm: samples, keeps what was sampled, and updates modules with batches of it, in turns."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.prioritized_episode_replay_buffer import PrioritizedEpisodeReplayBuffer
from marl_connectors.seeding import derived_seed
from marl_connectors.typing import ModuleID

_AUTO_FRAGMENT = 1


class OffPolicyAlgorithm(Algorithm):
    """Learns from a replay buffer, as DQN and SAC do.

    An iteration samples ``min_sample_timesteps_per_iteration`` env steps. After each sample of
    ``rollout_fragment_length`` steps of every sub-environment (``"auto"``: one step), it draws a train batch from the
    replay buffer and updates the modules.

    Attributes:
        replay_buffer: The steps of all modules.
        buffer_classes: The classes of replay buffers that the algorithm can learn from.
    """

    config: OffPolicyConfig
    learner: OffPolicyLearner
    buffer_classes: ClassVar[Sequence[type[EpisodeReplayBuffer]]] = (
        EpisodeReplayBuffer,
        PrioritizedEpisodeReplayBuffer,
    )

    def __init__(self, config: Any = None, env: Any = None, **arguments: Any):
        super().__init__(config, env, **arguments)
        self.replay_buffer = self._make_buffer()
        self._updates_due = 0.0

    def _make_buffer(self) -> EpisodeReplayBuffer:
        known = {cls.__name__: cls for cls in self.buffer_classes}
        settings = dict(self.config.replay_buffer_config)
        name = settings.pop("type", self.buffer_classes[-1].__name__)
        if name not in known:
            raise ConfigError(f"replay_buffer_config: there is no type {name!r}. {did_you_mean(str(name), known)}")
        try:
            return known[name](**self.buffer_arguments(), **settings)
        except TypeError as error:
            raise ConfigError(f"replay_buffer_config: {name} does not accept these arguments: {error}") from None

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``."""
        extra = [Columns.ACTION_MASK] if self.masking.sentence else []
        return {"seed": derived_seed(self.seed, "replay buffer"), "extra_columns": extra}

    def _fragment_length(self) -> int:
        given = self.config.rollout_fragment_length
        return _AUTO_FRAGMENT if given == "auto" else int(given)

    def _sample_and_update(self) -> tuple[float, dict[str, Any]]:
        """Samples and updates in turns; returns the end of the iteration less the time of all updates, and results."""
        config, runners, learner = self.config, self.env_runner_group, self.learner
        self.offline_data.begin(self.seed)
        begun_at, updating = runners.num_env_steps, 0.0
        results: dict[ModuleID, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        while runners.num_env_steps - begun_at < config.min_sample_timesteps_per_iteration:
            learner.explore_as_of(runners.num_env_steps)
            runners.begin_iteration()
            before = runners.num_env_steps
            sample = runners.sample()
            self.offline_data.record(sample)
            self.replay_buffer.add(sample.episodes())
            if runners.num_env_steps < config.num_steps_sampled_before_learning_starts:
                continue
            began = time.perf_counter()
            self._updates_due += self._updates_per(runners.num_env_steps - before)
            while self._updates_due >= 1:
                self._updates_due -= 1
                for module_id, own in self._update_once().items():
                    for name, value in own.items():
                        results[module_id][name].append(value)
            updating += time.perf_counter() - began
        self._report_recreated(runners)
        learned = {m: {name: _combined(name, values) for name, values in own.items()} for m, own in results.items()}
        return time.perf_counter() - updating, learned

    def _updates_per(self, env_steps: int) -> float:
        intensity = self.config.training_intensity
        return 1.0 if intensity is None else intensity * env_steps / self.config.train_batch_size_per_learner

    def _update_once(self) -> Mapping[ModuleID, Mapping[str, float]]:
        """Draws a train batch for each module that is trained, and updates the modules."""
        module_ids = [m for m in self.replay_buffer.module_ids if self.learner.should_module_be_updated(m)]
        if not module_ids:
            return {}
        sample = self.replay_buffer.sample(
            self.config.train_batch_size_per_learner, n_step=self.config.n_step, module_ids=module_ids
        )
        runners = self.env_runner_group
        results = self.learner.update(
            episodes=sample,
            timesteps={
                "num_env_steps_sampled_lifetime": runners.num_env_steps,
                "num_agent_steps_sampled_lifetime": runners.num_agent_steps,
            },
        )
        if isinstance(self.replay_buffer, PrioritizedEpisodeReplayBuffer):
            self.replay_buffer.update_priorities(sample, self.learner.td_errors)
        return results

    def get_state(self) -> dict[str, Any]:
        """Returns everything that the next iteration depends on, with the replay buffer."""
        off_policy = {"replay_buffer": self.replay_buffer.get_state(), "updates_due": self._updates_due}
        return {**super().get_state(), "off_policy": off_policy}

    def _apply(self, state: Mapping[str, Any], new_episodes: bool = False) -> None:
        super()._apply(state, new_episodes)
        self.replay_buffer.set_state(state["off_policy"]["replay_buffer"])
        self._updates_due = state["off_policy"]["updates_due"]


def _combined(name: str, values: list[float]) -> float:
    """Returns the result of an iteration from those of its updates: a sum of counts, else a mean."""
    return sum(values) if name.startswith("num_") else float(np.mean(values))
