"""TensorStep: one step of a module's agents in tensors, from which a program for other machines is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from marl_connectors.rl_module.rl_module import RLModule
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


class TensorStep:
    """One step of agents that have one module and one kind of spaces: what ``on_tensors`` needs besides the columns.

    An exporter runs the pieces twice. The first run finds the inputs that the pieces ask for. The second one is
    recorded by torch, with tensors for these inputs.

    Attributes:
        rl_module: The module.
        module_id: Its id.
        agent_ids: The agents whose rows there may be; ``(None,)`` in single-agent use.
        observation_space: The agents' observation space in the environment.
        action_space: The agents' action space in the environment.
        explore: Whether actions are sampled.
        specs: The inputs that were asked for, in order.
        memories: What pieces remember, in order.
        remembers_actions: Whether what pieces remember depends on the actions.
        noise_parts: The kinds and sizes of the random numbers in the input ``noise``; None if they are unknown.
    """

    def __init__(
        self,
        rl_module: RLModule,
        module_id: ModuleID,
        agent_ids: Sequence[AgentID | None],
        spaces: tuple[Space, Space],
        *,
        explore: bool,
        given: Sequence[Tensor] | None = None,
        num_rows: int = 2,
    ):
        """Begins a step.

        Args:
            rl_module: The module.
            module_id: Its id.
            agent_ids: The agents whose rows there may be.
            spaces: Their observation and action space in the environment.
            explore: Whether actions are sampled.
            given: The inputs, in the order in which the pieces ask for them; None to make examples.
            num_rows: The number of rows of the examples.
        """
        self.rl_module = rl_module
        self.module_id = module_id
        self.agent_ids = tuple(agent_ids)
        self.observation_space, self.action_space = spaces
        self.explore = explore
        self.specs: list[TensorSpec] = []
        self.examples: list[Tensor] = []
        self.memories: list[Memory] = []
        self.noise_parts: list[tuple[str, int]] | None = None
        self.remembers_actions = False
        self._given = None if given is None else list(given)
        self._num_rows = num_rows
        self._agent: Tensor | None = None
        self._after_forward: list[Callable[[dict[str, Any]], None]] = []
        self._after_actions: list[Callable[[Tree], None]] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: Any, *, role: str, path: tuple[Any, ...] = ()) -> Tensor:
        """Returns ``[B, *shape]``, an input of the program.

        Args:
            name: Its name. A number is appended if there is one of this name already.
            shape: The shape of one row.
            dtype: A dtype of numpy.
            role: What it stands for.
            path: The keys that lead to it, if it is a part of a tree.
        """
        spec = TensorSpec(self._unused(name), role, tuple(shape), np.dtype(dtype).name, path)
        self.specs.append(spec)
        if self._given is not None:
            return self._given[len(self.specs) - 1]
        self.examples.append(torch.from_numpy(np.zeros((self._num_rows, *spec.shape), spec.dtype)))
        return self.examples[-1]

    def _unused(self, name: str) -> str:
        taken, count, found = {spec.name for spec in self.specs}, 1, name
        while found in taken:
            count += 1
            found = f"{name}_{count}"
        return found

    def of_agents(self, values: np.ndarray) -> Tensor:
        """Returns what belongs to the agent of each row, ``[B, ...]``, or ``[1, ...]`` if it is the same for all.

        Args:
            values: ``[number of agents, ...]``, in the order of ``agent_ids``.
        """
        table = torch.from_numpy(np.ascontiguousarray(values))
        if all(np.array_equal(own, values[0], equal_nan=values.dtype.kind == "f") for own in values[1:]):
            return table[:1]
        if self._agent is None:
            self._agent = self.input("agent", (), np.int64, role="agent")
        return table[self._agent]

    def memory(self, name: str, initial: Tree) -> Memory:
        """Returns what the caller remembers under a name. It becomes an input and an output of the program.

        Args:
            name: The name.
            initial: The value before an agent's first step, an array or a tree of arrays without a batch axis.
        """
        name = self._unused_memory(name)

        def given(path: tuple[Any, ...], leaf: Any) -> Tensor:
            array = np.asarray(leaf)
            own = ".".join([f"{name}_in", *map(str, path)])
            return self.input(own, array.shape, array.dtype, role="memory", path=path)

        memory = Memory(name, initial, map_paths(given, initial))
        self.memories.append(memory)
        return memory

    def _unused_memory(self, name: str) -> str:
        taken, count, found = {memory.name for memory in self.memories}, 1, name
        while found in taken:
            count += 1
            found = f"{name}_{count}"
        return found

    def reward(self) -> Tensor:
        """Returns ``[B]`` float32, the sum of each agent's rewards since its last action; 0 in its first step."""
        return self.input("reward", (), np.float32, role="reward")

    def noise(self, size: int, parts: list[tuple[str, int]] | None) -> Tensor:
        """Returns ``[B, size]`` float32, the random numbers for sampling actions.

        Args:
            size: The number of random numbers of each row.
            parts: Their kinds and numbers (see ``Distribution.noise_parts``); None if they are unknown.
        """
        self.noise_parts = parts
        return self.input("noise", (size,), np.float32, role="noise")

    def after_forward(self, function: Callable[[dict[str, Any]], None]) -> None:
        """Calls a function with the columns that the module returned.

        Args:
            function: A function that sets the ``next`` of a memory that depends on the module's outputs.
        """
        self._after_forward.append(function)

    def forward(self, columns: dict[str, Any], call: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Returns the outputs of the module's forward pass ``call(columns)``."""
        outputs = dict(call(columns))
        for function in self._after_forward:
            function(outputs)
        return outputs

    def after_actions(self, function: Callable[[Tree], None]) -> None:
        """Calls a function with the actions when they are known, ``[B, ...]`` as the module's actions are recorded.

        Args:
            function: A function that sets the ``next`` of a memory that depends on the actions.
        """
        self._after_actions.append(function)

    def finish(self, actions: Tree) -> None:
        """Calls the functions of ``after_actions``."""
        self.remembers_actions = bool(self._after_actions)
        for function in self._after_actions:
            function(actions)


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
