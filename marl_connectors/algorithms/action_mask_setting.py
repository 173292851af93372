"""Decides which action masks a run applies, from the setting ``action_mask_key`` and the environment."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.environments.registry.spec import EnvDescription
from marl_connectors.errors import ConfigError, MarlConnectorsWarning, did_you_mean
from marl_connectors.flat_action_masks import (
    ACTION_MASK,
    flat_masks,
    is_binary,
    mask_of_one_row,
    wanted_mask,
)
from marl_connectors.spaces import describe, values_per_choice
from marl_connectors.state import State
from marl_connectors.typing import AgentID

AUTO = "auto"
"""The value of ``action_mask_key`` with which masks are applied that follow PettingZoo's convention."""

_DISTRIBUTIONS = (
    "get_inference_action_dist_cls",
    "get_exploration_action_dist_cls",
    "get_train_action_dist_cls",
    "_default_action_dist_cls",
    "_dist_cls_for",
)
"""Methods of an RLModule that return its action distributions."""


class Masking(State):
    """The action masks of a run. ``str`` is a sentence that says whether they are applied; it is empty without masks.

    Attributes:
        key: The key under which ActionMasking, as the first piece, looks for masks; None if the piece is not added.
        by_convention: Whether the piece is added by default, without a named key.
        keeps_observations: Whether pieces and modules still see the masks in the observations.
        sentence: A sentence for users, which says whether the masks are applied.
        in_infos: The agents whose masks are in their infos, and not in their observations, in the smoke test.
    """

    key: str | None = None
    by_convention: bool = False
    keeps_observations: bool = False
    sentence: str = ""
    in_infos: tuple[AgentID, ...] = ()

    def pieces(self) -> list[ConnectorV2]:
        """Returns the piece that applies the masks in observations and infos, in a list; an empty list without it."""
        if self.key is None:
            return []
        if not self.by_convention:
            return [ActionMasking(action_mask_key=self.key)]
        return [
            ActionMasking(
                action_mask_key=self.key, observation_key="auto", keep_in_observations=self.keeps_observations
            )
        ]

    def __str__(self) -> str:
        return self.sentence


def find_masking(
    action_mask_key: str | None,
    env: EnvDescription,
    *,
    pieces: Sequence[ConnectorV2],
    classes: Collection[type],
    with_defaults: bool = True,
) -> Masking:
    """Decides which masks are applied, given ``action_mask_key``.

    With ``"auto"``, an agent's masks are applied if its observation is a Dict with the part ``"action_mask"``, or if
    one of its infos in the smoke test had an ``"action_mask"``. The user's own code sees the same as without this
    default: if a connector piece or a module class is the user's, observations keep their masks, and masks are not
    applied to the user's own action distribution.

    Args:
        action_mask_key: The setting.
        env: The environment.
        pieces: The user's env-to-module pieces.
        classes: The classes of the modules, and of the MultiRLModule if the user names one.
        with_defaults: Whether the pipeline has default pieces.

    Raises:
        ConfigError: If masks do not fit the agents' actions.
    """
    key = ACTION_MASK if action_mask_key in (AUTO, None) else str(action_mask_key)
    masked = _masked_agents(key, env)
    if action_mask_key is None:
        return Masking(
            sentence=f"{_described(masked, key, env)} are ignored, as action_mask_key=None says." if masked else ""
        )
    if action_mask_key != AUTO:
        return _masking_by_key(key, env, masked)
    own_piece = next((piece for piece in _flat(pieces) if isinstance(piece, ActionMasking)), None)
    if own_piece is not None:
        sentence = f"the {type(own_piece).__name__} among your pieces applies them."
        return Masking(sentence=sentence, in_infos=_in_infos(masked))
    if not masked:
        return Masking()
    if not with_defaults:
        return Masking(
            sentence=f"{_described(masked, key, env)} are left to your pieces, as there are no default pieces."
        )
    return _masking_by_convention(key, env, masked, pieces, classes)


def _masking_by_key(key: str, env: EnvDescription, masked: Mapping[AgentID, str]) -> Masking:
    """Returns the masks under a key that the user has named."""
    _check_infos(key, env)
    if not masked and env.info_masks is not None:
        names = _names_in(env)
        hint = f" {did_you_mean(key, names)}" if names else ""
        warnings.warn(
            f"action_mask_key={key!r}: no observation space has such a part, and no info of the smoke test did, so "
            f"nothing is masked unless a later info has one.{hint}",
            MarlConnectorsWarning,
            stacklevel=3,
        )
    described = f"{_described(masked, key, env)} are applied." if masked else f"{key!r} is looked for in all infos."
    return Masking(key, sentence=described, in_infos=_in_infos(masked))


def _masking_by_convention(
    key: str,
    env: EnvDescription,
    masked: Mapping[AgentID, str],
    pieces: Sequence[ConnectorV2],
    classes: Collection[type],
) -> Masking:
    """Returns the masks that PettingZoo's convention names, as far as the user's own code does not handle them."""
    for agent_id in masked:
        _check_observation(agent_id, key, env.agent_spaces(agent_id))
    _check_infos(key, env)
    described = _described(masked, key, env)
    users = next((cls for cls in classes if _has_own_distribution(cls)), None)
    if users is not None:
        return Masking(sentence=f"{described} are left to {users.__name__}, whose action distribution is your own.")
    own = [type(piece) for piece in _flat(pieces) if _is_own(type(piece))] + [cls for cls in classes if _is_own(cls)]
    if not own or "observation" not in masked.values():
        return Masking(key, True, False, f"{described} are applied.", _in_infos(masked))
    stay = f"They stay in the observations too, for your own {own[0].__name__}."
    return Masking(key, True, True, f"{described} are applied. {stay}", _in_infos(masked))


def _names_in(env: EnvDescription) -> list[str]:
    """Returns the names of the parts of all Dict observations."""
    seen = [env.agent_spaces(agent_id)[0] for agent_id in env.agent_ids]
    return list(dict.fromkeys(str(key) for space in seen if isinstance(space, spaces.Dict) for key in space.spaces))


def warn_of_late_masks(episodes: Iterable[Any]) -> None:
    """Warns of masks in infos that the smoke test did not see, so that they are not applied.

    Args:
        episodes: SingleAgentEpisodes, or MultiAgentEpisodes.
    """
    for episode in episodes:
        for own in getattr(episode, "agent_episodes", {None: episode}).values():
            if any(isinstance(info, Mapping) and info.get(ACTION_MASK) is not None for info in own.get_infos()):
                whose = "the agent" if own.agent_id is None else f"agent {own.agent_id!r}"
                warnings.warn(
                    f"action_mask_key='auto': there is an {ACTION_MASK!r} in the info of {whose}, but none was in the "
                    f"infos of the smoke test, so masks are ignored. To apply them, set "
                    f".environment(action_mask_key={ACTION_MASK!r}).",
                    MarlConnectorsWarning,
                    stacklevel=3,
                )
                return


def _masked_agents(key: str, env: EnvDescription) -> dict[AgentID, str]:
    """Maps each agent with masks to where they are: ``"observation"`` or ``"info"``."""
    masked: dict[AgentID, str] = {}
    for agent_id in env.agent_ids:
        space = env.agent_spaces(agent_id)[0]
        if isinstance(space, spaces.Dict) and key in space.spaces:
            masked[agent_id] = "observation"
    return {**dict.fromkeys(env.info_masks or (), "info"), **masked}


def _in_infos(masked: Mapping[AgentID, str]) -> tuple[AgentID, ...]:
    """Returns the agents of ``_masked_agents`` whose masks are in their infos."""
    return tuple(agent_id for agent_id, place in masked.items() if place == "info")


def _check_observation(agent_id: AgentID, key: str, pair: tuple[Space, Space]) -> None:
    """Makes checks that ActionMasking leaves out for keys that the user has named."""
    seen, action_space = pair
    if not isinstance(seen, spaces.Dict) or key not in seen.spaces or values_per_choice(action_space) is None:
        return
    if not is_binary(seen.spaces[key], action_space):
        raise ConfigError(
            f"action_mask_key='auto': {key!r} in the observation of agent {agent_id!r} should be an action mask, so of "
            f"0 and 1, but its space is {seen.spaces[key]}. Correct the space, e.g. Box(0, 1, ...); or set "
            f".environment(action_mask_key={key!r}) to use it as it is, or action_mask_key=None (--action-mask-key "
            f"none) if it is no mask."
        )


def _check_infos(key: str, env: EnvDescription) -> None:
    for agent_id, mask in (env.info_masks or {}).items():
        seen, action_space = env.agent_spaces(agent_id)
        if isinstance(seen, spaces.Dict) and key in seen.spaces:
            continue
        remedy = "Correct it, or set .environment(action_mask_key=None) (--action-mask-key none) if it is no mask."
        if values_per_choice(action_space) is None:
            raise ConfigError(
                f"action_mask_key: the info of agent {agent_id!r} has a mask, {key!r}, but its actions are "
                f"{describe(action_space)}, which cannot be masked. {remedy}"
            )
        if _fits(mask, action_space):
            continue
        raise ConfigError(
            f"action_mask_key: the mask of agent {agent_id!r}, {key!r} in its info, must have "
            f"{wanted_mask(action_space)}, but is {_shape(mask)}. {remedy}"
        )


def _fits(mask: Any, action_space: Space) -> bool:
    try:
        return flat_masks(action_space, mask_of_one_row(mask)) is not None
    except (ValueError, TypeError):
        return False


def _shape(mask: Any) -> str:
    if isinstance(mask, (dict, tuple)):
        return f"a {type(mask).__name__} of {len(mask)} parts"
    return f"an array of shape {np.shape(mask)}"


def _flat(pieces: Sequence[ConnectorV2]) -> Iterator[ConnectorV2]:
    for piece in pieces:
        if isinstance(piece, ConnectorPipelineV2):
            yield from _flat(list(piece))
        else:
            yield piece


def _is_own(cls: Any) -> bool:
    """Whether a class, or the class of a method, is the user's and not the library's."""
    return str(cls.__module__).partition(".")[0] != __name__.partition(".")[0]


def _has_own_distribution(cls: Any) -> bool:
    if getattr(cls, "handles_action_masks", False):
        return False
    return any(_is_own(method) for name in _DISTRIBUTIONS if (method := getattr(cls, name, None)) is not None)


def _described(masked: Mapping[AgentID, str], key: str, env: EnvDescription) -> str:
    """Describes masks, as in ``"'action_mask' in the observations of player_1, player_2"``."""
    parts = []
    for place, word in (("observation", "observations"), ("info", "infos")):
        agents = [agent_id for agent_id, own in masked.items() if own == place]
        if agents:
            more = f" and {len(agents) - 3} more" if len(agents) > 3 else ""
            names = ", ".join(map(str, agents[:3]))
            parts.append(f"in the {word}" if env.single_agent else f"in the {word} of {names}{more}")
    return f"{key!r} " + " and ".join(parts)
