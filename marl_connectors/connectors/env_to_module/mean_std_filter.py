"""Standardises observations with running statistics."""

from __future__ import annotations

from functools import partial
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.connectors.running_stats import FRAGMENT, Fragment, Sources, StatsTable, StreamState
from marl_connectors.connectors.space_trees import fits, leaf_spaces, map_space, map_values
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.episode_rows import EpisodeRows
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe
from marl_connectors.state import ID, read_state
from marl_connectors.typing import AgentID, Tree
from marl_connectors.validators import number, optional

_Statistics: TypeAlias = dict[ID | None, StreamState]
"""The state of a MeanStdFilter."""


class _Streams:
    """The streams of statistics that some rows belong to.

    Attributes:
        table: The table of the streams.
        of_agents: The index in the table of the stream of each of the rows' agents.
        sources: The sources of the rows' observations. None until they are needed, which is in env runners only.
    """

    __slots__ = ("_applied", "_version", "of_agents", "sources", "table")

    def __init__(self, table: StatsTable, of_agents: np.ndarray):
        self.table = table
        self.of_agents = of_agents
        self.sources: Sources | None = None
        self._version = -1
        self._applied: tuple[Any, Any] = (of_agents, of_agents)

    def mean_and_std(self, rows: Rows) -> tuple[Any, Any]:
        """Returns the statistics to apply to each row, ``[B, F]`` each, or ``[1, F]`` if they are the same for all."""
        table = self.table
        if self._version != table.version:
            mean, std = (own if len(own) == 1 else own[self.of_agents] for own in table.applied())
            self._applied = rows.of_agents(mean), rows.of_agents(std)
            self._version = table.version
        return self._applied


class MeanStdFilter(ObservationTransform):
    """Subtracts the running mean from each number of an observation and divides by the running standard deviation.

    The filter works on all Box parts, also in Dict and Tuple spaces; other parts stay as they are. Floats keep their
    dtype, integers become float32.

    In an env runner, the statistics are frozen within a sample: its observations are standardised with the statistics
    of its beginning, and are merged into these at its end. So what an agent observes does not depend on the
    sub-environments beside it, and statistics that several runners merge are those of one runner, bit for bit. Nothing
    is known in the first sample of a run, so its observations are only clipped. If the pipeline is called by hand, all
    observations of a call update the statistics before they are standardised.

    Each observation that is acted on counts exactly once, if the sample returns it; the last one of an ended episode is
    standardised, but does not count.

    As in RLlib, each agent has its own statistics. With ``share_between_agents=True``, all agents with like spaces
    share them, which usually suits agents that share a module. Agents that are in no space always share them, so that
    the state does not grow with each new agent.

    Reads ``obs``; writes it back to the episodes, so that the learner gets the same observations as the policy. State:
    count, mean and sum of squared distances (float64) for each key, and the same of the observations that have not been
    merged yet, for each key and sub-environment. ``merge_states`` computes from the states of several runners the state
    of one filter that has seen all of their observations (Chan et al.), in the order of the sub-environments.

    Args:
        de_mean_to_zero: Whether to subtract the mean.
        de_std_to_one: Whether to divide by the standard deviation.
        clip_by_value: The bound x of standardised numbers, which are clipped to [-x, x]; None for no bound.
        update_stats: Whether observations update the statistics; False for evaluation. The attribute may be changed
            at any time.
        share_between_agents: Whether agents with like spaces share one set of statistics.
    """

    belongs_in = (ENV_TO_MODULE,)
    de_mean_to_zero: bool = argument(default=True)
    de_std_to_one: bool = argument(default=True)
    clip_by_value: float | None = argument(optional(number(above=0, max=inf)), default=10.0)
    update_stats: bool = argument(default=True)
    share_between_agents: bool = argument(default=False)

    def begin(self) -> None:
        super().begin()
        self._tables: dict[int, StatsTable] = {}
        self._streams_of = RowMemory()
        self._numbers_of: tuple[Tree, np.ndarray] | None = None

    # Spaces.

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the bounded space; ``how`` is the number of features and the key of agents that share statistics."""
        boxes = [part for part in leaf_spaces(space) if isinstance(part, spaces.Box)]
        features = sum(prod(box.shape) for box in boxes)
        if not features:
            raise ConfigError(
                f"MeanStdFilter: there is no Box to standardise in {describe(space)}. Put FlattenObservations before "
                f"it, or leave it out."
            )
        actions = "" if action_space is None else f" and actions of {describe(action_space)}"
        return Plan(
            space, map_space(self._filtered_space, space), (features, f"agents with {describe(space)}{actions}")
        )

    def _filtered_space(self, space: Space) -> Space:
        if not isinstance(space, spaces.Box):
            return space
        bound = np.inf if self.clip_by_value is None else self.clip_by_value
        return spaces.Box(-bound, bound, space.shape, _dtype(space).type)

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """Gives the agent the other one's statistics to begin with."""
        super().know_agent(agent_id, like)
        table = self._tables.get(self._plans[like].how[0]) if like in self._plans else None
        if table is not None and like in table.keys:
            table.copy_stream(like, agent_id)
            self.forget()

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Standardises all rows of a group. New observations update the statistics, or are collected for that."""
        observations = self.given(c)
        if c.program is None:
            self._see(observations, c)
        self.give_back(c, observations, self.changed(observations, c, xp))
        self._numbers_of = None

    def _see(self, observations: Tree, c: ColumnGroup) -> None:
        """Counts observations that are acted on."""
        rows = c.rows
        if self.in_learner_pipeline or len(rows) != len(rows.counts):
            raise _misplaced()
        is_by_hand = isinstance(rows, EpisodeRows)  # then the episodes may have ended
        if self.update_stats and rows.acted is None and not (is_by_hand and rows.episodes[0].is_done):
            self._count(observations, rows, c.shared_data.get(FRAGMENT))

    def _streams(self, plan: Plan, rows: Rows) -> _Streams:
        """Returns the streams of some rows. They are cached if they may come again, as an env runner's rows do."""
        found = self._streams_of.get(rows)
        if found is None:
            (features, shared_key), ids = plan.how, rows.agents.ids
            table = self._tables.setdefault(features, StatsTable(features))
            found = _Streams(table, self.remembered(ids, partial(self._indices, table, shared_key)))
            if rows.acted is None:
                self._streams_of[rows] = found
        return found

    def _indices(self, table: StatsTable, shared_key: str, ids: tuple[AgentID | None, ...]) -> np.ndarray:
        """Returns the index in a table of each agent's stream."""
        return np.array([table.stream_of(self._key_of(agent_id, shared_key)) for agent_id in ids], np.int64)

    def _key_of(self, agent_id: AgentID | None, shared_key: str) -> Any:
        if None in self._plans:
            return None
        return shared_key if self.share_between_agents or agent_id not in self._plans else agent_id

    def _count(self, observations: Tree, rows: Rows, fragment: Fragment | None) -> None:
        plan = self._plan_for(rows)
        if not fits(plan.before, observations):
            return  # transforming them raises the error
        streams, numbers = self._streams(plan, rows), _numbers(plan.before, observations, ARRAYS)
        index = streams.of_agents[rows.agents.index]
        if not np.isfinite(numbers).all():
            bad = index[int(np.flatnonzero(~np.isfinite(numbers).all(axis=1))[0])]
            raise ConnectorError(
                f"MeanStdFilter: an observation of {list(streams.table.keys)[bad]!r} is not finite, which would make "
                f"its statistics useless. Fix the environment."
            )
        if fragment is None:
            streams.table.add_by_hand(numbers, index)
        else:
            if streams.sources is None:
                streams.sources = Sources.of(index, rows)
            streams.table.collect(numbers, streams.sources, fragment)
        self._numbers_of = observations, numbers

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Standardises the observations with the statistics that apply."""
        mean, std = self._streams(plan, rows).mean_and_std(rows)
        known = self._numbers_of
        is_known = known is not None and known[0] is observations
        values = known[1] if known is not None and is_known else _numbers(plan.before, observations, xp)
        if self.de_mean_to_zero:
            values = values - mean
        if self.de_std_to_one:
            values = values / std
        if self.clip_by_value is not None:
            values = xp.minimum(xp.maximum(values, -self.clip_by_value), self.clip_by_value)
        begin = 0

        def filtered(space: Space, leaf: Any) -> Any:
            nonlocal begin
            if not isinstance(space, spaces.Box):
                return leaf
            end = begin + prod(space.shape)
            part, begin = values[:, begin:end], end
            return xp.astype(part.reshape(leaf.shape), _dtype(space))

        return map_values(filtered, plan.before, observations)

    # State.

    def get_state(self) -> dict[Any, StreamState]:
        """Returns the statistics by agent id, or by what agents that share statistics have in common."""
        found = {key: state for table in self._tables.values() for key, state in table.get_state().items()}
        return {key: found[key] for key in sorted(found, key=repr)}

    def set_state(self, state: Any) -> None:
        """Sets a state that ``get_state`` or ``merge_states`` has returned.

        Raises:
            ConfigError: If an agent's observations have another size than the statistics in the state.
        """
        known = read_state(_Statistics, state)
        for key, own in known.items():
            size, plan = len(own.mean), self._plans.get(key)
            if plan is not None and plan.how[0] != size:
                raise ConfigError(
                    f"MeanStdFilter: the state has {size} numbers for {key!r}, whose observations have {plan.how[0]}. "
                    f"Build the pipeline with the same environment and pieces."
                )
        self.reset_state()
        self._tables = _tables({key: [own] for key, own in known.items()})

    def reset_state(self) -> None:
        """Clears all statistics."""
        self._tables = {}
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._streams_of.clear()

    def merge_own_state(self) -> None:
        """Merges the new observations into the statistics that apply."""
        if type(self).merge_states is not MeanStdFilter.merge_states:
            super().merge_own_state()
            return
        for table in self._tables.values():
            table.merge()

    def merge_states(self, states: list[Any]) -> dict[Any, StreamState]:
        """Merges states to that of one filter that has seen all observations, each of them once.

        The states need not be in the order of their runners. A state may be given twice.

        Raises:
            ConnectorError: If states have different new observations of one sub-environment.
        """
        known = [read_state(_Statistics, state) for state in states]
        keys = sorted({key for state in known for key in state}, key=repr)
        merged = MeanStdFilter()
        merged._tables = _tables({key: [state[key] for state in known if key in state] for key in keys})
        merged.merge_own_state()
        return merged.get_state()


def _tables(states: dict[Any, list[StreamState]]) -> dict[int, StatsTable]:
    """Returns the tables, by size, that have these states by key."""
    tables: dict[int, StatsTable] = {}
    for key, own in states.items():
        size = len(own[0].mean)
        tables.setdefault(size, StatsTable(size)).restore(key, own)
    return tables


def _misplaced() -> ConnectorError:
    return ConnectorError(
        "MeanStdFilter: this piece belongs in an env-to-module pipeline, not in a learner pipeline: it writes to the "
        "episodes, where the learner reads the standardised observations. Pass it as env_to_module_connector."
    )


def _dtype(space: Space) -> np.dtype:
    assert space.dtype is not None
    return space.dtype if space.dtype.kind == "f" else np.dtype(np.float32)


def _numbers(space: Space, observations: Tree, xp: Any) -> Any:
    """Returns a new array ``[B, F]`` float64 with all Box parts, concatenated."""
    found: list[Any] = []

    def take(part: Space, leaf: Any) -> Any:
        if isinstance(part, spaces.Box):
            found.append(xp.astype(leaf.reshape(leaf.shape[0], prod(part.shape)), xp.float64))
        return leaf

    map_values(take, space, observations)
    return found[0] if len(found) == 1 else xp.concat(found, axis=1)
