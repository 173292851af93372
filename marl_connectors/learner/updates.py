"""The rows of an update's train batch, its gradient steps in their order, and where other learners take part."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.learner.loss_stats import LossStatistics
from marl_connectors.learner.minibatches import GroupRows, MiniBatch, Shuffle, minibatches_of_epoch
from marl_connectors.learner.policies_to_train import reads_batches
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.rl_module.apis import SelfSupervisedLossAPI
from marl_connectors.rl_module.module_columns import columns_by_module
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import stream
from marl_connectors.typing import DEFAULT_MODULE_ID, SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
    from marl_connectors.learner.learner import Learner


def has_self_supervised_loss(module: RLModule) -> bool:
    """Whether a module computes its own loss, instead of the learner."""
    return isinstance(module.unwrapped(), SelfSupervisedLossAPI)


def groups_of_episodes(
    module: MultiRLModule, episodes: Sequence[Any], *, is_trained: Callable[[ModuleID], bool]
) -> list[ColumnGroup]:
    """Returns a group of rows, without columns yet, for each group of modules that are trained and have steps.

    Args:
        module: The modules.
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        is_trained: Whether a module is trained. It is called once for each module.
    """
    if isinstance(episodes, ReplaySample):
        wanted = {module_id for module_id in episodes.segments if is_trained(module_id)}
        present = [[m for m in module_ids if m in wanted] for module_ids in module_groups(module)]
        return [ColumnGroup(episodes.rows(module_ids)) for module_ids in present if module_ids]
    by_module: dict[ModuleID, list[SingleAgentEpisode | AgentChunk]] = defaultdict(list)
    trained: dict[ModuleID, bool] = {}
    for chunk in chunks_of(episodes):
        module_id = chunk.module_id or DEFAULT_MODULE_ID
        if module_id not in trained:
            trained[module_id] = is_trained(module_id)
        num_steps = chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)
        if num_steps and trained[module_id]:
            by_module[module_id].append(chunk)
    groups = []
    for module_ids in module_groups(module):
        present = [m for m in module_ids if m in by_module]
        if present:
            groups.append(ColumnGroup(rows_of_episodes([e for m in present for e in by_module[m]], present)))
    return groups


def module_groups(module: MultiRLModule) -> list[list[ModuleID]]:
    """Returns lists of modules. The rows of each list form one column group.

    A list has the modules of a bucket, or modules that depend on one another and have like spaces. Every other module
    has a group of its own.
    """
    found = [list(bucket.module_ids) for bucket in module.buckets]
    joint: dict[Hashable, list[ModuleID]] = {}
    for module_id in module.joint_modules():
        member = module[module_id]
        joint.setdefault((str(member.observation_space), str(member.action_space)), []).append(module_id)
    found += joint.values()
    return found + [[m] for m in module if not any(m in group for group in found)]


class Step(NamedTuple):
    """One gradient step.

    Attributes:
        epoch: The number of the epoch, counted from 0.
        minibatches: One minibatch, of a module or of stacked modules. In a joint step, one of each module. Those
            without rows on this learner are left out.
        sizes: The modules that the minibatches of all learners belong to, and the number of rows (or steps) that count.
        is_joint: Whether the modules depend on one another, because the MultiRLModule has its own forward pass, or
            because they share parameters.
        without_rows: What a joint step may change in addition: joint modules without a minibatch in it, such as an
            encoder, and ``SHARED`` parameters.
    """

    epoch: int
    minibatches: list[MiniBatch]
    sizes: Mapping[ModuleID, int]
    is_joint: bool = False
    without_rows: tuple[ModuleID, ...] = ()

    @property
    def own_sizes(self) -> dict[ModuleID, int]:
        """The number of rows of each module that this learner has."""
        return {m: size for one in self.minibatches for m, size in zip(one.module_ids, one.sizes, strict=True)}


def _step_of(epoch: int, minibatches: Sequence[MiniBatch]) -> Step:
    sizes = {module_id: size for minibatch in minibatches for module_id, size in minibatch.of_all.items()}
    return Step(epoch, [minibatch for minibatch in minibatches if minibatch.module_ids], sizes)


@dataclass
class Steps:
    """The gradient steps of one update, which can be iterated over once.

    They follow from the rows of all learners, so all learners that update the modules together take the same steps.

    Attributes:
        batch: The train batch.
        rows: The rows that count, of all learners. Each element has the modules of one list of ``module_groups``.
        module: The modules.
        config: The algorithm's config.
        is_updated: ``Learner.should_module_be_updated``.
        stacking_key: ``Learner.stacking_key``; None where the modules of a bucket are updated one after another.
        has_shared_parameters: Whether several modules, or the MultiRLModule itself, share parameters.
        seed: Seeds the order of the rows, together with ``num_updates`` and the epoch.
        num_updates: The number of updates before this one.
    """

    batch: ColumnBatch
    rows: Sequence[GroupRows]
    module: MultiRLModule
    config: AlgorithmConfig
    is_updated: Callable[[ModuleID, Mapping[ModuleID, Any] | None], bool]
    stacking_key: Callable[[Any], Hashable] | None
    has_shared_parameters: bool
    seed: int
    num_updates: int

    def __iter__(self) -> Iterator[Step]:
        columns = self._columns_to_choose_by()
        updated = self._updated_modules(columns)
        joint = frozenset(self.module.joint_modules()) & updated
        all_joint = self._updated_joint_modules(updated, columns) if joint else []
        epochs = {m: self.config.get_config_for_module(m).num_epochs for m in updated}
        for epoch in range(max(epochs.values(), default=0)):
            active = {m for m in updated if epoch < epochs[m]}
            for group in self.rows:
                for minibatch in self._minibatches(group, epoch, active - joint, stacks=self._stacks_of(group)):
                    yield _step_of(epoch, [minibatch])
            by_module = [
                self._minibatches(group, epoch, [module_id], is_joint=True)
                for group in self.rows
                for module_id in group.module_ids
                if module_id in joint & active
            ]
            for found in itertools.zip_longest(*by_module):
                step = _step_of(epoch, [m for m in found if m is not None])
                without_rows = [m for m in all_joint if m not in step.sizes]
                shared = [SHARED] if self.has_shared_parameters else []
                yield step._replace(is_joint=True, without_rows=(*without_rows, *shared))

    def _columns_to_choose_by(self) -> dict[ModuleID, Any] | None:
        """Returns the columns of each module if ``policies_to_train`` reads them, else None."""
        to_train = self.config.policies_to_train
        return columns_by_module(self.batch) if callable(to_train) and reads_batches(to_train) else None

    def _updated_modules(self, columns: dict[ModuleID, Any] | None) -> frozenset[ModuleID]:
        """Returns the modules that have rows and are updated."""
        ids = [m for group in self.rows for m in group.module_ids]
        return frozenset(ids if columns is None else (m for m in ids if self.is_updated(m, columns)))

    def _updated_joint_modules(
        self, updated: Collection[ModuleID], columns: dict[ModuleID, Any] | None
    ) -> list[ModuleID]:
        """Returns the joint modules that are updated, with or without rows."""
        with_rows = {m for group in self.rows for m in group.module_ids}
        return [
            m for m in self.module.joint_modules() if (m in updated if m in with_rows else self.is_updated(m, columns))
        ]

    def _minibatches(
        self,
        group: GroupRows,
        epoch: int,
        module_ids: Collection[ModuleID],
        *,
        stacks: Sequence[Sequence[ModuleID]] = (),
        is_joint: bool = False,
    ) -> Iterator[MiniBatch]:
        return minibatches_of_epoch(
            group,
            stacks,
            size_of=lambda module_id: self.config.get_config_for_module(module_id).minibatch_size,
            shuffle=self._shuffle(epoch, is_joint),
            only=module_ids,
        )

    def _stacks_of(self, group: GroupRows) -> list[list[ModuleID]]:
        """Returns those modules of a group that may be updated in one computation."""
        if self.stacking_key is None or len(group.modules) < 2 or self.module.bucket_of(group.module_ids) is None:
            return []
        alike: dict[Hashable, list[ModuleID]] = {}
        for module_id, rows in group.modules.items():
            if has_self_supervised_loss(self.module[module_id]):
                continue
            key = self.stacking_key(self.config.get_config_for_module(module_id))
            alike.setdefault((key, rows.max_len), []).append(module_id)
        return list(alike.values())

    def _shuffle(self, epoch: int, is_joint: bool) -> Shuffle | None:
        """Returns what permutes the rows of a module; None to keep their order.

        Joint modules with equally many rows get one order, so that rows of the same env step stay in one gradient step.
        """
        if not self.config.shuffle_batch_per_epoch:
            return None
        return lambda module_id, rows: stream(
            self.seed, "minibatches", SHARED if is_joint else module_id, self.num_updates, epoch
        ).permutation(rows)


# Together with other learners.


class OneRank:
    """What a learner does together with others at the stages of an update: nothing, as it is alone.

    ``Ranks`` overrides this for several learners.

    Attributes:
        rank: The number of this learner, from 0.
        size: The number of learners.
        names_of_streams: What the names of this learner's streams of random numbers have in addition.
        decisions: Whether each module is updated, if that is decided once before an update.
    """

    rank = 0
    size = 1
    names_of_streams: tuple[int, ...] = ()
    decisions: Mapping[ModuleID, bool] = {}

    def begin(self, learner: Learner, seed: int) -> None:
        """Begins an update of a learner.

        Args:
            learner: The Learner.
            seed: Its seed.
        """

    def shared_data(self) -> dict[str, Any]:
        """Returns what connector pieces of the learner share."""
        return {}

    def rows(self, batch: ColumnBatch, episodes: Sequence[Any]) -> list[GroupRows]:
        """Returns the rows that count in the losses, of all learners.

        Args:
            batch: The train batch of this learner.
            episodes: The episodes of this learner.
        """
        return [GroupRows.of(group) for group in batch.groups]

    def sum_gradients(self, step: Step, loss: Tensor | None) -> Tensor | None:
        """Replaces the gradients of a step by their sums over all learners, and returns the sum of the losses.

        Args:
            step: The step.
            loss: The loss of this learner's rows; None if it has none.
        """
        return loss

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all learners, which must be picklable, in the order of the ranks."""
        return [value]

    def combine(self, learner: Learner, statistics: LossStatistics) -> None:
        """Merges what the pieces, the loss statistics, the metrics and the modules' buffers of all learners have.

        Args:
            learner: The Learner.
            statistics: Its loss statistics of the update.
        """
        learner.pipeline.merge_own_state()

    def leave(self) -> None:
        """Closes the connection to the others, after an error."""
