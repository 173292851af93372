"""The random numbers behind sampled actions, drawn for many steps at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.seeding import stream, torch_stream

BLOCK = 128
"""Steps of each stream. A stream is named by the run's seed, the environment copy, the kind of lane and the block, so
what an agent draws does not depend on the other copies, on fragments, or on stopping and resuming."""


class ActionNoise:
    """Noise for ``Distribution.sample``, for all rows of a vector step.

    Attributes:
        step: The number of vector steps so far; the runner sets it.
        places: For each group's rows: ``(env_index, slot)`` of each row, and how many slots each copy has at least.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self.step = 0
        self._places: dict[int, tuple[int, list[tuple[int, int]], int]] = {}
        self._blocks: dict[int, tuple[Rows, int, type, torch.Tensor | None]] = {}

    def place(self, group_index: int, rows: Rows, places: list[tuple[int, int]], num_slots: int) -> None:
        """Says which environment copy and slot each row of a group belongs to.

        Args:
            group_index: Names the group, and so its streams.
            rows: The group's rows.
            places: ``(environment index, slot)`` for each row.
            num_slots: Slots of one copy that share a stream; later slots have streams of their own.
        """
        self._places = {key: value for key, value in self._places.items() if value[0] != group_index}
        self._places[id(rows)] = (group_index, places, num_slots)
        self._blocks.pop(group_index, None)

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
        """``[B, k]`` noise for this step; None if the distribution takes none."""
        group_index, places, num_slots = self._places[id(columns.rows)]
        number, within = divmod(self.step, BLOCK)
        block = self._blocks.get(group_index)
        if block is None or block[1] != number or block[2] is not dist_cls:
            num_inputs = columns["action_dist_inputs"].shape[-1]
            noise = self._draw(group_index, number, places, num_slots, dist_cls, num_inputs)
            device = columns["action_dist_inputs"].device
            tensor = None if noise is None else torch.from_numpy(noise).to(device)
            block = self._blocks[group_index] = (columns.rows, number, dist_cls, tensor)
        return None if block[3] is None else block[3][within]

    @contextmanager
    def torch_stream(self) -> Iterator[None]:
        """For distributions that draw from torch's generator: makes it this step's own."""
        with torch_stream(self._seed, "torch actions", self.step):
            yield

    def _draw(
        self,
        group_index: int,
        number: int,
        places: list[tuple[int, int]],
        num_slots: int,
        dist_cls: type[Distribution],
        num_inputs: int,
    ) -> np.ndarray | None:
        drawn: dict[tuple[int, int], np.ndarray] = {}
        noise: np.ndarray | None = None
        for row, (env_index, slot) in enumerate(places):
            shared = slot < num_slots
            key = (env_index, 0 if shared else slot)
            if key not in drawn:
                rng = stream(self._seed, "actions", env_index, group_index, number, *(() if shared else (slot,)))
                values = dist_cls.noise(rng, (BLOCK, num_slots if shared else 1), num_inputs)
                if values is None:
                    return None
                drawn[key] = values
            values = drawn[key]
            if noise is None:
                noise = np.empty((BLOCK, len(places), values.shape[-1]), np.float32)
            noise[:, row] = values[:, slot if shared else 0]
        return noise
