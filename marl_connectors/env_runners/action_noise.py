"""The random numbers behind sampled actions, drawn for many steps at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.seeding import stream, torch_stream

BLOCK = 128
"""Steps of each stream. A stream is named by the run's seed, the environment copy, the kind of lane and the block, so
what an agent draws does not depend on the other copies, on fragments, or on stopping and resuming. The kind of lane is
its group. Where agents take turns, it is the kind of noise, as groups are made in the order in which agents appear; one
stream is enough for a copy then, in which nobody acts in the same step as somebody else."""


class _Block(NamedTuple):
    """What the rows of a group draw in ``BLOCK`` steps, as an array and on the device of the modules' outputs."""

    rows: Rows
    number: int
    dist_cls: type[Distribution]
    array: np.ndarray
    tensor: torch.Tensor


class ActionNoise:
    """Noise for ``Distribution.sample``, for all rows of a vector step.

    Attributes:
        step: The number of vector steps so far; the runner sets it.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self.step = 0
        self._places: dict[Rows, tuple[int, list[tuple[int, int]], int | None]] = {}
        self._blocks: dict[int, _Block] = {}
        self._asked: dict[int, Rows] = {}
        self._drawn: dict[int, tuple[tuple[Any, ...], dict[tuple[int, int], np.ndarray | None]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the numbers, which follow from the seed and the step."""
        return {**vars(self), "_blocks": {}, "_asked": {}, "_drawn": {}}

    def place(self, group_index: int, rows: Rows, places: list[tuple[int, int]], num_slots: int | None) -> None:
        """Says which environment copy and slot each row of a group belongs to.

        Args:
            group_index: Names the group, and so its streams.
            rows: The group's rows.
            places: ``(environment index, slot)`` for each row.
            num_slots: Slots of one copy that share a stream; later slots have streams of their own. None where agents
                take turns, and all slots are 0.
        """
        self._places = {key: value for key, value in self._places.items() if value[0] != group_index}
        self._places[rows] = (group_index, places, num_slots)
        self._blocks.pop(group_index, None)

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
        """``[B, k]`` noise for this step; None if the distribution takes none."""
        group_index, places, num_slots = self._places[columns.rows]
        number, within = divmod(self.step, BLOCK)
        block = self._blocks.get(group_index)
        if block is not None and block.rows is columns.rows and block[1:3] == (number, dist_cls):
            return block.tensor[within]
        inputs = columns["action_dist_inputs"]
        streams = self._streams(group_index, number, places, num_slots, dist_cls, inputs.shape[-1])
        if streams is None:
            return None
        if self._asked.get(group_index) is not columns.rows:  # rows that may be others in the next step
            self._asked[group_index] = columns.rows
            return torch.from_numpy(np.stack([values[within, slot] for values, slot in streams])).to(inputs.device)
        array = np.concatenate(_whole_streams(streams), axis=1)
        noise = torch.from_numpy(array).to(inputs.device)
        self._blocks[group_index] = _Block(columns.rows, number, dist_cls, array, noise)
        return noise[within]

    def array_for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> np.ndarray | None:
        """The same in an array, for modules on the CPU. A hot path: as a rule without a call of torch."""
        number, within = divmod(self.step, BLOCK)
        block = self._blocks.get(self._places[columns.rows][0])
        if block is not None and block.rows is columns.rows and block[1:3] == (number, dist_cls):
            return block.array[within]
        noise = self.for_rows(columns, dist_cls)
        return None if noise is None else noise.numpy()

    @contextmanager
    def torch_stream(self) -> Iterator[None]:
        """For distributions that draw from torch's generator: makes it this step's own."""
        with torch_stream(self._seed, "torch actions", self.step):
            yield

    def _streams(
        self,
        group_index: int,
        number: int,
        places: list[tuple[int, int]],
        num_slots: int | None,
        dist_cls: type[Distribution],
        num_inputs: int,
    ) -> list[tuple[np.ndarray, int]] | None:
        """For each row, the block ``[BLOCK, slots, k]`` of its stream, and which slot of it; each is drawn once."""
        kind = (number, dist_cls, num_inputs, num_slots)
        known_kind, known = self._drawn.get(group_index, (kind, {}))
        if known_kind != kind:
            known = {}
        self._drawn[group_index] = (kind, known)
        lane_kind = f"{dist_cls.__name__} of {num_inputs}" if num_slots is None else group_index
        num_shared = 1 if num_slots is None else num_slots
        found = []
        for env_index, slot in places:
            shared = slot < num_shared
            key = (env_index, 0 if shared else slot)
            if key not in known:
                rng = stream(self._seed, "actions", env_index, lane_kind, number, *(() if shared else (slot,)))
                known[key] = dist_cls.noise(rng, (BLOCK, num_shared if shared else 1), num_inputs)
            values = known[key]
            if values is None:
                return None
            found.append((values, slot if shared else 0))
        return found


def _whole_streams(streams: list[tuple[np.ndarray, int]]) -> list[np.ndarray]:
    """``[BLOCK, n, k]`` of the streams' slots, in order; a whole stream is not taken apart."""
    parts = []
    for _, run in groupby(streams, key=lambda entry: id(entry[0])):
        (values, first), *others = run
        slots = [first, *(slot for _, slot in others)]
        is_whole = slots == list(range(values.shape[1]))
        parts.append(values if is_whole else values[:, slots])
    return parts
