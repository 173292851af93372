"""Single observations and batches of them, told apart by their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.errors import EpisodeError
from marl_connectors.spaces import describe, stack
from marl_connectors.typing import AgentID, Tree


def num_in_batch(space: Space, observation: Any, agent_id: AgentID) -> int | None:
    """How many observations of a space there are: None for one alone, ``B`` for a batch ``[B, ...]``.

    Raises:
        EpisodeError: If it is neither.
    """
    try:
        sizes = _sizes(space, observation)
    except (KeyError, TypeError, IndexError, ValueError):
        sizes = {-1}
    if len(sizes) != 1 or -1 in sizes:
        raise EpisodeError(
            f"policy: the observation of agent {agent_id!r} must be of its space in the environment, "
            f"{describe(space)}, or a batch of them with one more axis, but it is {_shown(observation)}."
        )
    return sizes.pop()


def _sizes(space: Space, observation: Any) -> set[int | None]:
    """``{None}`` or ``{B}`` if all parts agree; -1 is among them where a part fits in neither way."""
    if isinstance(space, spaces.Dict):
        return set().union(*(_sizes(part, observation[key]) for key, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, observation, strict=True)
        return set().union(*(_sizes(part, own) for part, own in parts))
    shape = np.shape(observation)
    if shape == space.shape:
        return {None}
    return {shape[0] if len(shape) and shape[1:] == space.shape else -1}


def _shown(observation: Any) -> str:
    if isinstance(observation, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(part)}" for key, part in observation.items()) + "}"
    shape = getattr(observation, "shape", None)
    return repr(observation) if shape is None else f"an array of shape {tuple(shape)}"


def as_batch(space: Space, observation: Any, is_batch: bool) -> Tree:
    """``[B, ...]`` arrays of a space; B is 1 for a single observation."""
    if not is_batch:
        return stack([observation], space)
    if isinstance(space, spaces.Dict):
        return {key: as_batch(part, observation[key], True) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_batch(part, own, True) for part, own in zip(space.spaces, observation, strict=True))
    return np.asarray(observation, dtype=space.dtype)


def infos_of_copies(infos: Any, num_copies: int, is_batch: bool) -> Sequence[Mapping[str, Any]]:
    """The info dict of each environment of a batch.

    Args:
        infos: One dict; or for a batch a list of them, or a dict of arrays as Gymnasium's vectorised environments give
            it: ``{key: [B, ...]}``, where ``_key`` says which environments have the key at all.
        num_copies: Of environments.
        is_batch: Whether there is a batch.
    """
    if not is_batch:
        return [infos]
    if not isinstance(infos, Mapping):
        if len(infos) != num_copies:
            raise EpisodeError(f"policy: expected {num_copies} info dicts, one for each environment, got {len(infos)}.")
        return infos
    found: list[dict[str, Any]] = [{} for _ in range(num_copies)]
    for key, values in infos.items():
        if not key.startswith("_") or key[1:] not in infos:
            has = infos.get(f"_{key}", np.ones(num_copies, bool))
            for own, value, is_there in zip(found, values, has, strict=True):
                if is_there:
                    own[key] = value
    return found
