"""What a trial run did and saw, so that another copy of the environment can be asked to do it again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID


class TrialRecord:
    """The steps of one episode, which began with ``reset(seed=0)``.

    Attributes:
        actions: By agent, of each step.
        is_same_in_worker: Whether a worker process has seen the same; None if none was asked.
    """

    def __init__(self) -> None:
        self.actions: list[dict[AgentID, Any]] = []
        self.is_same_in_worker: bool | None = None
        self._seen = hashlib.sha256()

    @classmethod
    def of(cls, env: Any, actions: Iterable[Mapping[AgentID, Any]]) -> TrialRecord:
        """Plays the episode in a copy of the environment."""
        record = cls()
        observations, _ = env.reset(seed=0)
        record.began(observations)
        for own in actions:
            record.stepped(own, *env.step(own)[:4])  # infos may be about the machine or the time
        return record

    def began(self, observations: Mapping[AgentID, Any]) -> None:
        """Takes down what the reset gave."""
        self._add(observations)

    def stepped(self, actions: Mapping[AgentID, Any], *given: Mapping[AgentID, Any]) -> None:
        """Takes down a step: its actions, and what it gave, all by agent."""
        self.actions.append(dict(actions))
        for by_agent in given:
            self._add(by_agent)

    def _add(self, by_agent: Mapping[AgentID, Any]) -> None:
        for agent_id, value in by_agent.items():
            self._seen.update(repr(agent_id).encode())
            for leaf in leaves(value):
                array = np.asarray(leaf)
                self._seen.update(f"{array.dtype}{array.shape}".encode())
                self._seen.update(repr(leaf).encode() if array.dtype.hasobject else array.tobytes())

    @property
    def digest(self) -> bytes:
        """The same for records of the same numbers."""
        return self._seen.digest()
