"""One step of a module's agents in tensors, from which torch records a program for other machines.

Pieces get it as ``c.program``, and read trajectories from ``c.rows`` as in a run. What they read of earlier steps
becomes a memory: an input of the program, and an output that is the input of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from marl_connectors import spaces as space_tools
from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConnectorError, ModuleError
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.states import initial_state
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, ModuleID, Tree


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a recorded program.

    Attributes:
        name: Its name.
        role: What it stands for: ``"observation"``, ``"memory"``, ``"noise"``, ...
        shape: The shape of one row, without the batch axis.
        dtype: numpy's name of its dtype.
        path: The keys that lead to it, if it is a part of a Dict or Tuple.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    path: tuple[Any, ...] = ()


class Memory:
    """Values that a piece remembers from step to step, for each row.

    Attributes:
        value: ``[B, ...]`` tree of tensors that was set in the row's last step; in its first step the initial one.
        next: The tree of tensors for the next step. The piece sets it.
    """

    def __init__(self, name: str, initial: Tree, value: Tree):
        self.name = name
        self.initial = initial
        self.value = value
        self.next: Tree = value


class Recording:
    """The inputs, memories and random numbers of one step of agents that have one module and one kind of spaces.

    An exporter runs the pieces twice. The first run finds the inputs that the pieces ask for. The second one is
    recorded by torch, with tensors for these inputs.

    Attributes:
        rl_module: The module.
        module_id: Its id.
        specs: The inputs that were asked for, in order.
        memories: What pieces remember, in order.
        remembers_actions: Whether what pieces remember depends on the actions.
        noise_parts: The kinds and sizes of the random numbers in the input ``noise``; None if they are unknown.
    """

    def __init__(
        self, rl_module: RLModule, module_id: ModuleID, *, given: Sequence[Tensor] | None = None, num_rows: int = 2
    ):
        """Begins a step.

        Args:
            rl_module: The module.
            module_id: Its id.
            given: The inputs, in the order in which the pieces ask for them; None to make examples.
            num_rows: The number of rows of the examples.
        """
        self.rl_module = rl_module
        self.module_id = module_id
        self.specs: list[TensorSpec] = []
        self.examples: list[Tensor] = []
        self.memories: list[Memory] = []
        self.noise_parts: list[tuple[str, int]] | None = None
        self.remembers_actions = False
        self._given = None if given is None else list(given)
        self._num_rows = num_rows

    def input(self, name: str, shape: tuple[int, ...], dtype: Any, *, role: str, path: tuple[Any, ...] = ()) -> Tensor:
        """Returns ``[B, *shape]``, an input of the program.

        Args:
            name: Its name. A number is appended if there is one of this name already.
            shape: The shape of one row.
            dtype: A dtype of numpy.
            role: What it stands for.
            path: The keys that lead to it, if it is a part of a tree.
        """
        name = _unused(name, {spec.name for spec in self.specs})
        spec = TensorSpec(name, role, tuple(shape), np.dtype(dtype).name, path)
        self.specs.append(spec)
        if self._given is not None:
            return self._given[len(self.specs) - 1]
        self.examples.append(torch.from_numpy(np.zeros((self._num_rows, *spec.shape), spec.dtype)))
        return self.examples[-1]

    def memory(self, name: str, initial: Tree) -> Memory:
        """Returns what the caller remembers under a name. It becomes an input and an output of the program.

        Args:
            name: The name.
            initial: The value before an agent's first step, an array or a tree of arrays without a batch axis.
        """
        name = _unused(name, {memory.name for memory in self.memories})

        def given(path: tuple[Any, ...], leaf: Any) -> Tensor:
            array = np.asarray(leaf)
            own = ".".join([f"{name}_in", *map(str, path)])
            return self.input(own, array.shape, array.dtype, role="memory", path=path)

        memory = Memory(name, initial, map_paths(given, initial))
        self.memories.append(memory)
        return memory

    # What GetActions asks of an env runner's ActionNoise.

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> Tensor:
        """Returns ``[B, n]`` float32, the random numbers for sampling actions, an input of the program.

        Raises:
            ModuleError: If the distribution draws from torch's generator.
        """
        number = columns[Columns.ACTION_DIST_INPUTS].shape[-1]
        example = dist_cls.noise(np.random.default_rng(0), (0,), number)
        if example is None:
            self._refuse(dist_cls.__name__)
        self.noise_parts = dist_cls.known_noise_parts(number)
        return self.input("noise", (example.shape[-1],), np.float32, role="noise")

    def torch_stream(self) -> NoReturn:
        """Raises the error for a distribution that draws from torch's generator."""
        self._refuse("a class of your own")

    def _refuse(self, distribution: str) -> NoReturn:
        raise ModuleError(
            f"GetActions: {distribution}, the distribution of module {self.module_id!r}, draws from torch's "
            f"generator, which an exported program does not have. Override its noise(), and sample from the noise "
            f"that sample() gets; or export with explore=False."
        )


class _RecordedAgents:
    """The agents of recorded rows, as ``Agents`` in a run."""

    def __init__(self, program: Recording, ids: Sequence[AgentID | None]):
        self._program = program
        self.ids = tuple(ids)

    @cached_property
    def index(self) -> Tensor:
        """``[B]`` the index in ``ids`` of each row's agent, an input of the program."""
        return self._program.input("agent", (), np.int64, role="agent")


class RecordedRows(Rows):
    """The rows of a recorded step, whose trajectories are inputs, outputs and memories of the program."""

    def __init__(self, program: Recording, agent_ids: Sequence[AgentID | None], spaces: tuple[Space, Space]):
        """Asks for the observations.

        Args:
            program: The program.
            agent_ids: The agents whose rows there may be; ``(None,)`` in single-agent use.
            spaces: Their observation and action space in the environment.
        """

        def given(path: tuple[Any, ...], leaf: np.ndarray) -> Tensor:
            name = ".".join(["obs", *map(str, path)])
            return program.input(name, leaf.shape, leaf.dtype, role="observation", path=path)

        self._program = program
        self._spaces = spaces
        self._observations = map_paths(given, space_tools.zeros(spaces[0]))
        self._after_pieces: list[Callable[[], None]] = []
        self._after_forward: list[Callable[[dict[str, Any]], None]] = []
        self._after_actions: list[Callable[[Tree], None]] = []
        self._recorded_agents = _RecordedAgents(program, agent_ids)
        super().__init__((), module_ids=(program.module_id,), splits=(0, 0), episodes=[], counts=[])
        self.splits = (0, leaves(self._observations)[0].shape[0])  # a variable of the program

    @property
    def observation_space(self) -> Space:
        return self._spaces[0]

    @property
    def action_space(self) -> Space:
        return self._spaces[1]

    @property
    def agents(self) -> Any:
        return self._recorded_agents

    def of_agents(self, values: Any) -> Tensor:
        table = torch.from_numpy(np.ascontiguousarray(values))
        if all(np.array_equal(own, values[0], equal_nan=values.dtype.kind == "f") for own in values[1:]):
            return table[:1]
        return table[self.agents.index]

    # Reading and writing.

    def has(self, column: str) -> bool:
        if column == Columns.STATE_OUT:
            return self._program.rl_module.is_stateful()
        return column in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        if column == Columns.OBS and offset == 0:
            return self._observations
        if offset >= 0 or fill:
            raise self._unknown(f"{column!r} at offset {offset}" + (f" with fill={fill}" if fill else ""))
        return tree_map(lambda leaf: leaf[:, 0], self.recent(column, -offset, newest=-1, who="c.rows.get"))

    def set(self, column: str, values: Tree) -> None:
        if column != Columns.OBS:
            raise self._unknown(f"{column!r} to write to")
        self._observations = values

    def reach(self, column: str, offset: int) -> tuple[Tree, np.ndarray]:
        if (column, offset) != (Columns.STATE_OUT, -1):
            raise self._unknown(f"{column!r} at offset {offset}")
        memory = self._program.memory("state", initial_state(self._program.rl_module))
        self._after_forward.append(lambda outputs: setattr(memory, "next", outputs[Columns.STATE_OUT]))
        return memory.value, np.ones(1, bool)

    def recent(
        self, column: str, n: int, *, newest: int, who: str, each: Callable[[Tree], Any] = lambda item: item
    ) -> Tree:
        if column == Columns.OBS and newest == 0:
            return self._with_newest("frames", n, each(self._observations))
        if column == Columns.REWARDS and newest == -1:
            return self._with_newest("prev_rewards", n, self._program.input("reward", (), np.float32, role="reward"))
        if column == Columns.OBS and newest == -1:
            memory = self._memory("prev_obs", n, each(self._observations))
            self._after_pieces.append(lambda: _shift(memory, each(self._observations)))
            return memory.value
        if column == Columns.ACTIONS and newest == -1:
            example = tree_map(lambda leaf: torch.from_numpy(leaf), space_tools.zeros(self._spaces[1], 1))
            memory = self._memory("prev_actions", n, each(example))
            self._after_actions.append(lambda actions: _shift(memory, each(actions)))
            self._program.remembers_actions = True
            return memory.value
        raise self._unknown(f"{column!r} of the last steps")

    def _memory(self, name: str, n: int, like: Tree) -> Memory:
        """Returns a memory of ``n`` items like those of a batch, zeros in the beginning."""
        zeros = tree_map(lambda leaf: np.zeros((n, *leaf.shape[1:]), str(leaf.dtype).removeprefix("torch.")), like)
        return self._program.memory(name, zeros)

    def _with_newest(self, name: str, n: int, newest: Tree) -> Tree:
        """Returns ``[B, n, ...]``: the remembered items, and the newest one, which is known already."""
        if n == 1:
            return tree_map(lambda leaf: leaf[:, None], newest)
        memory = self._memory(name, n - 1, newest)
        values = tree_map(lambda old, new: torch.cat([old, new[:, None]], 1), memory.value, newest)
        memory.next = tree_map(lambda leaf: leaf[:, 1:], values)
        return values

    def own_steps(self) -> Any:
        memory = self._program.memory("steps", np.zeros((), np.int64))
        memory.next = memory.value + 1
        return memory.value

    # What a program does not have.

    def __len__(self) -> int:
        raise self._unknown("a fixed number of rows. Use c[name].shape[0]")

    @property
    def episodes(self) -> Any:
        raise self._unknown("episodes")

    @property
    def chunks(self) -> Any:
        raise self._unknown("episodes")

    def _unknown(self, what: str) -> ConnectorError:
        return ConnectorError(
            f"export_onnx: an exported program does not have {what}. A piece in it may read 'obs', 'actions' and "
            f"'rewards' of the last steps (fill=0), and remember other things with c.program.memory."
        )

    # The steps of a program.

    def after_pieces(self) -> None:
        """Remembers the observations as the env-to-module pieces have left them."""
        for function in self._after_pieces:
            function()

    def after_forward(self, outputs: dict[str, Any]) -> None:
        """Remembers outputs of the module."""
        for function in self._after_forward:
            function(outputs)

    def after_actions(self, actions: Tree) -> None:
        """Remembers the actions, ``[B, ...]`` as the module's actions are recorded."""
        for function in self._after_actions:
            function(actions)


def _shift(memory: Memory, newest: Tree) -> None:
    """Replaces the oldest of the remembered items by the newest one."""
    memory.next = tree_map(lambda old, new: torch.cat([old[:, 1:], new[:, None]], 1), memory.value, newest)


def _unused(name: str, taken: set[str]) -> str:
    """Returns a name that is not taken, with a number if need be."""
    count, found = 1, name
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def map_paths(fn: Callable[[tuple[Any, ...], Any], Any], tree: Tree, path: tuple[Any, ...] = ()) -> Tree:
    """Returns a tree with ``fn(path, leaf)`` in the place of each leaf, where ``path`` holds the keys to the leaf."""
    if isinstance(tree, dict):
        return {key: map_paths(fn, part, (*path, key)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple([map_paths(fn, part, (*path, i)) for i, part in enumerate(tree)])
    return fn(path, tree)


def paths_in(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields each leaf of a tree with the keys that lead to it."""
    if isinstance(tree, (dict, tuple)):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from paths_in(part, (*path, key))
    else:
        yield path, tree
