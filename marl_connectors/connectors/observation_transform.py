"""ObservationTransform, the base of the built-in pieces that change observations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.connectors.space_trees import fits, shape_of
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe, same
from marl_connectors.typing import AgentID, Tree

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

    Args:
        multi_agent: Whether the spaces are Dicts by agent id. With None, they are if both are Dicts with the same
            keys.
    """

    multi_agent: bool | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        self._plans: dict[AgentID | None, Plan] = {}
        self._late_plans: list[tuple[tuple[Space | None, Space | None], Plan]] = []
        self._of_agents: dict[tuple[AgentID | None, ...], Any] = {}

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

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Returns the new observations, ``[B, ...]``, or the same object if nothing changes.

        Args:
            observations: ``[B, ...]`` of ``plan.before``. They may be views of the trajectories, so they must not be
                changed in place.
            plan: The plan of the agents of the rows.
            rows: The rows of the observations.
            xp: The array namespace: numpy, or that of tensors when an ONNX program is recorded.
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
        several = self.multi_agent
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

    def _plan_for(self, rows: Rows) -> Plan:
        """Returns the plan of agents with like spaces; agents in no space use the spaces of their episodes."""
        plans = self._plans
        if None in plans:
            return plans[None]
        for agent_id in rows.agents.ids:
            if agent_id in plans:
                return plans[agent_id]
        pair = rows.observation_space, rows.action_space
        for known, plan in self._late_plans:
            if all(map(_alike, known, pair)):
                return plan
        agent_id, (space, action_space) = rows.agents.ids[0], pair
        if space is None:
            raise ConnectorError(
                f"{type(self).__name__}: the observation space of agent {agent_id!r} is unknown. Build the piece with "
                f"input_observation_space, or give the episodes their spaces."
            )
        plan = next((plan for plan in plans.values() if _alike(plan.before, space)), None)
        plan = plan or self.plan(agent_id, space, action_space)
        self._late_plans.append((pair, plan))
        return plan

    def changed(self, observations: Tree, c: ColumnGroup, xp: Any) -> Tree:
        """Returns ``transform`` of observations, unless they have been transformed already."""
        rows = c.rows
        plan = self._plan_for(rows)
        if c.program is not None or fits(plan.before, observations, with_dtypes=True):
            return self.transform(observations, plan, rows, xp)
        went = fits(plan.after, observations)
        if fits(plan.before, observations) and not (went and fits(plan.after, observations, with_dtypes=True)):
            return self.transform(observations, plan, rows, xp)
        if went:
            return observations
        raise ConnectorError(
            f"{type(self).__name__}: expected observations of {describe(plan.before)} from agent "
            f"{rows.agents.ids[0]!r}, but they are {shape_of(observations)}. A piece that changes observations must "
            f"override recompute_output_observation_space, change them for every agent at every step, and be placed "
            f"before NumpyToTensor."
        )

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Changes the observations of all rows of a group at once."""
        observations = self.given(c)
        self.give_back(c, observations, self.changed(observations, c, xp))

    def given(self, c: ColumnGroup) -> Tree:
        """Returns the observations to change."""
        return c[Columns.OBS] if Columns.OBS in c else c.rows.get(Columns.OBS)

    def give_back(self, c: ColumnGroup, observations: Tree, changed: Tree) -> None:
        """Writes changed observations to the batch or back to the episodes."""
        if Columns.OBS in c or self.learns:
            c[Columns.OBS] = changed
        elif changed is not observations:
            c.rows.set(Columns.OBS, changed)


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
