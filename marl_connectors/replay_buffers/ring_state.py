"""The state of a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from gymnasium import Space
from msgspec import Meta

from marl_connectors.episodes.action_units import ActionUnits
from marl_connectors.errors import ConfigError
from marl_connectors.names import brief
from marl_connectors.spaces import from_json, to_json
from marl_connectors.state import Column, Count, Floats, Index, Ints, State
from marl_connectors.trees import leaves
from marl_connectors.typing import ModuleID


class OpenEpisode(State):
    """An episode that has not ended, and continues in the row of its last observation.

    Attributes:
        episode_id: The episode's id; of an agent's episode with the agent's name and life.
        lane: Its lane.
        number: The number that its rows have.
        num_steps: The number of steps that were taken in it.
        added_at: The number of rows that the ring had ever had before the newest chunk of it was added.
    """

    episode_id: str
    lane: Index
    number: Index
    num_steps: Count
    added_at: Count


class Priorities(State):
    """What makes some steps more likely to be drawn than others.

    Attributes:
        weights: The weight of each row that has been written.
        greatest: The greatest weight so far, which new steps get.
    """

    weights: Floats
    greatest: Annotated[float, Meta(gt=0)]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all() and np.isfinite(self.greatest)):
            raise ValueError("Expected weights that are finite, from 0")


class RingState(State):
    """The state of a ring, without the room that is still free.

    Attributes:
        columns: The columns of the rows that have been written.
        flags: As in the ring, of these rows.
        numbers: As in the ring, of these rows.
        written: As in the ring.
        num_rows: As in the ring.
        num_steps_added: As in the ring.
        num_episodes_added: As in the ring.
        action_units: Whose actions they are.
        open: Each actor that has an episode that has not ended.
        ended: The id of a MultiAgentEpisode to the agents that have ended in it, to the lane and the number of each.
        spaces: The observation space and the action space of each module as JSON data, where they have such a form.
        priorities: Those of a ring that draws by them.
    """

    columns: dict[str, Column]
    flags: Ints
    numbers: Ints
    written: Ints
    num_rows: Index
    num_steps_added: Count
    num_episodes_added: Count
    action_units: ActionUnits
    open: dict[str, OpenEpisode]
    ended: dict[str, dict[str, tuple[Index, Index]]]
    spaces: dict[ModuleID, tuple[dict[str, Any], dict[str, Any]]]
    priorities: Priorities | None = None

    def __post_init__(self) -> None:
        num_lanes = len(self.written)
        if (self.written < 0).any() or (self.written >= 2**62).any():
            raise ValueError(f"Expected written to be numbers from 0, got {brief(self.written)}")
        size = min(self.num_rows, int(self.written.max(initial=0))) * num_lanes
        rows: dict[str, Any] = {"flags": self.flags, "numbers": self.numbers, **self.columns}
        if self.priorities is not None:
            rows["priorities"] = self.priorities.weights
        for name, column in rows.items():
            if any(len(leaf) != size for leaf in leaves(column)):
                raise ValueError(f"Expected {name} to have {size} rows, got {brief(column)}")
        places = [place for own in self.ended.values() for place in own.values()]
        lanes = [*(episode.lane for episode in self.open.values()), *(lane for lane, _ in places)]
        if max(lanes, default=-1) >= num_lanes:
            raise ValueError(f"Expected open and ended episodes in {num_lanes} lanes, got {max(lanes)}")


def spaces_to_json(spaces: Mapping[ModuleID, tuple[Any, Any]]) -> dict[ModuleID, tuple[Any, Any]]:
    """Returns the observation and action spaces of modules as JSON data, without spaces that have no such form."""
    found = {}
    for module_id, pair in spaces.items():
        try:
            if None not in pair:
                found[module_id] = to_json(pair[0]), to_json(pair[1])
        except ConfigError:
            continue
    return found


def spaces_from_json(data: Mapping[ModuleID, Sequence[Any]]) -> dict[ModuleID, tuple[Space, Space]]:
    """Returns the spaces that ``spaces_to_json`` described."""
    return {module_id: (from_json(seen), from_json(taken)) for module_id, (seen, taken) in data.items()}
