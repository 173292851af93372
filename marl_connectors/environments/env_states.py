"""What environments say of themselves as a whole: PettingZoo's ``state()``, for centralised critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.environments.env_copy import EnvCopy
from marl_connectors.environments.env_failures import errors_named
from marl_connectors.environments.validation.checks import state_violation
from marl_connectors.errors import ConfigError, EnvError, describe_error
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import Tree


class EnvStates:
    """Asks copies for their ``state()``, after each reset and step.

    A state is kept as a tree of arrays with a leading axis of 1, and shares nothing with the environment.
    """

    def __init__(self, space: Space):
        """Takes the environment's ``state_space``."""
        self.space = space
        self._shapes = [leaf.shape for leaf in leaves(spaces.zeros(space, 1))]

    def note(self, copy: EnvCopy) -> None:
        """Keeps the copy's state of now.

        Raises:
            EnvError: If there is none, or one that does not fit the space; bounds do not matter.
        """
        try:
            given = copy.env.state()
        except Exception as error:
            raise EnvError(
                f"{copy}: state() raised {describe_error(error)}. A critic needs it after every reset and "
                f"step, the last one included."
            ) from error
        try:
            state = spaces.stack([given], self.space)
            fine = [leaf.shape for leaf in leaves(state)] == self._shapes and all(map(_is_finite, leaves(state)))
        except (TypeError, ValueError):
            fine = False
        if not fine:
            why = state_violation(self.space, given) or f"the state is not like state_space: {given!r}"
            raise EnvError(f"{copy}: {why}")
        copy.state = state


def joined_states(states: Sequence[Tree | None]) -> Tree | None:
    """``[N, ...]`` states of some copies; None if they were not asked for theirs."""
    if not states or states[0] is None:
        return None
    return tree_map(lambda *parts: np.concatenate(parts), *states)


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind in "biu" or (values.dtype.kind == "f" and bool(np.isfinite(values).all()))


def state_space_of(env: Any, name: str) -> Space:
    """The space of the states of a PettingZoo environment.

    Raises:
        ConfigError: If it has none.
    """
    with errors_named(f"{name}: state_space"):
        space = getattr(env, "state_space", None)
    if not isinstance(space, Space) or not callable(getattr(env, "state", None)):
        found = "no state_space" if space is None else f"state_space={space!r}"
        raise ConfigError(
            f"{name}: a critic is to see the environment's state(), but it has {found}. Let the environment have "
            f"state() and state_space, as PettingZoo's ParallelEnv and AECEnv describe them, or use "
            f"critic_obs='joint_observations'."
        )
    return space
