"""Ranks: learners in several processes that update the same modules together, each from its own episodes."""

from __future__ import annotations

import datetime
import hashlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2, pieces_of
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import RANKS, ColumnBatch, ColumnGroup
from marl_connectors.episodes.bootstrap_view import original
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.episodes.rows import whose
from marl_connectors.errors import LearnerError
from marl_connectors.learner.loss_stats import LossStatistics
from marl_connectors.learner.minibatches import GroupRows, ModuleRows
from marl_connectors.learner.policies_to_train import reads_batches
from marl_connectors.learner.updates import OneRank, Step, module_groups
from marl_connectors.metrics import RecordingLogger
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
    from marl_connectors.learner.learner import Learner


class LostRankError(LearnerError):
    """An update that could not be completed because another learner is gone, or did not answer in time."""


class Ranks(OneRank):
    """The connection of one learner to the others that update the same modules together.

    Each learner gets some of the episodes of an update, and has a number, its *rank*. All ranks take the same gradient
    steps, as one learner with all episodes would take them. They make the plan of these steps on their own from one
    table of all rows, which they exchange. This costs one message of a few numbers for each chunk of an episode, while
    a plan that rank 0 made would need a message of all orders of rows in all epochs.

    In each step, all ranks add up one flat buffer with the gradients of all modules of the step. A rank without rows
    contributes zeros. The sizes of the buffers follow from the plan, so no rank waits for another one forever.
    """

    def __init__(self, store: Any, rank: int, size: int, *, device: torch.device, timeout_s: float = 600.0):
        """Waits until all ranks are connected.

        Args:
            store: A ``torch.distributed`` store that all ranks share.
            rank: The number of this learner.
            size: The number of learners.
            device: The device of the modules. Gradients on a GPU are added up by NCCL.
            timeout_s: The time after which a rank that does not answer counts as lost.

        Raises:
            LostRankError: If another rank does not connect in time.
        """
        self.rank = rank
        self.size = size
        self.names_of_streams = (rank,)
        self._positions: Sequence[int] = ()
        self._end_recording: Callable[[], None] = lambda: None
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = datetime.timedelta(seconds=timeout_s)
        self._has_left = False
        self._do(
            "connecting",
            lambda: dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout),
        )

    def update(
        self, learner: Learner, *, episodes: Sequence[Any], timesteps: dict[str, int], positions: Sequence[int]
    ) -> dict[ModuleID, dict[str, float]]:
        """Calls ``learner.update``. All ranks must do so, each with its own episodes, which may be none.

        Args:
            learner: The Learner of this rank.
            episodes: As for ``Learner.update``.
            timesteps: As for ``Learner.update``.
            positions: The position of each of these episodes among those of all ranks.

        Raises:
            LearnerError: As ``Learner.update`` does. Ranks are disconnected then.
            LostRankError: If another rank is gone or late. The modules may be changed then.
        """
        self._positions, learner.ranks = positions, self
        return learner.update(episodes=episodes, timesteps=timesteps)

    # The steps of an update.

    def begin(self, learner: Learner, seed: int) -> None:
        check_can_be_divided(learner.config, learner.pipeline)
        self._learner = learner
        self.decisions = {module_id: learner.should_module_be_updated(module_id) for module_id in learner.module}
        self._buffers = {name: buffer.clone() for name, buffer in learner.module.named_buffers()}
        parameters = [(name, p.shape, p.dtype, p.requires_grad) for name, p in learner.module.named_parameters()]
        configs = [learner.config.get_config_for_module(module_id) for module_id in learner.module]
        self._facts = {
            "parameters": hashlib.sha256(repr(parameters).encode()).hexdigest()[:12],
            "modules to update": sorted(m for m, is_updated in self.decisions.items() if is_updated),
            "minibatches and epochs": [(config.minibatch_size, config.num_epochs) for config in configs],
            "seeds and counts": (seed, learner.num_updates, learner.timestep),
        }
        metrics, recorded = learner.metrics, RecordingLogger()
        recorded.set_state(metrics.get_state())
        learner.metrics = self._recorded = recorded  # until the metrics of all ranks are combined
        self._end_recording = lambda: setattr(learner, "metrics", metrics)

    def shared_data(self) -> dict[str, Any]:
        return {RANKS: self}

    def rows(self, batch: ColumnBatch, episodes: Sequence[Any]) -> list[GroupRows]:
        return rows_of_all_ranks(
            self,
            batch,
            module_groups(self._learner.module),
            episodes=episodes,
            positions=self._positions,
            facts=self._facts,
        )

    def sum_gradients(self, step: Step, loss: Tensor | None) -> Tensor:
        """As above.

        Raises:
            LearnerError: If the ranks do not have the rows of the plan together.
        """
        device, own = self._learner.device, step.own_sizes
        counts = torch.tensor([float(own.get(m, 0)) for m in step.sizes], device=device)
        others = [counts.new_zeros(()) if loss is None else loss.detach(), counts]
        module_ids = (*step.sizes, *step.without_rows)
        total, counts = self._learner.optimizers.sum_gradients(module_ids, own, others, self.sum)
        wanted = list(map(float, step.sizes.values()))
        if device.type == "cpu" and counts.tolist() != wanted:  # elsewhere, reading them would wait for the device
            raise LearnerError(
                f"Ranks: all ranks together have {counts.tolist()} rows of {', '.join(map(repr, step.sizes))}, but "
                f"expected were {wanted}. The train batch must not change during an update."
            )
        return total

    def combine(self, learner: Learner, statistics: LossStatistics) -> None:
        changed = {
            name: buffer.cpu()
            for name, buffer in learner.module.named_buffers()
            if name in self._buffers and not torch.equal(buffer, self._buffers[name])
        }
        own = statistics.of_this_rank(), learner.pipeline.get_state(), self._recorded.calls, changed
        terms, pieces, logged, changes = zip(*self.gather(own), strict=True)
        statistics.combine(terms)
        learner.pipeline.set_state(learner.pipeline.merge_states(list(pieces)))
        self._end_recording()
        for key, value, settings in itertools.chain.from_iterable(logged):
            learner.metrics.log_value(key, value, **settings)
        buffers = dict(learner.module.named_buffers())
        with torch.no_grad():
            for values in reversed(changes):  # the first rank that has changed a buffer decides
                for name, value in values.items():
                    buffers[name].copy_(value)

    # Messages.

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the sums of tensors over all ranks, in one message. All ranks give tensors of the same shapes."""
        dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        flat = torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])
        self._do("adding up gradients", lambda: dist.all_reduce(flat))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        self._do("exchanging numbers", lambda: dist.all_gather_object(found, value))
        return found

    def leave(self) -> None:
        """Closes the connection. Ranks that wait for this one get a LostRankError."""
        self._end_recording()
        if not self._has_left and dist.is_initialized():
            self._has_left = True
            dist.destroy_process_group()

    def _do(self, what: str, call: Callable[[], Any]) -> None:
        if self._has_left:
            raise LostRankError(f"Ranks: rank {self.rank} has left the others. Connect all ranks again.")
        try:
            call()
        except (RuntimeError, ValueError) as error:  # gloo and NCCL raise subclasses of these
            raise LostRankError(
                f"Ranks: rank {self.rank} of {self.size} lost the others while {what}: {' '.join(str(error).split())}. "
                f"Connect all ranks again, and repeat the update from the state before it."
            ) from error


# What all ranks must have in common.


def check_can_be_divided(config: AlgorithmConfig, pipeline: ConnectorPipelineV2) -> None:
    """Checks that several learners can update the modules as one learner would.

    Args:
        config: The algorithm's config.
        pipeline: The learner pipeline.

    Raises:
        LearnerError: If they cannot.
    """
    to_train = config.policies_to_train
    if callable(to_train) and reads_batches(to_train):
        raise LearnerError(
            "policies_to_train: the function reads the train batch, but with several learners none of them has the "
            "whole batch. Use a function of the module id alone, or num_learners=0."
        )
    for piece in pieces_of(pipeline):
        piece.check_can_be_divided()


def _check_agreement(facts: Sequence[Mapping[str, Any]]) -> None:
    """Checks that all ranks have the same modules, settings and counts.

    Raises:
        LearnerError: If they do not. All ranks raise it.
    """
    for rank, own in enumerate(facts):
        for name, value in own.items():
            if value != facts[0][name]:
                raise LearnerError(
                    f"Ranks: rank {rank} has other {name} than rank 0 ({value} and {facts[0][name]}), so their updates "
                    f"would differ. Give all ranks the same modules, settings and state."
                )


# The rows of all ranks.


class _ModuleTable(NamedTuple):
    """The rows of a module that count in its loss on one rank, by chunk of an agent's episode.

    Attributes:
        places: ``[C, 2]`` the position of each chunk's episode in the update, and the chunk's number in the episode.
        counts: ``[C]`` the number of rows, or of sequences, of each chunk.
        lengths: ``[n]`` the number of steps of each sequence that count; None without sequences.
        max_len: The length to which sequences are padded; None without sequences.
    """

    places: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray | None
    max_len: int | None


def rows_of_all_ranks(
    ranks: Ranks,
    batch: ColumnBatch,
    module_groups: Sequence[Collection[ModuleID]],
    *,
    episodes: Sequence[Any],
    positions: Sequence[int],
    facts: Mapping[str, Any],
) -> list[GroupRows]:
    """Returns the rows that count in the losses, of all ranks, in the order in which one learner would have them.

    Args:
        ranks: The ranks.
        batch: The train batch of this rank.
        module_groups: The modules of each column group of one learner.
        episodes: The episodes of this rank.
        positions: The position of each of these episodes among those of all ranks.
        facts: Names and values of what all ranks must have in common.

    Raises:
        LearnerError: If there is not one position for each episode, or if the ranks differ in ``facts``.
    """
    if len(positions) != len(episodes):
        raise LearnerError(
            f"Ranks.update: expected the positions of {len(episodes)} episodes among those of all ranks, got "
            f"{len(positions)}. Pass positions=[...], a number for each episode."
        )
    groups = {module_id: group for group in batch.groups for module_id in group.module_ids}
    own = {id(group): GroupRows.of(group) for group in batch.groups}
    places = _chunk_places(batch, episodes, positions)
    tables = {
        module_id: _table(own[id(group)].modules[module_id], group, places[id(group)])
        for module_id, group in groups.items()
    }
    facts_of_all, tables_of_all = zip(*ranks.gather((dict(facts), tables)), strict=True)
    _check_agreement(facts_of_all)
    found = []
    for module_ids in module_groups:
        present = [m for m in module_ids if any(m in tables for tables in tables_of_all)]
        if not present:
            continue
        columns = next((groups[m] for m in present if m in groups), None)
        modules = {}
        for module_id in present:
            rows = own[id(groups[module_id])].modules[module_id].own if module_id in groups else np.zeros(0, np.int64)
            modules[module_id] = _merged([tables.get(module_id) for tables in tables_of_all], ranks.rank, rows)
        found.append(GroupRows(modules, columns))
    return found


def _chunk_places(batch: ColumnBatch, episodes: Sequence[Any], positions: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns ``[E, 2]`` for each group: the position of each chunk's episode, and the chunk's number in it."""
    chunks = {id(group): list(group.rows.chunks) for group in batch.groups}
    places: dict[Any, tuple[int, int]] = {}
    for position, episode in zip(positions, episodes, strict=True):
        for number, chunk in enumerate(chunks_of([episode])):
            places[_key(chunk)] = (position, number)
            if isinstance(episode, MultiAgentEpisode) and not isinstance(chunk, AgentChunk):
                places[id(episode), chunk.agent_id] = (position, number)  # former lives come first
    found = {}
    for group, own in chunks.items():
        unknown = [chunk for chunk in own if _key(chunk) not in places]
        if unknown:
            raise LearnerError(
                f"Ranks: the train batch has rows of {whose(unknown[0])}, which is in none of the update's episodes. "
                f"Learner connector pieces must not add episodes."
            )
        found[group] = np.array([places[_key(chunk)] for chunk in own], np.int64).reshape(-1, 2)
    return found


def _key(chunk: Any) -> Any:
    return (id(chunk.whole), chunk.agent_id) if isinstance(chunk, AgentChunk) else id(original(chunk))


def _table(rows: ModuleRows, group: ColumnGroup, places: np.ndarray) -> _ModuleTable:
    """Returns a rank's rows of a module, given the places of the group's chunks."""
    first_rows = rows.own if group.sequences is None else group.sequences.starts[rows.own]
    chunks = np.searchsorted(np.cumsum(group.rows.counts), first_rows, side="right")
    counts = np.bincount(chunks, minlength=len(places))
    present = np.flatnonzero(counts)
    return _ModuleTable(places[present], counts[present], rows.lengths, rows.max_len)


def _merged(tables: Sequence[_ModuleTable | None], rank: int, own: np.ndarray) -> ModuleRows:
    """Returns the rows of a module of all ranks.

    Args:
        tables: The table of each rank; None for a rank without rows of the module.
        rank: The number of this rank.
        own: ``[n]`` its rows or sequences.
    """
    known = [table for table in tables if table is not None]
    places = np.concatenate([table.places for table in known])
    counts = np.concatenate([table.counts for table in known])
    order = np.lexsort((places[:, 1], places[:, 0]))
    ends = np.empty_like(counts)
    ends[order] = np.cumsum(counts[order])
    number = int(counts.sum())
    within = np.arange(number) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.repeat(ends - counts, counts) + within
    lengths = None
    if known[0].lengths is not None:
        lengths = np.empty(number, np.int64)
        lengths[positions] = np.concatenate([table.lengths for table in known if table.lengths is not None])
    begin = sum(int(table.counts.sum()) for table in tables[:rank] if table is not None)
    return ModuleRows(own, number, lengths, known[0].max_len, positions[begin : begin + len(own)])
