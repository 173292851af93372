"""Memory that a worker process shares with the process that started it, for what need not be in messages."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace

from marl_connectors import spaces as space_tools
from marl_connectors.trees import leaves, tree_map, unstack
from marl_connectors.typing import AgentID, Tree

AgentSpaces: TypeAlias = Mapping[AgentID, tuple[Space, Space]]
"""The observation and the action space of each agent that is known before a run."""

Memory: TypeAlias = list[Any]
"""``RawArray`` objects. They have no names: the system frees them when the last process that has them is gone, even if
it is killed. They can be passed to a new process as an argument, but not to a process that already runs."""


class SharedColumns:
    """Columns of observations, with rows for all agents. Both processes derive the layout from the spaces.

    Agents whose observation spaces have the same form share columns. The observations of the agents that act next are
    in the first rows, in the order of these agents. A list that does not fit (an agent was not known, or an observation
    does not match its space) is sent with the step's message instead.

    Attributes:
        memory: The memory itself, which both processes must have.
        current_call: ``[4]`` int64, the worker's ``VectorEnv.current_call``.
    """

    def __init__(self, spaces: AgentSpaces, num_envs: int, memory: Memory | None = None):
        """Lays out the columns.

        Args:
            spaces: The spaces of all agents that are known.
            num_envs: The number of the worker's sub-environments.
            memory: The ``memory`` of the other process's SharedColumns; None to make some.
        """
        alike: dict[Any, list[AgentID]] = {}
        for agent, (space, _) in spaces.items():
            if (form := _form(space)) is not None:
                alike.setdefault(form, []).append(agent)
        self._group_of = {agent: group for group, agents in enumerate(alike.values()) for agent in agents}
        self._spaces = [spaces[agents[0]][0] for agents in alike.values()]
        self._acting: list[AgentID] = []
        self._parts: list[tuple[int, list[int]]] | None = []  # groups, and the places of their agents in _acting
        rooms = [num_envs * len(agents) for agents in alike.values()]
        templates = [np.zeros(4, np.int64), *map(space_tools.zeros, self._spaces, rooms)]
        self.memory = [RawArray("b", leaf.nbytes or 1) for leaf in leaves(templates)] if memory is None else memory
        memories = iter(self.memory)
        self.current_call, *self._columns = tree_map(lambda leaf: _in(next(memories), leaf), templates)

    def write(self, agents: list[AgentID], observations: list[Any]) -> bool:
        """Writes the observations of the agents that act next, with the dtypes that the runner's columns have.

        Returns:
            Whether they fit.
        """
        parts = self._parts_of(agents)
        if parts is None or len(observations) != len(agents):
            return False
        try:
            for group, places in parts:
                own = observations if len(parts) == 1 else [observations[place] for place in places]
                values = space_tools.stack(own, self._spaces[group])
                for column, leaf in zip(leaves(self._columns[group]), leaves(values), strict=True):
                    column[: len(leaf)] = leaf
        except (TypeError, ValueError, OverflowError):
            return False
        return True

    def read(self, agents: list[AgentID]) -> Any:
        """Returns the observations of the agents that act next, which are valid until the next step.

        They are a list, or one array if all agents share one column that is an array.
        """
        parts = self._parts_of(agents)
        assert parts is not None
        columns = [_first(self._columns[group], len(places)) for group, places in parts]
        if len(self._spaces) == len(columns) == 1 and type(columns[0]) is np.ndarray:
            return columns[0]
        items: list[Any] = [None] * len(agents)
        for (_, places), column in zip(parts, columns, strict=True):
            for place, item in zip(places, unstack(column), strict=True):
                items[place] = item
        return items

    def _parts_of(self, agents: list[AgentID]) -> list[tuple[int, list[int]]] | None:
        """Returns the agents' groups and the places of each group's agents; None if an agent has no group."""
        if agents != self._acting:
            places: dict[int | None, list[int]] = {}
            for place, agent in enumerate(agents):
                places.setdefault(self._group_of.get(agent), []).append(place)
            self._acting = agents
            self._parts = None if None in places else list(places.items())  # type: ignore[arg-type]
        return self._parts


def _in(memory: Any, leaf: np.ndarray) -> np.ndarray:
    return np.frombuffer(memory, leaf.dtype)[: leaf.size].reshape(leaf.shape) if leaf.size else leaf


def _first(column: Tree, number: int) -> Tree:
    return tree_map(lambda leaf: leaf[:number], column)


def _form(space: Space) -> Any:
    """Returns a key that is equal for spaces that can share columns; None for spaces without numbers or fixed size."""
    if isinstance(space, (DictSpace, TupleSpace)):
        forms = [(key, _form(part)) for key, part in space_tools.parts_of(space)]
        return (type(space), *forms) if forms and all(form is not None for _, form in forms) else None
    return None if space.shape is None or space.dtype is None else (space.shape, space.dtype.str)
