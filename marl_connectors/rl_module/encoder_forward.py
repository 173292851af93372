"""Forward passes for acting on images, whole numbers, Dicts and Tuples, bound to a number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.rl_module.array_layers import ArrayLayer, run_layers
from marl_connectors.rl_module.encoders import Encoder, FlatPart, ImagePart, OneHotPart
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.rl_module import RLModule


class _Part(NamedTuple):
    """A part of the observations.

    Attributes:
        path: The keys that lead to it.
        shape: The shape of its ``[B, ...]`` values.
        dtype: Their dtype.
        layer: The layer that turns them into vectors.
        out: The place for these, ``[B, n]``.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    layer: FlatPart | OneHotPart | ImagePart
    out: np.ndarray


class EncoderForward:
    """Computes the ``action_dist_inputs`` of a module whose first layer is an encoder, without calling the module.

    It does the operations of the module's own forward pass in the same order, so the results are the same to the last
    bit. Convolutions run in torch; the other parts of an encoder, and the linear layers, run in numpy, over the memory
    of the parameters.

    Attributes:
        num_inputs: The number of ``action_dist_inputs`` of each row.
        is_stateful: Always False.
    """

    is_stateful = False

    def __init__(self, module: RLModule, chain: Sequence[MLP], rows: int):
        """Binds layers for which ``can_run`` is True.

        Args:
            module: The module.
            chain: Its ``acting_layers``.
            rows: The number of rows.
        """
        encoder: Any = chain[0]
        self._module, self._chain, self._rows = module, chain, rows
        self._flat = np.zeros((rows, encoder.input_dim), np.float32)
        self._parts: list[_Part] = []
        end = 0
        for path, part in zip(encoder.paths, encoder.parts, strict=True):
            begin, end = end, end + part.output_dim
            space = _at(encoder.space, path)
            self._parts.append(_Part(path, (rows, *space.shape), space.dtype, part, self._flat[:, begin:end]))
        self._parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
        self.load()
        outputs = np.zeros((rows, chain[-1].output_dim), np.float32)
        self.num_inputs = (outputs if self._finish is None else self._finish(outputs)).shape[-1]

    @staticmethod
    def can_run(chain: Sequence[Any], rows: int) -> bool:
        """Whether layers are an encoder and MLPs, of which the module computes this number of rows in numpy."""
        classes = [type(layer) for layer in chain]
        if classes != [Encoder, *[MLP] * (len(chain) - 1)]:
            return False
        found = [layer.array_layers(rows) for layer in chain]
        return None not in found and any(found)

    def load(self) -> None:
        """Binds the current memory of the parameters, and what ``acting_outputs`` copies of the module's own ones."""
        self._versions = [parameter._version for parameter in self._parameters]
        self._writes = [(part.path, part.layer.bind(part.out)) for part in self._parts]
        self._layers: list[ArrayLayer] = []
        for mlp in self._chain:
            layers = mlp.array_layers(self._rows)
            assert layers is not None
            self._layers += layers
        self._finish = self._module.acting_outputs([self._module], [self._rows])

    def accepts(self, observations: Any) -> bool:
        """Whether observations have the parts, types and shapes that the module was built for."""
        try:
            for path, shape, dtype, _, _ in self._parts:
                part = _at(observations, path)
                if type(part) is not np.ndarray or part.shape != shape or part.dtype != dtype:
                    return False
        except (LookupError, TypeError):
            return False
        return True

    def __call__(self, observations: Any, state: None = None) -> tuple[np.ndarray, None]:
        """Returns ``[B, n]`` float32 ``action_dist_inputs``, and None as the next state.

        Args:
            observations: ``[B, ...]`` arrays, or a tree of them.
            state: None.
        """
        if [parameter._version for parameter in self._parameters] != self._versions:
            self.load()
        for path, write in self._writes:
            write(_at(observations, path))
        inputs = run_layers(self._flat, self._layers)
        return (inputs if self._finish is None else self._finish(inputs)), None


def _at(observations: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observations = observations[key]
    return observations
