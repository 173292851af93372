"""Sections of a config: methods that set the settings which a class declares, and return the config."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from marl_connectors.algorithms.config.former_settings import hint_at
from marl_connectors.errors import ConfigError
from marl_connectors.validators import Setting, checked, settings_of


class HasSettings(Protocol):
    """The interface of a class that has sections."""

    def _store(self, settings: Mapping[str, Any], who: str) -> None: ...


class _NotProvided:
    """The value of an argument that leaves the setting as it is."""

    def __repr__(self) -> str:
        return "NotProvided"


NotProvided: Final[Any] = _NotProvided()
"""RLlib's name for the value of an argument that leaves the setting as it is."""
_Arguments = ParamSpec("_Arguments")
_Config = TypeVar("_Config", bound="HasSettings")


class Chain(Generic[_Arguments]):
    """A method of a config that sets the settings of a section, and returns the config. ``chain`` makes it."""

    def __init__(self, section: type) -> None:
        """Makes the method for a section."""
        self._section = section
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, config: None, cls: type[_Config]) -> Callable[Concatenate[_Config, _Arguments], _Config]: ...
    @overload
    def __get__(self, config: _Config, cls: type[_Config]) -> Callable[_Arguments, _Config]: ...
    def __get__(self, config: Any, cls: Any) -> Any:
        """Returns the method, whose signature and text list the settings and their defaults in the config's class."""
        method = _method(self._section, self._name, cls)
        return method if config is None else method.__get__(config)

    @property
    def arguments(self) -> Mapping[str, Setting]:
        """The settings of the section by the names of the arguments that set them."""
        return {own.alias or name: own for name, own in settings_of(self._section).items()}


def chain(section: Callable[_Arguments, Any]) -> Chain[_Arguments]:
    """Makes the method of a config that sets the settings of a section.

    A config declares it as ``training = chain(TrainingSettings)``. All of the settings are set, or none if one is
    refused. If the section has a static method ``_given``, it gets the settings first, as a dict, and returns those to
    set. The config inherits the section, unless that method replaces its settings by others.

    Args:
        section: The class, which is marked with ``section``.
    """
    return Chain(section)  # type: ignore[arg-type]


@functools.cache
def _method(section: type, name: str, cls: type) -> Callable[..., Any]:
    arguments = Chain(section).arguments

    def method(self: Any, /, *args: Any, **given: Any) -> Any:
        who, names = f"{type(self).__name__}.{name}", list(arguments)
        for argument in given:
            if argument not in arguments:
                raise ConfigError(f"{who}: unknown setting {argument!r}. {hint_at(argument, names)}")
        positional = [argument for argument, own in arguments.items() if not own.kw_only]
        if len(args) > len(positional) or any(argument in given for argument in positional[: len(args)]):
            first = f"only {positional[0]!r} may come without its name, and once" if positional else "all need a name"
            fits = next(
                (n for n, own in arguments.items() if own.validator and own.validator.accepts(args[0])), names[0]
            )
            raise ConfigError(f"{who}: of its settings {first}. Write {name}({fits}=..., ...).")
        given = {**dict(zip(positional, args, strict=False)), **given}
        settings = {arguments[argument].name: v for argument, v in given.items() if v is not NotProvided}
        known = settings_of(type(self))
        for other in settings.keys() - known.keys():
            checked(section, other, settings[other], who)
        settings = getattr(section, "_given", dict)(settings)
        for other in settings.keys() - known.keys():
            raise ConfigError(
                f"{who}: {other!r} is a setting of {section.__name__}, which {type(self).__name__} does not inherit. "
                f"Write class {type(self).__name__}(..., {section.__name__})."
            )
        self._store(settings, who)
        return self

    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    method.__doc__ = _text(section, arguments)
    method.__signature__ = _signature(cls, arguments)  # type: ignore[attr-defined]
    return method


def _text(section: type, arguments: Mapping[str, Setting]) -> str:
    lines = [inspect.getdoc(section) or "", "", "Args:"]
    for argument, own in arguments.items():
        accepts = f" Accepts {own.validator.expected}." if own.validator else ""
        lines += textwrap.wrap(
            f"{argument}: {own.doc}{accepts}",
            112,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


class _Type(str):
    """The text of a type, as signatures show it."""

    def __repr__(self) -> str:
        return str(self)


def _signature(cls: type, arguments: Mapping[str, Setting]) -> inspect.Signature:
    kinds, known = inspect.Parameter, settings_of(cls)
    return inspect.Signature(
        [
            kinds("self", kinds.POSITIONAL_OR_KEYWORD),
            *(
                kinds(
                    argument,
                    kinds.KEYWORD_ONLY if own.kw_only else kinds.POSITIONAL_OR_KEYWORD,
                    default=getattr(cls, own.name) if own.name in known else own.default,
                    annotation=_Type(own.annotation) if isinstance(own.annotation, str) else own.annotation,
                )
                for argument, own in arguments.items()
            ),
        ],
        return_annotation=_Type("Self"),
    )


@functools.cache
def sections(cls: type) -> dict[str, Mapping[str, Setting]]:
    """Returns the sections of a class, in the order of their definition, with their settings by argument."""
    found: dict[str, Mapping[str, Setting]] = {}
    for base in reversed(cls.__mro__):
        found |= {name: member.arguments for name, member in vars(base).items() if isinstance(member, Chain)}
    return found


@functools.cache
def fixed_settings(cls: type) -> frozenset[str]:
    """Returns the names of the settings that a run which goes on from a checkpoint cannot change."""
    return frozenset(name for name, own in settings_of(cls).items() if own.fixed)


@functools.cache
def settings_of_algorithm(cls: type) -> frozenset[str]:
    """Returns the names of those settings of a config that each algorithm has for itself in a run with several."""
    return frozenset({*sections(cls)["training"], "model_config", "add_default_connectors_to_learner_pipeline"})
