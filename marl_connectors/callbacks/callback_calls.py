"""Whom to tell of what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from marl_connectors.callbacks.callbacks import Callbacks
from marl_connectors.errors import ConfigError, did_you_mean

Functions = Callable[..., Any] | Iterable[Callable[..., Any]] | None
_KEYWORDS = {
    name: [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name, method in vars(Callbacks).items()
    if name.startswith("on_")
}
CALLBACK_NAMES = tuple(_KEYWORDS)
"""What there is to be told of."""


class CallbackCalls:
    """The methods that a user has overridden and the functions that were given, by what they are to be told of.

    Attributes:
        objects: An object of each class.
    """

    def __init__(self, classes: Any = Callbacks, functions: Mapping[str, Functions] | None = None):
        """Makes the objects and looks at their methods, once.

        Args:
            classes: A subclass of Callbacks, or several.
            functions: Name to a function or functions, which are called after the methods.

        Raises:
            ConfigError: If a method's name is not one of ``CALLBACK_NAMES``, or something does not take what is passed.
        """
        self.objects = [make() for make in (classes if isinstance(classes, (list, tuple)) else [classes])]
        self._calls: dict[str, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in CALLBACK_NAMES}
        for told in self.objects:
            self._add_methods(told)
        for name, given in (functions or {}).items():
            for function in _as_list(given):
                self._add(name, f"{name}={_name_of(function)}", function)

    def _add_methods(self, told: Any) -> None:
        whose = type(told).__name__
        for name in dir(told):
            if not name.startswith("on_") or not callable(method := getattr(told, name)):
                continue
            if name not in self._calls:
                raise ConfigError(
                    f"callbacks: nothing is ever told to {whose}.{name}. {did_you_mean(name, CALLBACK_NAMES)} A method "
                    f"for other purposes needs a name that does not begin with 'on_'."
                )
            if getattr(method, "__func__", None) is not getattr(Callbacks, name):
                self._add(name, f"{whose}.{name}", method)

    def _add(self, name: str, label: str, function: Any) -> None:
        if not callable(function):
            raise ConfigError(f"callbacks: {name} is {function!r}. Pass a function, or a list of functions.")
        try:
            inspect.signature(function).bind(**dict.fromkeys(_KEYWORDS[name]))
        except TypeError as error:
            raise ConfigError(
                f"callbacks: {label} cannot be called with {', '.join(f'{k}=' for k in _KEYWORDS[name])} ({error}). "
                f"Add **kwargs for what it does not use."
            ) from None
        except ValueError:  # it is written in C and has no signature
            pass
        self._calls[name].append((label, function))

    def wants(self, *names: str) -> bool:
        """Whether anything is to be told of any of these."""
        return any(self._calls[name] for name in names)

    def tell(self, name: str, **told: Any) -> None:
        """Tells all who want to know. An error of theirs passes as it is, with a note of where it is from."""
        for label, function in self._calls[name]:
            try:
                function(**told)
            except Exception as error:
                add_note: Any = getattr(error, "add_note", None)  # from Python 3.11 on
                if add_note is not None:
                    add_note(f"Raised in the callback {label}{_whose(told)}.")
                raise


def _as_list(given: Functions) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _whose(told: Mapping[str, Any]) -> str:
    if "episode" not in told:
        return ""
    return f", episode {told['episode'].id_!r} of sub-environment {told['env_index']}"
