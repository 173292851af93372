"""ObservationTransform, the base of the built-in pieces that change observations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.connectors.space_trees import fits, shape_of
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe, same
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree

if TYPE_CHECKING:
    from marl_connectors.connectors.tensor_step import TensorStep

_REMEMBERED = 64


class Plan(NamedTuple):
    """The transform that a piece applies to the observations of one agent.

    Attributes:
        before: The observation space before the piece.
        after: The observation space after the piece.
        how: The piece's own data.
    """

    before: Space
    after: Space
    how: Any = None


class ObservationTransform(InBothPipelines):
    """Base of the built-in pieces that change each observation.

    Reads ``obs``: from the batch, if an earlier piece has added it, else from the episodes. Writes it back to the same
    place; in a learner pipeline (see ``as_learner_connector``) always to the batch. Observations that already have the
    shape of the new space stay as they are, so the piece may run twice over the same steps.

    Subclasses override ``plan`` and ``transform``.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool | None = None,
        as_learner_connector: bool | None = None,
    ):
        """Builds the piece; subclasses set their own attributes first, since ``plan`` may be called from here.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            multi_agent: Whether the spaces are Dicts by agent id. With None, they are if both are Dicts with the same
                keys.
            as_learner_connector: Whether the piece is in a learner pipeline; None leaves it to the pipeline.
        """
        self._multi_agent = multi_agent
        self.as_learner_connector = as_learner_connector
        self._plans: dict[AgentID | None, Plan] = {}
        self._late_plans: list[tuple[tuple[Space | None, Space | None], Plan]] = []
        self._lookup = AgentLookup()
        self._of_agents: dict[tuple[AgentID | None, ...], Any] = {}
        super().__init__(input_observation_space, input_action_space)

    # To override.

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the plan for the observations of an agent.

        Args:
            agent_id: The agent; None in single-agent use.
            space: The agent's observation space before this piece.
            action_space: The agent's action space, if it is known.

        Raises:
            ConfigError: If the piece cannot be used with these spaces.
        """
        raise NotImplementedError

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """Returns the new observations, ``[B, ...]``, or the same object if nothing changes.

        Args:
            observations: ``[B, ...]`` of ``plan.before``. They may be views of the trajectories, so they must not be
                changed in place.
            plan: The plan of the agents with these steps.
            steps: The steps of the observations.
        """
        raise NotImplementedError

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Prepares for the spaces of all agents. It is called before their plans are made."""

    def grouping_key(self, agent_id: AgentID | None) -> Hashable:
        """Returns a key. If the piece is called by hand, agents with different keys are not put into one array."""
        return None

    def remembered(self, ids: tuple[AgentID | None, ...], find: Callable[[tuple[AgentID | None, ...]], Any]) -> Any:
        """Returns ``find(ids)`` from a cache, because ``find`` loops over agents in Python."""
        known = self._of_agents.get(ids)
        if known is None:
            if len(self._of_agents) >= _REMEMBERED:
                self._of_agents.clear()
            known = self._of_agents[ids] = find(ids)
        return known

    def forget(self) -> None:
        """Clears the results that ``remembered`` keeps."""
        self._of_agents.clear()

    # Spaces.

    def recompute_output_observation_space(
        self, input_observation_space: Space | None, input_action_space: Space | None
    ) -> Space | None:
        self._plans, self._late_plans = {}, []
        self.forget()
        if input_observation_space is None:
            return None
        agents = self._by_agent(input_observation_space, input_action_space)
        self.prepare(agents)
        self._plans = {agent_id: self.plan(agent_id, *pair) for agent_id, pair in agents.items()}
        if None in self._plans:
            return self._plans[None].after
        return spaces.Dict({agent_id: plan.after for agent_id, plan in self._plans.items()})  # type: ignore[misc]

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """Uses the plan of agent ``like`` for a new agent."""
        if like in self._plans:
            self._plans[agent_id] = self._plans[like]
            self.forget()

    def _by_agent(
        self, observation_space: Space, action_space: Space | None
    ) -> dict[AgentID | None, tuple[Space, Space | None]]:
        several = self._multi_agent
        if several is None:
            several = (
                isinstance(observation_space, spaces.Dict)
                and isinstance(action_space, spaces.Dict)
                and observation_space.spaces.keys() == action_space.spaces.keys()
            )
        if not several:
            return {None: (observation_space, action_space)}
        if not isinstance(observation_space, spaces.Dict):
            raise ConfigError(
                f"{type(self).__name__}: multi_agent=True needs a Dict observation space by agent id, not "
                f"{describe(observation_space)}. Leave multi_agent out."
            )
        of_actions: Mapping[Any, Space] = action_space.spaces if isinstance(action_space, spaces.Dict) else {}
        return _in_one_order(
            {agent_id: (space, of_actions.get(agent_id, action_space)) for agent_id, space in observation_space.items()}
        )

    def _plan_for(self, steps: Steps) -> Plan:
        """Returns the plan of agents with like spaces; agents in no space use the spaces of their episodes."""
        plans = self._plans
        if None in plans:
            return plans[None]
        for agent_id in steps.agents.ids:
            if agent_id in plans:
                return plans[agent_id]
        pair = steps.spaces
        for known, plan in self._late_plans:
            if all(map(_alike, known, pair)):
                return plan
        agent_id, (space, action_space) = steps.agents.ids[0], pair
        if space is None:
            raise ConnectorError(
                f"{type(self).__name__}: the observation space of agent {agent_id!r} is unknown. Build the piece with "
                f"input_observation_space, or give the episodes their spaces."
            )
        plan = next((plan for plan in plans.values() if _alike(plan.before, space)), None)
        plan = plan or self.plan(agent_id, space, action_space)
        self._late_plans.append((pair, plan))
        return plan

    def changed(self, observations: Tree, steps: Steps) -> Tree:
        """Returns ``transform`` of observations, unless they have been transformed already."""
        plan = self._plan_for(steps)
        if fits(plan.before, observations, with_dtypes=True):
            return self.transform(observations, plan, steps)
        went = fits(plan.after, observations)
        if fits(plan.before, observations) and not (went and fits(plan.after, observations, with_dtypes=True)):
            return self.transform(observations, plan, steps)
        if went:
            return observations
        raise ConnectorError(
            f"{type(self).__name__}: expected observations of {describe(plan.before)} from agent "
            f"{steps.agents.ids[0]!r}, but they are {shape_of(observations)}. A piece that changes observations must "
            f"override recompute_output_observation_space, change them for every agent at every step, and be placed "
            f"before NumpyToTensor."
        )

    def plan_of(self, step: TensorStep) -> Plan:
        """Returns the plan of the agents of a step that is recorded for export. It is the same for all of them."""
        return self._plans[None] if None in self._plans else self._plans[step.agent_ids[0]]

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Changes the observations of all rows of a group at once."""
        observations = self.given(columns)
        self.give_back(columns, observations, self.changed(observations, Steps(columns.rows, self._lookup)))

    def given(self, columns: ColumnGroup) -> Tree:
        """Returns the observations that a call on columns works on."""
        return columns[Columns.OBS] if Columns.OBS in columns else columns.rows.get(Columns.OBS)

    def give_back(self, columns: ColumnGroup, observations: Tree, changed: Tree) -> None:
        """Writes changed observations to the batch or back to the episodes."""
        if Columns.OBS in columns or self.learns:
            columns[Columns.OBS] = changed
        elif changed is not observations:
            columns.rows.set(Columns.OBS, changed)


def _alike(one: Space | None, other: Space | None) -> bool:
    """Whether two spaces have the same parts, in any order."""
    return one is other or (one is not None and other is not None and same(one, other, ordered=False))


def _in_one_order(
    agents: Mapping[AgentID, tuple[Space, Space | None]],
) -> dict[AgentID | None, tuple[Space, Space | None]]:
    """Replaces spaces that differ from an earlier one in the order of keys alone by the earlier one.

    So the parts of a flat vector have one order for all agents of a module.
    """
    firsts: list[Space] = []

    def first_like(space: Space | None) -> Space | None:
        if not isinstance(space, (spaces.Dict, spaces.Tuple)):
            return space
        found = next((other for other in firsts if _alike(other, space)), None)
        if found is None:
            firsts.append(space)
        return space if found is None else found

    return {agent_id: tuple(map(first_like, pair)) for agent_id, pair in agents.items()}  # type: ignore[misc]


# The agent-steps of observations.


class Recent(NamedTuple):
    """The newest items of a column, as seen from each of ``B`` agent-steps.

    Attributes:
        values: ``[B, n, ...]`` array or tree of arrays, oldest first; zeros before the episode's beginning.
        reached: ``[B, n]`` bool, False for these zeros.
    """

    values: Tree
    reached: np.ndarray


class Agents(NamedTuple):
    """The agents that some agent-steps belong to.

    Attributes:
        ids: The agents that have steps, each once; (None,) in single-agent use.
        index: ``[B]`` the index in ``ids`` of each step's agent.
    """

    ids: tuple[AgentID | None, ...]
    index: np.ndarray


class AgentLookup:
    """Looks up the agents of rows, once for rows that are the same object from step to step.

    Attributes:
        checked: ``{(n, newest): first}``, where ``first`` is the ``RowPart.first`` of rows that are known to keep
            enough history.
    """

    def __init__(self) -> None:
        self.checked: dict[tuple[int, int], np.ndarray] = {}
        self._known = RowMemory()

    def of(self, rows: Rows) -> Agents:
        """Returns the agents of rows. A runner's rows stay the same object until an agent joins or leaves."""
        known = self._known.get(rows)
        if known is not None:
            return known
        by_episode = [episode.agent_id for episode in rows.episodes]
        place = {agent_id: i for i, agent_id in enumerate(dict.fromkeys(by_episode))}
        index = np.repeat(np.array([place[agent_id] for agent_id in by_episode], np.int64), rows.counts)
        agents = Agents(tuple(place), index)
        if rows.acted is None:
            self._known[rows] = agents
        return agents


class Steps:
    """``B`` agent-steps, with the agents, spaces and histories that a piece may need to change observations."""

    __slots__ = ("_agents", "_lookup", "_parts", "rows")

    def __init__(self, rows: Rows, lookup: AgentLookup):
        self.rows = rows
        self._lookup = lookup
        self._agents: Agents | None = None
        self._parts: tuple[RowPart, ...] | None = None

    @property
    def parts(self) -> tuple[RowPart, ...]:
        """The places of the rows in rollouts. A runner's rows compute them at each access, so they are kept here."""
        if self._parts is None:
            self._parts = self.rows.parts
        return self._parts

    @property
    def agents(self) -> Agents:
        """The agents of the steps."""
        if self._agents is None:
            self._agents = self._lookup.of(self.rows)
        return self._agents

    @property
    def spaces(self) -> tuple[Space | None, Space | None]:
        """The environment's observation and action spaces of the agents, if they are known."""
        if not self.parts:
            return self.rows.observation_space, self.rows.action_space
        rollout = self.parts[0].rollout
        return rollout.observation_space, rollout.action_space

    def recent(self, column: str, n: int, *, newest: int, who: str) -> Recent:
        """Returns the ``n`` newest items of a column.

        Args:
            column: A column of the trajectories.
            n: The number of items.
            newest: The offset of the last item: 0 for the step's own (for observations), -1 for the one before (for
                actions and rewards).
            who: The piece, for messages.

        Raises:
            ConnectorError: If the episode has earlier items that its lookback does not keep.
        """
        found = [_recent(part, column, n, newest) for part in self.parts] or [self._one_by_one(column, n, newest)]
        values, reached = found[0]
        if len(found) > 1:
            values = tree_map(lambda *leaves: np.concatenate(leaves), *(values for values, _ in found))
            reached = np.concatenate([reached for _, reached in found])
        if not reached.all():
            self._check_beginnings(~reached[:, 0], column, n, newest, who)
        return Recent(values, reached)

    def _one_by_one(self, column: str, n: int, newest: int) -> Recent:
        """Reads the items of episodes that are in no rollout."""
        steps = [self.rows.reach(column, offset) for offset in range(newest - n + 1, newest + 1)]
        values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *(values for values, _ in steps))
        return Recent(values, np.stack([reached for _, reached in steps], axis=1))

    def _check_beginnings(self, short: np.ndarray, column: str, n: int, newest: int, who: str) -> None:
        """Checks that missing items are from before the episode, once for the same episodes."""
        first = self.parts[0].first if self.parts else None
        if first is not None and self._lookup.checked.get((n, newest)) is first:
            return
        owners = np.repeat(np.arange(len(self.rows.counts)), self.rows.counts)
        episodes = self.rows.episodes
        for i in np.unique(owners[short]).tolist():
            check_beginning(episodes[i], column, n, newest, who)
        if first is not None and len(self.parts) == 1 and self.rows.acted is None:
            self._lookup.checked[n, newest] = first


def _recent(part: RowPart, column: str, n: int, newest: int) -> Recent:
    """Reads the items of all rows and offsets in one gather."""
    rollout, positions = part.rollout, part.positions
    if isinstance(positions, slice):
        recent = _recent_of_run(part, positions, column, n, newest)
        if recent is not None:
            return recent
        positions = np.arange(positions.start, positions.stop, positions.step)
    here = positions[:, None]
    wanted = here + rollout.num_lanes * np.arange(newest - n + 1, newest + 1)
    reached = wanted >= part.first[:, None]
    all_reached = reached.all()
    values = rollout.read(column, (wanted if all_reached else np.where(reached, wanted, here)).ravel())

    def arranged(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf.reshape(*wanted.shape, *leaf.shape[1:])
        if not all_reached:
            leaf[~reached] = 0
        return leaf

    return Recent(arranged(values) if type(values) is np.ndarray else tree_map(arranged, values), reached)


def _recent_of_run(part: RowPart, run: slice, column: str, n: int, newest: int) -> Recent | None:
    """Reads rows in one slice with one copy for each offset; returns None if some do not reach back that far."""
    rollout, lanes = part.rollout, part.rollout.num_lanes
    begin = run.start + (newest - n + 1) * lanes
    if run.step not in (None, 1) or (begin + np.arange(run.stop - run.start) < part.first).any():
        return None
    if not rollout.is_uniform(column, slice(begin, run.stop + newest * lanes)):
        return None
    size = run.stop - run.start
    steps = [rollout.read(column, slice(start, start + size)) for start in range(begin, begin + n * lanes, lanes)]
    values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *steps)
    return Recent(values, np.ones((size, n), bool))


def check_beginning(episode: SingleAgentEpisode, column: str, n: int, newest: int, who: str) -> None:
    """Raises a ConnectorError if an episode has items from before its lookback, which it does not keep."""
    kept = episode.storage.lookback
    if episode.t_started <= kept:
        return
    wanted = n - 1 if newest == 0 else n
    name, steps = "observations" if column == Columns.OBS else column, "step" if wanted == 1 else f"{wanted} steps"
    raise ConnectorError(
        f"{who}: needs {name} of the last {steps}, but {_name(episode)} had {episode.t_started} steps "
        f"before this chunk, of which {kept} are kept. Set .env_runners(episode_lookback_horizon={wanted}) or more."
    )


def _name(episode: SingleAgentEpisode) -> str:
    return f"episode {episode.id_!r}" if episode.agent_id is None else f"the episode of agent {episode.agent_id!r}"
