"""What an environment gives an agent: observations, rewards, infos and masks, each held against what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors import spaces as space_tools
from marl_connectors.connectors.action_masks import (
    ACTION_MASK,
    flat_masks,
    free_where_nothing_is_left,
    is_binary,
    mask_of_one_row,
    wanted_mask,
)
from marl_connectors.env_checks.calls import digest
from marl_connectors.env_checks.report import Findings
from marl_connectors.env_checks.spaces import SpaceBook, leaf_name
from marl_connectors.environments.step_faults import advice_on_reward
from marl_connectors.spaces import values_per_choice
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID

_FIX_SPACE = "Correct the observation, or the observation space."


class DataChecks:
    """Checks what single agents are given, and whether it stays as it was given.

    Attributes:
        spaces: The agents' spaces.
        masks_in_infos: Whether an info held an action mask.
        masks_in_observations: Whether an observation held one.
    """

    def __init__(self, findings: Findings, space_book: SpaceBook, mask_key: str | None = ACTION_MASK):
        self._findings = findings
        self._mask_key = mask_key
        self.spaces = space_book
        self.masks_in_infos = False
        self.masks_in_observations = False
        self._given: list[tuple[str, AgentID, Any, bytes]] = []
        self._arrays: dict[int, list[tuple[AgentID, tuple[Any, ...], np.ndarray, bytes]]] = {}  # by place in memory
        self._writes_to_shared = False

    # Observations.

    def observation(self, agent: AgentID, observation: Any, step: int) -> None:
        """Holds an observation against its space."""
        space = self.spaces.observation_space(agent)
        if space is not None:
            self._hold(space, observation, (), agent, step)

    def _hold(self, space: Space, item: Any, path: tuple[Any, ...], agent: AgentID, step: int) -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            self._hold_parts(space, item, path, agent, step)
        elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            self._hold_numbers(space, item, path, agent, step)

    def _hold_parts(self, space: Any, item: Any, path: tuple[Any, ...], agent: AgentID, step: int) -> None:
        wanted, kind = (dict, "dict") if isinstance(space, spaces.Dict) else ((tuple, list, np.ndarray), "tuple")
        parts: dict[Any, Any] = dict(space_tools.parts_of(space))
        if not isinstance(item, wanted) or getattr(item, "shape", None) == ():
            self._misfit("structure", path, f"is a {type(item).__name__}, not a {kind}", agent, step)
            return
        found = dict(item) if isinstance(item, Mapping) else dict(enumerate(item))
        if set(found) != set(parts):
            self._misfit("structure", path, f"has the parts {list(found)}, not {list(parts)}", agent, step)
        for key, part in parts.items():
            if key in found:
                self._hold(part, found[key], (*path, key), agent, step)

    def _hold_numbers(self, space: Space, item: Any, path: tuple[Any, ...], agent: AgentID, step: int) -> None:
        try:
            values = np.asarray(item)
        except ValueError:
            values = np.array(None)
        if values.dtype.kind not in "biuf":
            self._misfit("structure", path, f"is {_short(item)}, which is no array of numbers", agent, step)
            return
        if values.shape != space.shape:
            self._misfit("shape", path, f"has the shape {values.shape}, not {space.shape}", agent, step)
            return
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            word = "NaN" if np.isnan(values).any() else "infinity"
            place = _component(np.argwhere(~np.isfinite(values))[0])
            self._findings.add(
                "error",
                "observation-not-finite",
                f"The observation{leaf_name(path)} holds {word}{f', at {place}' if place else ''}.",
                "Look for a division by zero, or clip it; a network turns it into NaN losses.",
                agent=agent,
                step=step,
                part=path,
            )
            return
        if not self._holds_bounds(space, values, path, agent, step):
            return
        self._hold_dtype(space, item, values, path, agent, step)

    def _holds_bounds(self, space: Any, values: np.ndarray, path: tuple[Any, ...], agent: AgentID, step: int) -> bool:
        if not isinstance(space, spaces.Box) and not np.array_equal(values, np.round(values)):
            self._misfit("outside-space", path, f"is {_short(values)}, not whole numbers", agent, step)
            return False
        # Stored in the space's dtype: float64 values that round to a float32 bound are inside.
        both_floats = values.dtype.kind == "f" and np.dtype(space.dtype).kind == "f"
        stored = values.astype(space.dtype) if both_floats else values
        why = space_tools.outside(space, stored[None])[1]
        if not why:
            return True
        self._misfit("outside-space", path, f": {why}" if why.startswith("component") else why, agent, step)
        return False

    def _misfit(self, how: str, path: tuple[Any, ...], why: str, agent: AgentID, step: int) -> None:
        what = f"The observation{leaf_name(path)} {why}.".replace(" : ", ": ")
        self._findings.add("error", f"observation-{how}", what, _FIX_SPACE, agent=agent, step=step, part=path)

    def _hold_dtype(
        self, space: Space, item: Any, values: np.ndarray, path: tuple[Any, ...], agent: AgentID, step: int
    ) -> None:
        wanted = np.dtype(space.dtype)
        where = {"agent": agent, "step": step, "part": path}
        name = leaf_name(path)
        are_floats = wanted.kind in "iub" and values.dtype.kind == "f" and isinstance(space, spaces.Box)
        whole = not are_floats or np.array_equal(values, np.round(values))
        if whole and isinstance(space, spaces.Box) and not isinstance(item, (np.ndarray, np.generic)):
            self._findings.add(
                "note",
                "python-data",
                f"The observation{name} is a Python {type(item).__name__}, not a numpy array.",
                "It is converted at each step, which is slow for more than a few numbers.",
                **where,
            )
        elif are_floats:
            loss = "" if whole else f", which cannot hold {_short(values)}"
            self._findings.add(
                "warning" if whole else "error",
                "observation-dtype",
                f"The observation{name} is {values.dtype}, but the space {wanted}{loss}.",
                "Let the space and the observation have one dtype.",
                **where,
            )
        elif values.dtype != wanted and isinstance(space, spaces.Box) and values.dtype != np.float64:
            self._findings.add(
                "note",
                "observation-dtype",
                f"The observation{name} is {values.dtype}, but the space {wanted}, to which it is converted.",
                "Let the space and the observation have one dtype.",
                **where,
            )
        if values.dtype == np.float64 and isinstance(item, np.ndarray) and isinstance(space, spaces.Box):
            self._findings.add(
                "note",
                "float64",
                f"The observation{name} is float64. Networks compute in float32.",
                "With float32 it takes half the memory and no conversion.",
                **where,
            )

    # Rewards and infos.

    def reward(self, agent: AgentID, reward: Any, step: int) -> bool:
        """Whether a reward is one finite number."""
        why = ""
        try:
            array = np.asarray(reward)
            if array.dtype.kind not in "biuf":
                why = f"The reward is {_short(reward)}, not a number."
            elif array.ndim:
                why = f"The reward is an array of shape {array.shape}, not one number."
            elif not np.isfinite(array):
                why = f"The reward is {reward}."
        except ValueError:
            why = f"The reward is {_short(reward)}, not a number."
        if why:
            self._findings.add("error", "reward", why, advice_on_reward(reward), agent=agent, step=step)
        return not why

    def info(self, agent: AgentID, info: Any, step: int) -> None:
        """Whether an info is a dict."""
        if info is None:
            self._findings.add(
                "note", "info", "The info is None.", "Return an empty dict.", agent=agent, step=step, part="none"
            )
        elif not isinstance(info, dict):
            self._findings.add(
                "error", "info", f"The info is {_short(info)}, not a dict.", "Return a dict.", agent=agent, step=step
            )

    # Masks.

    def mask_space(self, agent: AgentID, *, by_convention: bool) -> None:
        """Whether the space of an agent's mask fits its actions, as training asks for it.

        Args:
            agent: Whose observation may have a mask.
            by_convention: Whether a part is a mask because of its key alone, so that its values must be 0 and 1.
        """
        seen, actions = self.spaces.observation_space(agent), self.spaces.action_space(agent)
        if not isinstance(seen, spaces.Dict) or self._mask_key not in seen.spaces or actions is None:
            return
        own = seen.spaces[self._mask_key]
        if values_per_choice(actions) is None:
            why = f"are {space_tools.describe(actions)}, of which none can be masked"
        elif flat_masks(actions, space_tools.zeros(own, 1)) is None:
            why = f"need a mask of {wanted_mask(actions)}"
        elif by_convention and not is_binary(own, actions):
            why = "need a mask of 0 and 1"
        else:
            return
        self._findings.add(
            "error",
            "mask-space",
            f"The space of {self._mask_key!r} in the observation is {own}, but the actions {why}.",
            "Correct the space; if it is no mask, train with action_mask_key=None (--action-mask-key none).",
            agent=agent,
        )

    def mask(self, agent: AgentID, observation: Any, info: Any, step: int, *, takes_turns: bool) -> np.ndarray | None:
        """The mask of the actions that are allowed now, as bools; None if there is none, or none that can be used.

        Args:
            agent: Who acts next.
            observation: What it sees.
            info: What it is told.
            step: When.
            takes_turns: Whether only this agent acts, so that it must be allowed something.
        """
        key = self._mask_key
        if key is None:
            return None
        mask = observation.get(key) if isinstance(observation, Mapping) else None
        if mask is not None:
            self.masks_in_observations = True
        elif isinstance(info, Mapping) and info.get(key) is not None:
            mask = info[key]
            self.masks_in_infos = True
        space = self.spaces.action_space(agent)
        if mask is None or values_per_choice(space) is None:
            return None
        where = {"agent": agent, "step": step}
        if isinstance(space, (spaces.MultiBinary, spaces.Dict, spaces.Tuple)):
            bits = flat_masks(space, mask_of_one_row(mask))
            if bits is None or not all(np.isin(part, (0, 1, 2)).all() for part in leaves(mask)):
                self._findings.add(
                    "error",
                    "mask-values",
                    f"The action mask is {_short(mask)}.",
                    f"Let it be {wanted_mask(space)}.",
                    **where,
                )
                return None
            return free_where_nothing_is_left(space, bits)[0]
        assert isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
        length = _num_choices(space)
        try:
            flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)
        except ValueError:
            flat = np.array(None)
        if flat.dtype.kind not in "biuf" or not np.isin(flat, (0, 1)).all():
            self._findings.add(
                "error",
                "mask-values",
                f"The action mask is {_short(mask)}.",
                "Let it have a 0 or 1 for each action.",
                **where,
            )
            return None
        if flat.shape != (length,):
            self._findings.add(
                "error",
                "mask-length",
                f"The action mask has the shape {flat.shape}, but {space} has {length} choices.",
                "Let it have a 0 or 1 for each action.",
                **where,
            )
            return None
        if flat.dtype.kind == "f":
            self._findings.add(
                "note",
                "mask-dtype",
                f"The action mask is {flat.dtype}.",
                "Gymnasium's space.sample(mask) takes int8 only.",
                **where,
            )
        if not flat.any():
            self._findings.add(
                "error" if takes_turns else "warning",
                "mask-forbids-all",
                "The action mask forbids all actions to an agent that is to act.",
                "Allow at least one (one that does nothing), or end the agent."
                if takes_turns
                else "That is read as a player who waits: any action may come. Allow one that does nothing instead.",
                **where,
            )
            return None
        return flat.astype(bool)

    # Whether data stays as it was given.

    def remember(self, what: str, agent: AgentID, value: Any) -> bytes:
        """Takes note of what was given; its digest."""
        token = digest(value)
        if what in ("observation", "info"):
            self._given.append((what, agent, value, token))
        if what == "observation":
            self._take_note_of_arrays(agent, value, ())
        if what == "observation" and _is_read_only(value):
            self._findings.add(
                "note",
                "read-only-arrays",
                "Observations are arrays that cannot be written to.",
                "Nothing to do here: they are copied. Code that changes observations in place has to copy them first.",
                agent=agent,
            )
        return token

    def look_again(self, step: int) -> None:
        """Whether what was given before this call is still what it was, and was each agent's own."""
        self._look_for_shared_arrays(step)
        for what, agent, value, token in self._given:
            if digest(value) != token:
                self._findings.add(
                    "note",
                    f"{what}-reused",
                    f"The {what} that was given before changed afterwards: the environment writes to one object.",
                    "Nothing to do if each copy of the environment has its own: it is copied. Copies that write to one "
                    "object of all, such as a class attribute, get each other's data. Code that keeps it must copy it "
                    "too.",
                    agent=agent,
                    step=step,
                )
        self._given.clear()

    def given(self) -> list[tuple[Any, bytes]]:
        """What was given since the last call, each with its digest."""
        return [(value, token) for _, _, value, token in self._given]

    def _take_note_of_arrays(self, agent: AgentID, item: Any, path: tuple[Any, ...]) -> None:
        if isinstance(item, (Mapping, tuple, list)):
            for key, part in item.items() if isinstance(item, Mapping) else enumerate(item):
                self._take_note_of_arrays(agent, part, (*path, key))
        elif isinstance(item, np.ndarray) and item.size:
            place = item.__array_interface__["data"][0]
            self._arrays.setdefault(place, []).append((agent, path, item, digest(item)))

    def _look_for_shared_arrays(self, step: int) -> None:
        """An array that several agents got in one step holds the last one's, unless all are to see the same."""
        for found in self._arrays.values():
            agents = list(dict.fromkeys(agent for agent, *_ in found))
            if len(agents) == 1:
                continue
            agent, path, array, token = found[0]
            what = (
                f"Agents {agent!r} and {agents[1]!r} were given one and the same array as observation{leaf_name(path)}"
            )
            if digest(array) != token:
                self._writes_to_shared = True
                self._findings.add(
                    "error",
                    "observation-shared",
                    f"{what}, and the environment writes to it in each step: all see what was written last.",
                    "Give each agent an array of its own (observation.copy()), also where all are to see the same.",
                    agent=agent,
                    step=step,
                    part=path,
                )
            elif not self._writes_to_shared:
                self._findings.add(
                    "note",
                    "observation-shared",
                    f"{what}, so they see the same.",
                    "Nothing to do if that is what they are to see. If each is to see something else, make an array "
                    "for each: one that is filled again for the next agent holds the last one's observation.",
                    agent=agent,
                    part=path,
                )
        self._arrays.clear()


def _num_choices(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """How many entries a mask of an action space has."""
    return int(space.n) if isinstance(space, spaces.Discrete) else int(space.nvec.sum())


def _is_read_only(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_read_only(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return any(_is_read_only(item) for item in value)
    return isinstance(value, np.ndarray) and not value.flags.writeable


def _component(place: np.ndarray) -> str:
    return f"component {', '.join(map(str, place.tolist()))}" if len(place) else ""


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
