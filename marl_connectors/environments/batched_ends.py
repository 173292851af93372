"""The ends of episodes in a natively batched environment, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from marl_connectors.environments.batched_calls import BatchedCalls
from marl_connectors.environments.env_copy import Transition
from marl_connectors.typing import AgentID, Tree


class BatchedEnds(Sequence[Transition]):
    """The transitions of ``N`` copies that are over, in arrays. Single ones are made when somebody looks at them.

    Attributes:
        indices: ``[N]`` the copies.
        t: ``[N]`` env steps of their episodes.
        observations: The last ones, as the environment gives them for its copies.
        terminations: ``[N, num_agents]`` bool.
        truncations: ``[N, num_agents]`` bool.
        infos: Name to ``[N, num_agents, ...]``.
    """

    def __init__(
        self,
        indices: np.ndarray,
        t: np.ndarray,
        calls: BatchedCalls,
        observations: Tree,
        terminations: np.ndarray,
        truncations: np.ndarray,
        infos: dict[str, np.ndarray],
    ):
        """Takes arrays that nobody writes to any more, and whose calls gave them."""
        self.indices = indices
        self.t = t
        self._calls = calls
        self.observations = observations
        self.terminations = terminations
        self.truncations = truncations
        self.infos = infos
        self._made: list[Transition] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Transition: ...

    @overload
    def __getitem__(self, index: slice) -> list[Transition]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if self._made is None:
            self._made = [self._transition(place) for place in range(len(self))]
        return self._made[index]

    def _transition(self, place: int) -> Transition:
        return Transition(
            int(self.indices[place]),
            int(self.t[place]),
            self._calls.of_copy(self.observations, place),
            dict(zip(self._calls.agents, self.terminations[place].tolist(), strict=True)),
            dict(zip(self._calls.agents, self.truncations[place].tolist(), strict=True)),
            self.infos_of(place),
            {},
            is_over=True,
        )

    def flat_observations(self) -> Any:
        """``[N * num_agents, ...]``, or a list of unlike arrays."""
        return self._calls.flat(self.observations)

    def infos_of(self, place: int) -> dict[AgentID, dict[str, Any]]:
        """Agent to info, of one of the copies."""
        return infos_by_agent(self._calls.agents, self.infos, place)


def infos_by_agent(agents: Sequence[AgentID], infos: dict[str, np.ndarray], index: int) -> dict[AgentID, dict]:
    """Agent to info, of one copy in ``[num_envs, num_agents, ...]`` arrays by name."""
    if not infos:
        return {}
    own = {name: values[index] for name, values in infos.items()}
    return {agent: {name: v[i] for name, v in own.items()} for i, agent in enumerate(agents)}
