"""LSTM and GRU layers, for one module or for many modules of one shape at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from marl_connectors.rl_module.initializers import Initializers

State = Mapping[str, Tensor]


class RecurrentLayer(nn.Module):
    """One recurrent layer over ``[B, T, n]`` sequences, or ``[M, B, T, n]`` if its weights are stacked.

    Weights have the names and shapes of ``torch.nn.LSTM`` and ``torch.nn.GRU``; each gate's part starts orthogonal.
    """

    _num_gates: int

    def __init__(self, input_dim: int, size: int, initializers: Initializers | None = None):
        super().__init__()
        self.size = size
        gates = self._num_gates * size
        self.weight_ih_l0 = nn.Parameter(torch.empty(gates, input_dim))
        self.weight_hh_l0 = nn.Parameter(torch.empty(gates, size))
        self.bias_ih_l0 = nn.Parameter(torch.empty(gates))
        self.bias_hh_l0 = nn.Parameter(torch.empty(gates))
        initializers = initializers or Initializers()
        with torch.no_grad():
            for weight in (self.weight_ih_l0, self.weight_hh_l0):
                for gate in weight.chunk(self._num_gates):
                    initializers.fill_weight(gate, 1.0)
            initializers.fill_bias(self.bias_ih_l0)
            initializers.fill_bias(self.bias_hh_l0)

    @abstractmethod
    def initial_state(self) -> dict[str, np.ndarray]:
        """``[size]`` zeros, by the state's parts."""

    @abstractmethod
    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """What it puts out at each step, ``[..., T, size]``, and the state after the last one.

        Args:
            x: ``[B, T, n]`` or ``[M, B, T, n]``.
            state: Before the first step, ``[B, size]`` or ``[M, B, size]`` each.
        """

    @property
    def _weights(self) -> list[Tensor]:
        return [self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0]

    @property
    def _is_stacked(self) -> bool:
        return self.weight_ih_l0.dim() == 3

    def _of_inputs(self, x: Tensor) -> Tensor:
        """What the inputs add to the gates, for all steps at once: ``[M, B, T, gates]``."""
        rows = x.flatten(1, 2)
        gates = torch.baddbmm(self.bias_ih_l0.unsqueeze(-2), rows, self.weight_ih_l0.transpose(-1, -2))
        return gates.unflatten(1, x.shape[1:3])

    def _of_memory(self, h: Tensor) -> Tensor:
        """What the state adds to the gates: ``[M, B, gates]``."""
        return torch.baddbmm(self.bias_hh_l0.unsqueeze(-2), h, self.weight_hh_l0.transpose(-1, -2))


class LSTM(RecurrentLayer):
    """As ``torch.nn.LSTM``; the state is ``{"h": ..., "c": ...}``."""

    _num_gates = 4

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32), "c": np.zeros(self.size, np.float32)}

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        h, c = state["h"], state["c"]
        if not self._is_stacked:
            before = (h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous())
            outputs, h, c = torch.lstm(x, before, self._weights, True, 1, 0.0, self.training, False, True)
            return outputs, {"h": h.squeeze(0), "c": c.squeeze(0)}
        steps = []
        for of_input in self._of_inputs(x).unbind(2):
            write, keep, new, read = (of_input + self._of_memory(h)).chunk(4, -1)
            c = keep.sigmoid() * c + write.sigmoid() * new.tanh()
            h = read.sigmoid() * c.tanh()
            steps.append(h)
        return torch.stack(steps, 2), {"h": h, "c": c}


class GRU(RecurrentLayer):
    """As ``torch.nn.GRU``; the state is ``{"h": ...}``."""

    _num_gates = 3

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32)}

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        h = state["h"]
        if not self._is_stacked:
            before = h.unsqueeze(0).contiguous()
            outputs, h = torch.gru(x, before, self._weights, True, 1, 0.0, self.training, False, True)
            return outputs, {"h": h.squeeze(0)}
        steps = []
        for of_input in self._of_inputs(x).unbind(2):
            reset, keep, new = of_input.chunk(3, -1)
            reset_h, keep_h, new_h = self._of_memory(h).chunk(3, -1)
            keep = (keep + keep_h).sigmoid()
            h = (1 - keep) * (new + (reset + reset_h).sigmoid() * new_h).tanh() + keep * h
            steps.append(h)
        return torch.stack(steps, 2), {"h": h}
