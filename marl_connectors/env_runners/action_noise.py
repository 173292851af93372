"""Random numbers for sampled actions, separate for each agent, episode and env step; and random actions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import NORMALIZED, UNSCALED, in_units
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.flat_action_masks import draw
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.seeding import StreamGenerator, name_word, stream_words, substream_words, torch_stream
from marl_connectors.spaces import counted_from_0, from_start, values_per_choice
from marl_connectors.trees import tree_map

_CPU = torch.device("cpu")
_MOST_STEPS = 128
_MOST_NUMBERS = 2**18
"""The largest number of random numbers that are drawn at once, so that they fit into the CPU's cache."""


@dataclass(slots=True)
class _Block:
    """The noise of the next steps.

    Attributes:
        first: The vector step of ``array[0]``.
        array: ``[steps, N, k]``, the noise.
        tensor: The same numbers as a tensor on the device of the module outputs.
    """

    first: int
    array: np.ndarray
    tensor: torch.Tensor


@dataclass(slots=True)
class _Streams:
    """The streams of a group's rows.

    Attributes:
        words: ``[N]`` uint64, the word that identifies each stream.
        t: ``[N]``, the position of each stream at the vector step ``since``.
        since: The vector step at which ``words`` and ``t`` were set.
        pick: ``[B]``, the stream of each row. None if row ``i`` draws from stream ``i``.
        num_steps: The number of steps that the next block is drawn for.
        blocks: The block that was drawn last for each distribution class with a number of inputs and their device.
    """

    words: np.ndarray
    t: np.ndarray
    since: int
    pick: np.ndarray | None
    num_steps: int = 1
    blocks: dict[tuple[Any, ...], _Block] = field(default_factory=dict)


class ActionNoise:
    """Draws the noise for ``Distribution.sample``, for all rows of a vector step.

    Every number is determined by the run's seed, the sub-environment, its episode, the agent and the env step. So the
    numbers of an agent do not depend on the other sub-environments, on the order in which agents joined, on fragments,
    or on stopping and resuming. The numbers are drawn for several steps at once, and for more steps the longer the
    same rows act.

    Attributes:
        seed: The run's seed.
        step: The number of vector steps so far. The runner sets it.
    """

    def __init__(self, seed: int, torch_stream_of: Callable[[], tuple[Any, ...]] | None = None):
        """Starts at step 0.

        Args:
            seed: The run's seed.
            torch_stream_of: Returns the names of the stream for distributions that draw from torch's generator. None
                to name the stream by the vector step.
        """
        self._torch_stream_of = torch_stream_of
        self.restart(seed)

    def restart(self, seed: int, step: int = 0) -> None:
        """Forgets all streams and continues with another seed at another step.

        Args:
            seed: The run's seed.
            step: The number of vector steps so far.
        """
        self.seed = seed
        self._root = stream_words(seed, "actions")
        self.step = step
        self._streams: dict[Hashable, _Streams] = {}
        self._group_of: dict[Rows, Hashable] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the drawn numbers, which the seed and the step determine."""
        return {**vars(self), "_streams": {}, "_group_of": {}}

    def words_of(self, env_numbers: np.ndarray, agent_words: np.ndarray | None = None) -> np.ndarray:
        """Returns the words that identify the streams of sub-environments, or of their agents.

        Args:
            env_numbers: ``[N]``, the number in the run of each stream's sub-environment.
            agent_words: ``[N]`` uint64, the ``name_word`` of each agent. None if all agents of a sub-environment share
                one stream.

        Returns:
            ``[N]`` uint64.
        """
        words = substream_words(self._root, env_numbers.astype(np.uint64))
        return words if agent_words is None else substream_words(words, agent_words)

    def place(
        self,
        group_index: Hashable,
        rows: Rows,
        words: np.ndarray,
        episode_numbers: np.ndarray,
        t: np.ndarray,
        pick: np.ndarray | None = None,
    ) -> None:
        """Sets the streams of a group's rows. It must be called whenever episodes have begun or lanes have changed.

        Args:
            group_index: The group. Its earlier rows are replaced.
            rows: The group's rows.
            words: ``[N]`` uint64, as ``words_of`` returns them.
            episode_numbers: ``[N]``, the number of each stream's episode.
            t: ``[N]``, the env step of each stream. From now on it grows by one with each vector step.
            pick: ``[B]``, the stream of each row. None if each row has a separate stream.
        """
        words = substream_words(words, episode_numbers.astype(np.uint64))
        known = self._streams.get(group_index)
        if known is None or not self._continues(known, words, t):
            lasted = 1 if known is None else min(max(self.step - known.since, 1), _MOST_STEPS)
            self._streams[group_index] = _Streams(words, t.copy(), self.step, pick, lasted)
        else:
            known.pick = pick
        self._serve(group_index, rows)

    def limit_groups(self, most: int) -> None:
        """Forgets all streams if there are streams of more than ``most`` groups."""
        if len(self._streams) > most:
            self._streams, self._group_of = {}, {}

    def pick(self, group_index: Hashable, rows: Rows, pick: np.ndarray) -> bool:
        """Lets other rows of a group draw from the group's streams, which advance with each vector step.

        Args:
            group_index: The group.
            rows: The group's rows.
            pick: ``[B]``, the stream of each row.

        Returns:
            False if the group has no streams yet. Then ``place`` must be called.
        """
        known = self._streams.get(group_index)
        if known is None:
            return False
        known.pick = pick
        self._serve(group_index, rows)
        return True

    def _serve(self, group_index: Hashable, rows: Rows) -> None:
        self._group_of = {own: index for own, index in self._group_of.items() if index != group_index}
        self._group_of[rows] = group_index

    def _continues(self, known: _Streams, words: np.ndarray, t: np.ndarray) -> bool:
        return np.array_equal(known.words, words) and np.array_equal(known.t + (self.step - known.since), t)

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
        """Returns ``[B, k]`` noise for this step, or None if the distribution class uses no noise."""
        inputs = columns["action_dist_inputs"]
        device = inputs.device if isinstance(inputs, torch.Tensor) else torch.device("cpu")
        streams = self._streams[self._group_of[columns.rows]]
        block = self._block(streams, dist_cls, inputs.shape[-1], device)
        if block is None:
            return None
        noise = block.tensor[self.step - block.first]
        return noise if streams.pick is None else noise[torch.from_numpy(streams.pick).to(device)]

    def array_for_rows(self, rows: Rows, dist_cls: type[Distribution], num_inputs: int) -> np.ndarray | None:
        """Returns the noise of ``for_rows`` as an array, for modules on the CPU, without a call of torch."""
        streams = self._streams[self._group_of[rows]]
        asked = (dist_cls, num_inputs, _CPU)
        block = streams.blocks.get(asked)
        if block is None or not 0 <= self.step - block.first < len(block.array):
            block = self._block(streams, *asked)
            if block is None:
                return None
        noise = block.array[self.step - block.first]
        return noise if streams.pick is None else noise[streams.pick]

    def _block(
        self, streams: _Streams, dist_cls: type[Distribution], num_inputs: int, device: torch.device
    ) -> _Block | None:
        """Returns the block that contains this step's noise, drawn now if necessary."""
        asked = (dist_cls, num_inputs, device)
        block = streams.blocks.get(asked)
        if block is not None and 0 <= self.step - block.first < len(block.array):
            return block
        t = streams.t + (self.step - streams.since)
        num_steps = min(streams.num_steps, max(1, _MOST_NUMBERS // max(1, len(t) * num_inputs)))
        times = (t + np.arange(num_steps)[:, None]).astype(np.uint64)
        drawn = dist_cls.noise(StreamGenerator(substream_words(streams.words, times)), times.shape, num_inputs)
        if drawn is None:
            return None
        streams.num_steps = min(2 * streams.num_steps, _MOST_STEPS)
        streams.blocks[asked] = block = _Block(self.step, drawn, torch.from_numpy(drawn).to(device))
        return block

    def generator(self, purpose: str, rows: Rows) -> StreamGenerator:
        """Returns a generator with a stream for each row in this step. Each ``purpose`` has separate streams."""
        streams = self._streams[self._group_of[rows]]
        times = (streams.t + (self.step - streams.since)).astype(np.uint64)
        words = substream_words(substream_words(streams.words, times), np.array([name_word(purpose)], np.uint64))
        return StreamGenerator(words if streams.pick is None else words[streams.pick])

    @contextmanager
    def torch_stream(self) -> Iterator[None]:
        """Seeds torch's generator for this step within the context, for distributions that draw from it."""
        names = (self.step,) if self._torch_stream_of is None else self._torch_stream_of()
        with torch_stream(self.seed, "torch actions", *names):
            yield


def random_actions(
    space: Space,
    num: int,
    rng: np.random.Generator | StreamGenerator,
    mask: np.ndarray | None = None,
    units: str = NORMALIZED,
) -> dict[str, Any]:
    """Draws actions at random, uniformly where the space is bounded.

    Args:
        space: The action space.
        num: The number of actions.
        rng: The random generator.
        mask: ``[num, n]`` bool, the allowed actions, as ActionMasking adds them to the batch.
        units: What the actions of modules are, of ``action_units.ALL``.

    Returns:
        The column ``actions``, those of a module, and ``actions_for_env`` where it differs.
    """
    choices = values_per_choice(space) or ()
    if mask is None or not choices:
        mask = np.ones((num, sum(choices)), bool)
    drawn = draw(counted_from_0(space), mask, rng)
    for_env, actions = from_start(space, drawn), in_units(space, drawn, UNSCALED, units)
    columns = {Columns.ACTIONS: actions}
    return columns if for_env is actions else {**columns, Columns.ACTIONS_FOR_ENV: for_env}


def random_columns(noise: ActionNoise, given: ColumnGroup) -> ColumnGroup:
    """Draws random actions instead of module outputs. The states of stateful modules stay as they are.

    Args:
        noise: The random numbers, with a stream for each row.
        given: A group of the forward batch, which the modules do not get.

    Returns:
        A group with the actions and, where the batch has them, the action mask and the module states.
    """
    columns, rows = given.like(), given.rows
    group = rows.group  # type: ignore[attr-defined]
    rng = noise.generator("random actions", rows)
    mask = given.get(Columns.ACTION_MASK)
    if mask is not None:
        mask = columns[Columns.ACTION_MASK] = _array(mask).reshape(len(rows), -1)
    units = group.rollout.action_units
    drawn = random_actions(group.env_action_space, len(rows), rng, mask, units)
    if group.rollout.action_space != group.env_action_space:  # a piece translates the modules' actions
        for_env = drawn.get(Columns.ACTIONS_FOR_ENV, drawn[Columns.ACTIONS])
        own = random_actions(group.rollout.action_space, len(rows), rng, units=units)
        drawn = {Columns.ACTIONS: own[Columns.ACTIONS], Columns.ACTIONS_FOR_ENV: for_env}
    columns.update(drawn)
    if Columns.STATE_IN in given:
        columns[Columns.STATE_OUT] = tree_map(_array, given[Columns.STATE_IN])
    return columns


def _array(leaf: Any) -> np.ndarray:
    return leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf
