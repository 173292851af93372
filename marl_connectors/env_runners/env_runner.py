"""EnvRunner: steps sub-environments with a MultiRLModule and hands out episodes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.callbacks import CallbackCalls
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import OutOfBounds, check_columns
from marl_connectors.env_runners.done_episodes import (
    DoneEpisode,
    check_sample_size,
    first_of_each_sub_env,
    first_rounds,
    missing,
    shares,
)
from marl_connectors.env_runners.episode_callbacks import EPISODE_CALLBACKS, EpisodeCallbacks
from marl_connectors.env_runners.episode_metrics import EpisodeTally, summarize
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.env_runners.sampling_times import SamplingTimes
from marl_connectors.environments.vector.failures import EnvRestarts, FailureCounts
from marl_connectors.environments.vector.replay import HISTORY_BYTES
from marl_connectors.environments.vector.step_result import StepResult
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.environments.vector.subproc import make_vector_env
from marl_connectors.errors import CheckpointError, EnvError
from marl_connectors.metrics import MetricsLogger, by_pipeline, with_logged
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID

_LOG = logging.getLogger(__name__)
PolicyMappingFn = Callable[..., ModuleID]


class EnvRunner:
    """Collects episodes: env-to-module pipeline, module, module-to-env pipeline, environment, again and again.

    The same class runs PettingZoo environments (MultiAgentEpisodes) and Gymnasium ones (SingleAgentEpisodes).

    Attributes:
        vector_env: The sub-environments.
        rl_module: The modules.
        env_to_module: From observations to a forward batch.
        module_to_env: From the modules' outputs to actions.
        explore: Whether ``sample`` explores unless told otherwise.
        lookback: Steps that a chunk of an episode keeps from before it.
        callbacks: Who is informed of what happens here.
        metrics: Where the pieces of ``env_to_module`` and ``module_to_env`` log.
        callback_metrics: Where callbacks log.
        times: Where the time of samples goes.
        num_env_steps: Steps of all sub-environments so far.
        num_agent_steps: Actions of all agents so far.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        num_envs: int,
        seed: int,
        single_agent: bool,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        policy_mapping_fn: PolicyMappingFn,
        rl_module: MultiRLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        explore: bool = True,
        lookback: int = 1,
        rollout_fragment_length: int = 64,
        complete_episodes: bool = False,
        check_spaces: bool = True,
        warned_of_bounds: dict[Any, set[int]] | None = None,
        callbacks: CallbackCalls | None = None,
        env_config: dict[str, Any] | None = None,
        num_env_workers: int = 0,
        sample_timeout_s: float | None = 60.0,
        restarts: EnvRestarts | None = None,
        state_space: Space | None = None,
    ):
        """Makes the sub-environments; nothing is reset before the first ``sample``.

        Args:
            make_env: Makes one sub-environment: a PettingZoo parallel environment, or one that behaves like it. With
                worker processes it must be possible to pickle it. One that makes natively batched environments takes
                their number of sub-environments.
            num_envs: How many sub-environments.
            seed: The run's seed; everything random here follows from it.
            single_agent: Whether to hand out SingleAgentEpisodes.
            agent_spaces: An agent's observation and action space.
            policy_mapping_fn: ``fn(agent_id, episode)`` to the module that an agent acts by in an episode.
            rl_module: The modules.
            env_to_module: From observations to a forward batch.
            module_to_env: From the modules' outputs to actions.
            explore: Whether ``sample`` explores unless told otherwise.
            lookback: Steps that a chunk of an episode keeps from before it.
            rollout_fragment_length: Env steps of each sub-environment that ``sample`` takes unless told otherwise.
            complete_episodes: Whether ``sample`` takes an episode of each sub-environment unless told otherwise.
            check_spaces: Whether observations are held against their space.
            warned_of_bounds: Components of observations whose leaving their bounds the run was warned of already; it
                grows. None if there are none.
            callbacks: Told of what happens here.
            env_config: For the callbacks.
            num_env_workers: Over how many worker processes the sub-environments are spread; 0 to step them in this
                process.
            sample_timeout_s: How long a worker process may take for a step or a reset of its sub-environments, before
                it counts as hung; None for any time. What hangs in this process cannot be interrupted.
            restarts: How to go on after failures of environments and worker processes; None to raise an EnvError.
            state_space: That of the environments' ``state()``, to record it with each observation; else None.
        """
        self.vector_env = make_vector_env(
            make_env,
            num_envs=num_envs,
            seed=seed,
            num_workers=num_env_workers,
            timeout_s=sample_timeout_s,
            restarts=restarts,
            state_space=state_space,
        )
        self._turn_based = self.vector_env.turn_based
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self.lookback = lookback
        self.metrics = {name: MetricsLogger() for name in ("env_to_module", "module_to_env")}
        self.times = SamplingTimes()
        self.num_env_steps = 0
        self.num_agent_steps = 0
        self._seed = seed
        self._check_spaces = check_spaces
        self._out_of_bounds = OutOfBounds(warned_of_bounds)
        self._noise = ActionNoise(seed)
        self._episodes = EpisodeTracker(
            self.vector_env,
            agent_spaces,
            policy_mapping_fn,
            rl_module,
            single_agent=single_agent,
            lookback=lookback,
            action_spaces=env_to_module.action_space,
        )
        self._shared_data: dict[str, Any] = {ACTION_NOISE: self._noise}
        self._plan = SamplingPlan(self._noise, self._shared_data, self._acting_episodes)
        self._episodes_placed: dict[int, list[int]] = {}  # by group, of turn-based ones, what the noise knows
        self._goes_on = False  # whether the next sample continues the episodes of this one
        self._begin(explore)
        self.explore = explore
        self.rollout_fragment_length = rollout_fragment_length
        self.complete_episodes = complete_episodes
        self._finished: list[EpisodeTally] = []
        self._uncredited_reward = 0.0
        self.callbacks = callbacks or CallbackCalls()
        self.callback_metrics = MetricsLogger()
        self._env_config = env_config or {}
        self._single_agent = single_agent
        if self.callbacks.wants(*EPISODE_CALLBACKS):
            self.vector_env.resets_late = True
            self._episodes.callbacks = EpisodeCallbacks(self.callbacks, self, self._episodes)
        self._tell_of_environment(None)

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
        """Steps the environments and gives the episodes, and chunks of episodes, that came of it.

        All sub-environments step together. Without either number, a sample is ``rollout_fragment_length`` env steps of
        each sub-environment (as many in all, or a few more, where sub-environments rest), or an episode of each
        sub-environment with ``complete_episodes``.

        Args:
            num_timesteps: At least so many env steps, counted over all sub-environments, until a step of all
                sub-environments reaches them: with 8 sub-environments, 10 are 16, two of each. Sub-environments that
                rest in a step (VectorEnvs with ``NEXT_STEP``) are not counted in it; then it need not be a multiple. 0
                is allowed, and gives an empty list.
            num_episodes: Exactly so many whole episodes: the first ones of each sub-environment, as many from each
                (or one less, from the last ones). So short episodes are not preferred; the sample is as long as the
                slowest sub-environment, and what the others play meanwhile is dropped. Resets the sub-environments
                first, and the next sample too.
            explore: Overrides the runner's setting, for this sample.
            random_actions: Draw actions from the action spaces instead of asking the modules, whatever ``explore`` is.
            force_reset: Start new episodes even where old ones go on (these are dropped).
            is_enough: Called with how many of ``num_episodes`` have ended, after each step or several. Where it gives
                True, the sample ends with fewer: the first ones of each sub-environment, the same number from each,
                perhaps none.

        Returns:
            MultiAgentEpisodes or SingleAgentEpisodes. An episode that goes on beyond this sample is cut: the chunk is
            in the list, and the next sample continues it under the same id.

        Raises:
            ConfigError: If both numbers are given, or one that is not a whole number of 0 or more.
            EnvError: If an environment breaks its contract. After this and any other error, the next sample starts with
                new episodes.
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
            self.restart_episodes()  # nobody knows what the sub-environments, or the episodes, are in the middle of
            if isinstance(error, EnvError):
                self._check_outputs()  # for which an environment could do nothing
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
        self._begin(explore)
        sub_envs = len(self.vector_env.sub_envs)
        callbacks = self._episodes.callbacks
        if callbacks is not None:
            callbacks.begin_sample(None if num_episodes is None else shares(sub_envs, num_episodes))
        numbers = [sub_env.episode_number for sub_env in self.vector_env.sub_envs]
        if not self._goes_on or force_reset or num_episodes is not None:
            self._reset()
        if num_episodes is not None:
            wanted = num_episodes

            def must_stop() -> bool:
                return is_enough is not None and is_enough(wanted - sum(missing(self._episodes.done, sub_envs, wanted)))

            while (done := first_of_each_sub_env(self._episodes.done, sub_envs, wanted)) is None:
                if must_stop():
                    done = first_rounds(self._episodes.done, sub_envs)
                    break
                self._take_step(random_actions)
        else:
            enough = self.num_env_steps + (num_timesteps or 0)
            while self.num_env_steps < enough:
                self._take_step(random_actions)
            done = self._episodes.done
        self._look_ahead()
        self._complete_fragment()
        self._episodes.take_done()
        self._finished += [entry.tally for entry in done]
        episodes = [entry.episode for entry in done]
        if num_episodes is None:
            chunks = self._episodes.cut(num_rows=self.rollout_fragment_length)
            if callbacks is not None:
                callbacks.cut(chunks)
            episodes += chunks
        else:
            self.restart_episodes()
            self._forget_unfinished(done, numbers)
        self._uncredited_reward += sum(episode.uncredited_reward for episode in episodes)
        self.callbacks.tell("on_sample_end", env_runner=self, metrics_logger=self.callback_metrics, samples=episodes)
        return episodes

    def _forget_unfinished(self, done: Sequence[DoneEpisode], numbers: Sequence[int]) -> None:
        """Goes back behind the last episode of each sub-environment that was handed out.

        How many more a sub-environment has begun depends on how long the others took, and the next sample must not.
        """
        last = list(numbers)
        for entry in done:
            last[entry.env_index] = max(last[entry.env_index], int(str(entry.episode.id_).rpartition("-")[2]))
        for sub_env, number in zip(self.vector_env.sub_envs, last, strict=True):
            sub_env.episode_number = number

    @property
    def told_with_all_callbacks(self) -> dict[str, Any]:
        """What all callbacks of episodes get."""
        module: Any = self.rl_module[DEFAULT_MODULE_ID] if self._single_agent else self.rl_module
        return {
            "env_runner": self,
            "metrics_logger": self.callback_metrics,
            "env": self.vector_env,
            "rl_module": module,
        }

    def _tell_of_environment(self, env_index: int | None) -> None:
        self.callbacks.tell(
            "on_environment_created",
            env_runner=self,
            metrics_logger=self.callback_metrics,
            env=self.vector_env,
            env_context=self._env_config,
            env_index=env_index,
        )

    # One step.

    def _begin(self, explore: bool) -> None:
        """Looks at pieces and modules, which may be others than in the sample before."""
        self.rl_module.bind_buckets()
        self.rl_module.act()
        sees_anew = self._plan.begin(
            self.env_to_module, self.module_to_env, self.rl_module, explore=explore, metrics=self.metrics
        )
        if sees_anew:
            self._episodes.restore_observations()

    def _acting_episodes(self) -> list[Any]:
        """For pieces that look at episodes."""
        self._episodes.sync()
        return self._episodes.acting()

    def _take_step(self, at_random: bool) -> None:
        """A hot path: everything here is per vector step and group, nothing is per agent."""
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
        self.num_env_steps += len(actions) if vector_env.has_rests else len(vector_env.sub_envs)
        self.num_agent_steps += len(actions)
        episodes.lanes.counts.vector_steps += 1
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
            episodes.callbacks.went_on(result)

    def _reset_over(self, result: StepResult) -> None:
        if not result.late:
            return
        began = perf_counter()
        self.vector_env.reset_over(result)
        self.times.env_reset += perf_counter() - began
        self._note_failures()

    def _note_failures(self) -> None:
        """Tells the log of sub-environments that go on with another episode, and counts."""
        failures = self.vector_env.take_failures()
        for failure in failures:
            _LOG.warning("%s The sub-environment goes on with another episode.", failure.message)
        self._episodes.lost.num_env_failures += len(failures)
        for index in dict.fromkeys(failure.index for failure in failures):
            self._tell_of_environment(index)

    def _show_ended(self) -> None:
        """Last observations pass the pieces that may write to episodes, as others do in the step that acts on them."""
        if self._plan.looks_ahead and self._episodes.ended:
            self._episodes.sync()
            began = perf_counter()
            self._plan.show(self._episodes.ended_rows(), self._episodes.ended)
            self.times.env_to_module += perf_counter() - began

    def _look_ahead(self) -> None:
        """At the end of a sample, so do those that the next one acts on, before the chunks are handed out."""
        if self._plan.looks_ahead:
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
        self._goes_on = True

    def _arrange(self) -> None:
        """Works out which lanes act next, after some came or went, or others wait."""
        self._episodes.arrange()
        self._begin_layout()

    def _begin_layout(self) -> None:
        """Takes note of other lanes that act next."""
        self._plan.bind([group.rows for group, _ in self._episodes.lanes.live])
        self._place_noise()

    def _end_layout(self) -> None:
        """Counts the steps of those who act, before others do or before the counts are read."""
        groups = [group for group, _ in self._episodes.lanes.live]
        resting = self.vector_env.has_rests  # then each that acts is a sub-environment
        num_envs = sum(group.num_acting for group in groups) if resting else len(self.vector_env.sub_envs)
        self._episodes.lanes.counts.end_layout(groups, num_envs)

    def _place_in_time(self) -> None:
        """Tells all lanes, and the noise, at which step of which episode they are."""
        self._episodes.set_clocks()
        self._place_noise()

    def _place_noise(self) -> None:
        sub_envs = self.vector_env.sub_envs
        if self._turn_based:  # one agent acts in a sub-environment at a time: a stream for each sub-environment will do
            self._place_turns(sub_envs)
            return
        numbers = np.array([sub_env.episode_number for sub_env in sub_envs])
        for group, _ in self._episodes.lanes.live:
            own = group.env_indices
            if group.words is None:
                group.words = self._noise.words_of(own, group.agent_words)
            self._noise.place(group.index, group.rows, group.words, numbers[own], group.t)

    def _place_turns(self, sub_envs: Sequence[SubEnvironment]) -> None:
        """Tells the noise which sub-environments act; the streams of all go on until an episode begins."""
        noise, numbers, placed = self._noise, [sub_env.episode_number for sub_env in sub_envs], self._episodes_placed
        for group, _ in self._episodes.lanes.live:
            index, rows, env_indices = group.index, group.rows, group.env_indices
            if placed.get(index) != numbers or not noise.pick(index, rows, env_indices):
                words, t = noise.words_of(np.arange(len(sub_envs))), np.array([sub_env.t for sub_env in sub_envs])
                noise.place(index, rows, words, np.array(numbers), t, env_indices)
                placed[index] = numbers

    def _check_outputs(self) -> None:
        for group in self._episodes.lanes.groups:
            check_outputs(group, self.rl_module, self._episodes.in_rollouts)

    def _complete_fragment(self) -> None:
        """Checks what the environments gave and computes what was left to be computed for all steps at once."""
        self._check_outputs()
        for group in self._episodes.lanes.groups:
            out_of_bounds = self._out_of_bounds if self._check_spaces else None
            check_columns(group, self.vector_env, self._episodes.in_rollouts, out_of_bounds)
        self._plan.complete()

    # What was sampled since the last call.

    def take_finished(self) -> list[EpisodeTally]:
        """Returns and lengths of the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_uncredited_reward(self) -> float:
        """The sum of the rewards in the samples since the last call that no action in the same chunk has earned.

        They are in no train batch: they came before an agent ever acted, or for an action of an earlier chunk by an
        agent that has ended there.
        """
        uncredited, self._uncredited_reward = self._uncredited_reward, 0.0
        return uncredited

    def take_failure_counts(self) -> dict[str, int]:
        """Since the last call: ``num_env_failures``, ``num_dropped_episodes`` and ``num_dropped_env_steps``.

        Failures are only survived with ``restarts``. The env steps are those that were sampled and that are in no
        episode, as a failure ended theirs.
        """
        lost, self._episodes.lost = self._episodes.lost, FailureCounts()
        return lost.as_dict()

    def take_times(self) -> SamplingTimes:
        """Where the time of the samples since the last call went."""
        times, self.times = self.times, SamplingTimes()
        return times

    def take_counts(self) -> dict[str, Any]:
        """Since the last call: steps sampled, by agent and module; ``uncredited_reward``; what failures have cost.

        And ``num_observations_out_of_bounds``: of single agents, with finite values beyond the bounds of their space.
        """
        self._end_layout()
        self._episodes.lanes.settle_counts()
        others = {
            "uncredited_reward": self.take_uncredited_reward(),
            "num_observations_out_of_bounds": self._out_of_bounds.take(),
        }
        return self._episodes.lanes.counts.take() | others | self.take_failure_counts()

    def get_metrics(self) -> dict[str, Any]:
        """Since the last call: ``summarize``, ``take_counts``, and what callbacks and pieces have logged."""
        found = summarize(self.take_finished()) | self.take_counts()
        return with_logged(found, self.callback_metrics) | by_pipeline(**self.metrics)

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        """Maps agents anew in episodes that begin from now on."""
        self._episodes.set_policy_mapping_fn(policy_mapping_fn)

    def restart_episodes(self) -> None:
        """Drops ongoing episodes; the next sample begins new ones."""
        self._goes_on = False
        self._plan.forget()

    def close(self) -> None:
        """Closes the sub-environments."""
        self.vector_env.close()

    # For checkpoints.

    def get_state(self) -> dict[str, Any]:
        """Counts, connector states, and how to get the ongoing episodes back, as JSON data and arrays."""
        self._end_layout()
        self._episodes.lanes.settle_counts()
        episodes = self._episodes.get_state() if self._goes_on else None
        return {
            "seed": self._seed,
            "num_env_steps": self.num_env_steps,
            "num_agent_steps": self.num_agent_steps,
            "noise_step": self._noise.step,
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            "episodes": episodes,
            "episodes_too_long": self._goes_on and episodes is None,
            **self._plan.get_state(with_batch=episodes is not None),
            "metrics": {name: logger.get_state() for name, logger in self.metrics.items()},
            "callback_metrics": self.callback_metrics.get_state(),
            "counts": self._episodes.lanes.counts.get_state(),
            "finished": [tally.get_state() for tally in self._finished],
            "uncredited_reward": self._uncredited_reward,
            "observations_out_of_bounds": self._out_of_bounds.count,
            "lost": self._episodes.lost.as_dict(),
            "episode_numbers": [sub_env.episode_number for sub_env in self.vector_env.sub_envs],
        }

    def why_episodes_are_not_kept(self) -> str:
        """Why a checkpoint of now could not bring the ongoing episodes back; ``""`` if it can, or there are none."""
        return "" if not self._goes_on or self._episodes.can_be_replayed else self._why_not_replayed

    @property
    def _why_not_replayed(self) -> str:
        if self.vector_env.is_batched:
            return "the episodes of a natively batched environment cannot be replayed"
        return f"an ongoing episode was too long to be replayed (more than {HISTORY_BYTES:,} bytes of actions)"

    def set_state(self, state: dict[str, Any], new_episodes: bool = False) -> None:
        """Takes what ``get_state`` gave: ongoing episodes are replayed from their seeds and actions.

        Args:
            state: What it gave.
            new_episodes: Whether to begin new episodes instead.

        Raises:
            CheckpointError: If there are not as many sub-environments, or a replayed episode turns out differently.
        """
        if len(state["episode_numbers"]) != len(self.vector_env.sub_envs):
            raise CheckpointError(
                f"checkpoint: it has {len(state['episode_numbers'])} sub-environments, this run has "
                f"{len(self.vector_env.sub_envs)}. Use the same num_envs_per_env_runner."
            )
        self._seed = self.vector_env.seed = state["seed"]
        self._noise.restart(self._seed, state["noise_step"])
        self._episodes_placed = {}
        self._shared_data.clear()
        self._shared_data[ACTION_NOISE] = self._noise
        self.num_env_steps, self.num_agent_steps = state["num_env_steps"], state["num_agent_steps"]
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])
        for sub_env, number in zip(self.vector_env.sub_envs, state["episode_numbers"], strict=True):
            sub_env.episode_number = number
        self._finished = [EpisodeTally.from_state(tally) for tally in state["finished"]]
        self._uncredited_reward = state["uncredited_reward"]
        self._out_of_bounds.count = state.get("observations_out_of_bounds", 0)
        self._episodes.lanes.counts.vector_steps = 0
        self._episodes.lanes.settle_counts()
        self._episodes.lanes.counts.set_state(state["counts"])
        for name, logger in self.metrics.items():
            logger.set_state(state.get("metrics", {}).get(name, []))
        self.callback_metrics.set_state(state.get("callback_metrics", []))
        self._episodes.lost = FailureCounts(**state.get("lost", {}))
        self.restart_episodes()
        if new_episodes:
            return
        if state["episodes"] is not None:
            self._episodes.set_state(state["episodes"])
            self._arrange()
            self._goes_on = True
            device = next((parameter.device for parameter in self.rl_module.parameters()), torch.device("cpu"))
            self._plan.set_state(state, device)
        elif state["episodes_too_long"]:
            warnings.warn(
                f"EnvRunner: {self._why_not_replayed}, so the run goes on with new episodes, and not step for step as "
                f"if it had never stopped.",
                stacklevel=2,
            )


MultiAgentEnvRunner = EnvRunner
SingleAgentEnvRunner = EnvRunner
"""RLlib's names: here one class runs both kinds of environment."""
