"""Stepper: pipelines, modules and environment copies, one vector step after another."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import (
    OutOfBounds,
    bad_observations,
    bad_rewards,
    check_columns,
)
from marl_connectors.env_runners.lanes import LaneGroup
from marl_connectors.env_runners.live_rows import orders
from marl_connectors.env_runners.replayable_episodes import ReplayableEpisodes
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.env_runners.sampling_times import SamplingTimes
from marl_connectors.env_runners.step_counts import StepCounts
from marl_connectors.env_runners.turn_based_episodes import TurnBasedEpisodes
from marl_connectors.environments.env_failures import EnvFailure
from marl_connectors.environments.vector_env import VectorEnv, VectorStep
from marl_connectors.episodes.rollout import take
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
        self._counts = StepCounts()
        self.num_env_steps = 0
        self.num_agent_steps = 0
        self._seed = seed
        self._check_spaces = check_spaces
        self._out_of_bounds = OutOfBounds(told_of_bounds)
        self._noise = ActionNoise(seed)
        episodes = TurnBasedEpisodes if self._turn_based else ReplayableEpisodes
        self._episodes = episodes(
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
        self._pick_actions: Callable[[list], Any] | None = None
        self._live: list[tuple[LaneGroup, Callable[[list], Any] | None]] = []  # groups that act, picking their items
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
        chosen = actions if self._pick_actions is None else self._pick_actions(actions)
        self._noise.step += 1
        self.num_env_steps += len(actions) if self.vector_env.has_rests else len(self.vector_env.copies)
        self.num_agent_steps += len(actions)
        self._counts.vector_steps += 1
        if self._turn_based:
            self._take_turns(list(chosen))
            return
        acted = perf_counter()
        step = self.vector_env.step(chosen)
        self.times.env_step += perf_counter() - acted
        self._take_in(step)

    def _take_in(self, step: VectorStep) -> None:
        """Writes down what a step of all copies led to, and prepares the next one."""
        self._note_failures()
        for group, pick in self._live:
            self._credit(group, step.rewards if pick is None else pick(step.rewards), step)
            group.advance()
        if step.transitions:
            self._follow(step)
        self._observe(step.observations)
        for env_index, infos in step.infos:
            self._episodes.lanes.write_infos(env_index, infos)
        if self._episodes.told is not None:
            self._episodes.told.went_on(step.transitions)

    def _take_turns(self, actions: list[Any]) -> None:
        """The rest of a step of turn-based copies, in each of which another agent acts next."""
        episodes: Any = self._episodes
        episodes.acted()
        began = perf_counter()
        turns = self.vector_env.take_turns(actions)
        self.times.env_step += perf_counter() - began
        self._note_failures()
        episodes.follow_turns(turns)
        self._show_ended()
        episodes.observe()
        if episodes.told is not None:
            episodes.told.went_on(turns)
        self._arrange()

    def _note_failures(self) -> list[EnvFailure]:
        """Tells the log of copies that go on with another episode, and counts."""
        failures = self.vector_env.take_failures()
        for failure in failures:
            _LOG.warning("%s The copy goes on with another episode.", failure.message)
        self._episodes.lost.num_env_failures += len(failures)
        return failures

    def _credit(self, group: LaneGroup, rewards: Any, step: VectorStep) -> None:
        try:
            values = np.array(rewards)
            if values.dtype.kind not in "fiub":
                raise TypeError("not numbers")
            group.rollout.columns[Columns.REWARDS][group.positions] = values
        except (TypeError, ValueError) as error:
            raise bad_rewards(group, self.vector_env, rewards, step.transitions) from error

    def _follow(self, step: VectorStep) -> None:
        rearranged = self._episodes.follow(step.transitions, reset=lambda: self._reset_over(step))
        self._show_ended()
        if rearranged:
            self._arrange()
        else:
            for group in self._episodes.lanes.groups:
                group.locate()
            self._place_in_time()

    def _reset_over(self, step: VectorStep) -> None:
        if not step.late:
            return
        began = perf_counter()
        self.vector_env.reset_over(step)
        self.times.env_reset += perf_counter() - began
        self._note_failures()

    def _observe(self, items: Any) -> None:
        states = self.vector_env.states()
        for group, pick in self._live:
            own = items if pick is None else pick(items)
            rollout = group.rollout
            try:
                values = spaces.stack(own, rollout.observation_space) if isinstance(own, (list, tuple)) else own
                of_rows = None if states is None else take(states, group.env_indices)
                rollout.observe(group.positions, values, group.t, of_rows)
            except (TypeError, ValueError) as error:
                raise bad_observations(group, self.vector_env, own) from error

    def _show_ended(self) -> None:
        """Last observations pass the pieces that may write to episodes, as others do in the step that acts on them."""
        if self._plan.looks_ahead and self._episodes.ended_agents:
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
        self._plan.forget()
        items = self._episodes.reset()
        self.times.env_reset += perf_counter() - began
        self._note_failures()
        self._arrange()
        self._observe(items)
        if self._episodes.told is not None:
            self._episodes.told.started()
        self._goes_on = True

    def _arrange(self) -> None:
        """Works out all orders anew, after agents came or went."""
        self._settle_counts()
        module_order = {module_id: i for i, module_id in enumerate(self.rl_module.keys())}
        by_copy = self._episodes.lanes.acting()
        self._episodes.lanes.arrange(module_order)
        groups = [group for group in self._episodes.lanes.groups if group.acting]
        picks, self._pick_actions = orders(by_copy, [group.acting for group in groups])
        self._live = list(zip(groups, picks, strict=True))
        self._plan.bind([group.rows for group in groups])
        self._place_in_time()

    def _place_in_time(self) -> None:
        """Tells all groups, and the noise, at which step of which episode their lanes are."""
        copies = self.vector_env.copies
        self._episodes.lanes.set_clocks(copies)
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

    def _settle_counts(self) -> None:
        groups = [group for group, _ in self._live]
        resting = self.vector_env.has_rests  # then each that acts is a copy
        copies = sum(len(group.acting) for group in groups) if resting else len(self.vector_env.copies)
        self._counts.settle(groups, copies)

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
