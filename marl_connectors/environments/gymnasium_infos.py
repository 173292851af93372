"""What a Gymnasium VectorEnv says besides observations: the infos of all copies in one dict, and how copies ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.environments.env_copy import copied
from marl_connectors.errors import EnvError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import Tree

_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL = ("final_info", "_final_info", *_FINAL_OBSERVATIONS, *(f"_{name}" for name in _FINAL_OBSERVATIONS))


def info_of(infos: Mapping[str, Any], index: int, num_envs: int) -> dict[str, Any]:
    """One copy's info, which nothing that the VectorEnv does later can change.

    Args:
        infos: By name: something for each copy, or a dict of such; ``_name`` tells which copies have it. What is not of
            this length is for all copies.
        index: Which copy.
        num_envs: How many there are.
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
    """All copies' infos."""
    return [info_of(infos, index, num_envs) for index in range(num_envs)] if infos else [{} for _ in range(num_envs)]


def without_finals(infos: Mapping[str, Any]) -> dict[str, Any]:
    """What is not about copies that have ended in this step, where they have begun anew in the same step."""
    return {name: values for name, values in infos.items() if name not in _FINAL}


def with_finals(name: str, observations: Tree, infos: Mapping[str, Any], ended: Sequence[int], space: Space) -> Tree:
    """The observations that the step led to, instead of those of new episodes.

    Args:
        name: For the message.
        observations: ``[num_envs, ...]``; they are not changed.
        infos: Those of the step.
        ended: The copies that ended and have begun anew.
        space: Of one copy.

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
            f"{name}: copies {list(missing)} ended and were reset in one step (AutoresetMode.SAME_STEP), but the infos "
            f"have no 'final_obs' for them. Put their last observations there, as Gymnasium's SyncVectorEnv does."
        )
    result = tree_map(np.array, observations)
    for leaf, finals in zip(leaves(result), leaves(own), strict=True):
        leaf[ended] = finals
    return result
