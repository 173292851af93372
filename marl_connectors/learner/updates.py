"""What an update is made of: the rows of its train batch, and its gradient steps in their order."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.learner.losses import has_self_supervised_loss
from marl_connectors.learner.minibatches import MiniBatch, Shuffle, minibatches_of_epoch
from marl_connectors.rl_module.module_columns import columns_by_module
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import stream
from marl_connectors.typing import DEFAULT_MODULE_ID, SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


def groups_of_episodes(
    module: MultiRLModule, episodes: Sequence[Any], *, is_trained: Callable[[ModuleID], bool]
) -> list[ColumnGroup]:
    """A group without columns for the modules of each family that are trained and have steps.

    Args:
        module: The modules.
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        is_trained: Asked once for each module.
    """
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
    for family in families(module):
        present = [m for m in family if m in by_module]
        if present:
            groups.append(ColumnGroup(rows_of_episodes([e for m in present for e in by_module[m]], present)))
    return groups


def families(module: MultiRLModule) -> list[list[ModuleID]]:
    """Modules whose rows stand in one group: those of a bucket, entangled ones with like spaces, each other alone."""
    found = [list(bucket.module_ids) for bucket in module.buckets]
    entangled: dict[Hashable, list[ModuleID]] = {}
    for module_id in module.entangled_modules():
        member = module[module_id]
        entangled.setdefault((str(member.observation_space), str(member.action_space)), []).append(module_id)
    found += entangled.values()
    return found + [[m] for m in module if not any(m in family for family in found)]


class Step(NamedTuple):
    """One gradient step.

    Attributes:
        epoch: Counted from 0.
        minibatches: One of a module, or of stacked modules; or one of each of several modules.
        is_joint: Whether these modules are entangled: run by a forward pass of the MultiRLModule's own, or sharing
            parameters.
        beside: What else of them a joint step may change: entangled modules without a minibatch in it, such as an
            encoder, and ``SHARED`` parameters.
    """

    epoch: int
    minibatches: list[MiniBatch]
    is_joint: bool = False
    beside: tuple[ModuleID, ...] = ()


class Steps:
    """The steps of one update, to be gone through once."""

    def __init__(self, learner: Learner, batch: ColumnBatch, seed: int):
        self._learner = learner
        self._batch = batch
        self._seed = seed
        self._config = learner.config
        self._columns: dict[ModuleID, Any] | None = None

    def __iter__(self) -> Iterator[Step]:
        wanted = self._wanted()
        entangled = frozenset(self._learner.module.entangled_modules()) & wanted
        joint = self._jointly_trained(wanted) if entangled else []
        epochs = {m: self._config.get_config_for_module(m).num_epochs for m in wanted}
        for epoch in range(max(epochs.values(), default=0)):
            active = {m for m in wanted if epoch < epochs[m]}
            for group in self._batch.groups:
                for minibatch in self._minibatches(group, epoch, active - entangled, stacks=self._stacks_of(group)):
                    yield Step(epoch, [minibatch])
            several = [
                self._minibatches(group, epoch, [module_id], together=True)
                for group in self._batch.groups
                for module_id in group.module_ids
                if module_id in entangled & active
            ]
            for found in itertools.zip_longest(*several):
                minibatches = [m for m in found if m is not None]
                yield Step(epoch, minibatches, is_joint=True, beside=self._beside(joint, minibatches))

    def _jointly_trained(self, wanted: Collection[ModuleID]) -> list[ModuleID]:
        """Entangled modules that are to be updated, also those without data."""
        learner, with_data = self._learner, {m for group in self._batch.groups for m in group.module_ids}
        return [
            m
            for m in learner.module.entangled_modules()
            if (m in wanted if m in with_data else learner.should_module_be_updated(m, self._columns))
        ]

    def _beside(self, joint: Sequence[ModuleID], minibatches: Sequence[MiniBatch]) -> tuple[ModuleID, ...]:
        taken = {m.module_ids[0] for m in minibatches}
        others = [m for m in joint if m not in taken]
        return (*others, *([SHARED] if self._learner.optimizers.has_shared else []))

    def _wanted(self) -> frozenset[ModuleID]:
        """Those modules with data that are to be updated."""
        ids = [m for group in self._batch.groups for m in group.module_ids]
        wanted = self._config.policies_to_train
        if not callable(wanted) or not reads_batches(wanted):
            return frozenset(ids)
        columns = self._columns = columns_by_module(self._batch)
        return frozenset(m for m in ids if self._learner.should_module_be_updated(m, columns))

    def _minibatches(
        self,
        group: ColumnGroup,
        epoch: int,
        module_ids: Collection[ModuleID],
        *,
        stacks: Sequence[Sequence[ModuleID]] = (),
        together: bool = False,
    ) -> Iterator[MiniBatch]:
        return minibatches_of_epoch(
            group,
            stacks,
            size_of=lambda module_id: self._config.get_config_for_module(module_id).minibatch_size,
            shuffle=self._shuffle(epoch, together),
            only=module_ids,
        )

    def _stacks_of(self, group: ColumnGroup) -> list[list[ModuleID]]:
        """Which of a group's modules may be updated as one computation."""
        learner = self._learner
        if not self._config.stack_modules or not learner.has_stacked_loss:
            return []
        if learner.module.bucket_of(group.module_ids) is None:
            return []
        alike: dict[Hashable, list[ModuleID]] = {}
        for i, module_id in enumerate(group.module_ids):
            if has_self_supervised_loss(learner, module_id):
                continue
            longest = None if group.sequences is None else group.sequences.max_lens[i]
            key = learner.stacking_key(self._config.get_config_for_module(module_id))
            alike.setdefault((key, longest), []).append(module_id)
        return list(alike.values())

    def _shuffle(self, epoch: int, together: bool) -> Shuffle | None:
        """Entangled modules with equally many rows go through them in one order, so that steps stay side by side."""
        if not self._config.shuffle_batch_per_epoch:
            return None
        place = (self._learner.num_updates, epoch)
        return lambda module_id, rows: stream(
            self._seed, "minibatches", SHARED if together else module_id, *place
        ).permutation(rows)


def reads_batches(function: Callable[..., Any]) -> bool:
    """Whether a ``policies_to_train`` function takes the batch beside the module id."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in positional for kind in kinds) > 1
