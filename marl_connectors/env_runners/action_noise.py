"""The random numbers behind sampled actions: of each agent, episode and env step their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.seeding import StreamGenerator, name_word, stream_words, substream_words, torch_stream

_CPU = torch.device("cpu")
_MOST_STEPS = 128
_MOST_NUMBERS = 2**18
"""Numbers that are drawn at once, so that they are still in the cache when they are needed."""


@dataclass(slots=True)
class _Block:
    """The noise of the next steps.

    Attributes:
        first: The vector step that its first row is for.
        asked: The distribution class, and the number and device of its inputs.
        array: ``[steps, N, k]``.
        tensor: The same, where the modules' outputs are.
    """

    first: int
    asked: tuple[Any, ...]
    array: np.ndarray
    tensor: torch.Tensor


@dataclass(slots=True)
class _Streams:
    """The streams of a group's rows.

    Attributes:
        words: ``[N]`` uint64, one for each stream.
        t: ``[N]`` which number of its stream each was at, in the vector step ``since``.
        since: The vector step in which ``words`` and ``t`` were given.
        pick: ``[B]`` the stream of each row; None if row ``i`` draws from stream ``i``.
        num_steps: For how many steps to draw the next block.
        block: What has been drawn.
    """

    words: np.ndarray
    t: np.ndarray
    since: int
    pick: np.ndarray | None
    num_steps: int = 1
    block: _Block | None = None


class ActionNoise:
    """Noise for ``Distribution.sample``, for all rows of a vector step.

    Every number follows from the run's seed, the sub-environment, its episode, the agent and the env step. So what an
    agent draws does not depend on the other sub-environments, on the order in which agents came, on fragments, or on
    stopping and resuming. It is drawn for several steps at once, more the longer the same rows go on.

    Attributes:
        step: The number of vector steps so far; the runner sets it.
    """

    def __init__(self, seed: int):
        self.restart(seed)

    def restart(self, seed: int, step: int = 0) -> None:
        """Goes on as that of a run with another seed, at another step."""
        self._seed = seed
        self._root = stream_words(seed, "actions")
        self.step = step
        self._streams: dict[int, _Streams] = {}
        self._group_of: dict[Rows, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the numbers, which follow from the seed and the step."""
        return {**vars(self), "_streams": {}, "_group_of": {}}

    def words_of(self, env_indices: np.ndarray, agent_words: np.ndarray | None = None) -> np.ndarray:
        """``[N]`` uint64: the word of each sub-environment, or of each agent of it.

        Args:
            env_indices: ``[N]``.
            agent_words: ``[N]`` uint64, the ``name_word`` of each agent; None where one stream does for all of them.
        """
        words = substream_words(self._root, env_indices.astype(np.uint64))
        return words if agent_words is None else substream_words(words, agent_words)

    def place(
        self,
        group_index: int,
        rows: Rows,
        words: np.ndarray,
        episode_numbers: np.ndarray,
        t: np.ndarray,
        pick: np.ndarray | None = None,
    ) -> None:
        """Says from which streams the rows of a group draw, whenever episodes have begun or lanes have changed.

        Args:
            group_index: Names the group, whose former rows draw no more.
            rows: The group's rows.
            words: ``[N]`` uint64, as ``words_of`` gives them.
            episode_numbers: ``[N]`` the episode that each goes on in.
            t: ``[N]`` the env step that each is at. From now on it grows by one with each vector step.
            pick: ``[B]`` which of these each row draws from; None if there is one for each row.
        """
        words = substream_words(words, episode_numbers.astype(np.uint64))
        known = self._streams.get(group_index)
        if known is None or not self._goes_on(known, words, t):
            lasted = 1 if known is None else min(max(self.step - known.since, 1), _MOST_STEPS)
            self._streams[group_index] = _Streams(words, t.copy(), self.step, pick, lasted)
        else:
            known.pick = pick
        self._group_of = {own: index for own, index in self._group_of.items() if index != group_index}
        self._group_of[rows] = group_index

    def _goes_on(self, known: _Streams, words: np.ndarray, t: np.ndarray) -> bool:
        return np.array_equal(known.words, words) and np.array_equal(known.t + (self.step - known.since), t)

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
        """``[B, k]`` noise for this step; None if the distribution takes none."""
        inputs = columns["action_dist_inputs"]
        device = inputs.device if isinstance(inputs, torch.Tensor) else torch.device("cpu")
        streams = self._streams[self._group_of[columns.rows]]
        block = self._block(streams, dist_cls, inputs.shape[-1], device)
        if block is None:
            return None
        noise = block.tensor[self.step - block.first]
        return noise if streams.pick is None else noise[torch.from_numpy(streams.pick).to(device)]

    def array_for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> np.ndarray | None:
        """The same in an array, for modules on the CPU, without a call of torch."""
        streams = self._streams[self._group_of[columns.rows]]
        block = self._block(streams, dist_cls, columns["action_dist_inputs"].shape[-1], _CPU)
        if block is None:
            return None
        noise = block.array[self.step - block.first]
        return noise if streams.pick is None else noise[streams.pick]

    def _block(
        self, streams: _Streams, dist_cls: type[Distribution], num_inputs: int, device: torch.device
    ) -> _Block | None:
        """What is drawn for this step."""
        block, asked = streams.block, (dist_cls, num_inputs, device)
        if block is not None and block.asked == asked and 0 <= self.step - block.first < len(block.array):
            return block
        t = streams.t + (self.step - streams.since)
        num_steps = min(streams.num_steps, max(1, _MOST_NUMBERS // max(1, len(t) * num_inputs)))
        times = (t + np.arange(num_steps)[:, None]).astype(np.uint64)
        drawn = dist_cls.noise(StreamGenerator(substream_words(streams.words, times)), times.shape, num_inputs)
        if drawn is None:
            return None
        streams.num_steps = min(2 * streams.num_steps, _MOST_STEPS)
        streams.block = _Block(self.step, asked, drawn, torch.from_numpy(drawn).to(device))
        return streams.block

    def generator(self, purpose: str, rows: Rows) -> StreamGenerator:
        """Draws from a stream for each of a group's rows in this step, another one for each ``purpose``."""
        streams = self._streams[self._group_of[rows]]
        times = (streams.t + (self.step - streams.since)).astype(np.uint64)
        words = substream_words(substream_words(streams.words, times), np.array([name_word(purpose)], np.uint64))
        return StreamGenerator(words if streams.pick is None else words[streams.pick])

    @contextmanager
    def torch_stream(self) -> Iterator[None]:
        """For distributions that draw from torch's generator: makes it this step's own."""
        with torch_stream(self._seed, "torch actions", self.step):
            yield
