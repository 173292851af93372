"""Memory that a worker process shares with the process that started it: columns for actions and for step results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.sharedctypes import RawArray
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace

from marl_connectors import spaces as space_tools
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.trees import leaves, tree_map, unstack
from marl_connectors.typing import AgentID, Tree

AgentSpaces: TypeAlias = Mapping[AgentID, tuple[Space, Space]]
"""The observation and the action space of each agent that is known before a run."""

Block: TypeAlias = Any
"""A ctypes array in shared memory, as ``RawArray`` makes it."""

_ALIGN = 64
_WIDEST = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
"""The dtype that stores Python's numbers without loss, by the kind of a space's dtype."""


def _arrays(templates: list[Tree], block: Block | None) -> tuple[list[Any], Block]:
    """Returns arrays with the shapes and dtypes of templates that lie in a block, and the block.

    Every process that passes the same templates gets arrays at the same offsets. Without a block, one is made. It has
    no name: the system frees it when the last process that has it is gone, even if it is killed. It can be passed to a
    new process as an argument, but not to a process that already runs.
    """
    sizes = [-(-leaf.nbytes // _ALIGN) * _ALIGN for leaf in leaves(templates)]
    memory: Block = RawArray("b", max(sum(sizes), 1)) if block is None else block
    offsets = iter(np.cumsum([0, *sizes]).tolist())

    def placed(leaf: np.ndarray) -> np.ndarray:
        offset = next(offsets)
        return np.frombuffer(memory, leaf.dtype, leaf.size, offset).reshape(leaf.shape) if leaf.size else leaf

    return [None if template is None else tree_map(placed, template) for template in templates], memory


class StepMemory:
    """The columns of a worker's steps, with rows for all agents. Both processes derive the layout from the spaces.

    Agents whose spaces have the same form share columns. The data of the agents that act is in the first rows, in the
    order of these agents. A list that does not fit (an agent was not known, or an observation does not match its
    space) is sent with the step's message instead.

    Attributes:
        block: The memory itself, which both processes must have.
        current_call: ``[4]`` int64, the worker's ``VectorEnv.current_call``.
        env_states: The states of the environments, ``[num_envs, ...]``; None if states are not used.
    """

    def __init__(
        self, spaces: AgentSpaces, num_envs: int, state_space: Space | None = None, block: Block | None = None
    ):
        """Lays out a block.

        Args:
            spaces: The spaces of all agents that are known.
            num_envs: The number of the worker's sub-environments.
            state_space: The space of the environments' ``state()`` if states are used; else None.
            block: The ``block`` of the other process's StepMemory; None to make one.
        """
        alike: dict[Any, list[AgentID]] = {}
        for agent, pair in spaces.items():
            if None not in (form := tuple(map(_form, pair))):
                alike.setdefault(form, []).append(agent)
        self._group_of = {agent: group for group, agents in enumerate(alike.values()) for agent in agents}
        pairs = [spaces[agents[0]] for agents in alike.values()]
        rooms = [num_envs * len(agents) for agents in alike.values()]
        self._spaces = [observation_space for observation_space, _ in pairs]
        self._acting: list[AgentID] = []
        self._parts: list[tuple[int, list[int]]] | None = []  # groups, and the places of their agents in _acting
        templates: list[Any] = [np.zeros(4, np.int64), np.zeros(sum(rooms))]
        templates.append(None if state_space is None else space_tools.zeros(state_space, num_envs))
        for kind, widened in enumerate((lambda tree: tree, _widened)):
            templates += [widened(space_tools.zeros(pair[kind], n)) for pair, n in zip(pairs, rooms, strict=True)]
        (self.current_call, self._rewards, self.env_states, *columns), self.block = _arrays(templates, block)
        self._observations, self._actions = columns[: len(pairs)], columns[len(pairs) :]

    def write_actions(self, agents: list[AgentID], actions: list[Any]) -> list[Any] | None:
        """Writes the actions of the agents that act. Returns None, or the actions if they must be sent instead."""
        return None if self._put(agents, actions, self._put_actions) else actions

    def read_actions(self, agents: list[AgentID], sent: list[Any] | None) -> list[Any]:
        """Returns the actions of the agents that act, with their original types. They are copies."""
        return self._gathered(agents, self._actions_of) if sent is None else sent

    def write_step(self, result: StepResult, agents: list[AgentID]) -> StepResult:
        """Writes the rewards and observations of a step.

        Args:
            result: The result of the step. It is changed.
            agents: The agents that act next.

        Returns:
            The rest of the result, to be sent: rewards and observations are None if they were written.
        """
        if self._put_rewards(result.rewards):
            result.rewards = None
        if self._put(agents, result.observations, self._put_observations):
            result.observations = None
        return result

    def read_step(self, result: StepResult, num_rewards: int, agents: list[AgentID]) -> StepResult:
        """Returns the result that was passed to ``write_step``. Its observations are valid until the next step.

        Args:
            result: What ``write_step`` returned. It is changed.
            num_rewards: The number of agents that got a reward.
            agents: The agents that act next.
        """
        if result.rewards is None:
            result.rewards = self._rewards[:num_rewards].tolist()
        if result.observations is None:
            result.observations = self._gathered(agents, self._observations_of)
        return result

    def write_states(self, states: list[Tree | None]) -> None:
        """Writes the newest states of all environments, ``[1, ...]`` each, or None if one was not reset yet."""
        if self.env_states is None:
            return
        for row, state in enumerate(states):
            if state is not None:
                for column, own in zip(leaves(self.env_states), leaves(state), strict=True):
                    column[row] = own[0]

    def _parts_of(self, agents: list[AgentID]) -> list[tuple[int, list[int]]] | None:
        """Returns the agents' groups and the places of each group's agents; None if an agent has no group."""
        if agents != self._acting:
            places: dict[int | None, list[int]] = {}
            for place, agent in enumerate(agents):
                places.setdefault(self._group_of.get(agent), []).append(place)
            self._acting = agents
            self._parts = None if None in places else list(places.items())  # type: ignore[arg-type]
        return self._parts

    def _put(self, agents: list[AgentID], items: list[Any], put: Callable[[int, list[Any]], bool]) -> bool:
        parts = self._parts_of(agents)
        if parts is None or len(items) != len(agents):
            return False
        try:
            if len(parts) == 1:
                return put(parts[0][0], items)
            return all(put(group, [items[place] for place in places]) for group, places in parts)
        except (TypeError, ValueError, OverflowError):
            return False

    def _gathered(self, agents: list[AgentID], taken: Callable[[int, int], Any]) -> Any:
        parts = self._parts_of(agents)
        assert parts is not None
        if len(parts) == 1:
            return taken(parts[0][0], len(agents))
        items: list[Any] = [None] * len(agents)
        for group, places in parts:
            for place, item in zip(places, taken(group, len(places)), strict=True):
                items[place] = item
        return items

    def _put_rewards(self, rewards: list[Any]) -> bool:
        """Writes rewards if they are finite numbers. Others are sent, so that the other process can report them."""
        try:
            values = np.array(rewards)
            if values.dtype.kind not in "fiub" or not np.isfinite(values).all():
                return False
            self._rewards[: len(rewards)] = values
        except (TypeError, ValueError, OverflowError):
            return False
        return True

    def _put_observations(self, group: int, observations: list[Any]) -> bool:
        """Writes observations with the dtypes that the runner's columns have."""
        values = space_tools.stack(observations, self._spaces[group])
        for column, own in zip(leaves(self._observations[group]), leaves(values), strict=True):
            column[: len(own)] = own
        return True

    def _put_actions(self, group: int, actions: list[Any]) -> bool:
        return _put_exactly(self._actions[group], actions)

    def _observations_of(self, group: int, number: int) -> Any:
        """Returns a list of observations, or one array if all agents share one column that is an array."""
        column = _first(self._observations[group], number)
        return column if len(self._spaces) == 1 and type(column) is np.ndarray else unstack(column)

    def _actions_of(self, group: int, number: int) -> list[Any]:
        column = tree_map(np.copy, _first(self._actions[group], number))
        return column.tolist() if _is_plain(column) else unstack(column)


def _form(space: Space) -> Any:
    """Returns a key that is equal for spaces that can share columns; None for spaces without numbers or fixed size."""
    if isinstance(space, (DictSpace, TupleSpace)):
        forms = [(key, _form(part)) for key, part in space_tools.parts_of(space)]
        return (type(space), *forms) if forms and all(form is not None for _, form in forms) else None
    return None if space.shape is None or space.dtype is None else (space.shape, space.dtype.str)


def _first(column: Tree, number: int) -> Tree:
    return tree_map(lambda leaf: leaf[:number], column)


def _is_plain(column: Tree) -> bool:
    """Whether actions are single numbers, which environments get as Python numbers."""
    return type(column) is np.ndarray and column.ndim == 1


def _widened(column: Tree) -> Tree:
    """Returns a column for actions that stores Python's numbers without loss."""
    return column.astype(_WIDEST[column.dtype.kind]) if _is_plain(column) else column


def _put_exactly(column: Tree, items: list[Any], *, is_part: bool = False) -> bool:
    """Writes actions if reading them returns equal values of the same types; else returns False."""
    if isinstance(column, (dict, tuple)):
        keys = list(column) if isinstance(column, dict) else list(range(len(column)))
        if any(type(item) is not type(column) or len(item) != len(keys) for item in items):
            return False
        if isinstance(column, dict) and any(list(item) != keys for item in items):
            return False
        return all(_put_exactly(column[key], [item[key] for item in items], is_part=True) for key in keys)
    wanted: type = np.ndarray
    if column.ndim == 1:
        wanted = column.dtype.type if is_part else type(column.dtype.type().item())
    if set(map(type, items)) != {wanted}:
        return False
    array = np.array(items)
    if array.dtype != column.dtype or array.shape[1:] != column.shape[1:]:
        return False
    if wanted is np.ndarray and set(map(_dtype_of, items)) != {column.dtype}:
        return False
    column[: len(items)] = array
    return True


_dtype_of = attrgetter("dtype")
