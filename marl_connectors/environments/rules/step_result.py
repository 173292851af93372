"""The result of a step of all sub-environments. It is the same for every kind of environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


@dataclass(slots=True)
class Event:
    """Agents that joined or ended, late rewards and failures in one sub-environment in a step.

    There is an event if agents ended or joined while others continue, if an agent that did not act got a reward, if an
    episode was dropped, or if an episode ended in a way that ``EpisodeEnds`` cannot describe.

    Attributes:
        index: The index of the sub-environment.
        t: The number of env steps since its episode began, including this one.
        observations: The last observations of the agents that ended, by agent, from before any reset.
        terminations: The termination flags by agent.
        truncations: The truncation flags by agent.
        infos: The infos that came with ``observations``, by agent.
        uncredited: The rewards of agents that did not act, by agent.
        is_over: Whether the episode ended. The sub-environment was reset, or will be.
        is_dropped: Whether the episode was abandoned without a known end and another one has begun: after a failure,
            or because the caller asked for a new episode.
        begins: Whether this step only reset the sub-environment, so that its episode begins now.
        state: The environment's state before any reset, ``[1, ...]``; None if states are not used.
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
    """Episodes whose remaining agents all ended in the same step: ``N`` agents of ``K`` sub-environments.

    Attributes:
        indices: The indices of the ``K`` sub-environments. The ``N`` agents are in this order.
        t: The ``K`` lengths of the episodes, in env steps.
        observations: The agents' last observations: ``[N, ...]`` arrays, or a list of ``N`` items.
        terminated: ``[N]`` bool.
        truncated: ``[N]`` bool, False where ``terminated``.
        infos: ``K`` dicts by agent; an empty list if there are no infos at all.
        states: The environments' last states, ``[K, ...]``; None if states are not used.
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
    """The result of a step of all sub-environments.

    Lists contain the items of all agents of the first sub-environment, then those of the second one, and so on.

    Attributes:
        rewards: One reward for each agent that acted; in turn-based environments, one for each item of ``rewarded``.
        observations: A list or an array with one observation for each agent that acts next. Where an episode ended,
            these are the first observations of the new one.
        infos: ``(env_index, infos by agent)`` for the ``observations`` that came with infos.
        ends: Episodes that ended for all of their agents together; None if there are none.
        events: Everything else that is unusual, at most one event for each sub-environment.
        rewarded: In turn-based environments, the ``(env_index, agent)`` that each reward belongs to: only the agent
            that acts next and agents that have ended get the reward for their last action. None if every agent that
            acted gets its reward at once.
        in_rows: Whether ``rewards`` and ``observations`` are lists with one array for each group of agents with the
            same spaces, in the order of the group's rows. Adapters leave it False.
        late: ``(env_index, place)`` of each sub-environment that waits for ``reset_over``; ``place`` is the number of
            ``observations`` that come before its own.
    """

    rewards: Any
    observations: Any
    infos: list[tuple[int, dict[AgentID, dict]]] = field(default_factory=list)
    ends: EpisodeEnds | None = None
    events: list[Event] = field(default_factory=list)
    rewarded: list[tuple[int, AgentID]] | None = None
    in_rows: bool = False
    late: list[tuple[int, int]] = field(default_factory=list)

    @property
    def over(self) -> dict[int, int]:
        """The length of each episode that ended or was dropped, in env steps, by ascending sub-environment index."""
        ended = {event.index: event.t for event in self.events if event.is_over}
        if self.ends is not None:
            ended |= zip(self.ends.indices, self.ends.t, strict=True)
        return dict(sorted(ended.items()))


STEP_PARTS = attrgetter("rewards", "observations", "infos", "ends", "events", "rewarded")
"""Returns what adapters write to a StepResult, as the arguments that make an equal one."""


def joined_states(states: Sequence[Tree | None]) -> Tree | None:
    """Joins the states of ``N`` sub-environments to ``[N, ...]`` arrays; None if one is missing."""
    if any(state is None for state in states):
        return None
    return tree_map(lambda *parts: np.concatenate(parts), *states)


def joined(results: list[StepResult]) -> StepResult:
    """Joins the results of several workers, whose rewards are lists, to one result."""
    if len(results) == 1:
        return results[0]

    def all_of(name: str) -> list[Any]:
        return [item for result in results for item in getattr(result, name)]

    rewarded = None if results[0].rewarded is None else all_of("rewarded")
    ends = joined_ends([result.ends for result in results if result.ends is not None])
    observed = [result.observations for result in results]
    are_arrays = all(type(own) is np.ndarray for own in observed)
    observations = np.concatenate(observed) if are_arrays else all_of("observations")
    return StepResult(all_of("rewards"), observations, all_of("infos"), ends, all_of("events"), rewarded)


def joined_ends(parts: Sequence[EpisodeEnds]) -> EpisodeEnds | None:
    """Joins ends of episodes, whose flags may also be lists; None if there are none."""
    if not parts:
        return None
    terminated = np.array([flag for part in parts for flag in part.terminated], bool)
    truncated = np.array([flag for part in parts for flag in part.truncated], bool)
    has_infos = any(any(part.infos) for part in parts)
    return EpisodeEnds(
        [index for part in parts for index in part.indices],
        [t for part in parts for t in part.t],
        [item for part in parts for item in part.observations],
        terminated,
        truncated & ~terminated,
        [own for part in parts for own in part.infos or [{}] * len(part.indices)] if has_infos else [],
        joined_states([part.states for part in parts]),
    )
