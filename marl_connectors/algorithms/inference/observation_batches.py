"""Single observations and batches of observations, which are distinguished by their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.errors import EpisodeError
from marl_connectors.spaces import describe, in_dtype, is_leaf, parts_in, parts_of, stack
from marl_connectors.typing import AgentID, Tree


def num_in_batch(space: Space, observation: Any, agent_id: AgentID) -> int | None:
    """Returns the number of observations: None for a single one, ``B`` for a batch ``[B, ...]``.

    Raises:
        EpisodeError: If the shape fits neither.
    """
    try:
        return _size(space, observation)
    except (TypeError, ValueError) as error:
        raise EpisodeError(
            f"policy: the observation of agent {agent_id!r} must be of its space in the environment, "
            f"{describe(space)}, or a batch of them with one more axis, but it is {_shown(observation)}."
        ) from error


def _size(space: Space, observation: Any) -> int | None:
    """Returns the number of observations; raises a ValueError if a part has neither shape, or parts differ in it."""
    if is_leaf(space):
        shape = observation.shape if isinstance(observation, (np.ndarray, np.generic)) else np.shape(observation)
        if shape == space.shape:
            return None
        if shape and shape[1:] == space.shape:
            return shape[0]
        raise ValueError
    of_parts: Any = space.spaces  # type: ignore[attr-defined]
    if type(observation) is type(of_parts) is dict and observation.keys() == of_parts.keys():
        sizes = {_size(part, observation[key]) for key, part in of_parts.items()}
    else:
        sizes = {_size(part, own) for (_, part), own in zip(parts_of(space), parts_in(space, observation), strict=True)}  # type: ignore[arg-type]
    (size,) = sizes
    return size


def _shown(observation: Any) -> str:
    if isinstance(observation, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(part)}" for key, part in observation.items()) + "}"
    shape = getattr(observation, "shape", None)
    return repr(observation) if shape is None else f"an array of shape {tuple(shape)}"


def as_batch(space: Space, observation: Any, is_batch: bool) -> Tree:
    """Returns ``[B, ...]`` arrays of a space; B is 1 for a single observation.

    Raises:
        EpisodeError: If the observation does not consist of numbers that the space's dtypes can hold.
    """
    try:
        return _batched(space, observation) if is_batch else stack([observation], space)
    except (TypeError, ValueError) as error:
        raise EpisodeError(
            f"policy: the observation {_shown(observation)} does not fit its space, {describe(space)}: {error}"
        ) from error


def _batched(space: Space, observations: Any) -> Tree:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        own = zip(parts_of(space), parts_in(space, observations), strict=True)
        parts = {key: _batched(part, values) for (key, part), values in own}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    array = np.asarray(observations)
    return array if array.dtype == space.dtype else in_dtype(array, space.dtype)


def infos_by_env(infos: Any, num_envs: int, is_batch: bool) -> Sequence[Mapping[str, Any]]:
    """Returns the info dict of each environment of a batch.

    Args:
        infos: One dict; or for a batch a list of dicts, or a dict of arrays as Gymnasium's vectorised environments
            return it: ``{key: [B, ...]}``, where ``_key`` says which environments have the key.
        num_envs: The number of environments.
        is_batch: Whether the observations are a batch.
    """
    if not is_batch:
        return [infos]
    if not isinstance(infos, Mapping):
        if len(infos) != num_envs:
            raise EpisodeError(
                f"policy: expected {num_envs} info dicts, one for each environment, but got {len(infos)}."
            )
        return infos
    found: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if not key.startswith("_") or key[1:] not in infos:
            has = infos.get(f"_{key}", np.ones(num_envs, bool))
            for own, value, has_key in zip(found, values, has, strict=True):
                if has_key:
                    own[key] = value
    return found
