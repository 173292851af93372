"""Whether agents of a Policy may act one by one. Pieces that look at several agents need all agents in one call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, looks_at_other_agents
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import AgentID


class JointCallCheck:
    """Checks that pieces which look at several agents get all agents that act in a step.

    Attributes:
        is_needless: Whether it is known that no piece looks at several agents.
    """

    def __init__(
        self,
        pipelines: Sequence[ConnectorPipelineV2],
        module: MultiRLModule,
        agent_ids: Sequence[AgentID],
        *,
        takes_turns: bool,
        is_needless: bool,
    ):
        """Finds the pieces that look at several agents, or do not declare whether they do.

        Args:
            pipelines: The pipelines of the policy.
            module: The modules of the policy.
            agent_ids: All agents of the policy.
            takes_turns: Whether agents took turns in training.
            is_needless: Whether agents can always act one by one, for example because there is one agent.
        """
        self._agent_ids = agent_ids
        self._takes_turns = takes_turns
        pieces = dict(named for pipeline in pipelines for named in _named(pipeline))
        answers = {name: looks_at_other_agents(piece) for name, piece in pieces.items()}
        if module.has_own_forward:
            answers[type(module).__name__] = getattr(module, "looks_at_other_agents", None)
        self._who = [name for name, answer in answers.items() if answer]
        self._unknown = [name for name, answer in answers.items() if answer is None]
        self._was_tried = False
        self.is_needless = is_needless or not (self._who or self._unknown)
        self.forget()

    def copy_findings(self, other: JointCallCheck) -> None:
        """Copies what another object has found out about the same pieces."""
        self._who, self._unknown, self._was_tried = other._who, other._unknown, other._was_tried
        self.is_needless = other.is_needless

    def forget(self, agent_ids: Collection[AgentID] | None = None) -> None:
        """Forgets earlier calls when new episodes begin, for all agents or for some."""
        if agent_ids is None:
            self._acted: set[AgentID] = set()
            self._left: set[AgentID] = set()
        else:
            self._left.difference_update(agent_ids)

    def acted(self, agents: list[AgentID], observations: Mapping[AgentID, Any]) -> None:
        """Remembers the agents of a call."""
        if not self.is_needless:
            self._acted = set(agents)
            self._left.update(agent_id for agent_id in observations if agent_id not in self._acted)

    def check(
        self,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        named: list[AgentID] | None,
        act_alike_alone: Callable[[], bool],
    ) -> None:
        """Compares the agents of a call with the agents that pieces need, as far as that is known.

        Args:
            agents: The agents that act in the call.
            observations: Maps agents to their observations.
            named: The agents that the caller has named; None if it has named none.
            act_alike_alone: A function that tests whether agents act one by one as they act together. It is called
                once at most, if a piece does not declare whether it looks at several agents.

        Raises:
            ConnectorError: If an agent is missing, and this changes, or may change, what a piece does.
        """
        wrong = (
            self._wrong_in_turns(agents)
            if self._takes_turns
            else self._missing(agents, observations, self._agent_ids if named is None else named)
        )
        if not wrong or not self._looks(act_alike_alone):
            return
        tried = (
            " This was found by acting on sampled observations, once for all agents and once for each alone. If the "
            "agents may act alone, set looks_at_other_agents = False in the class."
            if self._was_tried
            else ""
        )
        who = ("one of " if self._was_tried and len(self._who) > 1 else "") + ", ".join(self._who)
        raise ConnectorError(f"policy: {who} looks at several agents, so all that act in a step {wrong}.{tried}")

    def _wrong_in_turns(self, agents: list[AgentID]) -> str:
        if len(agents) == 1:
            return ""
        return (
            f"change what each of them does. In training they took turns, but this call is for {len(agents)} agents. "
            f"Call policy(observation, agent_id) for one agent after another"
        )

    def _missing(self, agents: list[AgentID], observations: Mapping[AgentID, Any], expected: Sequence[AgentID]) -> str:
        """Returns a text that says what is wrong with the agents of a call; empty if nothing is."""
        missing = [agent_id for agent_id in expected if agent_id not in observations]
        left_out = [a for a in observations if a not in self._acted and a not in agents]
        back = [agent_id for agent_id in agents if agent_id in self._left]
        also = ""
        if missing:
            found = f"agent {missing[0]!r} has no observation in this call"
        elif left_out:
            found = f"agent {left_out[0]!r} has an observation, but is not to act"
        elif back:
            found = f"agent {back[0]!r} acts again after a call that left it out"
            also = f", and policy.reset(agent_ids=[{back[0]!r}]) when it has come back after its end"
        else:
            return ""
        return (
            f"must be in one call, but {found}. Call policy.actions(observations, agent_ids=env.agents), with all "
            f"existing agents{also}"
        )

    def _looks(self, act_alike_alone: Callable[[], bool]) -> bool:
        """Whether any piece looks at several agents. Pieces that do not declare it are tested once."""
        if self._who:
            return True
        try:
            self.is_needless = act_alike_alone()
        except Exception as error:
            raise ConnectorError(
                f"policy: not all agents are in this call, and whether {', '.join(self._unknown)} may act for one "
                f"without the others cannot be tried ({type(error).__name__}: {error}). Pass the observations of all "
                f"agents in one call, or declare it in the class: looks_at_other_agents = False (or True)."
            ) from error
        if not self.is_needless:
            self._who, self._was_tried = self._unknown, True
        return not self.is_needless


def _named(pipeline: ConnectorPipelineV2) -> list[tuple[str, ConnectorV2]]:
    """Returns all pieces, including those of nested pipelines."""
    found: list[tuple[str, ConnectorV2]] = []
    for name, piece in zip(pipeline.names(), pipeline, strict=True):
        found += _named(piece) if isinstance(piece, ConnectorPipelineV2) else [(name, piece)]
    return found
