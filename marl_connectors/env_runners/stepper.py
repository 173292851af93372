"""Stepper: pipelines, modules and environment copies, one vector step after another."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import (
    OutOfBounds,
    check_columns,
)
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.lane_table import LaneGroup
from marl_connectors.env_runners.live_rows import Pick
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.env_runners.sampling_times import SamplingTimes
from marl_connectors.environments.env_failures import EnvFailure
from marl_connectors.environments.step_result import StepResult
from marl_connectors.environments.vector_env import VectorEnv
from marl_connectors.metrics import MetricsLogger
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import AgentID, ModuleID

_LOG = logging.getLogger(__name__)
PolicyMappingFn = Callable[..., ModuleID]


class Stepper:
    """Takes vector steps: modules choose actions for a forward batch, environments step, and the next batch is made.

    Attributes:
        vector_env: The environment copies.
        rl_module: The modules.
        env_to_module: From observations to a forward batch.
        module_to_env: From the modules' outputs to actions.
        lookback: Steps that a chunk of an episode keeps from before it.
        metrics: Where the pieces of ``env_to_module`` and ``module_to_env`` log.
        times: Where the time of samples goes.
        num_env_steps: Steps of all copies so far.
        num_agent_steps: Actions of all agents so far.
    """

    def __init__(
        self,
        vector_env: VectorEnv,
        *,
        seed: int,
        single_agent: bool,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        policy_mapping_fn: PolicyMappingFn,
        rl_module: MultiRLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        explore: bool,
        lookback: int,
        check_spaces: bool,
        told_of_bounds: dict[Any, set[int]] | None,
    ):
        """Takes the environment copies; see EnvRunner."""
        self.vector_env = vector_env
        self._turn_based = vector_env.turn_based
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
        self._out_of_bounds = OutOfBounds(told_of_bounds)
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
        self._plan = SamplingPlan(
            self._noise, self._shared_data, self._acting_episodes, gives_arrays=vector_env.is_batched
        )
        self._goes_on = False  # whether the next sample continues the episodes of this one
        self._begin(explore)

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

    # One step.

    def _take_step(self, at_random: bool) -> None:
        """A hot path: everything here is per vector step and group, nothing is per agent."""
        actions = self._plan.act(self.times, at_random=at_random)
        pick = self._episodes.lanes.pick_actions
        chosen = actions if pick is None else pick(actions)
        self._noise.step += 1
        self.num_env_steps += len(actions) if self.vector_env.has_rests else len(self.vector_env.copies)
        self.num_agent_steps += len(actions)
        self._episodes.lanes.counts.vector_steps += 1
        acted = perf_counter()
        if self._turn_based:
            self._episodes.acted()
        result = self.vector_env.step(chosen)
        self.times.env_step += perf_counter() - acted
        self._take_in(result)

    def _take_in(self, result: StepResult) -> None:
        """Writes down what a step of all copies led to, and prepares the next one."""
        if self.vector_env.failures:
            self._note_failures()
        episodes, is_plain = self._episodes, result.is_plain
        if not is_plain or self._turn_based:
            self._end_layout()
        if episodes.apply(result, reset_over=lambda: self._reset_over(result)):
            self._arrange()
        elif not is_plain:
            self._place_in_time()
        if self._plan.looks_ahead and episodes.ended_agents:
            self._show_ended()
        episodes.observe(result)
        if episodes.callbacks is not None:
            episodes.callbacks.went_on(result)

    def _note_failures(self) -> list[EnvFailure]:
        """Tells the log of copies that go on with another episode, and counts."""
        failures = self.vector_env.take_failures()
        for failure in failures:
            _LOG.warning("%s The copy goes on with another episode.", failure.message)
        self._episodes.lost.num_env_failures += len(failures)
        return failures

    def _reset_over(self, result: StepResult) -> None:
        if not result.late:
            return
        began = perf_counter()
        self.vector_env.reset_over(result)
        self.times.env_reset += perf_counter() - began
        self._note_failures()

    def _show_ended(self) -> None:
        """Last observations pass the pieces that may write to episodes, as others do in the step that acts on them."""
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
        self._episodes.reset()
        self.times.env_reset += perf_counter() - began
        self._note_failures()
        self._begin_layout()
        if self._episodes.callbacks is not None:
            self._episodes.callbacks.started()
        self._goes_on = True

    def _arrange(self) -> None:
        """Works out all orders anew, after agents came or went."""
        self._episodes.arrange()
        self._begin_layout()

    def _begin_layout(self) -> None:
        """Takes note of other lanes that act next."""
        self._plan.bind([group.rows for group, _ in self._live])
        self._place_noise()

    @property
    def _live(self) -> list[tuple[LaneGroup, Pick | None]]:
        """The groups that act next, and what picks their items."""
        return self._episodes.lanes.live

    def _place_in_time(self) -> None:
        """Tells all groups, and the noise, at which step of which episode their lanes are."""
        self._episodes.set_clocks()
        self._place_noise()

    def _place_noise(self) -> None:
        copies = self.vector_env.copies
        numbers = np.array([copy.episode_number for copy in copies])
        if self._turn_based:  # one agent acts in a copy at a time: a stream for each copy will do
            words, t = self._noise.words_of(np.arange(len(copies))), np.array([copy.t for copy in copies])
            for group, _ in self._live:
                self._noise.place(group.index, group.rows, words, numbers, t, group.env_indices)
            return
        for group, _ in self._live:
            own = group.env_indices
            if group.words is None:
                group.words = self._noise.words_of(own, group.agent_words)
            self._noise.place(group.index, group.rows, group.words, numbers[own], group.t)

    def _end_layout(self) -> None:
        """Counts the steps of those who act, before others do or before the counts are read."""
        groups = [group for group, _ in self._live]
        resting = self.vector_env.has_rests  # then each that acts is a sub-environment
        num_envs = sum(group.num_acting for group in groups) if resting else len(self.vector_env.copies)
        self._episodes.lanes.counts.end_layout(groups, num_envs)

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
