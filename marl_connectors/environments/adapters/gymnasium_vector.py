"""A Gymnasium VectorEnv as a natively batched environment with one agent."""

from __future__ import annotations

import copy as copying
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from marl_connectors import spaces
from marl_connectors.environments.adapters.env_adapter import EnvAdapter
from marl_connectors.errors import ConfigError, EnvError
from marl_connectors.trees import copied, leaves, tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""The values of ``gymnasium.vector.AutoresetMode``, which Gymnasium 1.0 does not have."""
_MEMBERS = {NEXT_STEP: "NEXT_STEP", SAME_STEP: "SAME_STEP", DISABLED: "DISABLED"}
INFOS = "infos"
"""The key of the infos that ``GymnasiumBatch.step`` returns, if there are any: one dict for each sub-environment."""


class GymnasiumBatch(EnvAdapter):
    """A ``gymnasium.vector.VectorEnv`` of single-agent environments, with the methods of a ``BatchedEnv``.

    The autoreset mode decides how a sub-environment whose episode is over is reset:

    * ``DISABLED``, and a plain ``SyncVectorEnv`` or ``AsyncVectorEnv`` with ``NEXT_STEP``: ``reset`` resets it with a
      ``reset_mask`` and the given seed.
    * ``SAME_STEP``: the VectorEnv resets it in the step that ended it. ``step`` returns the final observation, and
      ``reset`` returns the first observation of the new episode, without resetting anything.
    * ``NEXT_STEP`` of other classes: the VectorEnv resets it in its next step, so that ``reset`` cannot reset it alone;
      see ``NextStepVectorEnv``.

    Attributes:
        env: The VectorEnv.
        num_envs: The number of sub-environments.
        possible_agents: The one agent.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
        resets_alone: Whether single sub-environments can be reset.
        reset_infos: For each sub-environment, the info that its newest episode began with.
    """

    def __init__(self, env: gym.vector.VectorEnv, name: str, reset_options: Mapping[str, Any] | None = None):
        """Wraps the VectorEnv.

        Args:
            env: The VectorEnv.
            name: Its name in messages.
            reset_options: The ``options`` that it gets with every reset, in addition to ``reset_mask``.

        Raises:
            EnvError: If its metadata have no valid autoreset mode.
            ConfigError: If there are options, but the VectorEnv resets sub-environments without them.
        """
        super().__init__(env)
        self.num_envs = int(env.num_envs)
        self.possible_agents: list[AgentID] = [DEFAULT_AGENT_ID]
        self.autoreset_mode = _autoreset_mode(env, name)
        is_plain = type(env) in (SyncVectorEnv, AsyncVectorEnv) and hasattr(gym.vector, "AutoresetMode")
        self.resets_alone = self.autoreset_mode == DISABLED or (self.autoreset_mode == NEXT_STEP and is_plain)
        if reset_options is not None and not self.resets_alone:
            raise ConfigError(
                f"reset_options: {name} has AutoresetMode.{_MEMBERS[self.autoreset_mode]}, so it resets its "
                f"sub-environments without options, and only their first episodes would get them. Put the options into "
                f"env_config for the maker of the environment, or use AutoresetMode.DISABLED."
            )
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._takes_seeds: bool | None = None  # unknown before the first reset
        self._name = name
        self._reset_options = reset_options
        self._begun: Tree = None  # SAME_STEP: the newest observations, of new episodes where old ones ended

    def observation_space(self, agent: AgentID) -> gym.Space:
        """Returns the observation space of one sub-environment."""
        return self.env.single_observation_space

    def action_space(self, agent: AgentID) -> gym.Space:
        """Returns the action space of one sub-environment."""
        return self.env.single_action_space

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> Tree:
        """Starts episodes; see ``BatchedEnv``.

        Raises:
            EnvError: If there is a mask, but the VectorEnv only resets single sub-environments in a step.
        """
        if mask is not None and not self.resets_alone:
            if self.autoreset_mode == NEXT_STEP:
                raise EnvError(
                    f"{self._name}: with AutoresetMode.NEXT_STEP, only a step resets single sub-environments."
                )
            return _with_agents(self._begun)
        observations, infos = self._reset(list(seeds), mask)
        own = infos_of(infos, self.num_envs)
        for index in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            self.reset_infos[index] = own[index]
        return _with_agents(observations)

    def _reset(self, seeds: list[int | None], mask: np.ndarray | None) -> tuple[Any, dict[str, Any]]:
        options = None if self._reset_options is None else copying.deepcopy(dict(self._reset_options))
        if mask is not None:
            options = {**(options or {}), "reset_mask": mask}
        env: Any = self.env
        if self._takes_seeds is None:
            try:
                result = env.reset(seed=seeds, options=options)
            except (TypeError, ValueError, AttributeError, gym.error.Error):  # what a list instead of a number causes
                if isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
                    raise
                result = env.reset(seed=_one_of(seeds), options=options)
                self._takes_seeds = False  # many accept one number, as the base class does
            else:
                self._takes_seeds = True
            return result
        return env.reset(seed=seeds if self._takes_seeds else _one_of(seeds), options=options)

    def step(self, actions: np.ndarray) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Steps all sub-environments; see ``BatchedEnv``.

        If there are infos, they are a ``[num_envs, 1]`` array of dicts under the key ``INFOS``.
        """
        observations, rewards, terminations, truncations, infos = self.env.step(actions[:, 0])
        rewards, terminations, truncations = map(np.asarray, (rewards, terminations, truncations))
        infos = infos or {}
        own: list[dict[str, Any]] | None = None
        if self.autoreset_mode == SAME_STEP:
            ended = np.flatnonzero(terminations | truncations).tolist()
            self._begun, given, infos = observations, infos, without_finals(infos)
            if ended:
                observations = with_finals(self._name, observations, given, ended, self.env.single_observation_space)
                own = infos_of(infos, self.num_envs)
                finals = given.get("final_info") or {}
                for index in ended:
                    self.reset_infos[index] = own[index]
                    own[index] = _final_info(finals, index, self.num_envs)
                    _move_statistics(self.reset_infos[index], own[index])
        if own is None and infos:
            own = infos_of(infos, self.num_envs)
        return (
            _with_agents(observations),
            rewards[:, None],
            terminations[:, None],
            truncations[:, None],
            {INFOS: _in_array(own)} if own and any(own) else {},
        )

    def render(self) -> Any:
        """Returns what the first sub-environment renders."""
        frames: Any = self.env.render()
        return frames[0] if isinstance(frames, (tuple, list)) else frames


def _autoreset_mode(env: gym.vector.VectorEnv, name: str) -> str:
    given = (env.metadata or {}).get("autoreset_mode")
    mode = getattr(given, "value", given)
    if mode is None and not hasattr(gym.vector, "AutoresetMode"):
        return NEXT_STEP  # the only mode of Gymnasium 1.0
    if mode not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise EnvError(
            f"{name}: metadata['autoreset_mode'] of the VectorEnv is {given!r}, so it is unknown when "
            f"sub-environments whose episode is over begin the next one. Set it to a member of "
            f"gymnasium.vector.AutoresetMode."
        )
    return mode


def _with_agents(observations: Any) -> Tree:
    return tree_map(lambda leaf: np.asarray(leaf)[:, None], observations)


def _final_info(finals: Any, index: int, num_envs: int) -> dict[str, Any]:
    """Returns the info of the step that ended a sub-environment.

    The final infos are one dict for all sub-environments, or a sequence with a dict for each.
    """
    return info_of(finals, index, num_envs) if isinstance(finals, Mapping) else copied(finals[index] or {})


def _move_statistics(first: dict[str, Any], final: dict[str, Any]) -> None:
    """Moves the statistics of an ended episode to its final info.

    ``RecordEpisodeStatistics`` adds them to the first info of the next episode.
    """
    for name in [
        name for name, value in first.items() if isinstance(value, Mapping) and value.keys() == {"r", "l", "t"}
    ]:
        final.setdefault(name, first.pop(name))


def _one_of(seeds: Sequence[int | None]) -> int:
    return next(seed for seed in seeds if seed is not None)


def _in_array(items: list[dict[str, Any]]) -> np.ndarray:
    array = np.empty((len(items), 1), object)
    array[:, 0] = items
    return array


_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL = ("final_info", "_final_info", *_FINAL_OBSERVATIONS, *(f"_{name}" for name in _FINAL_OBSERVATIONS))


def info_of(infos: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any]:
    """Returns a copy of one sub-environment's info, which later calls of the VectorEnv cannot change.

    Args:
        infos: By name, a sequence with an item for each sub-environment, or a dict of such sequences. The key ``_name``
            has the mask of the sub-environments that have ``name``. Items of other lengths are for all
            sub-environments.
        index: The index of the sub-environment.
        num_envs: The number of sub-environments.
    """
    own: dict[str, Any] = {}
    for name, values in infos.items():
        has = infos.get(f"_{name}")
        if (name.startswith("_") and name[1:] in infos) or (has is not None and not has[index]):
            continue
        if isinstance(values, Mapping):
            own[name] = info_of(values, index, num_envs)
        else:
            own[name] = copied(values[index] if np.shape(values)[:1] == (num_envs,) else values)
    return own


def infos_of(infos: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Returns a copy of each sub-environment's info; see ``info_of``."""
    return [info_of(infos, index, num_envs) for index in range(num_envs)] if infos else [{} for _ in range(num_envs)]


def without_finals(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the infos without the final infos and observations of sub-environments that ended in this step."""
    return {name: values for name, values in infos.items() if name not in _FINAL}


def with_finals(name: str, observations: Tree, infos: Mapping[str, Any], ended: Sequence[int], space: Space) -> Tree:
    """Returns observations in which the first ones of new episodes are replaced by the final ones of the old episodes.

    Args:
        name: The name of the VectorEnv in messages.
        observations: ``[num_envs, ...]``; they are not changed.
        infos: The infos of the step.
        ended: The indices of the sub-environments that ended and were reset in this step.
        space: The observation space of one sub-environment.

    Raises:
        EnvError: If the final observations are not in the infos.
    """
    key = next((key for key in _FINAL_OBSERVATIONS if infos.get(key) is not None), None)
    missing: Collection[int] = ended
    if key is not None:
        final = infos[key]
        if not isinstance(final, np.ndarray) or final.dtype != object:  # batched like the observations
            own = tree_map(lambda leaf: np.asarray(leaf)[ended], final)
            missing = ()
        else:
            missing = [index for index in ended if final[index] is None]
            own = None if missing else spaces.stack([final[index] for index in ended], space)
    if missing:
        raise EnvError(
            f"{name}: sub-environments {list(missing)} ended and were reset in one step (AutoresetMode.SAME_STEP), but "
            f"the infos have no 'final_obs' for them. Put their last observations there, as Gymnasium's SyncVectorEnv "
            f"does."
        )
    result = tree_map(np.array, observations)
    for leaf, finals in zip(leaves(result), leaves(own), strict=True):
        leaf[ended] = finals
    return result
