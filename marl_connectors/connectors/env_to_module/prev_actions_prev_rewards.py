"""Adds an agent's previous actions and rewards to its observation."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError
from marl_connectors.typing import AgentID, Tree
from marl_connectors.validators import integer


class _How(NamedTuple):
    observations: Flattener | None
    actions: Flattener | None
    width: int


class PrevActionsPrevRewards(ObservationTransform):
    """Adds the newest actions and rewards of each agent to its observation.

    The new observation is one float32 vector: the flat observation, the actions (oldest first; Discrete ones one-hot),
    and the rewards (oldest first). Actions and rewards before the first step of an agent's episode are zeros. All
    spaces that FlattenObservations accepts are possible, for observations and actions.

    With ``flatten=False`` the new observation is RLlib's Dict of ``_orig_obs`` (the observation as it is),
    ``prev_n_actions`` and ``prev_n_rewards``, for modules that accept a Dict.

    Reads ``obs``, ``actions`` and ``rewards``; writes ``obs`` back to the episodes. Keeps no state.

    Args:
        n_prev_actions: The number of actions. The episodes must keep as many steps from before each chunk
            (``episode_lookback_horizon``).
        n_prev_rewards: The number of rewards. The episodes must keep as many steps, too.
        flatten: Whether the new observation is a vector; False for RLlib's Dict.
    """

    ORIG_OBS_KEY = "_orig_obs"
    PREV_ACTIONS_KEY = "prev_n_actions"
    PREV_REWARDS_KEY = "prev_n_rewards"
    n_prev_actions: int = argument(integer(min=0), default=1)
    n_prev_rewards: int = argument(integer(min=0), default=1)
    flatten: bool = argument(default=True)

    def begin(self) -> None:
        super().begin()
        if not self.lookback:
            raise ConfigError(
                "PrevActionsPrevRewards: n_prev_actions and n_prev_rewards are both 0. Leave the piece out."
            )

    @property
    def lookback(self) -> int:
        """The number of steps that an episode must keep from before each chunk."""
        return max(self.n_prev_actions, self.n_prev_rewards)

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the new space, and how to flatten observations and actions."""
        actions, width = None, 0
        if self.n_prev_actions:
            if action_space is None:
                raise ConfigError(
                    "PrevActionsPrevRewards: the action space is unknown. Build the piece with input_action_space, or "
                    "give the episodes their spaces."
                )
            actions = Flattener(action_space, count_from_0=True)
            width = actions.size * self.n_prev_actions
        observations = Flattener(space) if self.flatten else None
        how = _How(observations, actions, width)
        own: list[tuple[str, spaces.Box]] = []
        if actions is not None:
            low, high = np.minimum(actions.space.low, 0), np.maximum(actions.space.high, 0)
            n = self.n_prev_actions
            own.append((self.PREV_ACTIONS_KEY, spaces.Box(np.tile(low, n), np.tile(high, n), dtype=np.float32)))
        if self.n_prev_rewards:
            own.append((self.PREV_REWARDS_KEY, spaces.Box(-np.inf, np.inf, (self.n_prev_rewards,), np.float32)))
        if observations is None:
            return Plan(space, spaces.Dict({self.ORIG_OBS_KEY: space, **dict(own)}), how)
        boxes = [observations.space, *(box for _, box in own)]
        low, high = (np.concatenate([getattr(box, side) for box in boxes]) for side in ("low", "high"))
        return Plan(space, spaces.Box(low, high, dtype=np.float32), how)

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Adds the history of all steps at once."""
        how: _How = plan.how
        who = type(self).__name__
        own: list[tuple[str, Any]] = []
        if how.actions is not None:
            flatten = partial(how.actions, xp=xp)
            recent = rows.recent(Columns.ACTIONS, self.n_prev_actions, newest=-1, who=who, each=flatten)
            own.append((self.PREV_ACTIONS_KEY, recent.reshape(recent.shape[0], how.width)))
        if self.n_prev_rewards:
            recent = rows.recent(Columns.REWARDS, self.n_prev_rewards, newest=-1, who=who)
            own.append((self.PREV_REWARDS_KEY, xp.astype(recent, xp.float32)))
        if how.observations is None:
            return {self.ORIG_OBS_KEY: observations, **dict(own)}
        return xp.concat([how.observations(observations, xp), *(part for _, part in own)], axis=1)
