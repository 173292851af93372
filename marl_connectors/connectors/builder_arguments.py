"""The arguments of a user's functions that make connector pieces."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

from marl_connectors.errors import ConfigError
from marl_connectors.validators import imported, shown

_BUILDER_ARGUMENTS = (
    "env",
    "spaces",
    "device",
    "observation_space",
    "action_space",
    "input_observation_space",
    "input_action_space",
    "obs_space",
    "act_space",
)
"""A builder's parameter with a default gets an argument only if it has one of these names."""


def num_arguments(setting: str, builder: Any, most: int) -> int:
    """Returns the number of arguments that a user's builder function gets; see ``call_builder`` in ``defaults.py``.

    Args:
        setting: The name of the setting that the builder was given as, for messages.
        builder: The user's function.
        most: The number of arguments that can be passed.

    Raises:
        ConfigError: If ``builder`` is not a function, or needs more arguments than there are.
    """
    cls = builder if isinstance(builder, type) else type(builder)
    is_piece = issubclass(cls, imported("marl_connectors.connectors.connector_v2:ConnectorV2"))
    if not callable(builder) or is_piece:
        example = f"{cls.__name__}()" if is_piece else "MeanStdFilter()"
        raise ConfigError(
            f"{setting}: expected a function that makes connector pieces, got {shown(builder)}. Write, for example, "
            f"{setting}=lambda *args: {example}."
        )
    try:
        signature = inspect.signature(builder)
    except ValueError:
        raise ConfigError(
            f"{setting}: expected a function whose signature is known, got {shown(builder)}. Wrap it in a function of "
            f"your own."
        ) from None
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is kinds.empty]
    if len(required) > most or any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        raise ConfigError(
            f"{setting}: the function has the signature {signature}, but gets at most {most} positional arguments."
        )
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters) and most > len(positional):
        return most
    optional = itertools.takewhile(lambda p: p.name in _BUILDER_ARGUMENTS, positional[len(required) :])
    return len(required) + len(list(optional))
