"""Methods of a config that take settings by name, so that their signatures are the list of settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from marl_connectors.errors import ConfigError, did_you_mean


class HasSettings(Protocol):
    """What sections are methods of."""

    def _set(self, name: str, value: Any) -> None: ...


_Config = TypeVar("_Config", bound="HasSettings")
_Settings = ParamSpec("_Settings")
UNSET: Any = object()
"""The default of every setting in a section's signature: leaves the setting as it is."""


def section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None],
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    """Makes a method that takes settings, stores them under their own names, and gives the config back.

    The method's signature says which settings there are; its body only handles what needs more than storing, and
    returns a dict of names and values to store instead (or None).
    """
    return _section(method, inspect.signature(method))


def section_of(
    settings: type,
) -> Callable[
    [Callable[Concatenate[_Config, _Settings], dict[str, Any] | None]],
    Callable[Concatenate[_Config, _Settings], _Config],
]:
    """As ``section``, for a method ``(self, **settings: Unpack[...])``: which there are, a TypedDict says.

    One that extends another TypedDict has the settings of both. So algorithms need not list again what they inherit.
    """
    signature = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=UNSET, annotation=kind.__forward_arg__)
                for name, kind in settings.__annotations__.items()
            ),
        ]
    )
    return lambda method: _section(method, signature)


def _section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None], signature: inspect.Signature
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    names = [name for name in signature.parameters if name != "self"]

    @functools.wraps(method)
    def wrapper(self: _Config, *args: _Settings.args, **given: _Settings.kwargs) -> _Config:
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{type(self).__name__}.{method.__name__}: unknown setting {name!r}. {did_you_mean(name, names)}"
                )
        if args and len(args) > 1:
            example = ", ".join([names[0], *(f"{name}=..." for name in names[1:2])])
            raise ConfigError(
                f"{type(self).__name__}.{method.__name__}: only {names[0]!r} may come without its name. Write "
                f"{method.__name__}({example})."
            )
        settings: dict[str, Any] = {**dict(zip(names, args, strict=False)), **given}
        instead = method(self, **settings) or {}  # type: ignore[call-arg]
        for name, value in {**settings, **instead}.items():
            if value is not UNSET:
                self._set(name, value)
        return self

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return wrapper
