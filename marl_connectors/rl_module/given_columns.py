"""What the modules of a MultiRLModule were given by its own forward pass, of which their values are, too."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.rl_module.rl_module import RLModule


class ModuleOutputs(dict[str, Any]):
    """What a module put out in training.

    Attributes:
        given: The columns that it was given, and behind them those of the batch.
    """

    __slots__ = ("given",)

    def __init__(self, outputs: Mapping[str, Any], given: Mapping[str, Any]):
        super().__init__(outputs)
        self.given = given


def values_batch(outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a module's ``compute_values`` is to be called with: what ``forward_train`` saw. A hot path."""
    return outputs.given if type(outputs) is ModuleOutputs else batch


@contextmanager
def noting(modules: Iterable[RLModule]) -> Iterator[dict[ModuleID, Mapping[str, Any]]]:
    """Meanwhile, with what ``forward_train`` of each module is called."""
    given: dict[ModuleID, Mapping[str, Any]] = {}
    members = list(modules)
    for module in members:
        module.__dict__["_notes_given"] = given
    try:
        yield given
    finally:
        for module in members:
            module.__dict__.pop("_notes_given", None)


def with_given(
    outputs: Mapping[ModuleID, Mapping[str, Any]],
    given: Mapping[ModuleID, Mapping[str, Any]],
    batch: Mapping[ModuleID, Mapping[str, Any]],
) -> dict[ModuleID, ModuleOutputs]:
    """The outputs of modules, with what they were given; what was added to ``batch`` itself counts, too."""
    found = {}
    for module_id, own in outputs.items():
        columns = batch.get(module_id, {})
        seen = given.get(module_id, columns)
        found[module_id] = ModuleOutputs(own, seen if seen is columns else ChainMap(seen, columns))  # type: ignore[arg-type]
    return found
