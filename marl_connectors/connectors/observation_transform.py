"""What the built-in pieces that change observations have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.agent_steps import AgentLookup, Steps
from marl_connectors.connectors.in_both_pipelines import InBothPipelines
from marl_connectors.connectors.space_trees import fits, has_dtypes, shape_of
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe, same
from marl_connectors.typing import AgentID, Tree

_REMEMBERED = 64


class Plan(NamedTuple):
    """What a piece does with the observations of one agent.

    Attributes:
        before: The observation space that comes in.
        after: The one that goes out.
        how: Whatever else the piece wants to remember.
    """

    before: Space
    after: Space
    how: Any = None


class ObservationTransform(InBothPipelines):
    """A piece that makes another observation of each observation. Base of the built-in ones.

    Reads ``obs``: from the batch, if a piece before has put it there, else from the episodes. Writes it back to where
    it was; in a learner pipeline (see ``as_learner_connector``) always to the batch. What has the shape that comes
    out already is left as it is, so that the piece may run twice over the same steps.

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
            multi_agent: Whether the spaces are Dicts by agent id. None finds out: they are if both are Dicts with the
                same keys.
            as_learner_connector: Whether the piece stands in a learner pipeline; None leaves it to the pipeline.
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
        """What to do with the observations of an agent (None in single-agent use) that has these spaces.

        Raises:
            ConfigError: If nothing can be done with them.
        """
        raise NotImplementedError

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """The observations to go on with, ``[B, ...]``; the very same object if nothing has to be done.

        Args:
            observations: ``[B, ...]`` of ``plan.before``. They may be views of the trajectories: not to be changed.
            plan: Of the agents that have these steps.
            steps: The steps behind the observations.
        """
        raise NotImplementedError

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Called with the spaces of all agents before their plans are made."""

    def stands_apart(self, agent_id: AgentID | None) -> Hashable:
        """Where the piece is called by hand, agents for which this differs do not stand in one array."""
        return None

    def remembered(self, ids: tuple[AgentID | None, ...], find: Callable[[tuple[AgentID | None, ...]], Any]) -> Any:
        """``find(ids)``, once for the same agents: what takes Python for each of them. A hot path."""
        known = self._of_agents.get(ids)
        if known is None:
            if len(self._of_agents) >= _REMEMBERED:
                self._of_agents.clear()
            known = self._of_agents[ids] = find(ids)
        return known

    def forget(self) -> None:
        """Empties what ``remembered`` remembers."""
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
        """The agent has the other one's plan."""
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
        """The plan of agents with like spaces; agents that no space has announced go by those of their episodes."""
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
        """``transform`` of observations, unless they have been through it already."""
        plan = self._plan_for(steps)
        comes, went = fits(plan.before, observations), fits(plan.after, observations)
        if comes and went and not has_dtypes(plan.before, observations):
            comes = not has_dtypes(plan.after, observations)
        if comes:
            return self.transform(observations, plan, steps)
        if went:
            return observations
        raise ConnectorError(
            f"{type(self).__name__}: expected observations of {describe(plan.before)} from agent "
            f"{steps.agents.ids[0]!r}, but they are {shape_of(observations)}. A piece that changes observations must "
            f"say so in recompute_output_observation_space, do it for every agent at every step, and stand before "
            f"NumpyToTensor."
        )

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Works on all rows of a group at once. A hot path."""
        observations = self.given(columns)
        self.give_back(columns, observations, self.changed(observations, Steps(columns.rows, self._lookup)))

    def given(self, columns: ColumnGroup) -> Tree:
        """The observations that a call on columns is about."""
        return columns[Columns.OBS] if Columns.OBS in columns else columns.rows.get(Columns.OBS)

    def give_back(self, columns: ColumnGroup, observations: Tree, changed: Tree) -> None:
        """Puts what has become of ``given`` observations where it belongs."""
        if Columns.OBS in columns or self.learns:
            columns[Columns.OBS] = changed
        elif changed is not observations:
            columns.rows.set(Columns.OBS, changed)


def _alike(one: Space | None, other: Space | None) -> bool:
    """Whether two spaces have the same parts, in whatever order."""
    return one is other or (one is not None and other is not None and same(one, other, ordered=False))


def _in_one_order(
    agents: Mapping[AgentID, tuple[Space, Space | None]],
) -> dict[AgentID | None, tuple[Space, Space | None]]:
    """The agents' spaces, of which those that differ in the order of keys alone are replaced by the first.

    The parts of a flat vector then stand in one order for all agents of a module.
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
