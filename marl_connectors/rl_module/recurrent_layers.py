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

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """What it puts out at each step, ``[..., T, size]``, and the state after the last one.

        Args:
            x: ``[B, T, n]`` or ``[M, B, T, n]``.
            state: Before the first step, ``[B, size]`` or ``[M, B, size]`` each.
        """
        weights: list[Tensor] = [self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0]
        if weights[0].dim() == 3:
            return self._in_steps(x, state, weights)
        if x.is_cpu:
            return self._at_once(x, {key: leaf.unsqueeze(0).contiguous() for key, leaf in state.items()}, weights)
        # cuDNN wants all weights in one piece of memory, which is the bucket's here.
        return self._alone_in_steps(x, state, weights)

    def _alone_in_steps(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        stacked = {key: leaf.unsqueeze(0) for key, leaf in state.items()}
        outputs, after = self._in_steps(x.unsqueeze(0), stacked, [weight.unsqueeze(0) for weight in weights])
        return outputs.squeeze(0), {key: leaf.squeeze(0) for key, leaf in after.items()}

    def _in_steps(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step after another, for all of ``M`` layers at once."""
        of_input, of_memory, bias, memory_bias = weights
        rows = torch.baddbmm(bias.unsqueeze(-2), x.flatten(1, 2), of_input.transpose(-1, -2))
        outputs, now = [], dict(state)
        for gates in rows.unflatten(1, x.shape[1:3]).unbind(2):
            remembered = torch.baddbmm(memory_bias.unsqueeze(-2), now["h"], of_memory.transpose(-1, -2))
            now = self._step(gates, remembered, now)
            outputs.append(now["h"])
        return torch.stack(outputs, 2), now

    @abstractmethod
    def initial_state(self) -> dict[str, np.ndarray]:
        """``[size]`` zeros, by the state's parts; ``h`` is what it puts out."""

    @abstractmethod
    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        """The next state.

        Args:
            gates: ``[M, B, gates]`` of the input.
            remembered: Likewise, of the memory.
            state: ``[M, B, size]`` each.
        """

    @abstractmethod
    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """All steps of one layer in a single call, from states ``[1, B, size]``."""


class LSTM(RecurrentLayer):
    """As ``torch.nn.LSTM``; the state is ``{"h": ..., "c": ...}``."""

    _num_gates = 4

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32), "c": np.zeros(self.size, np.float32)}

    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        write, keep, new, read = (gates + remembered).chunk(4, -1)
        c = keep.sigmoid() * state["c"] + write.sigmoid() * new.tanh()
        return {"h": read.sigmoid() * c.tanh(), "c": c}

    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        before = (state["h"], state["c"])
        outputs, h, c = torch.lstm(x, before, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, {"h": h.squeeze(0), "c": c.squeeze(0)}


class GRU(RecurrentLayer):
    """As ``torch.nn.GRU``; the state is ``{"h": ...}``."""

    _num_gates = 3

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32)}

    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        reset, keep, new = gates.chunk(3, -1)
        reset_h, keep_h, new_h = remembered.chunk(3, -1)
        keep = (keep + keep_h).sigmoid()
        return {"h": (1 - keep) * (new + (reset + reset_h).sigmoid() * new_h).tanh() + keep * state["h"]}

    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, h = torch.gru(x, state["h"], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, {"h": h.squeeze(0)}
