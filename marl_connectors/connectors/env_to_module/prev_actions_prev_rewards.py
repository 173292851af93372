"""Adds an agent's previous actions and rewards to its observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan, Steps
from marl_connectors.errors import ConfigError
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree

if TYPE_CHECKING:
    from marl_connectors.connectors.tensor_step import TensorStep


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
    """

    ORIG_OBS_KEY = "_orig_obs"
    PREV_ACTIONS_KEY = "prev_n_actions"
    PREV_REWARDS_KEY = "prev_n_rewards"

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool | None = None,
        n_prev_actions: int = 1,
        n_prev_rewards: int = 1,
        as_learner_connector: bool | None = None,
        flatten: bool = True,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            multi_agent: Whether the spaces are Dicts by agent id; None infers it.
            n_prev_actions: The number of actions. The episodes must keep as many steps from before each chunk
                (``episode_lookback_horizon``).
            n_prev_rewards: The number of rewards. The episodes must keep as many steps, too.
            as_learner_connector: Whether the piece is in a learner pipeline, where it adds the new observations to the
                batch, for episodes that no env-to-module pipeline with this piece has changed. None leaves it to the
                pipeline.
            flatten: Whether the new observation is a vector; False for RLlib's Dict.

        Raises:
            ConfigError: If both numbers are 0, or one is not an integer >= 0.
        """
        for name, value in (("n_prev_actions", n_prev_actions), ("n_prev_rewards", n_prev_rewards)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"PrevActionsPrevRewards: {name} must be a whole number >= 0, not {value!r}.")
        if not n_prev_actions and not n_prev_rewards:
            raise ConfigError(
                "PrevActionsPrevRewards: n_prev_actions and n_prev_rewards are both 0. Leave the piece out."
            )
        self.n_prev_actions = n_prev_actions
        self.n_prev_rewards = n_prev_rewards
        self._flatten = flatten
        super().__init__(
            input_observation_space,
            input_action_space,
            multi_agent=multi_agent,
            as_learner_connector=as_learner_connector,
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
        observations = Flattener(space) if self._flatten else None
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

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """Adds the history of all steps at once."""
        how: _How = plan.how
        own: list[tuple[str, np.ndarray]] = []
        if how.actions is not None:
            own.append((self.PREV_ACTIONS_KEY, self._prev_actions(how, steps)))
        if self.n_prev_rewards:
            n = self.n_prev_rewards
            recent = steps.recent(Columns.REWARDS, n, newest=-1, who=type(self).__name__)
            own.append((self.PREV_REWARDS_KEY, recent.values.astype(np.float32)))
        if how.observations is None:
            return {self.ORIG_OBS_KEY: observations, **dict(own)}
        return np.concatenate([how.observations(observations), *(part for _, part in own)], axis=1)

    def _prev_actions(self, how: _How, steps: Steps) -> np.ndarray:
        assert how.actions is not None
        n = self.n_prev_actions
        recent = steps.recent(Columns.ACTIONS, n, newest=-1, who=type(self).__name__)
        size = len(recent.reached)
        flat = how.actions(tree_map(lambda leaf: leaf.reshape(size * n, *leaf.shape[2:]), recent.values))
        flat = flat.reshape(size, n, how.actions.size)
        if not recent.reached.all():
            flat = flat * recent.reached[:, :, None]
        return flat.reshape(size, how.width)

    def on_tensors(self, *, columns: dict[str, Any], step: TensorStep) -> None:
        """Adds the history. Actions are remembered in the program, and rewards are an input of it."""
        how: _How = self.plan_of(step).how
        own: list[tuple[str, Any]] = []
        if how.actions is not None:
            actions = step.memory("prev_actions", np.zeros((self.n_prev_actions, how.actions.size), np.float32))
            flatten = how.actions.on_tensors

            def remember(newest: Any) -> None:
                actions.next = torch.cat([actions.value[:, 1:], flatten(newest).unsqueeze(1)], 1)

            step.after_actions(remember)
            own.append((self.PREV_ACTIONS_KEY, actions.value.flatten(1)))
        if self.n_prev_rewards:
            rewards = step.reward().unsqueeze(1)
            if self.n_prev_rewards > 1:
                older = step.memory("prev_rewards", np.zeros(self.n_prev_rewards - 1, np.float32))
                rewards = torch.cat([older.value, rewards], 1)
                older.next = rewards[:, 1:]
            own.append((self.PREV_REWARDS_KEY, rewards))
        if how.observations is None:
            columns[Columns.OBS] = {self.ORIG_OBS_KEY: columns[Columns.OBS], **dict(own)}
        else:
            flat = how.observations.on_tensors(columns[Columns.OBS])
            columns[Columns.OBS] = torch.cat([flat, *(part for _, part in own)], 1)
