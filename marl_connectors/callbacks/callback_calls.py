"""Finds the callbacks that a user has given, and calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
"""The names of all callbacks."""


WHILE_TRAINING = (
    *("on_train_result", "on_evaluate_start", "on_evaluate_end"),
    *("on_checkpoint_loaded", "on_env_runners_recreated"),
)
"""Callbacks that a running algorithm calls itself."""


class CallbackCalls:
    """The callbacks of a run: methods that a user has overridden in subclasses of ``Callbacks``, and functions.

    Attributes:
        objects: An object of each class.
    """

    def __init__(self, classes: Any = Callbacks, functions: Mapping[str, Functions] | None = None):
        """Creates the objects and collects their overridden methods.

        Args:
            classes: A subclass of Callbacks, or several.
            functions: Callback name to a function or functions, which are called after the methods.

        Raises:
            ConfigError: If a method's name is not one of ``CALLBACK_NAMES``, or if a method or function does not accept
                the callback's arguments.
        """
        self.objects = [make() for make in (classes if isinstance(classes, (list, tuple)) else [classes])]
        self._calls: dict[str, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in CALLBACK_NAMES}
        for callbacks in self.objects:
            self._add_methods(callbacks)
        for name, given in (functions or {}).items():
            for function in _as_list(given):
                self._add(name, f"{name}={_name_of(function)}", function)

    def _add_methods(self, callbacks: Any) -> None:
        class_name = type(callbacks).__name__
        for name in dir(callbacks):
            if not name.startswith("on_") or not callable(method := getattr(callbacks, name)):
                continue
            if name not in self._calls:
                raise ConfigError(
                    f"callbacks: there is no callback {name!r}, so {class_name}.{name} would never be called. "
                    f"{did_you_mean(name, CALLBACK_NAMES)} A method for other purposes needs a name that does not "
                    f"begin with 'on_'."
                )
            if getattr(method, "__func__", None) is not getattr(Callbacks, name):
                self._add(name, f"{class_name}.{name}", method)

    def _add(self, name: str, label: str, function: Any) -> None:
        if not callable(function):
            raise ConfigError(f"callbacks: {name} is {function!r}. Pass a function, or a list of functions.")
        try:
            inspect.signature(function).bind(**dict.fromkeys(_KEYWORDS[name]))
        except TypeError as error:
            raise ConfigError(
                f"callbacks: {label} cannot be called with {', '.join(f'{k}=' for k in _KEYWORDS[name])} ({error}). "
                f"Add **kwargs for the arguments that it does not use."
            ) from None
        except ValueError:  # it is written in C and has no signature
            pass
        self._calls[name].append((label, function))

    def wants(self, *names: str) -> bool:
        """Whether there is a method or function for any of these callbacks."""
        return any(self._calls[name] for name in names)

    @contextmanager
    def extended(self, given: Any) -> Iterator[list[Any]]:
        """Adds callbacks in its block, which are called after the others, and returns their objects.

        Args:
            given: A subclass or an object of Callbacks, a function for ``on_train_result``, or a list of these.

        Raises:
            ConfigError: If a class has methods that the algorithm does not call while it trains.
        """
        each = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        makers = [(lambda own=own: own) if isinstance(own, Callbacks) else own for own in each if _makes_object(own)]
        functions = [own for own in each if not _makes_object(own)]
        more = CallbackCalls(makers, {"on_train_result": functions})
        for name, calls in more._calls.items():
            if calls and name not in WHILE_TRAINING:
                raise ConfigError(
                    f"callbacks: {calls[0][0]} is not called for callbacks that are given to a running algorithm, but "
                    f"only {', '.join(WHILE_TRAINING)}. Pass it to config.callbacks(...) before the algorithm is built."
                )
        before = {name: list(calls) for name, calls in self._calls.items()}
        try:
            for name, calls in more._calls.items():
                self._calls[name] += calls
            yield more.objects
        finally:
            self._calls = before
            more.close()

    def call(self, name: str, **arguments: Any) -> None:
        """Calls all methods and functions of a callback. An error in one is raised with a note that names it."""
        for label, function in self._calls[name]:
            try:
                function(**arguments)
            except Exception as error:
                add_note: Any = getattr(error, "add_note", None)  # from Python 3.11 on
                if add_note is not None:
                    add_note(f"Raised in the callback {label}{_episode_of(arguments)}.")
                raise

    def close(self) -> None:
        """Closes the objects."""
        for callbacks in self.objects:
            callbacks.close()


def _makes_object(given: Any) -> bool:
    """Whether something is an object or a class of Callbacks, or a partial that makes such an object."""
    made = given.func if isinstance(given, functools.partial) else given
    return isinstance(made, (type, Callbacks))


def _as_list(given: Functions) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _episode_of(arguments: Mapping[str, Any]) -> str:
    if "episode" not in arguments:
        return ""
    return f", episode {arguments['episode'].id_!r} of sub-environment {arguments['env_index']}"
