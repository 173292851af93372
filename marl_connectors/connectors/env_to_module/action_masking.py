"""Reads action masks from observations or infos; the modules' forward passes apply them (``RLModule``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE
from marl_connectors.connectors.space_trees import fits, shape_of
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.flat_action_masks import (
    flat_masks,
    free_where_nothing_is_left,
    mask_of_one_row,
    wanted_mask,
)
from marl_connectors.spaces import describe, in_key_order, stack, values_per_choice, zeros
from marl_connectors.typing import AgentID, Tree
from marl_connectors.validators import one_of


class _Masks(NamedTuple):
    """The source of the masks of some agents.

    Attributes:
        action_space: The agents' action space, if it is known.
        in_observation: Whether the mask is a part of the observation.
        in_info: Whether the mask may be in the info dict.
        kept: The key of the only part of the observation that is kept; None for all parts but the mask.
    """

    action_space: Space | None
    in_observation: bool
    in_info: bool
    kept: str | None = None


class ActionMasking(ObservationTransform):
    """Makes forbidden actions impossible, for any module.

    The form of a mask depends on the action space, and is the one that ``space.sample(mask)`` accepts:

    * Discrete: a number for each action, 0 or False if it is forbidden.
    * MultiDiscrete: such a number for each value of each choice, as one vector or as a tuple of vectors.
    * MultiBinary: 0, 1 or 2 for each bit that must be 0, must be 1 or is free.
    * Dict and Tuple: a dict or tuple of the masks of their parts; parts without choices have no mask.

    Each agent's mask is read from its Dict observation, as in PettingZoo's classic games (``{"observation": ...,
    "action_mask": ...}``), or else from its info dict. All actions are allowed for an agent without a mask, and for one
    whose mask forbids all of them, as that of a player waiting for its turn does.

    The batch gets the masks as ``Columns.ACTION_MASK`` (``[B, n]`` bool, a number for each value of each choice).
    ``RLModule`` applies them to a module's outputs. The trajectories keep them, so that they are applied to the train
    batch too. If the masks were part of the observations, the rest of these is written back to the episodes, so later
    pieces and the module get no mask, unless ``keep_in_observations`` leaves observations as they are. For this reason
    the piece must be before all others that change observations.

    Reads ``obs`` and ``infos``; writes ``action_mask`` to the batch, and ``obs`` back to the episodes. Keeps no state.

    Args:
        action_mask_key: The key of the mask in a Dict observation or in an info dict.
        observation_key: The key of the part of a Dict observation that becomes the observation. With None, or with
            a key that the observation lacks, a Dict of all parts but the mask is kept. ``"auto"`` stands for
            ``"observation"`` if that is the only part in addition to the mask, else for None.
        source: The source of masks: ``"observations"``, ``"infos"``, or ``"auto"`` for an agent's observation if
            its space has the key, else its info dict.
        keep_in_observations: Whether observations stay as they are, so that later pieces and modules get the masks.
    """

    belongs_in = (ENV_TO_MODULE,)
    action_mask_key: str = argument(default="action_mask")
    observation_key: str | None = argument(default="observation")
    source: str = argument(one_of("auto", "observations", "infos"), default="auto")
    keep_in_observations: bool = argument(default=False)

    def begin(self) -> None:
        super().begin()
        key = self.action_mask_key
        if key == self.observation_key:
            raise ConfigError(f"ActionMasking: action_mask_key and observation_key are both {key!r}.")

    # Spaces.

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Checks that agents can have masks."""
        if self.source == "observations":
            if not any(self._is_in(space) for space, _ in agents.values()):
                whose, (space, _) = next(iter(agents.items()))
                raise ConfigError(
                    f"ActionMasking: source='observations', but no observation has a part {self.action_mask_key!r}: "
                    f"{_name(whose)} sees {describe(space)}. Set action_mask_key, or put the piece before those that "
                    f"change observations."
                )
            return
        action_spaces = [action_space for _, action_space in agents.values()]
        if action_spaces and all(s is not None and values_per_choice(s) is None for s in action_spaces):
            whose, (_, action_space) = next(iter(agents.items()))
            assert action_space is not None
            raise self._without_choices(whose, action_space)

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space without the mask, and the source of the mask."""
        in_observation = self.source != "infos" and self._is_in(space)
        in_info = self.source != "observations" and not in_observation
        masks = _Masks(action_space, in_observation, in_info)
        if not in_observation:
            return Plan(space, space, masks)
        assert isinstance(space, spaces.Dict)
        if action_space is not None and values_per_choice(action_space) is None:
            raise self._without_choices(agent_id, action_space)
        mask_space = space.spaces[self.action_mask_key]
        if flat_masks(action_space, zeros(mask_space, 1)) is None:
            raise ConfigError(
                f"ActionMasking: the mask of {_name(agent_id)}, {self.action_mask_key!r} in its observation, must have "
                f"{wanted_mask(action_space)}, but is {describe(mask_space)}. {self._remedy('Fix the spaces')}"
            )
        if self.keep_in_observations:
            return Plan(space, space, masks)
        rest = {key: part for key, part in space.spaces.items() if key != self.action_mask_key}
        if not rest:
            raise ConfigError(
                f"ActionMasking: the observation of {_name(agent_id)} has no part but its mask, so its module would "
                f"get no observation. {self._remedy('Give it another part, or the mask in the info dict')}"
            )
        kept = self.observation_key
        if kept == "auto":
            kept = "observation" if set(rest) == {"observation"} else None
        if kept not in rest:
            return Plan(space, in_key_order(rest.items()), masks)
        return Plan(space, rest[kept], masks._replace(kept=kept))

    def _remedy(self, fix: str) -> str:
        return (
            f"{fix} in the environment, or leave {self.action_mask_key!r} alone as an ordinary observation: "
            f".environment(action_mask_key=None) (--action-mask-key none)."
        )

    def _is_in(self, space: Space | None) -> bool:
        return isinstance(space, spaces.Dict) and self.action_mask_key in space.spaces

    def _without_choices(self, agent_id: AgentID | None, space: Space) -> ConfigError:
        return ConfigError(
            f"ActionMasking: masks are for Discrete, MultiDiscrete and MultiBinary actions, and for Dicts and Tuples "
            f"with such parts, but those of {_name(agent_id)} are {describe(space)}. Leave the piece out "
            f"(action_mask_key=None), or change the action space."
        )

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Returns the observations without their masks."""
        if not plan.how.in_observation or self.keep_in_observations:
            return observations
        if plan.how.kept is not None:
            return observations[plan.how.kept]
        return {key: part for key, part in observations.items() if key != self.action_mask_key}

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the masks of all rows of a group. Masks in info dicts cost Python code for each row."""
        rows, observations = c.rows, self.given(c)
        if Columns.ACTION_MASK not in c:
            plan = self._plan_for(rows)
            if plan.how.in_observation:
                mask = self._from_observations(observations, plan, rows, xp)
            elif c.program is not None:
                mask = self._from_program(c, plan, xp)
            else:
                mask = self._from_infos(_infos(rows) if plan.how.in_info else (), len(rows), plan, rows)
            if mask is not None:
                c[Columns.ACTION_MASK] = mask
        if not self.keep_in_observations:
            self.give_back(c, observations, self.changed(observations, c, xp))

    def _from_observations(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Any:
        """Returns ``[B, n]`` bool, from the environment's own observations."""
        if xp is ARRAYS and not fits(plan.before, observations):  # they were taken out earlier, as in a restored run
            observations = rows.source(Columns.OBS)
        if xp is ARRAYS and not fits(plan.before, observations):
            raise ConnectorError(
                f"ActionMasking: expected observations of {describe(plan.before)} from {_name(rows.agents.ids[0])}, "
                f"but they are {shape_of(observations)}. Put the piece before all others that change observations, and "
                f"use it once."
            )
        action_space = rows.action_space if plan.how.action_space is None else plan.how.action_space
        mask = flat_masks(action_space, observations[self.action_mask_key], xp)
        if mask is None:
            raise ConnectorError(
                f"ActionMasking: the mask of {_name(rows.agents.ids[0])} must have {wanted_mask(action_space)}, but "
                f"is {shape_of(observations[self.action_mask_key])}. Fix the environment."
            )
        return free_where_nothing_is_left(action_space, mask, xp)

    def _from_program(self, c: ColumnGroup, plan: Plan, xp: Any) -> Any:
        """Returns ``[B, n]`` bool, an input of the program that is recorded; None without masks in infos."""
        action_space = c.rows.action_space if plan.how.action_space is None else plan.how.action_space
        lens = values_per_choice(action_space)
        if lens is None or not plan.how.in_info:
            return None
        path = (self.action_mask_key,)
        mask = c.program.input("action_mask", (sum(lens),), np.bool_, role="action_mask", path=path)
        return free_where_nothing_is_left(action_space, mask, xp)

    def _from_infos(self, infos: Sequence[Mapping[str, Any]], count: int, plan: Plan, rows: Rows) -> np.ndarray | None:
        """Returns ``[B, n]`` bool, True in rows without a mask; None for agents whose actions cannot be masked."""
        key = self.action_mask_key
        if self.source == "auto" and self._is_in(rows.observation_space) and not self._is_in(plan.before):
            raise ConnectorError(
                f"ActionMasking: the environment's observations of {_name(rows.agents.ids[0])} have a part {key!r}, "
                f"but an earlier piece has changed them to {describe(plan.before)}. Put ActionMasking first, or set "
                f"source='infos'."
            )
        found = [(row, info[key]) for row, info in enumerate(infos) if info.get(key) is not None]
        action_space = rows.action_space if plan.how.action_space is None else plan.how.action_space
        lens = values_per_choice(action_space)
        if lens is None or action_space is None:
            if not found:
                return None
            whose = _whose(rows, found[0][0])
            if action_space is not None:
                raise ConnectorError(str(self._without_choices(whose, action_space)))
            raise ConnectorError(
                f"ActionMasking: the action space of {_name(whose)} is unknown. Build the piece with "
                f"input_action_space, or give the episodes their spaces."
            )
        allowed = np.ones((count, sum(lens)), bool)
        if found:
            places, masks = zip(*found, strict=True)
            values = _stacked(masks, action_space)
            if values is None:
                raise self._wrong_mask(found, action_space, rows)
            allowed[list(places)] = values
        return free_where_nothing_is_left(action_space, allowed)

    def _wrong_mask(self, found: Sequence[tuple[int, Any]], action_space: Space, rows: Rows) -> ConnectorError:
        row, mask = next((pair for pair in found if _stacked([pair[1]], action_space) is None), found[0])
        return ConnectorError(
            f"ActionMasking: the info of {_name(_whose(rows, row))} has a mask of shape {_shape(mask)}, but its "
            f"actions are {describe(action_space)}, so the mask needs {wanted_mask(action_space)}. Fix the environment."
        )


def _stacked(masks: Sequence[Any], action_space: Space) -> np.ndarray | None:
    """Returns ``[k, n]`` bool, or None if not all of them are masks for the space."""
    try:
        if not isinstance(action_space, (spaces.Dict, spaces.Tuple)):
            return flat_masks(action_space, stack(list(masks)))
        rows = [flat_masks(action_space, mask_of_one_row(mask)) for mask in masks]
        return None if any(row is None for row in rows) else np.concatenate(rows)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None


def _shape(mask: Any) -> str:
    if isinstance(mask, dict):
        return "{" + ", ".join(f"{key!r}: {_shape(part)}" for key, part in mask.items()) + "}"
    if isinstance(mask, tuple):
        return ", ".join(map(_shape, mask))
    return f"{np.shape(mask)} ({np.asarray(mask).dtype})"


def _infos(rows: Rows) -> Sequence[Mapping[str, Any]]:
    """Returns the info dict of each row, or ``()`` if all of them are empty."""
    if rows.parts and not any(part.rollout.infos for part in rows.parts):
        return ()
    return rows.get(Columns.INFOS)


def _whose(rows: Rows, row: int) -> AgentID | None:
    ids, index = rows.agents
    return ids[int(index[row])]


def _name(agent_id: AgentID | None) -> str:
    return "the agent" if agent_id is None else f"agent {agent_id!r}"
