"""ReplayAlgorithm: samples, keeps what was sampled, and updates modules with batches of it, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.algorithm_state import AlgorithmState
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig
from marl_connectors.algorithms.off_policy.replay_training import (
    ReplayTraining,
    TeamReplayTraining,
    UpdateResults,
    check_no_frame_stacking,
)
from marl_connectors.algorithms.offline_data import together
from marl_connectors.columns import Columns
from marl_connectors.env_runners.sample import Sample
from marl_connectors.episodes.action_units import NORMALIZED, UNSCALED
from marl_connectors.episodes.module_actions import with_module_actions
from marl_connectors.errors import ConfigError
from marl_connectors.offline.episode_reader import EpisodeReader
from marl_connectors.replay_buffers.replay_buffer import ReplayBuffer

_AUTO_FRAGMENT = 1


class ReplayAlgorithm(Algorithm):
    """Learns from a replay buffer, as DQN and SAC do: samples and updates in turns.

    An iteration samples ``min_sample_timesteps_per_iteration`` env steps. After each sample of
    ``rollout_fragment_length`` steps of every sub-environment (``"auto"``: one step), each of the ``replays`` makes the
    updates that are due. With ``input_``, recorded episodes are read in place of these samples, or of a share of them.

    A subclass names the classes of its parts.

    Attributes:
        config_class: The class of its settings.
        module_class: The class of its default module.
        learner_class: The class of its learner.
        replay_class: The class of its replay buffer with the updates that are due, which says what is kept and drawn.
        replays: The replay buffers with their learners, by name. There is one unless several algorithms learn.
    """

    config_class: ClassVar[type[AlgorithmConfig]] = OffPolicyConfig
    module_class: ClassVar[Any] = None
    learner_class: ClassVar[Any] = None
    replay_class: ClassVar[type[ReplayTraining]] = ReplayTraining

    config: Any
    replays: dict[str, ReplayTraining]

    @classmethod
    def get_default_config(cls) -> Any:
        """Returns a config with all defaults."""
        return cls.config_class()

    def _build_learner(self) -> Any:
        learner: Any = super()._build_learner()
        replay = self.replay_class(self.config, learner, setup=self._setup, masking=self.masking, seed=self.seed)
        self.replays = {"": replay}
        self._set_up_buffers()
        return learner

    @property
    def replay(self) -> ReplayTraining:
        """The replay buffer with the updates that are due, of a run with one algorithm."""
        if len(self.replays) != 1:
            raise AttributeError(
                f"{type(self).__name__}: there are {len(self.replays)} replay buffers, in algo.replays"
            )
        return next(iter(self.replays.values()))

    @property
    def replay_buffer(self) -> ReplayBuffer:
        """The steps of all modules, in a run with one algorithm."""
        return self.replay.buffer

    def _check_can_change_modules(self, who: str) -> None:
        if any(isinstance(replay, TeamReplayTraining) for replay in self.replays.values()):
            raise ConfigError(
                f"{who}: {type(self).__name__} learns a team, whose agents and modules are those that it was built "
                f"with. Build an algorithm with other ones (.multi_agent(policies=..., policy_mapping_fn=...)), and "
                f"copy what was learned: new.get_module(module_id).set_state(old.get_module(module_id).get_state())."
            )

    def _set_up_buffers(self) -> None:
        """Lets the buffers refuse recorded episodes that do not fit the run, and hold actions of modules only."""
        for replay in self.replays.values():
            check_no_frame_stacking(self._env_to_module, type(replay.config).__name__)
            replay.buffer.prepare_added = self._prepare_added

    def _prepare_added(self, episodes: Any) -> list[Any]:
        if isinstance(episodes, EpisodeReader):
            episodes.check(self.offline_data.fit(modules=not episodes.chooses_modules))
        units = NORMALIZED if self.config.normalize_actions else UNSCALED
        return with_module_actions(episodes, units, modules=self.rl_module)

    def _needed_columns(self) -> list[str]:
        """Returns the columns that the buffers keep. States are not among them, as recorded ones are not read."""
        names = [name for replay in self.replays.values() for name in replay.buffer.extra_columns]
        return [name for name in dict.fromkeys(names) if name != Columns.STATE_OUT]

    def _fragment_length(self) -> int:
        given = self.config.rollout_fragment_length
        return _AUTO_FRAGMENT if given == "auto" else int(given)

    def _is_enough(self, env_steps: int, agent_steps: int) -> bool:
        """Whether an iteration has sampled enough with these steps."""
        del agent_steps
        return env_steps >= self.config.min_sample_timesteps_per_iteration

    def _sample_and_update(self) -> tuple[float, dict[str, Any]]:
        """Samples and updates in turns; returns the end of sampling less the time of all updates, and results."""
        results, updating = UpdateResults(), 0.0
        self.offline_data.begin(self.seed)
        env_steps, agent_steps = self.num_env_steps, self.num_agent_steps
        while not self._is_enough(self.num_env_steps - env_steps, self.num_agent_steps - agent_steps):
            num_sampled = self._timesteps()[f"num_{self.config.count_steps_by}_sampled_lifetime"]
            for replay in self.replays.values():
                replay.learner.explore_as_of(num_sampled)
            before = self.num_env_steps
            sample = self._next_sample()
            self._keep(sample)
            began = time.perf_counter()
            for replay in self.replays.values():
                new_env_steps = self.num_env_steps - before
                replay.learn(sample.episodes(), new_env_steps, timesteps=self._timesteps(), results=results)
            updating += time.perf_counter() - began
        self._report_recreated(self.env_runner_group)
        sampled = time.perf_counter() - updating
        self._update_at_end(results)
        return sampled, results.combined()

    def _next_sample(self) -> Sample:
        """Returns the next episodes for the buffers: sampled or recorded ones, or both."""
        data, fraction = self.offline_data, self.config.live_fraction
        if data.reader is not None and not fraction:
            is_kept = data.reader.num_passes > 0 and not any(r.buffer.has_forgotten for r in self.replays.values())
            read = data.take_due(self._fragment_length() * self.config.num_envs, within_pass=True)
            return Sample.of_episodes([]) if is_kept else read
        self.env_runner_group.send_weights()
        live = self.env_runner_group.sample()
        data.record(live)
        if data.reader is None:
            return live
        return together(data.take_due(live.env_steps * (1.0 - fraction) / fraction, within_pass=False), live)

    def _now(self) -> Callable[[], None]:
        parts = [super()._now(), *(replay.now() for replay in self.replays.values())]

        def go_back() -> None:
            for part in parts:
                part()

        return go_back

    def _end_transaction(self) -> None:
        for replay in self.replays.values():
            replay.buffer.forget_overwritten()

    def get_state(self) -> AlgorithmState:
        """Returns everything that the next iteration depends on, with the replay buffers."""
        state = super().get_state()
        state.replays = {name: replay.get_state() for name, replay in self.replays.items()}
        return state

    def _apply(self, state: AlgorithmState, new_episodes: bool, with_replay_buffers: bool) -> None:
        super()._apply(state, new_episodes, with_replay_buffers)
        if with_replay_buffers:
            for name, replay in self.replays.items():
                replay.set_state(state.replays.get(name))

    def _results_of_data(self) -> dict[str, Any]:
        buffers = [replay.buffer for replay in self.replays.values()]
        return {
            **super()._results_of_data(),
            "replay_buffer": {
                "num_timesteps": sum(map(len, buffers)),
                "num_bytes": sum(buffer.nbytes for buffer in buffers),
            },
        }

    def _keep(self, sample: Sample) -> None:
        """Keeps a sample for the end of the iteration; does nothing unless overridden."""

    def _update_at_end(self, results: UpdateResults) -> None:
        """Makes the updates at the end of an iteration; none unless overridden."""
