"""Sections of a config: methods whose signatures list the settings that they store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from marl_connectors.algorithms.config.former_settings import hint_at
from marl_connectors.errors import ConfigError


class HasSettings(Protocol):
    """The interface of a class that has sections."""

    def _store(self, settings: Mapping[str, Any], who: str) -> None: ...


_Config = TypeVar("_Config", bound="HasSettings")
_Settings = ParamSpec("_Settings")
UNSET: Any = object()
"""The default of every setting in a section's signature: leaves the setting as it is."""
NotProvided = UNSET
"""RLlib's name."""


def section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None],
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    """Makes a method that accepts settings, stores them under their own names, and returns the config.

    The method's signature lists the settings. Its body only handles settings that need more than storing, and returns
    a dict of names and values to store instead (or None).
    """
    return _section(method, inspect.signature(method))


def section_of(
    settings: type,
) -> Callable[
    [Callable[Concatenate[_Config, _Settings], dict[str, Any] | None]],
    Callable[Concatenate[_Config, _Settings], _Config],
]:
    """Does the same as ``section`` for a method ``(self, **settings: Unpack[...])`` whose TypedDict lists the settings.

    A TypedDict that extends another one has the settings of both. So algorithms do not repeat inherited settings.
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

    def made(method: Callable[Concatenate[_Config, _Settings], Any]) -> Callable[Concatenate[_Config, _Settings], Any]:
        found = _section(method, signature)
        found.described_by = settings  # type: ignore[attr-defined]
        return found

    return made


def sections(cls: type) -> dict[str, list[str]]:
    """Returns the names of a class's sections, in the order of their definition, with those of their settings."""
    found: dict[str, list[str]] = {}
    for base in reversed(cls.__mro__):
        for name, method in vars(base).items():
            if hasattr(method, "is_section"):
                found[name] = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
    return found


@functools.cache
def settings_of_algorithm(cls: type) -> frozenset[str]:
    """Returns the names of those settings of a config that each algorithm has for itself in a run with several."""
    return frozenset({*sections(cls)["training"], "model_config", "add_default_connectors_to_learner_pipeline"})


def _section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None], signature: inspect.Signature
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    own = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    names = [parameter.name for parameter in own]
    positional = [parameter.name for parameter in own if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(method)
    def wrapper(self: _Config, *args: _Settings.args, **given: _Settings.kwargs) -> _Config:
        who = f"{type(self).__name__}.{method.__name__}"
        for name in given:
            if name not in names:
                raise ConfigError(f"{who}: unknown setting {name!r}. {hint_at(name, names)}")
        if len(args) > len(positional) or any(name in given for name in positional[: len(args)]):
            first = f"only {positional[0]!r} may come without its name, and once" if positional else "all need a name"
            raise ConfigError(f"{who}: of its settings {first}. Write {method.__name__}({names[0]}=..., ...).")
        settings: dict[str, Any] = {**dict(zip(positional, args, strict=False)), **given}
        instead = method(self, **settings) or {}  # type: ignore[call-arg]
        self._store({name: v for name, v in {**settings, **instead}.items() if v is not UNSET}, who)
        return self

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.is_section = True  # type: ignore[attr-defined]
    return wrapper
