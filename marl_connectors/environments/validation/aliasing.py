"""Whether the arrays and infos that an environment gave stay as they were, and are each agent's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_connectors.environments.validation.calls import digest
from marl_connectors.environments.validation.checks import leaf_name
from marl_connectors.environments.validation.report import Findings
from marl_connectors.typing import AgentID


class GivenData:
    """What was given since the last call of the environment, to be looked at again after the next one."""

    def __init__(self, findings: Findings):
        """Takes note of nothing yet; what changes goes to the findings."""
        self._findings = findings
        self._given: list[tuple[str, AgentID, Any, bytes]] = []
        self._arrays: dict[int, list[tuple[AgentID, tuple[Any, ...], np.ndarray, bytes]]] = {}  # by place in memory
        self._writes_to_shared = False

    def remember(self, what: str, agent: AgentID, value: Any) -> bytes:
        """Takes note of an observation or info; its digest."""
        token = digest(value)
        self._given.append((what, agent, value, token))
        if what == "observation" and not self._remember_arrays(agent, value, ()):
            self._findings.note("read-only-arrays", "observations are arrays that cannot be written to", agent)
        return token

    def _remember_arrays(self, agent: AgentID, item: Any, path: tuple[Any, ...]) -> bool:
        """Takes note of the arrays in an observation; whether all can be written to."""
        if isinstance(item, (Mapping, tuple, list)):
            parts = item.items() if isinstance(item, Mapping) else enumerate(item)
            writeable = [self._remember_arrays(agent, part, (*path, key)) for key, part in parts]
            return all(writeable)
        if not isinstance(item, np.ndarray):
            return True
        if item.size:
            place = item.__array_interface__["data"][0]
            self._arrays.setdefault(place, []).append((agent, path, item, digest(item)))
        return item.flags.writeable

    def newest(self) -> list[tuple[Any, bytes]]:
        """What was given since the last call, each with its digest."""
        return [(value, token) for _, _, value, token in self._given]

    def look_again(self, step: int) -> None:
        """Finds what has changed since it was given, and arrays that several agents got; forgets all then."""
        for found in self._arrays.values():
            agents = list(dict.fromkeys(agent for agent, *_ in found))
            if len(agents) > 1:
                self._shared(agents, *found[0][1:], step)
        self._arrays.clear()
        for what, agent, value, token in self._given:
            if digest(value) != token:
                clause = f"the {what} that was given before changed afterwards: the environment writes to one object"
                self._findings.note(f"{what}-reused", clause, agent, step=step)
        self._given.clear()

    def _shared(self, agents: list[AgentID], path: tuple[Any, ...], array: np.ndarray, token: bytes, step: int) -> None:
        """An array that several agents got in one step holds the last one's, unless all are to see the same."""
        one, other = agents[:2]
        what = f"Agents {one!r} and {other!r} were given one and the same array as observation{leaf_name(path)}"
        if digest(array) != token:
            self._writes_to_shared = True
            clause = f"{what}, and the environment writes to it in each step: all see what was written last"
            self._findings.note("observation-shared", clause, one, step=step, part=path)
        elif not self._writes_to_shared:
            advice = (
                "Nothing to do if that is what they are to see. If each is to see something else, make an array for "
                "each: one that is filled again for the next agent holds the last one's observation."
            )
            clause = f"{what}, so they see the same"
            self._findings.note("observation-shared", clause, one, level="note", advice=advice, part=path)
