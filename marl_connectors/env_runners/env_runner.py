"""EnvRunner: steps sub-environments with a MultiRLModule and returns episodes."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import units_of_modules
from marl_connectors.connectors.running_stats import FRAGMENT, Fragment
from marl_connectors.env_runners.acting_check import check_outputs
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import OutOfBounds, check_columns
from marl_connectors.env_runners.done_episodes import (
    DoneEpisode,
    Episode,
    SamplePlace,
    check_sample_size,
    first_of_each_sub_env,
    first_rounds,
    missing,
    shares,
)
from marl_connectors.env_runners.env_runner_parts import EnvRunnerParts, PolicyMappingFn
from marl_connectors.env_runners.env_runner_state import EnvRunnerState, SubEnvironmentState
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.finished_episodes import FinishedEpisodes
from marl_connectors.env_runners.lane_table import SampledSteps
from marl_connectors.env_runners.run_metrics import EpisodeSummary, SamplingTimes, summarize
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.action_history import HISTORY_BYTES
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    EpisodeError,
    MarlConnectorsWarning,
    counted,
    listed,
)
from marl_connectors.metrics import MetricsLogger, by_pipeline, reduced, with_logged
from marl_connectors.names import import_attribute
from marl_connectors.never_called import RefusesIgnoredMethods
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.state import copied, fields_of, read_state
from marl_connectors.typing import DEFAULT_MODULE_ID

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

_LOG = logging.getLogger(__name__)
_NOISE_STEPS = 2**20
"""The steps of the noise after which the next sample begins, if a sample has whole episodes: more than it has steps."""


class EnvRunner(RefusesIgnoredMethods):
    """Steps sub-environments and collects episodes.

    Each step runs the env-to-module pipeline, the modules, the module-to-env pipeline and the environments. The same
    class runs PettingZoo environments (MultiAgentEpisodes) and Gymnasium environments (SingleAgentEpisodes).

    Attributes:
        config: The settings, if they were passed.
        vector_env: The sub-environments.
        rl_module: The modules.
        env_to_module: The pipeline that turns observations into a forward batch.
        module_to_env: The pipeline that turns module outputs into actions.
        explore: Whether ``sample`` explores by default.
        lookback: The number of earlier steps that a chunk of an episode keeps.
        callbacks: The callbacks that are called on the runner's events.
        metrics: The loggers for the pieces of ``env_to_module`` and ``module_to_env``.
        callback_metrics: The logger for callbacks.
        in_evaluation: Whether the runner plays an evaluation or at random, and does not sample for training.
        times: How long the parts of sampling took, in seconds.
        num_env_steps: The number of steps of all sub-environments so far.
        num_agent_steps: The number of actions of all agents so far.
        places: For each episode of the newest sample, its sub-environment and when it ended, for ``merged_order``.
    """

    def __init__(self, *, config: AlgorithmConfig | None = None, parts: EnvRunnerParts | None = None):
        """Makes the runner. Its sub-environments are not reset before the first ``sample``.

        Args:
            config: The settings, an AlgorithmConfig. ``EnvRunner(config=...)`` needs no algorithm: it makes
                sub-environments, modules and pipelines of its own.
            parts: What the runner is made of, if there is no ``config``.
        """
        if parts is None:
            parts = _parts_of(config)
        self.config = parts.config
        self.vector_env = vector_env = parts.vector_env
        self.rl_module = parts.rl_module
        self.env_to_module = parts.env_to_module
        self.module_to_env = parts.module_to_env
        self.lookback = parts.lookback
        self.metrics = {name: MetricsLogger() for name in ("env_to_module", "module_to_env")}
        self.times = SamplingTimes()
        self.num_env_steps = 0
        self.num_agent_steps = 0
        self.explore = parts.explore
        self.rollout_fragment_length = parts.rollout_fragment_length
        self.complete_episodes = parts.complete_episodes
        self.places: list[SamplePlace] = []
        self.callbacks = parts.callbacks
        self.callback_metrics = MetricsLogger()
        self.in_evaluation = False
        self._env_numbers = np.array([sub_env.number for sub_env in vector_env.sub_envs])
        self._turn_based = vector_env.turn_based
        self._seed = vector_env.seed
        self._check_spaces = parts.check_spaces
        self._out_of_bounds = OutOfBounds(parts.warned_of_bounds)
        self._noise = ActionNoise(self._seed)
        self._episodes = EpisodeTracker(
            vector_env,
            parts.agent_spaces,
            parts.policy_mapping_fn,
            self.rl_module,
            single_agent=parts.single_agent,
            lookback=self.lookback,
            action_spaces=self.env_to_module.action_space,
            action_units=units_of_modules(self.module_to_env),
        )
        self._fragment = Fragment()
        self._shared_data: dict[str, Any] = {ACTION_NOISE: self._noise}
        self._merges_connector_states = parts.merges_connector_states
        self._single_agent = single_agent = parts.single_agent
        self._plan = SamplingPlan(self._noise, self._shared_data, self._acting_episodes, single_agent=single_agent)
        # For turn-based sub-environments: group index to the episode numbers that the noise was placed for.
        self._episodes_placed: dict[int, list[int]] = {}
        self._continues_episodes = False  # whether the next sample continues the episodes of this one
        self._left: EnvRunnerState | None = None  # the state to which the runner has gone back
        self._failed_at: list[int] | None = None  # the episode numbers at which the newest sample has failed
        self._finished = FinishedEpisodes(vector_env.num_envs)
        self._env_config = parts.env_config
        self._begin(self.explore)
        self._episodes.set_callbacks(self.callbacks, self._arguments_of_callbacks)
        self._call_environment_created(None)

    @property
    def env(self) -> VectorEnv:
        """The sub-environments, under RLlib's name."""
        return self.vector_env

    @property
    def num_envs(self) -> int:
        """The number of sub-environments."""
        return self.vector_env.num_envs

    @property
    def module(self) -> RLModule | MultiRLModule:
        """The RLModule of a single agent, else the MultiRLModule."""
        return self.rl_module[DEFAULT_MODULE_ID] if self._single_agent else self.rl_module

    def get_spaces(self) -> dict[str, tuple[Space, Space]]:
        """Returns observation and action spaces as RLlib does, for the builders of an AlgorithmConfig.

        Those of the environment are under ``"__env__"`` and ``"__env_single__"`` (Dict spaces if there are several
        agents), and those of each module under its id.
        """
        of_env: Any = self.env_to_module.input_observation_space, self.env_to_module.input_action_space
        of_modules: dict[str, Any] = {m: (own.observation_space, own.action_space) for m, own in self.rl_module.items()}
        return {"__env__": of_env, "__env_single__": of_env, **of_modules}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises an error, as ``copy`` and ``pickle`` cannot copy environments and processes."""
        raise TypeError(
            f"{type(self).__name__}: it cannot be copied or pickled, because it has environments. Make another one "
            f"with the same config, and give it the state: other.set_state(env_runner.get_state())."
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {counted(self.vector_env.num_envs, 'sub-environment')} with "
            f"{listed(self.rl_module, 'module')}: {counted(self.num_env_steps, 'env step')}>"
        )

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
        is_enough: Callable[[int], bool] | None = None,
    ) -> list[Any]:
        """Steps the environments and returns the resulting episodes and chunks of episodes.

        All sub-environments step together. If neither number is given, a sample has ``rollout_fragment_length`` env
        steps of each sub-environment (where sub-environments rest, the same number in total or a few more). With
        ``complete_episodes``, it has one episode of each sub-environment.

        Args:
            num_timesteps: The least number of env steps, counted over all sub-environments. The sample ends after the
                first step of all sub-environments that reaches it: with 8 sub-environments, 10 results in 16 env steps,
                two of each. Sub-environments that rest in a step (VectorEnvs with ``NEXT_STEP``) are not counted in
                this step, so the number of env steps need not be a multiple then. With 0, the list is empty.
            num_episodes: The exact number of whole episodes: the first ones of each sub-environment, the same number
                from each (or one less from the last ones). So short episodes are not preferred. The sample lasts until
                the slowest sub-environment has finished, and further steps of the others are dropped. The
                sub-environments are reset before this sample and before the next one.
            explore: Overrides the runner's ``explore`` for this sample.
            random_actions: Whether to draw actions from the action spaces instead of calling the modules, whatever
                ``explore`` is.
            force_reset: Whether to begin new episodes. Ongoing episodes are dropped.
            is_enough: Called before each step with the number of the ``num_episodes`` that have ended. If it returns
                True, the sample ends with fewer episodes: the first ones of each sub-environment, the same number from
                each, possibly none.

        Returns:
            MultiAgentEpisodes or SingleAgentEpisodes. An episode that continues after this sample is cut: the chunk is
            in the list, and the next sample continues the episode under the same id.

        Raises:
            ConfigError: If both numbers are given, or one that is not a whole number of 0 or more.
            EnvError: If an environment returns invalid data or fails. After this and any other error, the next sample
                begins new episodes.
        """
        began = perf_counter()
        if num_timesteps is None and num_episodes is None:
            sub_envs = len(self.vector_env.sub_envs)
            if self.complete_episodes:
                num_episodes = sub_envs
            else:
                num_timesteps = sub_envs * self.rollout_fragment_length
        check_sample_size(num_timesteps, num_episodes)
        explore = self.explore if explore is None else explore
        try:
            episodes = self._sample(num_timesteps, num_episodes, explore, random_actions, force_reset, is_enough)
        except BaseException as error:
            self.restart_episodes()  # the sub-environments and the episodes may have stopped in the middle of a step
            if isinstance(error, Exception):
                self._failed_at = self.episode_numbers()
            if isinstance(error, EnvError):
                self._check_outputs()  # module outputs that are not finite may be the cause of the environment's error
            raise
        self.times.sample += perf_counter() - began
        return episodes

    def _sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
        is_enough: Callable[[int], bool] | None,
    ) -> list[Any]:
        self.return_to_episodes()
        self._begin(explore)
        self._fragment = self._shared_data[FRAGMENT] = Fragment()
        self.places = []
        self._finished.begin_sample()
        self._episodes.vector_step = 0
        sub_envs = len(self.vector_env.sub_envs)
        callbacks = self._episodes.callbacks
        if callbacks is not None:
            callbacks.begin_sample(None if num_episodes is None else shares(sub_envs, num_episodes))
        numbers = [sub_env.episode_number for sub_env in self.vector_env.sub_envs]
        counted = None if num_episodes is None else self._steps_so_far()
        if not self._continues_episodes or force_reset or num_episodes is not None:
            self._reset()
        if num_episodes is not None:
            done = self._play_episodes(num_episodes, random_actions, is_enough)
        else:
            enough = self.num_env_steps + (num_timesteps or 0)
            while self.num_env_steps < enough:
                self._take_step(random_actions)
            done = self._episodes.done
        self._look_ahead()
        self._complete_fragment()
        self._episodes.take_done()
        self._finished.add(done)
        found: list[tuple[int, int | None, Episode]] = [(own.env_index, own.vector_step, own.episode) for own in done]
        if num_episodes is None:
            chunks = self._episodes.cut(num_rows=self.rollout_fragment_length)
            if callbacks is not None:
                callbacks.cut([chunk for _, chunk in chunks])
            found += [(env_index, None, chunk) for env_index, chunk in chunks]
        else:
            self.restart_episodes()
            self._forget_unfinished(done, numbers)
            assert counted is not None
            self._count_only(done, counted)
        episodes = [episode for *_, episode in found]
        self.places = [SamplePlace(int(self._env_numbers[index]), vector_step) for index, vector_step, _ in found]
        for env_index, _, episode in found:
            self._finished.uncredited_rewards[env_index] += float(episode.uncredited_reward)
        if self._merges_connector_states:
            self._merge_own_connector_states()
        self.callbacks.call("on_sample_end", env_runner=self, metrics_logger=self.callback_metrics, samples=episodes)
        return episodes

    def _play_episodes(
        self, wanted: int, random_actions: bool, is_enough: Callable[[int], bool] | None
    ) -> Sequence[DoneEpisode]:
        """Steps all sub-environments until they have finished their shares of ``wanted`` episodes, which it returns.

        If ``is_enough`` ends this early, there are fewer.
        """
        sub_envs, num_done = len(self.vector_env.sub_envs), -1
        while (done := first_of_each_sub_env(self._episodes.done, sub_envs, wanted)) is None:
            if is_enough is not None and is_enough(wanted - sum(missing(self._episodes.done, sub_envs, wanted))):
                done = first_rounds(self._episodes.done, sub_envs)
                break
            if num_done != (num_done := len(self._episodes.done)):
                self._note_finished(wanted)
            self._take_step(random_actions)
        self._note_finished(wanted)
        return done

    def _steps_so_far(self) -> tuple[int, int, int, SampledSteps]:
        """Returns the step of the noise, the numbers of env steps and agent steps, and the untaken counts."""
        self._end_layout()
        self._episodes.lanes.settle_counts()
        sampled = self._episodes.lanes.counts.sampled.in_order()
        return self._noise.step, self.num_env_steps, self.num_agent_steps, sampled

    def _count_only(self, done: Sequence[DoneEpisode], before: tuple[int, int, int, SampledSteps]) -> None:
        """Counts the steps of the episodes that a sample returns, and not those that it has dropped.

        How many it has dropped depends on the slowest sub-environment of this runner, and neither the counts nor the
        noise of the next sample may depend on it.
        """
        self._steps_so_far()  # steps of lanes that are not counted yet would be counted with the next sample
        noise_step, self.num_env_steps, self.num_agent_steps, sampled = before
        self._noise.step = noise_step + _NOISE_STEPS
        self._episodes.lanes.counts.sampled = sampled
        for entry in done:
            self.num_env_steps += entry.episode.env_steps()
            self.num_agent_steps += entry.episode.agent_steps()
        self._episodes.lanes.counts.add_episodes([entry.episode for entry in done])

    def _note_finished(self, num_episodes: int) -> None:
        """Notes which sub-environments have finished all of their episodes of a sample of ``num_episodes``."""
        lacking = missing(self._episodes.done, len(self._env_numbers), num_episodes)
        self._fragment.finished = frozenset(self._env_numbers[np.array(lacking) == 0].tolist())

    def _forget_unfinished(self, done: Sequence[DoneEpisode], numbers: Sequence[int]) -> None:
        """Sets the episode number of each sub-environment back to its last episode that the sample returned.

        How many more episodes a sub-environment has begun depends on how long the others took, and the next sample must
        not depend on that.

        Args:
            done: The episodes that the sample returns.
            numbers: The episode number of each sub-environment before the sample.
        """
        last = list(numbers)
        for entry in done:
            last[entry.env_index] = max(last[entry.env_index], int(str(entry.episode.id_).rpartition("-")[2]))
        for sub_env, number in zip(self.vector_env.sub_envs, last, strict=True):
            sub_env.episode_number = number

    def _arguments_of_callbacks(self) -> dict[str, Any]:
        """Returns the arguments that all callbacks of episodes get."""
        module: Any = self.rl_module[DEFAULT_MODULE_ID] if self._single_agent else self.rl_module
        return {
            "env_runner": self,
            "metrics_logger": self.callback_metrics,
            "env": self.vector_env,
            "rl_module": module,
        }

    def _call_environment_created(self, env_index: int | None) -> None:
        self.callbacks.call(
            "on_environment_created",
            env_runner=self,
            metrics_logger=self.callback_metrics,
            env=self.vector_env,
            env_context=self._env_config,
            env_index=env_index,
        )

    # One step.

    def _begin(self, explore: bool) -> None:
        """Binds the connector pieces and the modules, which may have changed since the previous sample."""
        self.rl_module.bind_buckets()
        self.rl_module.act()
        is_stale = self._plan.begin(
            self.env_to_module, self.module_to_env, self.rl_module, explore=explore, metrics=self.metrics
        )
        if is_stale:
            self._episodes.restore_observations()

    def _acting_episodes(self) -> list[Any]:
        """Returns the episodes whose agents act next, up to date, for pieces that read episodes."""
        self._episodes.sync()
        return self._episodes.acting()

    def _take_step(self, at_random: bool) -> None:
        """Steps all sub-environments once."""
        # This runs in every vector step, so the work here is done for each group, and never for each agent.
        episodes, vector_env = self._episodes, self.vector_env
        by_group, pick = self._plan.act(self.times, at_random=at_random), episodes.lanes.pick_actions
        actions: Any
        if vector_env.is_batched:
            actions = by_group[0] if len(by_group) == 1 else np.concatenate(by_group)
        elif len(by_group) == 1:
            actions = env_actions(by_group[0])
        else:
            actions = [action for of_group in by_group for action in env_actions(of_group)]
        chosen = actions if pick is None else pick(actions)
        self._noise.step += 1
        self._fragment.step += 1
        self.num_env_steps += len(actions) if vector_env.has_reset_steps else len(vector_env.sub_envs)
        self.num_agent_steps += len(actions)
        episodes.lanes.counts.vector_steps += 1
        episodes.vector_step += 1
        if self._turn_based:
            episodes.acted()
        acted = perf_counter()
        result = vector_env.step(chosen if type(chosen) is not tuple else list(chosen))
        self.times.env_step += perf_counter() - acted
        if vector_env.failures:
            self._note_failures()
        is_plain = result.ends is None and not result.events
        if not is_plain or self._turn_based:
            self._end_layout()
        is_rearranged = episodes.apply(result, self._reset_over)
        if not is_plain:
            self._show_ended()
        if is_rearranged:
            self._arrange()
        elif not is_plain:
            self._place_in_time()
        episodes.observe(result)
        if episodes.callbacks is not None:
            episodes.callbacks.stepped(result)

    def _reset_over(self, result: StepResult) -> None:
        if not result.late:
            return
        began = perf_counter()
        self.vector_env.reset_over(result)
        self.times.env_reset += perf_counter() - began
        self._note_failures()

    def _note_failures(self) -> None:
        """Logs and counts failures of sub-environments that continue with another episode."""
        failures = self.vector_env.take_failures()
        for failure in failures:
            _LOG.warning("%s The sub-environment continues with another episode.", failure.message)
        self._episodes.lost.num_env_failures += len(failures)
        for index in dict.fromkeys(failure.index for failure in failures):
            self._call_environment_created(index)

    def _show_ended(self) -> None:
        """Runs the env-to-module pieces on last observations, if pieces may write to episodes.

        Other observations pass the pieces in the step in which agents act on them.
        """
        if self._plan.looks_ahead and self._episodes.ended:
            self._episodes.sync()
            began = perf_counter()
            self._plan.process_last_observations(self._episodes.ended_rows(), self._episodes.ended)
            self.times.env_to_module += perf_counter() - began

    def _look_ahead(self) -> None:
        """Runs the env-to-module pieces on the newest observations, if pieces may write to episodes.

        This happens at the end of a sample, before the chunks are returned. The next sample acts on the result.
        """
        if not self._plan.looks_ahead:
            self._episodes.forget_observations()
        else:
            self._episodes.note_observations()
            began = perf_counter()
            self._plan.prepare()
            self.times.env_to_module += perf_counter() - began

    # Beginnings and ends.

    def _reset(self) -> None:
        began = perf_counter()
        self._end_layout()
        self._plan.forget()
        self._episodes_placed = {}
        self._episodes.reset()
        self.times.env_reset += perf_counter() - began
        self._note_failures()
        self._begin_layout()
        if self._episodes.callbacks is not None:
            self._episodes.callbacks.started()
        self._continues_episodes = True

    def _arrange(self) -> None:
        """Computes the lane layout of the next step, after lanes were opened or closed, or other lanes wait."""
        self._episodes.arrange()
        self._begin_layout()

    def _begin_layout(self) -> None:
        """Binds the sampling plan and the noise to the lanes that act next."""
        self._plan.bind([group.rows for group, _ in self._episodes.lanes.live])
        self._place_noise()

    def _end_layout(self) -> None:
        """Counts the steps in the current lane layout, before the layout changes or the counts are read."""
        groups = [group for group, _ in self._episodes.lanes.live]
        resting = self.vector_env.has_reset_steps  # then each lane that acts is a sub-environment
        num_envs = sum(group.num_acting for group in groups) if resting else len(self.vector_env.sub_envs)
        self._episodes.lanes.counts.end_layout(groups, num_envs)

    def _place_in_time(self) -> None:
        """Sets the env step and the episode of all lanes, and of the noise."""
        self._episodes.set_clocks()
        self._place_noise()

    def _place_noise(self) -> None:
        sub_envs = self.vector_env.sub_envs
        if self.vector_env.one_at_a_time:  # one stream for each sub-environment is enough
            self._place_turns(sub_envs)
            return
        numbers = np.array([sub_env.episode_number for sub_env in sub_envs])
        for group, _ in self._episodes.lanes.live:
            own = group.env_indices
            if group.words is None:
                group.words = self._noise.words_of(self._env_numbers[own], group.agent_words)
            self._noise.place(group.index, group.rows, group.words, numbers[own], group.t)

    def _place_turns(self, sub_envs: Sequence[SubEnvironment]) -> None:
        """Selects the streams of the sub-environments that act. All streams advance until an episode begins."""
        noise, numbers, placed = self._noise, [sub_env.episode_number for sub_env in sub_envs], self._episodes_placed
        for group, _ in self._episodes.lanes.live:
            index, rows, env_indices = group.index, group.rows, group.env_indices
            if placed.get(index) != numbers or not noise.pick(index, rows, env_indices):
                words, t = noise.words_of(self._env_numbers), np.array([sub_env.t for sub_env in sub_envs])
                noise.place(index, rows, words, np.array(numbers), t, env_indices)
                placed[index] = numbers

    def _check_outputs(self) -> None:
        for group in self._episodes.lanes.groups:
            check_outputs(group, self.rl_module, self._episodes.in_rollouts)

    def _complete_fragment(self) -> None:
        """Checks the data of the fragment, and computes the log-probabilities that were deferred."""
        self._check_outputs()
        for group in self._episodes.lanes.groups:
            out_of_bounds = self._out_of_bounds if self._check_spaces else None
            check_columns(group, self.vector_env, self._episodes.in_rollouts, out_of_bounds)
        self._plan.complete()

    # Metrics since the last call.

    def take_finished(self) -> list[EpisodeSummary]:
        """Returns the returns and lengths of the episodes that ended since the last call."""
        return self._finished.take_summaries()

    def take_uncredited_reward(self) -> float:
        """Returns the sum of the uncredited rewards in the samples since the last call.

        An uncredited reward belongs to no action in the same chunk, so it is in no train batch. The agent got it before
        its first action, or for an action of an earlier chunk in which the agent ended.
        """
        return self._finished.take_uncredited_reward()

    def take_failure_counts(self) -> dict[str, int]:
        """Returns the counts of failures since the last call.

        Without ``restarts``, a failure raises an error instead.

        Returns:
            ``num_env_failures``, ``num_dropped_episodes`` and ``num_dropped_env_steps``. The dropped env steps were
            sampled, but are in no returned episode, because a failure ended their episode.
        """
        lost, self._episodes.lost = self._episodes.lost, FailureCounts()
        return fields_of(lost)

    def take_times(self) -> SamplingTimes:
        """Returns how long the parts of sampling took since the last call, in seconds."""
        times, self.times = self.times, SamplingTimes()
        return times

    def take_counts(self) -> dict[str, Any]:
        """Returns the counts since the last call.

        Returns:
            The sampled steps in total, by agent and by module, ``uncredited_reward``, the counts of
            ``take_failure_counts``, and ``num_observations_out_of_bounds``: the number of observations of single agents
            with finite values beyond the bounds of their space.
        """
        self._end_layout()
        self._episodes.lanes.settle_counts()
        others = {
            "uncredited_reward": self.take_uncredited_reward(),
            "num_observations_out_of_bounds": self._out_of_bounds.take(),
        }
        return self._episodes.lanes.counts.take() | others | self.take_failure_counts()

    def get_metrics(self) -> dict[str, Any]:
        """Returns the metrics since the last call: ``summarize``, ``take_counts``, logs of callbacks and pieces."""
        found = summarize(self.take_finished()) | self.take_counts()
        return with_logged(found, self.callback_metrics) | by_pipeline(reduced(self.metrics))

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        """Sets the policy mapping function for episodes that begin from now on."""
        self._episodes.set_policy_mapping_fn(policy_mapping_fn)

    def now(self) -> Callable[[], None]:
        """Returns a function that goes back to where the runner is now; see ``EnvRunnerGroup.now``."""
        try:
            kept = self._keep_state()
        except EpisodeError:  # custom data of an ongoing episode cannot be saved
            kept = self._keep_state(with_episodes=False)
        failed_before = self._failed_at

        def go_back() -> None:
            failed_at, state = failed_before if self._failed_at is None else self._failed_at, kept()
            self.set_state(state, new_episodes=True)
            self._left, self._failed_at = state, failed_at

        return go_back

    def return_to_episodes(self) -> None:
        """Continues the episodes that ``now`` has left, which takes a replay, unless sampling them has failed."""
        left, failed_at, self._left, self._failed_at = self._left, self._failed_at, None, None
        if failed_at is not None:
            self.restart_episodes(after=failed_at)
        if left is None or failed_at is not None:
            return
        try:
            self.set_state(left)
        except CheckpointError as error:
            _LOG.warning("New episodes begin, because those before cannot be replayed. %s", error)
            self.set_state(left, new_episodes=True)

    def episode_numbers(self) -> list[int]:
        """Returns the number of the newest episode of each sub-environment; -1 before the first one."""
        return [sub_env.episode_number for sub_env in self.vector_env.sub_envs]

    def restart_episodes(self, after: Sequence[int] = ()) -> None:
        """Drops the ongoing episodes. The next sample begins new ones.

        Args:
            after: For each sub-environment, the number of an episode that does not come again, nor one before it.
        """
        for sub_env, number in zip(self.vector_env.sub_envs, after, strict=False):
            sub_env.episode_number = max(sub_env.episode_number, number)
        self._left = None
        self._continues_episodes = False
        self._plan.forget()

    def close(self) -> None:
        """Closes the sub-environments."""
        self.vector_env.close()

    def stop(self) -> None:
        """Does the same as ``close``, under RLlib's name."""
        self.close()

    # Merging what connector pieces have learned.

    def _merge_own_connector_states(self) -> None:
        self.env_to_module.merge_own_state()
        self.module_to_env.merge_own_state()
        before = self._plan.states_before_batch
        if before is not None:
            self._plan.states_before_batch = self.env_to_module.merge_states([before])

    def get_connector_states(self) -> dict[str, Any]:
        """Returns the states of the connector pieces, as ``set_connector_states`` expects them."""
        before = self._plan.states_before_batch
        return {
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            "before_batch": None if before is None else {"pieces": before},
        }

    def set_connector_states(self, states: Mapping[str, Any]) -> None:
        """Sets states that ``get_connector_states`` has returned, or that were merged from those of several runners."""
        self.env_to_module.set_state(states["env_to_module"])
        self.module_to_env.set_state(states["module_to_env"])
        if states["before_batch"] is not None:
            self._plan.states_before_batch = states["before_batch"]["pieces"]

    # For checkpoints.

    def get_state(self, *, with_episodes: bool = True) -> EnvRunnerState:
        """Returns the state: counts, connector states, and the data to replay the ongoing episodes.

        Args:
            with_episodes: Whether to include the ongoing episodes. A runner with a state without them begins new ones.

        Raises:
            EpisodeError: If custom data of an ongoing episode cannot be saved.
        """
        return self._keep_state(with_episodes=with_episodes)()

    def _keep_state(self, *, with_episodes: bool = True) -> Callable[[], EnvRunnerState]:
        """Returns a function that returns the present state. Keeping it takes little time; see ``get_state``."""
        left = self._left
        if left is not None and with_episodes:
            return lambda: left
        self._end_layout()
        self._episodes.lanes.settle_counts()
        has_episodes = self._continues_episodes and with_episodes
        shared_data, batch, columns = self._plan.get_state()
        keep = self._episodes.keep_states(columns) if has_episodes else None
        kept = {
            "seed": self._seed,
            "num_env_steps": self.num_env_steps,
            "num_agent_steps": self.num_agent_steps,
            "noise_step": self._noise.step,
            "env_to_module": copied(self.env_to_module.get_state()),
            "module_to_env": copied(self.module_to_env.get_state()),
            "metrics": {name: logger.get_state() for name, logger in self.metrics.items()},
            "callback_metrics": self.callback_metrics.get_state(),
            "sampled_steps": self._episodes.lanes.counts.sampled.in_order(),
            "num_samples": self._finished.num_samples,
            "observations_out_of_bounds": self._out_of_bounds.count,
            "failures": copy.copy(self._episodes.lost),
        }
        sub_envs = self.vector_env.sub_envs, self._finished.uncredited_rewards, self._finished.by_env
        of_envs = [(sub_env.episode_number, reward, list(own)) for sub_env, reward, own in zip(*sub_envs, strict=True)]

        def state() -> EnvRunnerState:
            episodes = None if keep is None else keep()
            return EnvRunnerState(
                **kept,
                shared_data=None if episodes is None else shared_data,
                forward_batch=None if episodes is None else batch,
                episodes_too_long=has_episodes and episodes is None,
                sub_environments=[
                    SubEnvironmentState(*own, episode)
                    for own, episode in zip(of_envs, episodes or [None] * len(of_envs), strict=True)
                ],
            )

        return state

    def why_episodes_are_not_kept(self) -> str:
        """Returns why a checkpoint could not restore the ongoing episodes; ``""`` if it can, or there are none."""
        return "" if not self._continues_episodes or self._episodes.can_be_replayed else self._why_not_replayed

    @property
    def _why_not_replayed(self) -> str:
        if self.vector_env.is_batched:
            return "the episodes of a natively batched environment cannot be replayed"
        return f"an ongoing episode was too long to be replayed (more than {HISTORY_BYTES:,} bytes of actions)"

    def set_state(self, state: EnvRunnerState | Mapping[str, Any], new_episodes: bool = False) -> None:
        """Restores the state of ``get_state``. Ongoing episodes are replayed from their seeds and actions.

        Args:
            state: The state that ``get_state`` returned.
            new_episodes: Whether to begin new episodes instead of replaying the ongoing ones.

        Raises:
            CheckpointError: If the number of sub-environments differs, or a replayed episode differs.
        """
        state = read_state(EnvRunnerState, state)
        if len(state.sub_environments) != self.num_envs:
            raise CheckpointError(
                f"checkpoint: it has {len(state.sub_environments)} sub-environments, this run has {self.num_envs}. Use "
                f"the same num_envs_per_env_runner, or divide the state."
            )
        self._seed = self.vector_env.seed = state.seed
        self._noise.restart(self._seed, state.noise_step)
        self._episodes_placed = {}
        self._shared_data.clear()
        self._shared_data[ACTION_NOISE] = self._noise
        self.num_env_steps, self.num_agent_steps = state.num_env_steps, state.num_agent_steps
        self.env_to_module.set_state(state.env_to_module)
        self.module_to_env.set_state(state.module_to_env)
        for sub_env, own in zip(self.vector_env.sub_envs, state.sub_environments, strict=True):
            sub_env.episode_number = own.episode_number
        self._finished.num_samples = state.num_samples
        self._finished.by_env = [list(own.finished) for own in state.sub_environments]
        self._finished.uncredited_rewards = [own.uncredited_reward for own in state.sub_environments]
        self._out_of_bounds.count = state.observations_out_of_bounds
        self._episodes.lanes.counts.vector_steps = 0
        self._episodes.lanes.settle_counts()
        self._episodes.lanes.counts.sampled = state.sampled_steps.in_order()
        for name, logger in self.metrics.items():
            logger.set_state(state.metrics[name])
        self.callback_metrics.set_state(state.callback_metrics)
        self._episodes.lost = copy.copy(state.failures)
        self.restart_episodes()
        self._failed_at = None
        if new_episodes:
            return
        episodes = [own.episode for own in state.sub_environments if own.episode is not None]
        if episodes:
            groups = self._episodes.set_states(episodes)
            self._arrange()
            self._continues_episodes = True
            device = next((parameter.device for parameter in self.rl_module.parameters()), torch.device("cpu"))
            self._plan.set_state(state.shared_data, state.forward_batch, groups, device)
        elif state.episodes_too_long:
            warnings.warn(
                f"EnvRunner: {self._why_not_replayed}, so the run continues with new episodes, and not step for step "
                f"as if it had never stopped.",
                MarlConnectorsWarning,
                stacklevel=2,
            )


def _parts_of(config: Any) -> EnvRunnerParts:
    if config is None:
        raise ConfigError("EnvRunner: expected config=..., but got nothing. Pass an AlgorithmConfig.")
    # Configs are built on env runners, so what makes the parts of a run is found by name.
    name = "marl_connectors.algorithms.build:own_env_runner_parts"
    return import_attribute(name, who="EnvRunner", error=ConfigError)(config)


MultiAgentEnvRunner = EnvRunner
SingleAgentEnvRunner = EnvRunner
"""RLlib's names. Here one class runs both kinds of environment."""
