"""What a step of all sub-environments gives, whatever kind of environment they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


@dataclass(slots=True)
class Event:
    """What was out of the ordinary in one sub-environment in a step.

    Agents ended or joined while others go on, an agent was paid that did not act, an episode was dropped, or an episode
    ended in a way that ``EpisodeEnds`` cannot tell.

    Attributes:
        index: The sub-environment.
        t: Env steps since its episode began, this one included.
        observations: By agent, the last ones of those that ended, before any reset.
        terminations: By agent.
        truncations: By agent.
        infos: By agent, those that came with ``observations``.
        uncredited: By agent, rewards of agents that did not act.
        is_over: Whether the episode ended, so that the sub-environment was, or will be, reset.
        is_dropped: Whether the episode does not go on, nor is its end known, so that another one has begun: after a
            failure, or because somebody said so.
        begins: Whether the sub-environment has rested in this step, which reset it, so that its episode begins now.
        state: The environment's, before any reset, ``[1, ...]``; None where nobody wants to know.
    """

    index: int
    t: int
    observations: dict[AgentID, Any] = field(default_factory=dict)
    terminations: dict[AgentID, bool] = field(default_factory=dict)
    truncations: dict[AgentID, bool] = field(default_factory=dict)
    infos: dict[AgentID, dict] = field(default_factory=dict)
    uncredited: dict[AgentID, float] = field(default_factory=dict)
    is_over: bool = False
    is_dropped: bool = False
    begins: bool = False
    state: Tree | None = None


class EpisodeEnds(NamedTuple):
    """Episodes of which all agents that were left ended in the same step: ``N`` agents of ``K`` sub-environments.

    Attributes:
        indices: ``K`` sub-environments; their agents follow one another in their order.
        t: ``K`` lengths of the episodes, in env steps.
        observations: The agents' last ones: ``[N, ...]`` arrays, or a list of ``N`` items.
        terminated: ``[N]`` bool.
        truncated: ``[N]`` bool, False where ``terminated``.
        infos: ``K`` dicts by agent, or none if there are no infos at all.
        states: ``[K, ...]`` the environments' last states; None where nobody wants to know.
    """

    indices: list[int]
    t: list[int]
    observations: Tree | list[Any]
    terminated: np.ndarray
    truncated: np.ndarray
    infos: list[dict[AgentID, Any]]
    states: Tree | None = None


@dataclass(slots=True)
class StepResult:
    """What a step of all sub-environments gave. Lists run through all agents of the first one, then of the second, ...

    Attributes:
        rewards: One for each agent that acted; of turn-based environments, for each of ``told``.
        observations: One for each agent that acts next: of a new episode where the old one ended. A list, or an array.
        infos: ``(sub-environment, infos by agent)`` of those ``observations``, where there are any.
        ends: Episodes that ended for all of their agents together; None if there are none.
        events: All else that is out of the ordinary, at most one for a sub-environment.
        told: Of turn-based environments, the sub-environment and the agent that each reward is for: only who acts next,
            and who has ended, is told what its last action has led to. None if all that acted are told.
        in_rows: Whether ``rewards`` and ``observations`` are lists with arrays for each group of lanes that acted, or
            that acts next, in the order of its rows. For those who know lanes; adapters do not.
        late: Sub-environments that await ``reset_over``, and how many ``observations`` come before theirs.
    """

    rewards: Any
    observations: Any
    infos: list[tuple[int, dict[AgentID, dict]]] = field(default_factory=list)
    ends: EpisodeEnds | None = None
    events: list[Event] = field(default_factory=list)
    told: list[tuple[int, AgentID]] | None = None
    in_rows: bool = False
    late: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is out of the ordinary."""
        return self.ends is None and not self.events

    @property
    def over(self) -> dict[int, int]:
        """The sub-environments whose episodes ended, or were dropped, in ascending order, and the episodes' lengths."""
        ended = {event.index: event.t for event in self.events if event.is_over}
        if self.ends is not None:
            ended |= zip(self.ends.indices, self.ends.t, strict=True)
        return dict(sorted(ended.items()))


class EndsBuilder:
    """Gathers ends of whole episodes, one sub-environment after another."""

    __slots__ = ("_infos", "_observations", "_states", "_terminated", "_truncated", "indices", "t")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets what was gathered."""
        self.indices: list[int] = []
        self.t: list[int] = []
        self._observations: list[Any] = []
        self._terminated: list[bool] = []
        self._truncated: list[bool] = []
        self._infos: list[dict[AgentID, Any]] = []
        self._states: list[Tree | None] = []

    def add(
        self,
        index: int,
        t: int,
        observations: Iterable[Any],
        terminated: Iterable[Any],
        truncated: Iterable[Any],
        infos: dict[AgentID, Any],
        state: Tree | None,
    ) -> None:
        """Adds an episode; the iterables are in the order of its agents."""
        self.indices.append(index)
        self.t.append(t)
        self._observations += observations
        self._terminated += terminated
        self._truncated += truncated
        self._infos.append(infos)
        self._states.append(state)

    def take(self) -> EpisodeEnds | None:
        """What was gathered since the last call; None if that is nothing."""
        if not self.indices:
            return None
        terminated = np.array(self._terminated, bool)
        truncated = np.array(self._truncated, bool) & ~terminated
        infos = self._infos if any(self._infos) else []
        states = joined_states(self._states)
        ends = EpisodeEnds(self.indices, self.t, self._observations, terminated, truncated, infos, states)
        self.clear()
        return ends


def joined_states(states: Sequence[Tree | None]) -> Tree | None:
    """``[N, ...]`` states of some sub-environments; None if they were not asked for theirs."""
    if not states or states[0] is None:
        return None
    return tree_map(lambda *parts: np.concatenate(parts), *states)


def joined(results: list[StepResult]) -> StepResult:
    """The results of several workers, whose rewards are lists, as one."""
    if len(results) == 1:
        return results[0]

    def all_of(name: str) -> list[Any]:
        return [item for result in results for item in getattr(result, name)]

    told = None if results[0].told is None else all_of("told")
    ends = _joined_ends([result.ends for result in results if result.ends is not None])
    observed = [result.observations for result in results]
    are_arrays = all(type(own) is np.ndarray for own in observed)
    observations = np.concatenate(observed) if are_arrays else all_of("observations")
    return StepResult(all_of("rewards"), observations, all_of("infos"), ends, all_of("events"), told)


def _joined_ends(parts: list[EpisodeEnds]) -> EpisodeEnds | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    has_infos = any(part.infos for part in parts)
    return EpisodeEnds(
        [index for part in parts for index in part.indices],
        [t for part in parts for t in part.t],
        [item for part in parts for item in part.observations],
        np.concatenate([part.terminated for part in parts]),
        np.concatenate([part.truncated for part in parts]),
        [own for part in parts for own in part.infos or [{}] * len(part.indices)] if has_infos else [],
        joined_states([part.states for part in parts]),
    )
