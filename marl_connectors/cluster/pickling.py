"""Pickles what goes from one process of a run to another. The processes of a cluster trust one another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from marl_connectors.errors import ConfigError


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


# A user's function that is called in actors.


def pickled_function(function: Callable[[Any], Any], who: str) -> bytes:
    """Pickles a function of the user.

    Args:
        function: The function.
        who: The method that it was passed to, for the message.

    Raises:
        ConfigError: If it cannot be pickled.
    """
    try:
        return pickled(function)
    except Exception as error:
        raise ConfigError(
            f"{who}: the function cannot be sent to other processes ({type(error).__name__}: {error}). Make what it "
            f"uses inside the function."
        ) from error


def pickled_result(function: bytes, argument: Any, who: str) -> bytes:
    """Calls a pickled function, and returns its pickled result.

    Raises:
        ConfigError: If the result cannot be pickled.
    """
    result = unpickled(function)(argument)
    try:
        return pickled(result)
    except Exception as error:
        raise ConfigError(
            f"{who}: the function's result cannot be sent to the process that has called it ({type(error).__name__}: "
            f"{error}). Return plain data, such as numbers, texts, arrays, lists and dicts."
        ) from error


def received_result(result: bytes, who: str) -> Any:
    """Returns the result of ``pickled_result``.

    Raises:
        ConfigError: If it cannot be unpickled in this process.
    """
    try:
        return unpickled(result)
    except Exception as error:
        raise ConfigError(
            f"{who}: the function's result cannot be received in this process ({type(error).__name__}: {error}). "
            f"Return plain data, such as numbers, texts, arrays, lists and dicts."
        ) from error
