"""Arguments of a piece, each declared once in its class; the constructor follows from them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.validators import Validator

if TYPE_CHECKING:
    from marl_connectors.connectors.connector_v2 import ConnectorV2

_OWN = "_own_arguments"
_SPACES = ("input_observation_space", "input_action_space")
_REQUIRED = inspect.Parameter.empty


class UnknownArgumentError(ConfigError, TypeError):
    """An argument that a piece's constructor does not accept, or one that is missing."""


class Argument:
    """What a class declares of one of its constructor's arguments."""

    def __init__(self, validator: Validator | None, default: Any):
        self.validator = validator
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        """Keeps the argument beside the class, whose attribute is the default."""
        setattr(owner, _OWN, {**vars(owner).get(_OWN, {}), name: self})
        setattr(owner, name, None if self.default is _REQUIRED else self.default)


def argument(validator: Validator | None = None, *, default: Any = _REQUIRED) -> Any:
    """Declares an argument of a piece's constructor, which is also an attribute of the piece.

    A class has it as ``limit: float = argument(number(above=0), default=1.0)``. It has no ``__init__`` then: it gets
    its arguments by name, after the two spaces, and ``begin`` prepares what follows from them.

    Args:
        validator: Says which values it may have, one of ``marl_connectors.validators``; None if any.
        default: Its value unless it is passed. Without a default it must be passed.
    """
    return Argument(validator, default)


@functools.cache
def arguments_of(cls: type) -> Mapping[str, Argument]:
    """Returns the arguments that a class and its bases declare, by name, those of the bases first."""
    return {name: own for base in reversed(cls.__mro__) for name, own in vars(base).get(_OWN, {}).items()}


def signature_of(cls: type, constructor: Any) -> inspect.Signature:
    """Returns the signature of a class of pieces.

    Args:
        cls: The class.
        constructor: The ``__init__`` that stands for the declared arguments.
    """
    if cls.__init__ is not constructor:  # type: ignore[misc]
        return inspect.Signature(list(inspect.signature(cls.__init__).parameters.values())[1:])  # type: ignore[misc]
    kinds = inspect.Parameter
    spaces = [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=None) for name in _SPACES]
    own = [kinds(name, kinds.KEYWORD_ONLY, default=each.default) for name, each in arguments_of(cls).items()]
    return inspect.Signature([*spaces, *own])


def set_arguments(piece: ConnectorV2, given: Mapping[str, Any]) -> None:
    """Sets the attributes of all declared arguments of a piece, those that were not given to their defaults.

    Raises:
        UnknownArgumentError: If an argument is unknown or missing.
        ConfigError: If a value is not allowed.
    """
    who, declared = type(piece).__name__, arguments_of(type(piece))
    for name in given:
        if name not in declared:
            raise unknown_argument(who, name, [*_SPACES, *declared])
    for name, own in declared.items():
        value = given.get(name, _REQUIRED if own.default is _REQUIRED else getattr(type(piece), name))
        if value is _REQUIRED:
            raise UnknownArgumentError(f"{who}: the argument {name!r} is missing.")
        if own.validator is not None and name in given:
            value = own.validator.check(value, who, name)
        setattr(piece, name, value)


def check_names(cls: type, names: Any) -> None:
    """Checks names of keyword arguments against the parameters of a class.

    Raises:
        UnknownArgumentError: If a name is unknown and the constructor has no ``**kwargs``.
    """
    parameters = inspect.signature(cls).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in names:
        if name not in known:
            raise unknown_argument(cls.__name__, name, known)


def unknown_argument(who: str, name: str, known: list[str]) -> UnknownArgumentError:
    """Returns the error for an argument that a piece does not know."""
    return UnknownArgumentError(f"{who}: unknown argument {name!r}. {did_you_mean(name, known)}")
