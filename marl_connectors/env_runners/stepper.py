"""Stepper: pipelines, modules and environment copies, one vector step after another."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.connectors.connector_v2 import works_on_columns
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_action_array, env_actions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import (
    OutOfBounds,
    check_actions,
    check_columns,
    check_forward_batch,
)
from marl_connectors.env_runners.deferred_logp import record_logp
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.lane_table import LaneGroup
from marl_connectors.env_runners.live_rows import Pick
from marl_connectors.env_runners.prepared_actions import PreparedActions
from marl_connectors.env_runners.random_actions import random_batch
from marl_connectors.env_runners.sampling_times import SamplingTimes
from marl_connectors.environments.env_failures import EnvFailure
from marl_connectors.environments.step_result import StepResult
from marl_connectors.environments.vector_env import VectorEnv
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.metrics import MetricsLogger
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import AgentID, ModuleID

_LOG = logging.getLogger(__name__)
_DUE = ColumnBatch([])
"""Stands for the next forward batch where nobody needs it, unless somebody asks."""
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
        self._prepared = PreparedActions()
        self._batch: ColumnBatch | None = None
        self._check_batch = self._check_actions = True
        self._served: list[tuple[LaneGroup, tuple[ModuleID, ...]]] = []
        self._exploring = explore
        self._is_last_step = False  # of a sample
        self._before_batch: dict[str, Any] | None = None
        self._deferred_logp: dict[int, type[Distribution]] = {}
        self._look_at_pieces()

    def _look_at_pieces(self) -> None:
        """What the pieces need of the episodes; they may come and go between samples."""
        pieces = [*self.env_to_module, *self.module_to_env]
        self._pieces_read_episodes = not all(works_on_columns(piece) for piece in pieces)
        self._pieces_write_episodes = any(type(piece) not in DEFAULT_PIECES for piece in self.env_to_module)
        self._prepared.begin_sample(self.env_to_module, self.module_to_env)

    # One step.

    def _take_step(self, explore: bool, at_random: bool) -> None:
        """A hot path: everything here is per vector step and group, nothing is per agent."""
        began = perf_counter()
        if at_random:
            groups = [group for group, _ in self._live]
            batch = random_batch(self._noise, groups, self._waiting_batch())
        else:
            batch = self._choose(explore)
        actions = self._record(batch)
        pick = self._episodes.lanes.pick_actions
        chosen = actions if pick is None else pick(actions)
        self._noise.step += 1
        self.num_env_steps += len(actions) if self.vector_env.has_rests else len(self.vector_env.copies)
        self.num_agent_steps += len(actions)
        self._episodes.lanes.counts.vector_steps += 1
        acted = perf_counter()
        self.times.module_to_env += acted - began
        if self._turn_based:
            self._episodes.acted()
        result = self.vector_env.step(chosen)
        self.times.env_step += perf_counter() - acted
        self._take_in(result)

    def _record(self, batch: ColumnBatch) -> Any:
        """Writes down what the modules put out; the actions, group by group."""
        actions: Any = []
        for (group, _), columns in zip(self._live, batch.groups, strict=True):
            columns.record_in(group.rollout, group.positions)
            if self.vector_env.is_batched:
                actions.append(env_action_array(columns))
            else:
                actions += env_actions(columns)
            if columns.action_dist_cls is not None:
                self._deferred_logp[group.index] = columns.action_dist_cls
        if self.vector_env.is_batched:
            return actions[0] if len(actions) == 1 else np.concatenate(actions)
        return actions

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
        if self._pieces_write_episodes and episodes.ended_agents:
            self._run_env_to_module(episodes.ended_rows(), episodes.ended)
        episodes.observe(result)
        if episodes.callbacks is not None:
            episodes.callbacks.went_on(result)
        self._make_batch()

    def _note_failures(self) -> list[EnvFailure]:
        """Tells the log of copies that go on with another episode, and counts."""
        failures = self.vector_env.take_failures()
        for failure in failures:
            _LOG.warning("%s The copy goes on with another episode.", failure.message)
        self._episodes.lost.num_env_failures += len(failures)
        return failures

    def _choose(self, explore: bool) -> ColumnBatch:
        """What the module-to-env pipeline makes of the modules' outputs, by the short way if that is open."""
        began = perf_counter()
        if self._prepared.is_open:
            inputs = self._prepared.forward()
            self._note_inference(perf_counter() - began)
            return self._prepared.choose(inputs, self._noise)
        module, batch = self.rl_module, self._waiting_batch()
        began = perf_counter()
        outputs = module.forward_exploration(batch) if explore else module.forward_inference(batch)
        self._note_inference(perf_counter() - began)
        actions = self.module_to_env.run(
            outputs,
            rl_module=module,
            episodes=self._episodes.acting(),
            explore=explore,
            shared_data=self._shared_data,
            metrics=self.metrics["module_to_env"],
        )
        if self._check_actions:
            check_actions(actions)
            self._check_actions = False
        self._prepared.try_beside(actions, self._live, module, explore, self._noise)
        return actions

    def _note_inference(self, seconds: float) -> None:
        self.times.rlmodule_inference += seconds
        self.times.module_to_env -= seconds  # which is what a step's beginning takes beside it

    def _reset_over(self, result: StepResult) -> None:
        if not result.late:
            return
        began = perf_counter()
        self.vector_env.reset_over(result)
        self.times.env_reset += perf_counter() - began
        self._note_failures()

    def _waiting_batch(self) -> ColumnBatch | None:
        """The next forward pass is of this."""
        if self._batch is _DUE:
            self._make_batch(is_needed=True)
        return self._batch

    def _make_batch(self, is_needed: bool = False) -> None:
        """Runs the env-to-module pipeline on the newest observations, for the next forward pass, if that needs it."""
        self._before_batch = None
        if self._prepared.is_open and not is_needed:
            self._batch = _DUE
            return
        if self._pieces_write_episodes:
            self._episodes.note_observations()
            if self._is_last_step:
                pieces, logger = self.env_to_module, self.metrics["env_to_module"]
                self._before_batch = {"pieces": pieces.get_state(), "metrics": logger.get_state()}
        groups = [ColumnGroup(group.rows) for group, _ in self._live]
        self._batch = self._run_env_to_module(groups, self._episodes.acting())
        if self._check_batch:
            check_forward_batch(self._batch, self.rl_module)
            self._check_batch = False

    def _set_exploring(self, explore: bool) -> None:
        """For the next steps. Pieces of the user's see the batch that waits anew, as it was made under another flag."""
        changed, before = explore != self._exploring, self._before_batch
        self._exploring = explore
        if changed and before is not None:
            self.env_to_module.set_state(before["pieces"])
            self.metrics["env_to_module"].set_state(before["metrics"])
            self._episodes.restore_observations()
            self._make_batch()

    def _run_env_to_module(self, groups: list[ColumnGroup], episodes: list[Any]) -> ColumnBatch:
        if self._pieces_read_episodes:
            self._episodes.sync()
        began = perf_counter()
        batch = self.env_to_module.run(
            ColumnBatch(groups),
            rl_module=self.rl_module,
            episodes=episodes,
            explore=self._exploring,
            shared_data=self._shared_data,
            metrics=self.metrics["env_to_module"],
        )
        self.times.env_to_module += perf_counter() - began
        return batch

    # Beginnings and ends.

    def _reset(self) -> None:
        began = perf_counter()
        self._end_layout()
        self._deferred_logp.clear()
        self._episodes.reset()
        self.times.env_reset += perf_counter() - began
        self._note_failures()
        self._begin_layout()
        if self._episodes.callbacks is not None:
            self._episodes.callbacks.started()
        self._make_batch()

    def _arrange(self) -> None:
        """Works out all orders anew, after agents came or went."""
        self._episodes.arrange()
        self._begin_layout()

    def _begin_layout(self) -> None:
        """Takes note of other lanes that act next."""
        self._prepared.begin_arrangement()
        served = [(group, group.rows.module_ids) for group, _ in self._live]
        if not self._turn_based or served != self._served:
            self._check_batch = self._check_actions = True
            self._served = served
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
            dist_cls = self._deferred_logp.pop(group.index, None)
            if dist_cls is not None:
                record_logp(group, dist_cls)
