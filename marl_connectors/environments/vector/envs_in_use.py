"""The environments that sub-environments of this process use, so that no two of them use the same one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any
from weakref import ref

from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.errors import EnvError

_USES: dict[int, tuple[ref[Any], ref[SubEnvironment]]] = {}
"""Each environment that is in use, by its ``id``, and the sub-environment that uses it."""


def claim(uses: Iterable[tuple[SubEnvironment, Any]], maker: str) -> None:
    """Notes which sub-environments use which environments.

    Args:
        uses: Sub-environments, each with its environment. What counts is the object inside of wrappers and adapters.
        maker: What made the environments, for the message.

    Raises:
        EnvError: If another sub-environment uses one of them.
    """
    claimed = []
    for user, given in uses:
        env = _innermost(given)
        claimed.append(user)
        other = _user_of(env)
        if other is not None and other is not user:
            release(claimed)
            where = " of another env runner" if other.number == user.number else ""
            raise EnvError(
                f"{maker}: each sub-environment needs an environment of its own, but sub-environment {user.number} got "
                f"the same {type(env).__name__} object as sub-environment {other.number}{where}, so each would step "
                f"the episode of the other. Make a new environment in each call of the function that makes them. If "
                f"another run that is over uses the object, stop() that run."
            )
        with contextlib.suppress(TypeError):  # objects that no weak reference can refer to are not looked after
            _USES[id(env)] = ref(env), ref(user)


def release(users: Iterable[SubEnvironment]) -> None:
    """Notes that these sub-environments do not use their environments any more."""
    gone = [None, *users]
    for key, (_, user) in list(_USES.items()):
        if any(user() is each for each in gone):
            del _USES[key]


def _user_of(env: Any) -> SubEnvironment | None:
    """Returns the sub-environment that uses an environment, if there is one."""
    used, user = _USES.get(id(env), (None, None))
    return user() if used is not None and user is not None and used() is env else None


def _innermost(env: Any) -> Any:
    try:
        inner = env.unwrapped
    except Exception:  # it may run an environment's own code
        return env
    return env if inner is None else inner
