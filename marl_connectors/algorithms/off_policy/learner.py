"""OffPolicyLearner: learns from steps of a replay buffer, with target networks that follow the modules."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import AddNStepReturnsToTrainBatch
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards
from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import LearnerError
from marl_connectors.learner.learner import Learner, LearnerState
from marl_connectors.learner.updates import has_self_supervised_loss
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.rl_module.apis import Followers, TargetNetworkAPI, move_target_networks
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import stream
from marl_connectors.state import Count
from marl_connectors.transfers import all_on_host, moved
from marl_connectors.typing import ModuleID


class OffPolicyLearnerState(LearnerState):
    """The state of an OffPolicyLearner.

    Attributes:
        last_target_update: As in OffPolicyLearner.
    """

    last_target_update: Count


class OffPolicyLearner(Learner):
    """A learner whose train batches are steps with n-step returns, and whose modules may have target networks.

    A subclass computes the losses, and gives the errors of all rows to ``log_td_errors`` for a buffer with priorities.

    Attributes:
        td_errors: For each module whose loss has given errors in the newest update, ``[B]`` errors of its rows.
        last_target_update: The number of steps sampled when the target networks were last updated.
    """

    state_class = OffPolicyLearnerState

    expected: tuple[str, ...] = ()
    """The attributes that the loss needs of the modules."""
    expected_class = "RLModule"
    """The name of the default module's class, which has these attributes."""
    reads_action_masks = False
    """Whether the loss reads the action masks of the steps, in addition to those of the next steps."""

    def build(self) -> None:
        """Puts the piece for n-step returns into the pipeline.

        Raises:
            LearnerError: If a module lacks what the loss needs, or if a piece needs whole episodes.
        """
        self._check_modules()
        self.td_errors: dict[ModuleID, np.ndarray] = {}
        self._errors: dict[ModuleID, Tensor] = {}
        self._num_rows: dict[ModuleID, int] = {}
        self._num_draws: Counter[ModuleID] = Counter()
        self.last_target_update = 0
        self._followers: dict[ModuleID, Followers] = {}
        self._followers_of: Any = None
        if self.config.add_default_connectors_to_learner_pipeline:
            self.pipeline.remove(AddOneTsToEpisodesAndTruncate)
            of_rewards = AddColumnsFromEpisodesToTrainBatch, RewardTransform
            last = max(i for i, piece in enumerate(self.pipeline) if isinstance(piece, of_rewards))
            name = self.pipeline.names()[last]
            for piece in self.pieces_after_columns():
                self.pipeline.insert_after(name, piece)
        self._check_reward_pieces()
        super().build()
        self.explore_as_of(0)

    def _check_reward_pieces(self) -> None:
        if any(isinstance(piece, NormalizeRewards) for piece in self.pipeline):
            raise LearnerError(
                f"{type(self).__name__}: NormalizeRewards measures the returns of episodes, but steps from a replay "
                f"buffer come alone. Take it out of the learner pipeline, and use ScaleRewards(scale=...) with a "
                f"number that brings rewards to about 1, or a wrapper of the environment such as NormalizeReward."
            )

    def _check_modules(self) -> None:
        for module_id, module in self.module.items():
            missing = [name for name in self.expected if not hasattr(module.unwrapped(), name)]
            if missing and self.should_module_be_updated(module_id) and not has_self_supervised_loss(module):
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is a {type(module.unwrapped()).__name__} without "
                    f"{', '.join(missing)}. Make it a subclass of {self.expected_class}, or leave it out of "
                    f"policies_to_train."
                )

    def pieces_after_columns(self) -> list[ConnectorV2]:
        """Returns the pieces that the learner needs after those that add and change rewards, the last one first."""
        known = (*DEFAULT_PIECES, RewardTransform)
        return [
            AddNStepReturnsToTrainBatch(
                n_step=largest_n_step(self.config.n_step),
                gamma=lambda module_id: self.config.get_config_for_module(module_id).gamma,
                keep_action_masks=self.reads_action_masks,
                check_observations=any(
                    not isinstance(p, known) and p not in self.algorithm_pieces for p in self.pipeline
                ),
            )
        ]

    def explore_as_of(self, timestep: int) -> None:
        """Sets what depends on time in how the modules explore; does nothing unless overridden.

        Args:
            timestep: The number of steps sampled so far, counted by ``count_steps_by``.
        """

    def time_to_explore(self, module_id: ModuleID, timestep: int) -> float:
        """Returns the time at which a module's schedule of exploration is evaluated: its end if it is not trained."""
        return timestep if self.should_module_be_updated(module_id) else math.inf

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch of steps from a replay buffer, or of all steps of episodes.

        Raises:
            LearnerError: If a module is stateful, but its steps are no sequences.
        """
        if not isinstance(episodes, ReplaySample):
            chunks = list(chunks_of(episodes))
            rows = sum(1 + (chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)) for chunk in chunks)
            buffer = EpisodeReplayBuffer(rows * (1 + len(chunks)), extra_columns=[Columns.ACTION_MASK])
            buffer.add(episodes)
            episodes = buffer.every_step(n_step=self.config.n_step)
        for module_id, own in episodes.segments.items():
            if own.sequence_length is None and module_id in self.module and self.module[module_id].is_stateful():
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is stateful, so it learns from sequences of a replay "
                    f"buffer. Pass what algo.replay_buffer.sample(..., sequence_lens={{{module_id!r}: 20}}) returns."
                )
        batch = super().make_batch(episodes)
        self._num_rows = {
            module_id: end - begin
            for group in batch.groups
            if group.sequences is None
            for module_id, (begin, end) in zip(group.module_ids, itertools.pairwise(group.splits), strict=True)
        }
        return batch

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the scalar loss of one module."""
        return self._loss((module_id,), config, self.module[module_id], batch, fwd_out)

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: RLModule, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns ``[M]`` losses in one computation."""
        return self._loss(module_ids, self.config.get_config_for_module(module_ids[0]), module, batch, fwd_out)

    def log_td_errors(self, module_ids: Sequence[ModuleID], errors: Tensor) -> None:
        """Sets the errors of the rows of an update, by which a replay buffer with priorities draws them later.

        A user's loss calls this method as well. Rows of a loss that does not call it keep their priorities, as
        they were when the rows were added.

        Args:
            module_ids: One module, or several that are computed together.
            errors: ``[B]`` errors of all rows (of sequences: of all sequences), or ``[M, B]`` of several modules.
        """
        errors = errors.detach()
        self._errors.update(zip(module_ids, errors if len(module_ids) > 1 else [errors], strict=True))

    @abstractmethod
    def _loss(
        self,
        module_ids: Sequence[ModuleID],
        config: Any,
        module: Any,
        batch: Mapping[str, Any],
        fwd_out: Mapping[str, Any],
    ) -> Tensor:
        """Returns the scalar loss of one module, or ``[M]`` losses of several that are computed together.

        Args:
            module_ids: The modules.
            config: The settings of the loss.
            module: The module, or the one that computes all of them.
            batch: The columns of the minibatch, ``[B, ...]`` or ``[M, B, ...]``.
            fwd_out: What ``forward_train`` returned.
        """

    def noise(
        self, module_ids: Sequence[ModuleID], dist_cls: type[Distribution], shape: tuple[int, ...], num_inputs: int
    ) -> Tensor:
        """Draws the noise of a distribution for a loss.

        It follows from the run's seed, the number of updates and the module, so it is the same whether modules are
        updated together or one after another, and after a restore.

        Args:
            module_ids: One module, or several that are computed together.
            dist_cls: The distribution.
            shape: The number of rows of each module, and the numbers of draws of a row.
            num_inputs: The number of ``action_dist_inputs`` of a row.

        Returns:
            ``[*shape, k]``, or ``[M, *shape, k]`` of several modules.
        """
        drawn = []
        for module_id in module_ids:
            generator = stream(self._seed, "loss", str(module_id), self.num_updates, self._num_draws[module_id])
            self._num_draws[module_id] += 1
            drawn.append(dist_cls.noise(generator, shape, num_inputs))
        return moved(drawn[0] if len(drawn) == 1 else np.stack(drawn), self.device)

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Forgets the errors of the update before."""
        self._errors = {}
        self._num_draws = Counter()

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Updates the target networks if it is time."""
        found = all_on_host(list(self._errors.values()))
        self.td_errors = {  # without the rows that pad a stack
            m: errors.numpy()[: self._num_rows.get(m)] for m, errors in zip(self._errors, found, strict=True)
        }
        if self._is_target_update_due():
            self.last_target_update = self.timestep
            self.update_targets([m for m in self.module if self.should_module_be_updated(m)])

    def _is_target_update_due(self) -> bool:
        return self.timestep - self.last_target_update >= self.config.target_network_update_freq

    def update_targets(self, module_ids: Sequence[ModuleID]) -> None:
        """Moves the target networks of modules towards their networks, each by the ``tau`` of its config."""
        if self._followers_of is not self.module.buckets:  # which are new when layers or parameters have changed
            self._followers, self._followers_of = {}, self.module.buckets
        by_tau: dict[float, list[Followers]] = defaultdict(list)
        for module_id in module_ids:
            module = self.module[module_id].unwrapped()
            if isinstance(module, TargetNetworkAPI):
                if module_id not in self._followers:
                    self._followers[module_id] = Followers.of(module)
                by_tau[self.config.get_config_for_module(module_id).tau].append(self._followers[module_id])
        for tau, followers in by_tau.items():
            move_target_networks(followers, tau)

    def get_state(self) -> dict[str, Any]:
        """Returns the learner's state, with the time of the last update of the target networks."""
        return {**super().get_state(), "last_target_update": self.last_target_update}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self.last_target_update = state["last_target_update"]
