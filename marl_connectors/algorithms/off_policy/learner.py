"""OffPolicyLearner: learns from steps of a replay buffer, with target networks that follow the modules."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import (
    DISCOUNTS,
    NEXT_ACTION_MASK,
    AddNStepReturnsToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards
from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import LearnerError
from marl_connectors.learner.learner import Learner, LearnerState
from marl_connectors.learner.loss_stats import TOTAL_LOSS
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.learner.updates import has_self_supervised_loss
from marl_connectors.ops.q_learning import n_step_targets
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.replay_sample import WEIGHTS, ReplaySample
from marl_connectors.rl_module.apis import Followers, TargetNetworkAPI, move_target_networks
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import stream
from marl_connectors.state import Count
from marl_connectors.transfers import moved
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.off_policy.config import OffPolicyConfig


@dataclass(slots=True, eq=False, repr=False)
class ReplayedRows:
    """The rows of a minibatch, from which ``targets`` and ``loss`` of a learner compute.

    The columns are ``[B, ...]`` of one module, or ``[M, B, ...]`` of several that are computed together. Those of
    stateful modules are sequences, ``[S, T, ...]`` or ``[M, S, T, ...]``. A loss whose axes are counted from the end is
    the same for all of them, and what comes from here is ``[...]``.

    Attributes:
        learner: The learner.
        module_ids: The modules.
        module: The module, or the one that computes all of them.
        config: The settings of the loss.
        columns: The columns of the minibatch.
        outputs: What ``forward_train`` returned for them.
        are_sequences: Whether they are sequences, with a time axis.
    """

    learner: OffPolicyLearner
    module_ids: Sequence[ModuleID]
    module: Any
    config: Any
    columns: Mapping[str, Any]
    outputs: Mapping[str, Any]
    are_sequences: bool = field(init=False)
    _noise: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.are_sequences = Columns.SEQ_LENS in self.columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    @property
    def following(self) -> Mapping[str, Any]:
        """The columns ``obs`` and ``action_mask`` of what ``bootstrapped`` needs the values of.

        They are those after the n-step return of each row. In sequences they are those of the steps themselves, among
        which each step finds the one that its target continues from.
        """
        if self.are_sequences:
            return self.columns
        masks = {Columns.ACTION_MASK: self[NEXT_ACTION_MASK]} if NEXT_ACTION_MASK in self.columns else {}
        return {Columns.OBS: self[Columns.NEXT_OBS], **masks}

    def bootstrapped(self, values: Tensor) -> Tensor:
        """Returns n-step targets: discounted sums of rewards, and of the value after them unless an episode ended.

        Args:
            values: ``[...]`` values of ``following``. Rows that are no sequences may have further axes.
        """
        rewards = self[Columns.REWARDS]
        if not self.are_sequences:
            further = (..., *[None] * (values.dim() - rewards.dim()))
            return rewards[further] + self[DISCOUNTS][further] * values
        ended = F.pad(self[Columns.TERMINATEDS][..., :-1].float(), (1, 0))
        last = self[Columns.SEQ_LENS].unsqueeze(-1) - 1
        left = (last - torch.arange(values.shape[-1], device=values.device)).clamp(min=0)
        config = self.learner.config
        gammas: Any = [config.get_config_for_module(m).gamma for m in self.module_ids]
        gamma = values.new_tensor(gammas).view(-1, 1, 1) if len(gammas) > 1 else gammas[0]
        return n_step_targets(rewards, values * (1.0 - ended), left, n_step=config.n_step, gamma=gamma)

    def noise(self, dist_cls: type[Distribution], num_inputs: int, draws: int = 1) -> Tensor:
        """Returns ``[draws, ..., n]`` noise of a distribution, the same in each call; see ``learner.noise``."""
        if self._noise is None:
            shape = (self[Columns.REWARDS].shape[-1], draws)
            self._noise = self.learner.noise(self.module_ids, dist_cls, shape, num_inputs).movedim(-2, 0)
        return self._noise


class RowLosses(NamedTuple):
    """The losses of all rows, ``[...]``. An update minimises the mean of their sum.

    Attributes:
        of_values: The losses of errors of values, by the names of their loss statistics. A buffer with priorities
            weighs them.
        errors: The errors of values, by which such a buffer draws rows later.
        others: All other losses, such as a policy's.
        statistics: What else the results have means of.
    """

    of_values: Mapping[str, Tensor]
    errors: Tensor
    others: Mapping[str, Tensor] = {}
    statistics: Mapping[str, Tensor] = {}


class OffPolicyLearnerState(LearnerState):
    """The state of an OffPolicyLearner.

    Attributes:
        last_target_update: As in OffPolicyLearner.
    """

    last_target_update: Count


class OffPolicyLearner(Learner):
    """A learner whose train batches are steps with n-step returns, and whose modules may have target networks.

    A subclass computes the ``targets`` and the ``loss``, and says how modules ``explore``. It may instead override
    ``compute_loss_for_module``; it then gives the errors of its rows to ``log_td_errors``.

    Attributes:
        td_errors: For each module whose loss has given errors in the newest update, ``[B]`` errors of its rows.
        last_target_update: The number of steps sampled when the target networks were last updated.
    """

    state_class = OffPolicyLearnerState

    expected: tuple[str, ...] = ()
    """The attributes that the loss needs of the modules."""
    reads_action_masks = False
    """Whether the loss reads the action masks of the steps, in addition to those of the next steps."""
    loss_settings: tuple[str, ...] = ()
    """The settings of the loss, in which modules must agree to be computed together."""
    rates: Mapping[str, str] = {}
    """Names of layers to the settings of their learning rates, ``OTHERS`` for all others; none for ``lr`` alone."""

    # To override.

    @abstractmethod
    def targets(self, rows: ReplayedRows) -> Tensor:
        """Returns the targets of the values of all rows. It is called without gradients.

        Args:
            rows: The rows.
        """

    @abstractmethod
    def loss(self, rows: ReplayedRows, targets: Tensor) -> RowLosses:
        """Returns the losses of all rows.

        Args:
            rows: The rows.
            targets: What ``targets`` returned for them.
        """

    def explore(self, module: Any, config: OffPolicyConfig, timestep: float) -> None:
        """Sets what depends on time in how a module explores; does nothing unless overridden.

        Args:
            module: The module.
            config: Its settings.
            timestep: The time at which schedules are evaluated.
        """

    def resting_layers(self) -> Collection[str]:
        """Returns the layers that the next update leaves as they are, as ``register_default`` names them.

        Target networks rest with them. None rest unless overridden.
        """
        return ()

    # The update.

    def stacking_key(self, config: OffPolicyConfig) -> Hashable:
        """Returns the settings of the loss."""
        return tuple(getattr(config, name) for name in self.loss_settings)

    def configure_optimizers_for_module(self, module_id: ModuleID, config: OffPolicyConfig) -> None:
        """Registers Adam with the learning rates of the layers."""
        rates = {layer: getattr(config, setting) for layer, setting in self.rates.items()}
        self.optimizers.register_default(module_id, rates)

    def build(self) -> None:
        """Puts the piece for n-step returns into the pipeline.

        Raises:
            LearnerError: If a module lacks what the loss needs, or if a piece needs whole episodes.
        """
        self._check_modules()
        self.td_errors: dict[ModuleID, Tensor] = {}
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
            expected = self.config.get_default_rl_module_class()
            missing = [name for name in self.expected if not hasattr(module.unwrapped(), name)]
            if missing and self.should_module_be_updated(module_id) and not has_self_supervised_loss(module):
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is a {type(module.unwrapped()).__name__} without "
                    f"{', '.join(missing)}. Make it a subclass of {expected.__name__}, or leave it out of "
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
        """Sets how all modules explore. Those that are not trained do so as at the end of their schedules.

        Args:
            timestep: The number of steps sampled so far, counted by ``count_steps_by``.
        """
        for module_id, module in self.module.items():
            at = timestep if self.should_module_be_updated(module_id) else math.inf
            self.explore(module.unwrapped(), self.config.get_config_for_module(module_id), at)

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch of steps from a replay buffer, or of all steps of episodes.

        Raises:
            LearnerError: If a module is stateful, but its steps are no sequences.
        """
        sample = episodes if isinstance(episodes, ReplaySample) else self._sample_of(episodes)
        for module_id, own in sample.segments.items():
            if own.sequence_length is None and module_id in self.module and self.module[module_id].is_stateful():
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is stateful, so it learns from sequences of a replay "
                    f"buffer. Pass what algo.replay_buffer.sample(..., sequence_lens={{{module_id!r}: 20}}) returns."
                )
        return super().make_batch(sample)

    def _sample_of(self, episodes: Sequence[Any]) -> ReplaySample:
        """Returns all steps of episodes."""
        chunks = list(chunks_of(episodes))
        rows = 2 + sum(1 + (chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)) for chunk in chunks)
        buffer = self._buffer_for(rows * (1 + len(chunks)), chunks)
        buffer.add(episodes)
        return buffer.every_step(n_step=self.config.n_step)

    def _buffer_for(self, capacity: int, chunks: Sequence[Any]) -> Any:
        """Returns an empty buffer with room for chunks of episodes."""
        del chunks
        return EpisodeReplayBuffer(capacity, extra_columns=[Columns.ACTION_MASK])

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: OffPolicyConfig, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the scalar loss of one module."""
        return self._loss(ReplayedRows(self, (module_id,), self.module[module_id], config, batch, fwd_out))

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: RLModule, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns ``[M]`` losses in one computation."""
        config = self.config.get_config_for_module(module_ids[0])
        return self._loss(ReplayedRows(self, module_ids, module, config, batch, fwd_out))

    def _loss(self, rows: ReplayedRows) -> Tensor:
        with torch.no_grad():
            targets = self.targets(rows)
        return self.mean_loss(rows, self.loss(rows, targets))

    def mean_loss(self, rows: ReplayedRows, losses: RowLosses) -> Tensor:
        """Returns the mean over the rows that count: a scalar, or ``[M]``. Logs the statistics and the errors."""
        is_stacked = len(rows.module_ids) > 1
        counted = CountedRows.of(rows.columns, stacked=len(rows.module_ids) if is_stacked else 0)
        of_values = losses.of_values
        if WEIGHTS in rows.columns:
            weights = rows[WEIGHTS]
            of_values = {name: own * weights for name, own in of_values.items()}
        sums = [functools.reduce(torch.add, own.values()) for own in (losses.others, of_values) if own]
        total = functools.reduce(torch.add, sums)
        of_rows = {TOTAL_LOSS: total, **losses.others, **of_values, **losses.statistics}
        with torch.no_grad():
            columns = torch.stack([counted.pick(column) for column in of_rows.values()])
            self.log_table(rows.module_ids, list(of_rows), counted.mean(columns))
        errors: Any = losses.errors
        if rows.are_sequences:  # of which each has the mean size of its steps' errors
            mask = rows[Columns.LOSS_MASK]
            steps = mask.sum(-1)
            errors = (errors.abs() * mask).sum(-1) / steps
            if is_stacked:  # modules have different numbers of sequences
                errors = [own[number > 0] for own, number in zip(errors, steps, strict=True)]
        elif counted.weights is not None:  # modules have different numbers of rows
            errors = [own[weight > 0] for own, weight in zip(errors, counted.weights, strict=True)]
        self.log_td_errors(rows.module_ids, errors)
        return counted.mean(counted.pick(total))

    def log_td_errors(self, module_ids: Sequence[ModuleID], errors: Tensor | Sequence[Tensor]) -> None:
        """Sets the errors of the rows of an update, by which a replay buffer with priorities draws them later.

        A user's loss calls this method as well. Rows of a loss that does not call it keep their priorities, as
        they were when the rows were added.

        Args:
            module_ids: One module, or several that are computed together.
            errors: ``[B]`` errors of all rows (of sequences: of all sequences), or ``[B]`` for each of several modules.
        """
        each = errors if len(module_ids) > 1 else [errors]
        self.td_errors.update((m, own.detach()) for m, own in zip(module_ids, each, strict=True))  # type: ignore[union-attr]

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
        """Forgets the errors of the update before, and decides which layers rest."""
        self.td_errors = {}
        self._num_draws = Counter()
        self.optimizers.rest(self.resting_layers())

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Updates the target networks if it is time."""
        is_due = self.timestep - self.last_target_update >= self.config.target_network_update_freq
        if is_due and not self.optimizers.resting:
            self.last_target_update = self.timestep
            self.update_targets([m for m in self.module if self.should_module_be_updated(m)])

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

    def _get_other_state(self) -> dict[str, Any]:
        """Returns the learner's state, with the time of the last update of the target networks."""
        return {**super()._get_other_state(), "last_target_update": self.last_target_update}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self.last_target_update = state["last_target_update"]
