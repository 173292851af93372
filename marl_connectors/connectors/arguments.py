"""Arguments that a piece does not take, named with the closest one that it does."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from marl_connectors.errors import ConfigError, did_you_mean


class UnknownArgumentError(ConfigError, TypeError):
    """An argument that a piece's constructor does not take."""


def check_arguments(cls: type, names: Iterable[str]) -> None:
    """Holds names of keyword arguments against those of ``cls.__init__``.

    Raises:
        UnknownArgumentError: If one is unknown. A constructor with ``**kwargs`` decides for itself.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in names:
        if name not in known:
            raise UnknownArgumentError(f"{cls.__name__}: unknown argument {name!r}. {did_you_mean(name, known)}")
