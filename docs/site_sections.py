"""Shows the sections of configs in the API reference as the methods that they are.

Griffe reads code without running it, and sees an attribute in ``training = chain(TrainingSettings)``. Here this
attribute is replaced by the method's signature and text.
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
        """Replaces the sections of a config."""
        chains = [name for name, own in cls.attributes.items() if str(own.value).startswith("chain(")]
        for name in chains:
            config = import_attribute(f"{cls.module.path}:{cls.name}", who=cls.path, error=ImportError)
            assert isinstance(inspect.getattr_static(config, name), Chain)
            cls.set_member(name, _as_function(name, getattr(config, name), cls))


def _as_function(name: str, method: Any, cls: griffe.Class) -> griffe.Function:
    parameters = [
        griffe.Parameter(
            own.name,
            kind=griffe.ParameterKind.keyword_only
            if own.kind is own.KEYWORD_ONLY
            else griffe.ParameterKind.positional_or_keyword,
            annotation=None if own.annotation is own.empty else str(own.annotation),
            default=None if own.default is own.empty else repr(own.default),
        )
        for own in inspect.signature(method).parameters.values()
    ]
    found = griffe.Function(name, parameters=griffe.Parameters(*parameters), returns="Self", parent=cls)
    found.docstring = griffe.Docstring(inspect.getdoc(method) or "", parser="google", parent=found)
    return found
