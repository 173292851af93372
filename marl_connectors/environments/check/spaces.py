"""Checks that the spaces of an environment's agents are valid and do not change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.environments.check.calls import CallFailed, Calls
from marl_connectors.environments.check.report import Findings
from marl_connectors.environments.check.rules import violation
from marl_connectors.environments.rules.checks import leaf_name, not_a_space
from marl_connectors.environments.rules.violations import Violation
from marl_connectors.environments.vector.smoke_test import random_action
from marl_connectors.spaces import describe, parts_of
from marl_connectors.typing import AgentID

_KINDS = ("observation_space", "action_space")
_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def space_violation(kind: str, agent: AgentID, space: Space) -> Violation | None:
    """Returns the violation if an agent's space is unsupported or its bounds are invalid; else None."""
    for path, leaf in _leaves(space):
        where = f"{kind}({agent!r}){leaf_name(path)}"
        if not isinstance(leaf, _NUMBERS):
            what = f"{where} is {leaf}, whose values have no fixed shape and do not fit into arrays"
            return violation("space-unsupported", what, agent, part=kind)
        if isinstance(leaf, spaces.Box) and (np.isnan(leaf.low).any() or np.isnan(leaf.high).any()):
            return violation("space-bounds", f"{where} has bounds that are NaN", agent, part=kind)
        if isinstance(leaf, spaces.Box) and (leaf.low > leaf.high).any():
            what = f"{where} has a lower bound above its upper bound, so that it is empty"
            return violation("space-bounds", what, agent, part=kind)
    return None


class SpaceBook:
    """Remembers the spaces of the agents as they were when they were first read."""

    def __init__(self, ask: Callable[[str, AgentID], Any], findings: Findings, calls: Calls):
        """Creates a book without any spaces.

        Args:
            ask: Gets ``"observation_space"`` or ``"action_space"`` and an agent, and returns the environment's space.
            findings: Collects the findings.
            calls: Makes the calls.
        """
        self._ask = ask
        self._findings = findings
        self._calls = calls
        self._spaces: dict[tuple[str, AgentID], Space | None] = {}
        self._samplers: dict[AgentID, Space] = {}

    def observation_space(self, agent: AgentID) -> Space | None:
        """Returns an agent's observation space; None if the environment has no usable one."""
        return self._known("observation_space", agent)

    def action_space(self, agent: AgentID) -> Space | None:
        """Returns an agent's action space; None if the environment has no usable one."""
        return self._known("action_space", agent)

    def sample(self, agent: AgentID, mask: np.ndarray | None, rng: np.random.Generator) -> Any:
        """Draws a random action that the mask allows. The random state of the environment's own space is not changed.

        Raises:
            CallFailed: If there is no action space.
        """
        space = self.action_space(agent)
        if space is None:
            raise CallFailed
        if mask is not None:
            return random_action(space, mask, rng)
        sampler = self._samplers.get(agent)
        if sampler is None:
            sampler = self._samplers[agent] = space
            sampler.seed(int(rng.integers(2**31)))
        return sampler.sample()

    def forget_samplers(self) -> None:
        """Makes the next ``sample`` of each agent seed its sampler anew, from the generator that it gets."""
        self._samplers.clear()

    def _known(self, kind: str, agent: AgentID) -> Space | None:
        key = (kind, agent)
        if key not in self._spaces:
            self._spaces[key] = self._first(kind, agent)
        return self._spaces[key]

    def _first(self, kind: str, agent: AgentID) -> Space | None:
        try:
            space = self._calls(f"{kind}({agent!r})", lambda: self._ask(kind, agent), kind="space-missing")
        except CallFailed:
            return None
        if found := not_a_space(kind, agent, space) or space_violation(kind, agent, space):
            self._findings.add(found)
        return copy.deepcopy(space) if isinstance(space, Space) else None

    def compare(self, agents: list[AgentID], step: int) -> None:
        """Checks that the environment returns the same spaces for these agents as before."""
        for agent in agents:
            for kind in _KINDS:
                before = self._known(kind, agent)
                if before is None:
                    continue
                try:
                    first, second = self._twice(kind, agent)
                except CallFailed:
                    continue
                if first is not second:
                    self._findings.note(
                        "space-rebuilt", f"{kind}({agent!r}) is a new object each time", agent, part=kind
                    )
                if first != before:
                    self._changed(kind, agent, before, first, step)

    def _twice(self, kind: str, agent: AgentID) -> tuple[Any, Any]:
        def ask() -> Any:
            return self._ask(kind, agent)

        return self._calls(f"{kind}({agent!r})", ask), self._calls(f"{kind}({agent!r})", ask)

    def _changed(self, kind: str, agent: AgentID, before: Space, now: Any, step: int) -> None:
        if isinstance(now, Space):  # later data are compared with this one
            self._spaces[kind, agent] = copy.deepcopy(now)
            self._samplers.pop(agent, None)
        same_form = isinstance(now, Space) and _form(now) == _form(before)
        what = f"{kind}({agent!r}) was {_words(before, same_form)} and is {_words(now, same_form)} now"
        level = "warning" if same_form else "error"
        self._findings.note("space-changed", what, agent, level=level, step=step, part=kind)


def _leaves(space: Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [leaf for key, part in parts_of(space) for leaf in _leaves(part, (*path, key))]
    return [(path, space)]


def _form(space: Space) -> list[Any]:
    """Returns what determines a network's size: kinds, shapes and numbers of choices, but not bounds."""
    return [
        (path, type(leaf), leaf.shape, leaf.dtype, None if isinstance(leaf, spaces.Box) else str(leaf))
        for path, leaf in _leaves(space)
    ]


def _words(space: Any, with_bounds: bool) -> str:
    return describe(space) if isinstance(space, Space) and not with_bounds else str(space)
