"""Connector pieces by name, as the command line has them: ``"MeanStdFilter"``, ``"ScaleRewards:scale=0.1"``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES, call_builder
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error, did_you_mean
from marl_connectors.names import Expected, Names, brief, call_arguments, import_attribute, is_function

_LIBRARY = "marl_connectors"


@dataclass(frozen=True, slots=True)
class NamedPieces:
    """Makes connector pieces from their names, for ``env_to_module_connector`` or ``learner_connector``.

    A name is that of a piece which this library exports, or ``"module:name"`` of a class of pieces or of a function
    that returns a piece or a list of pieces. Keyword arguments can follow after another colon:
    ``"ScaleRewards:scale=0.1,shift=1"``. Functions also get the arguments of the setting's functions.

    >>> [piece] = NamedPieces(("ScaleRewards:scale=0.1",))()
    >>> piece.scale
    0.1

    Attributes:
        names: The names, in the order of the pieces.
    """

    names: tuple[str, ...]

    def __call__(self, *arguments: Any) -> list[ConnectorV2]:
        pieces: list[ConnectorV2] = []
        for name in self.names:
            pieces += _Piece.find(name, "connector pieces").make("connector pieces", arguments)
        return pieces

    def to_json(self) -> list[str]:
        """Returns the names, from which ``from_json`` makes an equal object."""
        return list(self.names)

    @classmethod
    def from_json(cls, data: Any, names: Names) -> NamedPieces:
        """Returns the object whose ``to_json`` returned the data.

        Args:
            data: The JSON data.
            names: Decides which modules are imported, and which objects are accepted.

        Raises:
            CheckpointError: If a name is refused, or there is no such piece.
        """
        who = "connector pieces of the checkpoint"
        if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
            raise CheckpointError(f"{who}: expected a list of names, but got {brief(data)}.")
        for name in data:
            try:
                module_name, attribute, _ = _parsed(name, who)
            except ConfigError as error:
                raise CheckpointError(str(error)) from error
            names.resolve(f"{module_name}:{attribute}", _PIECE, who=who)
        return cls(tuple(data))


_PIECE = Expected(
    "a class of connector pieces, or a function that returns pieces", bases=(ConnectorV2,), own=is_function
)


def named_pieces(
    names: Iterable[str], *, who: str, kind: str, others: Mapping[str, str], defaults: Mapping[str, Any]
) -> NamedPieces | None:
    """Checks names of pieces before anything is built, and fills in defaults of their arguments.

    Args:
        names: The names.
        who: The first words of messages.
        kind: The kind of pipeline that they are for, as in ``ConnectorV2.belongs_in``.
        others: Maps the kinds of pipelines to where their pieces are named, for messages.
        defaults: Arguments for those of this library's pieces that accept them and whose names leave them out.

    Returns:
        The pieces, or None if there are no names.

    Raises:
        ConfigError: If there is no such piece, if it does not accept its arguments, or if it belongs in another
            pipeline.
    """
    checked = []
    for name in names:
        found = _Piece.find(name, who)
        if found.is_class:
            piece = found.make(who, ())[0]
            if piece.belongs_in and kind not in piece.belongs_in:
                places = " or ".join(others[other] for other in piece.belongs_in if other in others)
                hint = f"Use it with {places}." if places else "It cannot be named on the command line."
                raise ConfigError(f"{who}: {type(piece).__name__} does not belong in this pipeline. {hint}")
            name = found.with_defaults(defaults)
        checked.append(name)
    return NamedPieces(tuple(checked)) if checked else None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A class of pieces, or a function that returns pieces, with its keyword arguments.

    Attributes:
        text: The name with its arguments.
        target: The class or function.
        kwargs: The keyword arguments.
    """

    text: str
    target: Any
    kwargs: Mapping[str, Any]

    @classmethod
    def find(cls, text: str, who: str) -> _Piece:
        module_name, attribute, arguments = _parsed(text, who)
        target = import_attribute(f"{module_name}:{attribute}", who=who, error=ConfigError)
        is_piece = isinstance(target, type) and issubclass(target, ConnectorV2)
        if not is_piece and (isinstance(target, type) or not callable(target)):
            raise ConfigError(
                f"{who}: expected {text!r} to be a class of connector pieces or a function that returns pieces, but it "
                f"is {target!r}."
            )
        return cls(text, target, arguments)

    @property
    def is_class(self) -> bool:
        return isinstance(self.target, type)

    def with_defaults(self, defaults: Mapping[str, Any]) -> str:
        """Returns the name with those of the defaults that the library's piece accepts and the name leaves out."""
        known = inspect.signature(self.target).parameters if self.target.__module__.startswith(f"{_LIBRARY}.") else ()
        own = [f"{key}={value!r}" for key, value in defaults.items() if key in known and key not in self.kwargs]
        return f"{self.text.rstrip(':')}{',' if self.kwargs else ':'}{','.join(own)}" if own else self.text

    def make(self, who: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        """Makes the pieces. Functions get as many of the arguments as they have parameters for."""
        try:
            if self.is_class:
                return [self.target(**self.kwargs)]
            return call_builder(who, functools.partial(self.target, **self.kwargs), *arguments)
        except MarlConnectorsError as error:
            raise ConfigError(f"{who}: {self.text!r}: {error}") from error
        except Exception as error:
            raise ConfigError(f"{who}: {self.text!r} cannot be made: {describe_error(error)}.") from error


def _parsed(text: str, who: str) -> tuple[str, str, dict[str, Any]]:
    """Returns the module, the name in it, and the keyword arguments."""
    first, _, rest = (part.strip() for part in text.partition(":"))
    if first in exported():
        module_name, attribute, arguments = _LIBRARY, first, rest
    else:
        module_name = first
        attribute, _, arguments = (part.strip() for part in rest.partition(":"))
        if not attribute:
            several = [part.strip() for part in first.split(",")]
            if len(several) > 1:
                raise ConfigError(
                    f"{who}: {first!r} is not the name of one piece. Give several pieces one by one: "
                    f"{' '.join(several)} on the command line, a list in a file."
                )
            raise ConfigError(
                f"{who}: there is no piece {first!r}. {did_you_mean(first, known_pieces())} A piece of your own is "
                f"named with its module: my_module:MyPiece."
            )
    try:
        positional, kwargs = call_arguments(arguments)
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{who}: the arguments in {text!r} cannot be read. Write them as in ScaleRewards:scale=0.1,shift=1."
        ) from error
    if positional:
        raise ConfigError(
            f"{who}: expected each argument in {text!r} with its name, but got {positional[0]!r}. Write it as in "
            f"ScaleRewards:scale=0.1."
        )
    return module_name, attribute, kwargs


def exported() -> frozenset[str]:
    """Returns the public names of this library."""
    return frozenset(sys.modules[_LIBRARY].__all__)


def known_pieces() -> list[str]:
    """Returns the exported pieces that are not in the pipelines by default."""
    found = {name: getattr(sys.modules[_LIBRARY], name) for name in sorted(exported())}
    return [
        name
        for name, piece in found.items()
        if isinstance(piece, type)
        and issubclass(piece, ConnectorV2)
        and not issubclass(piece, (ConnectorPipelineV2, *DEFAULT_PIECES))
    ]
