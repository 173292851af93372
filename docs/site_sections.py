"""Shows what classes declare in the API reference as the methods that follow from it.

Griffe reads code without running it, and sees an attribute in ``training = chain(TrainingSettings)`` and in ``limit:
float = argument(default=1.0)``. Here the section of a config becomes a method with its signature and text, and the
arguments of a piece become its constructor.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from marl_connectors.algorithms.config.sections import Chain
from marl_connectors.names import import_attribute


class Sections(griffe.Extension):
    """An extension of griffe."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Replaces the sections of a config, and adds the constructor of a piece."""
        chains = [name for name, own in cls.attributes.items() if str(own.value).startswith("chain(")]
        for name in chains:
            config = import_attribute(f"{cls.module.path}:{cls.name}", who=cls.path, error=ImportError)
            assert isinstance(inspect.getattr_static(config, name), Chain)
            method = getattr(config, name)
            found = griffe.Function(name, parameters=_parameters(method, cls), returns="Self", parent=cls)
            found.docstring = griffe.Docstring(inspect.getdoc(method) or "", parser="google", parent=found)
            cls.set_member(name, found)
        if any(str(own.value).startswith("argument(") for own in cls.attributes.values()):
            piece = import_attribute(f"{cls.module.path}:{cls.name}", who=cls.path, error=ImportError)
            parameters = griffe.Parameters(griffe.Parameter("self"), *_parameters(piece, cls))
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, parent=cls))


def _parameters(made: Any, cls: griffe.Class) -> griffe.Parameters:
    return griffe.Parameters(
        *[
            griffe.Parameter(
                own.name,
                kind=griffe.ParameterKind.keyword_only
                if own.kind is own.KEYWORD_ONLY
                else griffe.ParameterKind.positional_or_keyword,
                annotation=_annotation(own, cls),
                default=None if own.default is own.empty else repr(own.default),
            )
            for own in inspect.signature(made).parameters.values()
        ]
    )


def _annotation(parameter: inspect.Parameter, cls: griffe.Class) -> Any:
    if parameter.annotation is not parameter.empty:
        return str(parameter.annotation)
    return cls.attributes[parameter.name].annotation if parameter.name in cls.attributes else None
