"""Pickles what goes from one process of a run to another. The processes of a cluster trust one another."""

from __future__ import annotations

import pickle
from typing import Any


def pickled(value: Any) -> bytes:
    """Pickles data of the user's process, also with functions and classes that cannot be imported by name."""
    from ray import cloudpickle

    return cloudpickle.dumps(value, protocol=5)  # pyright: ignore[reportPrivateImportUsage]


def pickled_in_actor(value: Any) -> bytes:
    """Pickles data of an actor's process, several times as fast if everything in it can be imported by name.

    The user's process cannot use this function: a class of its main script can be imported by name there, and nowhere
    else.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        return pickled(value)


def unpickled(value: bytes) -> Any:
    """Returns the data that was pickled."""
    return pickle.loads(value)
