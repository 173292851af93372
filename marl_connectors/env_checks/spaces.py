"""The spaces of an environment's agents: whether they are any good, and whether they stay what they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.action_masks import draw
from marl_connectors.env_checks.calls import CallFailed, Calls
from marl_connectors.env_checks.report import Findings
from marl_connectors.spaces import describe, from_start
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID

_KINDS = ("observation_space", "action_space")
_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class SpaceBook:
    """The spaces as they were when first asked for."""

    def __init__(self, ask: Callable[[str, AgentID], Any], findings: Findings, calls: Calls):
        """Starts without any agent.

        Args:
            ask: ``"observation_space"`` or ``"action_space"`` and an agent to what the environment says.
            findings: Where findings go.
            calls: Makes the calls.
        """
        self._ask = ask
        self._findings = findings
        self._calls = calls
        self._spaces: dict[tuple[str, AgentID], Space | None] = {}
        self._samplers: dict[AgentID, Space] = {}

    def observation_space(self, agent: AgentID) -> Space | None:
        """An agent's; None if the environment has no usable one."""
        return self._known("observation_space", agent)

    def action_space(self, agent: AgentID) -> Space | None:
        """An agent's; None if the environment has no usable one."""
        return self._known("action_space", agent)

    def sample(self, agent: AgentID, mask: np.ndarray | None, rng: np.random.Generator) -> Any:
        """A random action that the mask allows, without touching the random state of the environment's own space.

        Raises:
            CallFailed: If there is no action space.
        """
        space = self.action_space(agent)
        if space is None:
            raise CallFailed
        if mask is not None and isinstance(space, spaces.Discrete):
            return np.int64(space.start + rng.choice(np.flatnonzero(mask)))
        if mask is not None and isinstance(space, spaces.MultiDiscrete):
            ends = np.cumsum(space.nvec.ravel())[:-1]
            parts = [np.flatnonzero(part) for part in np.split(mask, ends)]
            picks = [rng.choice(part) if len(part) else 0 for part in parts]
            return (np.reshape(picks, space.shape) + space.start).astype(space.dtype)
        if mask is not None:
            return tree_map(lambda leaf: leaf[0], from_start(space, draw(space, mask[None], rng)))
        sampler = self._samplers.get(agent)
        if sampler is None:
            sampler = self._samplers[agent] = space
            sampler.seed(int(rng.integers(2**31)))
        return sampler.sample()

    def forget_samplers(self) -> None:
        """Samplers are seeded anew, from the generator that is passed then."""
        self._samplers.clear()

    def _known(self, kind: str, agent: AgentID) -> Space | None:
        key = (kind, agent)
        if key not in self._spaces:
            self._spaces[key] = self._first(kind, agent)
        return self._spaces[key]

    def _first(self, kind: str, agent: AgentID) -> Space | None:
        try:
            space = self._calls(
                f"{kind}({agent!r})",
                lambda: self._ask(kind, agent),
                kind="space-missing",
                advice="Every agent that can appear needs one.",
            )
        except CallFailed:
            return None
        if not isinstance(space, Space):
            self._findings.add(
                "error",
                "space-missing",
                f"{kind}({agent!r}) is {space!r}, not a gymnasium space.",
                "Give it a space of gymnasium.spaces; those of the old gym package are others.",
                agent=agent,
                part=kind,
            )
            return None
        for path, leaf in _leaves(space):
            self._look_at(kind, agent, path, leaf)
        return copy.deepcopy(space)

    def _look_at(self, kind: str, agent: AgentID, path: tuple[Any, ...], leaf: Space) -> None:
        where = f"{kind}({agent!r}){leaf_name(path)}"
        if not isinstance(leaf, _NUMBERS):
            self._findings.add(
                "error",
                "space-unsupported",
                f"{where} is {leaf}, whose values have no fixed shape and do not fit into arrays.",
                "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple spaces of them.",
                agent=agent,
                part=kind,
            )
        elif isinstance(leaf, spaces.Box) and (np.isnan(leaf.low).any() or np.isnan(leaf.high).any()):
            self._findings.add(
                "error",
                "space-bounds",
                f"{where} has bounds that are NaN.",
                "Give bounds, or -inf and inf.",
                agent=agent,
                part=kind,
            )
        elif isinstance(leaf, spaces.Box) and (leaf.low > leaf.high).any():
            self._findings.add(
                "error",
                "space-bounds",
                f"{where} has a lower bound above its upper bound, so that nothing is in it.",
                "Correct the bounds.",
                agent=agent,
                part=kind,
            )

    def compare(self, agents: list[AgentID], step: int) -> None:
        """Whether the environment says the same of these agents as before."""
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
                    self._findings.add(
                        "note",
                        "space-rebuilt",
                        f"{kind}({agent!r}) is a new object each time.",
                        "Keep the spaces in a dict: seeding such a space does nothing, and building it takes time.",
                        agent=agent,
                        part=kind,
                    )
                if first != before:
                    self._changed(kind, agent, before, first, step)

    def _twice(self, kind: str, agent: AgentID) -> tuple[Any, Any]:
        def ask() -> Any:
            return self._ask(kind, agent)

        return self._calls(f"{kind}({agent!r})", ask), self._calls(f"{kind}({agent!r})", ask)

    def _changed(self, kind: str, agent: AgentID, before: Space, now: Any, step: int) -> None:
        if isinstance(now, Space):  # what is to come is held against this one
            self._spaces[kind, agent] = copy.deepcopy(now)
            self._samplers.pop(agent, None)
        same_form = isinstance(now, Space) and _form(now) == _form(before)
        self._findings.add(
            "warning" if same_form else "error",
            "space-changed",
            f"{kind}({agent!r}) was {_words(before, same_form)} and is {_words(now, same_form)} now.",
            "Networks are built once: let the space hold everything that can come, the same in all episodes.",
            agent=agent,
            step=step,
            part=kind,
        )


def _leaves(space: Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [leaf for key, part in parts for leaf in _leaves(part, (*path, key))]
    return [(path, space)]


def _form(space: Space) -> list[Any]:
    """What a network's size follows from: kinds, shapes and numbers of choices, not bounds."""
    return [
        (path, type(leaf), leaf.shape, leaf.dtype, None if isinstance(leaf, spaces.Box) else str(leaf))
        for path, leaf in _leaves(space)
    ]


def _words(space: Any, with_bounds: bool) -> str:
    return describe(space) if isinstance(space, Space) and not with_bounds else str(space)


def leaf_name(path: tuple[Any, ...]) -> str:
    """The place of a leaf in a nested observation, for messages: ``"['mask'][0]"``."""
    return "".join(f"[{key!r}]" for key in path)
