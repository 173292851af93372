"""Mixed."""

from __future__ import annotations

import warnings
from typing import Any

from marl_connectors.algorithms import build
from marl_connectors.algorithms.action_mask_setting import AUTO, warn_of_late_masks
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.mixed.config import MixedConfig
from marl_connectors.algorithms.off_policy.replay_algorithm import ReplayAlgorithm
from marl_connectors.algorithms.off_policy.replay_training import UpdateResults
from marl_connectors.env_runners.sample import Sample
from marl_connectors.episodes.continuations import put_together
from marl_connectors.errors import MarlConnectorsWarning, did_you_mean
from marl_connectors.learner.learner_set import LearnerSet
from marl_connectors.rl_module.multi_rl_module_part import MultiRLModulePart


class Mixed(ReplayAlgorithm):
    """Trains modules with different algorithms. ``MixedConfig().build_algo()`` makes an object of this class.

    An iteration samples the largest train batch of the on-policy algorithms. After each sample of
    ``rollout_fragment_length`` steps of every sub-environment (``"auto"``: one step), the off-policy algorithms make
    the updates that are due. At the end of the iteration, the on-policy algorithms learn from everything that it has
    sampled: their modules have not changed meanwhile. Without off-policy algorithms, there is one sample.

    Attributes:
        replays: The replay buffers of the off-policy algorithms, by the patterns of their modules.
    """

    config_class = MixedConfig

    config: MixedConfig
    learner: LearnerSet

    def _build_learner(self) -> LearnerSet:
        configs, modules, learners = self.config.configs_of_algorithms(), self.rl_module, {}
        of_modules = {module_id: self.config.algorithm_of(module_id) for module_id in modules}
        for pattern, config in configs.items():
            if pattern not in of_modules.values():
                warnings.warn(
                    f"algorithms: no module has the algorithm of {pattern!r}. {did_you_mean(pattern, modules)} Leave "
                    f"it out, unless add_module is to add such a module.",
                    MarlConnectorsWarning,
                    stacklevel=2,
                )
            part = MultiRLModulePart(modules, lambda module_id, own=pattern: self.config.algorithm_of(module_id) == own)
            learners[pattern] = build.build_learner(
                config, self._setup, part, self._env_to_module, self.seed, stateful=modules.is_stateful()
            )
        self.replays = {
            pattern: replay_class(config, learners[pattern], setup=self._setup, masking=self.masking, seed=self.seed)
            for pattern, config in configs.items()
            if (replay_class := self.config.replay_class(pattern)) is not None
        }
        self._set_up_buffers()
        self._on_policy = [pattern for pattern in configs if pattern not in self.replays]
        self._kept: list[Any] = []
        return LearnerSet(modules, learners)

    def _fragment_length(self) -> int:
        return super()._fragment_length() if self.replays else Algorithm._fragment_length(self)

    def _sample_and_update(self) -> tuple[float, dict[str, Any]]:
        self._kept = []
        return super()._sample_and_update() if self.replays else Algorithm._sample_and_update(self)

    def _is_enough(self, env_steps: int, agent_steps: int) -> bool:
        if not self._on_policy:
            return super()._is_enough(env_steps, agent_steps)
        collected = agent_steps if self.config.count_steps_by == "agent_steps" else env_steps
        return collected >= self.config.total_train_batch_size

    def _keep(self, sample: Sample) -> None:
        if self._on_policy:
            self._kept += sample.episodes()

    def _update_at_end(self, results: UpdateResults) -> None:
        """Updates the modules of the on-policy algorithms, whose episodes are put together from the samples."""
        if not self._on_policy:
            return
        episodes, self._kept = put_together(self._kept), []
        if self.iteration == 0 and self.config.action_mask_key == AUTO and not self.masking.sentence:
            warn_of_late_masks(episodes)
        results.add(self.learner.update(episodes=episodes, timesteps=self._timesteps(), names=self._on_policy))
