"""Standardises observations with running statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE
from marl_connectors.connectors.observation_transform import Agents, ObservationTransform, Plan, Steps
from marl_connectors.connectors.running_stats import Grouping, StatsTable, merge_streams, to_state
from marl_connectors.connectors.space_trees import fits, leaf_spaces, map_space, map_values
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.episode_rows import EpisodeRows
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe
from marl_connectors.typing import AgentID, Tree

_TINY = 1e-8


class _Streams(NamedTuple):
    """The streams of statistics that some agent-steps belong to.

    Attributes:
        table: The table of the streams.
        streams: ``[K]`` the indices of the streams in the table, ascending.
        index: ``[B]`` the index in ``streams`` of each step's stream.
        grouping: The steps by stream.
    """

    table: StatsTable
    streams: np.ndarray
    index: np.ndarray
    grouping: Grouping


class MeanStdFilter(ObservationTransform):
    """Subtracts the running mean from each number of an observation and divides by the running standard deviation.

    The filter works on all Box parts, also in Dict and Tuple spaces; other parts stay as they are. Floats keep their
    dtype, integers become float32. The statistics are updated with all observations of a call before these are
    standardised. Each observation that is acted on counts exactly once; the last one of an ended episode is
    standardised, but does not count.

    As in RLlib, each agent has its own statistics. With ``share_between_agents=True``, all agents with like spaces
    share them, which usually suits agents that share a module. Agents that are in no space always share them, so that
    the state does not grow with each new agent.

    Reads ``obs``; writes it back to the episodes, so that the learner gets the same observations as the policy. State:
    count, mean and sum of squared distances (float64) for each key. ``merge_states`` computes from the states of
    several runners the state of one filter that has seen all of their observations (Chan et al.).
    """

    belongs_in = (ENV_TO_MODULE,)

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool | None = None,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        share_between_agents: bool = False,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            multi_agent: Whether the spaces are Dicts by agent id; None infers it.
            de_mean_to_zero: Whether to subtract the mean.
            de_std_to_one: Whether to divide by the standard deviation.
            clip_by_value: The bound x of standardised numbers, which are clipped to [-x, x]; None for no bound.
            update_stats: Whether observations update the statistics; False for evaluation. The attribute may be changed
                at any time.
            share_between_agents: Whether agents with like spaces share one set of statistics.

        Raises:
            ConfigError: If ``clip_by_value`` is not a number > 0.
        """
        if clip_by_value is not None and not (isinstance(clip_by_value, (int, float)) and clip_by_value > 0):
            raise ConfigError(f"MeanStdFilter: clip_by_value must be a number > 0 or None, not {clip_by_value!r}.")
        self.de_mean_to_zero = de_mean_to_zero
        self.de_std_to_one = de_std_to_one
        self.clip_by_value = clip_by_value
        self.update_stats = update_stats
        self._share = share_between_agents
        self._tables: dict[int, StatsTable] = {}
        self._newest: dict[Any, tuple[Agents, _Streams]] = {}
        super().__init__(input_observation_space, input_action_space, multi_agent=multi_agent)

    # Spaces.

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the bounded space; ``how`` is the number of features and the key of agents that share statistics."""
        boxes = [part for part in leaf_spaces(space) if isinstance(part, spaces.Box)]
        features = sum(int(np.prod(box.shape)) for box in boxes)
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
        known = self.get_state().get(like)  # type: ignore[call-overload]
        if known is not None and like in self._plans:
            features = self._plans[like].how[0]
            self._tables[features].restore(agent_id, known["base"], known["own"])
            self.forget()

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Updates the statistics with all rows of a group, then standardises the rows."""
        rows = columns.rows
        if self.in_learner_pipeline or len(rows) != len(rows.counts):
            raise _misplaced()
        observations, steps = self.given(columns), Steps(rows, self._lookup)
        is_by_hand = isinstance(rows, EpisodeRows)  # then the episodes may have ended
        if self.update_stats and rows.acted is None and not (is_by_hand and rows.episodes[0].is_done):
            self._count(observations, steps)
        self.give_back(columns, observations, self.changed(observations, steps))

    def _streams(self, plan: Plan, steps: Steps) -> _Streams:
        """Returns the streams of some steps. A runner's rows often have the same agents, so the newest are cached."""
        agents = steps.agents
        known = self._newest.get(plan.how)
        if known is not None and known[0] is agents:
            return known[1]
        found = self._find_streams(plan, agents)
        self._newest[plan.how] = (agents, found)
        return found

    def _find_streams(self, plan: Plan, agents: Agents) -> _Streams:
        features, shared_key = plan.how
        if features not in self._tables:
            self._tables[features] = StatsTable(features)
        table = self._tables[features]

        def find(ids: tuple[AgentID | None, ...]) -> tuple[np.ndarray, np.ndarray]:
            own = None in self._plans
            keys = [
                None if own else shared_key if self._share or agent_id not in self._plans else agent_id
                for agent_id in ids
            ]
            return np.unique([table.stream_of(key) for key in keys], return_inverse=True)

        streams, place = self.remembered(agents.ids, find)
        index = place[agents.index]
        return _Streams(table, streams, index, Grouping(index))

    def _count(self, observations: Tree, steps: Steps) -> None:
        plan = self._plan_for(steps)
        if not fits(plan.before, observations):
            return  # transforming them raises the error
        table, streams, _, grouping = self._streams(plan, steps)
        with np.errstate(invalid="ignore", over="ignore"):
            moments = grouping.moments(_numbers(plan.before, observations))
        if not np.isfinite(moments.mean).all():
            bad = int(np.flatnonzero(~np.isfinite(moments.mean).all(axis=1))[0])
            keys = list(table.keys)
            raise ConnectorError(
                f"MeanStdFilter: an observation of {keys[streams[bad]]!r} is not finite, which would make its "
                f"statistics useless. Fix the environment."
            )
        table.add(streams, moments)

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """Standardises the observations with the statistics so far."""
        table, streams, index, _ = self._streams(plan, steps)
        total = table.total(streams)
        values = _numbers(plan.before, observations)

        def of_each(numbers: np.ndarray) -> np.ndarray:
            return numbers.take(index, axis=0) if len(streams) > 1 else numbers

        if self.de_mean_to_zero:
            values -= of_each(total.mean)
        if self.de_std_to_one:
            values /= of_each(total.std() + _TINY)
        if self.clip_by_value is not None:
            np.clip(values, -self.clip_by_value, self.clip_by_value, out=values)
        begin = 0

        def filtered(space: Space, leaf: np.ndarray) -> np.ndarray:
            nonlocal begin
            if not isinstance(space, spaces.Box):
                return leaf
            end = begin + int(np.prod(space.shape))
            part, begin = values[:, begin:end], end
            return part.reshape(leaf.shape).astype(_dtype(space))

        return map_values(filtered, plan.before, observations)

    # State.

    def get_state(self) -> dict[str, Any]:
        """Returns ``{key: {"base": ..., "own": ...}}``: the statistics that were merged last, and those since then.

        Keys are agent ids, or what agents that share statistics have in common.
        """
        return {
            key: {"base": to_state(table.base, stream), "own": to_state(table.own, stream)}
            for table in self._tables.values()
            for key, stream in table.keys.items()
        }  # type: ignore[return-value]

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets a state that ``get_state`` or ``merge_states`` has returned.

        Raises:
            ConfigError: If an agent's observations have another size than the statistics in the state.
        """
        for key, own in state.items():
            size, plan = len(own["own"]["mean"]), self._plans.get(key)
            if plan is not None and plan.how[0] != size:
                raise ConfigError(
                    f"MeanStdFilter: the state has {size} numbers for {key!r}, whose observations have {plan.how[0]}. "
                    f"Build the pipeline with the same environment and pieces."
                )
        self.reset_state()
        for key, own in state.items():
            size = len(own["own"]["mean"])
            self._tables.setdefault(size, StatsTable(size)).restore(key, own["base"], own["own"])

    def reset_state(self) -> None:
        """Clears all statistics."""
        self._tables = {}
        self.forget()

    def forget(self) -> None:
        super().forget()
        self._newest = {}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merges states to that of one filter that has seen all observations, each of them once."""
        keys = dict.fromkeys(key for state in states for key in state)
        return {key: merge_streams([state[key] for state in states if key in state]) for key in keys}


def _misplaced() -> ConnectorError:
    return ConnectorError(
        "MeanStdFilter: this piece belongs in an env-to-module pipeline, not in a learner pipeline: it writes to the "
        "episodes, where the learner reads the standardised observations. Pass it as env_to_module_connector."
    )


def _dtype(space: Space) -> np.dtype:
    assert space.dtype is not None
    return space.dtype if np.issubdtype(space.dtype, np.floating) else np.dtype(np.float32)


def _numbers(space: Space, observations: Tree) -> np.ndarray:
    """Returns a new array ``[B, F]`` float64 with all Box parts, concatenated."""
    if isinstance(space, spaces.Box):
        return observations.reshape(len(observations), -1).astype(np.float64)
    found: list[np.ndarray] = []

    def take(part: Space, leaf: np.ndarray) -> np.ndarray:
        if isinstance(part, spaces.Box):
            found.append(leaf.reshape(len(leaf), -1).astype(np.float64))
        return leaf

    map_values(take, space, observations)
    return np.concatenate(found, axis=1)
