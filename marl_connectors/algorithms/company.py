"""Whether agents may act one by one: pieces that look at several agents need all that act in a step."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, looks_at_other_agents
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID

if TYPE_CHECKING:
    from marl_connectors.algorithms.policy import Policy


class Company:
    """Checks that pieces which look at several agents get all agents that act in a step.

    Attributes:
        needs_none: Whether it is known that no piece looks at several agents.
    """

    def __init__(self, policy: Policy, *, needs_none: bool):
        pieces = dict(_named(policy.env_to_module) + _named(policy.module_to_env))
        answers = {name: looks_at_other_agents(piece) for name, piece in pieces.items()}
        module = policy.rl_module
        if module.has_own_forward:
            answers[type(module).__name__] = getattr(module, "looks_at_other_agents", None)
        self._who = [name for name, answer in answers.items() if answer]
        self._unknown = [name for name, answer in answers.items() if answer is None]
        self._was_tried = False
        self.needs_none = needs_none or not (self._who or self._unknown)
        self.forget()

    def know(self, other: Company) -> None:
        """Takes over what another object has found out about the same pieces."""
        self._who, self._unknown, self._was_tried = other._who, other._unknown, other._was_tried
        self.needs_none = other.needs_none

    def forget(self, agent_ids: Collection[AgentID] | None = None) -> None:
        """Takes note of new episodes, for all agents or for some."""
        if agent_ids is None:
            self._acted: set[AgentID] = set()
            self._left: set[AgentID] = set()
        else:
            self._left.difference_update(agent_ids)

    def acted(self, agents: list[AgentID], observations: Mapping[AgentID, Any]) -> None:
        """Takes note of the agents of a call."""
        if not self.needs_none:
            self._acted = set(agents)
            self._left.update(agent_id for agent_id in observations if agent_id not in self._acted)

    def check(
        self,
        policy: Policy,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        named: list[AgentID] | None,
        infos: Mapping[AgentID, Any] | None,
    ) -> None:
        """Compares the agents of a call with the agents that pieces need, as far as that is known.

        Raises:
            ConnectorError: If an agent is missing, and this changes, or may change, what a piece does.
        """
        wrong = self._wrong_in_turns(agents) if policy._takes_turns else self._missing(
            agents, observations, policy.agent_ids if named is None else named
        )  # fmt: skip
        if not wrong or not self._looks(policy, infos):
            return
        tried = (
            " This was found by acting on sampled observations, once for all agents and once for each alone. If it is "
            "no fault, set looks_at_other_agents = False in the class."
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
            f"Call policy(observation, agent_id) for one after another"
        )

    def _missing(self, agents: list[AgentID], observations: Mapping[AgentID, Any], expected: Sequence[AgentID]) -> str:
        """A text that says what is wrong with the agents of a call; empty if nothing is."""
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
            f"agents that there are{also}"
        )

    def _looks(self, policy: Policy, infos: Mapping[AgentID, Any] | None) -> bool:
        """Whether there are pieces that look at several agents. Pieces that do not declare it are tested once."""
        if self._who:
            return True
        try:
            self.needs_none = _acts_alike_alone(policy, infos or {})
        except Exception as error:
            raise ConnectorError(
                f"policy: not all agents are in this call, and whether {', '.join(self._unknown)} may act for one "
                f"without the others cannot be tried ({type(error).__name__}: {error}). Pass the observations of all "
                f"agents in one call, or say it in the class: looks_at_other_agents = False (or True)."
            ) from error
        if not self.needs_none:
            self._who, self._was_tried = self._unknown, True
        return not self.needs_none


def _named(pipeline: ConnectorPipelineV2) -> list[tuple[str, ConnectorV2]]:
    """All pieces, including those of nested pipelines."""
    found: list[tuple[str, ConnectorV2]] = []
    for name, piece in zip(pipeline.names(), pipeline, strict=True):
        found += _named(piece) if isinstance(piece, ConnectorPipelineV2) else [(name, piece)]
    return found


_TRIED_STEPS = 3


def _acts_alike_alone(policy: Policy, infos: Mapping[AgentID, Any]) -> bool:
    """Whether agents see and do the same one by one and together, tested with sampled observations."""
    whole, alone = policy._new(False, 0), policy._new(False, 0)
    agents, rng = policy.agent_ids, np.random.default_rng(0)
    some_info = next(iter(infos.values()), {})
    for t in range(_TRIED_STEPS):
        seen: dict[AgentID, Any] = {}
        for i, agent_id in enumerate(agents):
            space = copy.deepcopy(policy._spaces[agent_id][0])
            space.seed(1000 * t + i)
            seen[agent_id] = space.sample()
        rewards = {agent_id: float(rng.normal()) for agent_id in agents} if t else {}
        told = {agent_id: infos.get(agent_id, some_info) for agent_id in agents}
        together = _tried(whole, agents, seen, rewards, told)
        for agent_id in reversed(agents):
            apart = _tried(alone, [agent_id], seen, rewards, told)
            if not _alike(together[agent_id], apart[agent_id]):
                return False
    return True


def _tried(
    policy: Policy,
    agents: list[AgentID],
    observations: Mapping[AgentID, Any],
    rewards: Mapping[AgentID, Any],
    infos: Mapping[AgentID, Any],
) -> dict[AgentID, dict[str, Any]]:
    """Plays a step of some agents. Gives the rows that the modules saw, and the results, for each agent."""
    found: dict[AgentID, dict[str, Any]] = {agent_id: {} for agent_id in agents}
    for when, own, columns in policy._play(agents, observations, rewards, infos):
        for agent_id, rows in own:
            for name, column in columns.items():
                values = [np.asarray(leaf[rows[0]]).copy() for leaf in leaves(column) if hasattr(leaf, "shape")]
                found[agent_id][f"{when} {name}"] = values
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether columns are the same up to rounding."""
    if one.keys() != other.keys():
        return False
    for name, rows in one.items():
        if len(rows) != len(other[name]):
            return False
        for a, b in zip(rows, other[name], strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
    return True
