"""Small recurrent modules with a value function, for tests: a GRU, an LSTM with a nested state, and a counter.

The GRU and the LSTM are built from seeded weights and cost little; what they put out depends on every step since their
initial state. The counter has no weights worth the name: its state counts steps, so a test can tell by sight whose
state a module was given, and which step it was at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors import Columns, RLModule
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.trees import leaves


def flat_size(space: spaces.Space) -> int:
    """The number of entries of a Box, or of all Boxes in a Dict or Tuple."""
    return spaces.flatdim(space)


def num_outputs(space: spaces.Space) -> int:
    """How many numbers the distribution over an action space takes."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    assert isinstance(space, spaces.Box)
    return 2 * int(np.prod(space.shape))


def flat(observations: Any, num_axes: int = 2) -> torch.Tensor:
    """``[B, L, ...]`` leaves of a tree as one ``[B, L, n]`` tensor; keys in the order of the space."""
    parts = [leaf.to(torch.float32).flatten(num_axes) for leaf in map(_with_entries(num_axes), leaves(observations))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _with_entries(num_axes: int) -> Any:
    return lambda leaf: leaf.unsqueeze(-1) if leaf.dim() == num_axes else leaf


class _Recurrent(RLModule, ValueFunctionAPI):
    """Cell, policy head and value head. ``model_config``: ``size``, ``max_seq_len`` and ``seed`` of the weights."""

    cell: type[nn.RNNBase]

    def setup(self) -> None:
        config = self.model_config
        self.size = config.get("size", 4)
        self.rnn = self.cell(flat_size(self.observation_space), self.size, batch_first=True)
        self.pi = nn.Linear(self.size, num_outputs(self.action_space))
        self.vf = nn.Linear(self.size, 1)
        generator = torch.Generator().manual_seed(config.get("seed", 0))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))

    def embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        """``[B, L, size]`` and the state behind the last step."""
        raise NotImplementedError

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self.embed(batch)
        return {Columns.ACTION_DIST_INPUTS: self.pi(embeddings), Columns.STATE_OUT: state}

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self.embed(batch)
        return {
            Columns.ACTION_DIST_INPUTS: self.pi(embeddings),
            Columns.EMBEDDINGS: embeddings,
            Columns.STATE_OUT: state,
        }

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> torch.Tensor:
        if embeddings is None:
            embeddings, _ = self.embed(batch)
        return self.vf(embeddings).squeeze(-1)


class GRUModule(_Recurrent):
    """State ``{"h": [size]}``; begins at 0."""

    cell = nn.GRU

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32)}

    def embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        before = batch[Columns.STATE_IN]["h"].unsqueeze(0).contiguous()
        embeddings, after = self.rnn(flat(batch[Columns.OBS]), before)
        return embeddings, {"h": after.squeeze(0)}


class LSTMModule(_Recurrent):
    """A nested state, ``{"rnn": {"h": [size], "c": [size]}}``, that begins at a value of its own, not at 0."""

    cell = nn.LSTM

    def get_initial_state(self) -> dict[str, Any]:
        return {"rnn": {"h": np.full(self.size, 0.25, np.float32), "c": np.full(self.size, -0.5, np.float32)}}

    def embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        state = batch[Columns.STATE_IN]["rnn"]
        before = tuple(state[key].unsqueeze(0).contiguous() for key in ("h", "c"))
        embeddings, (h, c) = self.rnn(flat(batch[Columns.OBS]), before)
        return embeddings, {"rnn": {"h": h.squeeze(0), "c": c.squeeze(0)}}


class StepwiseGRU(GRUModule):
    """The same, a step at a time: cheap where others run, since ``nn.GRU`` starts threads for a handful of numbers."""

    def embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        h, embeddings = batch[Columns.STATE_IN]["h"], []
        for step in flat(batch[Columns.OBS]).unbind(1):
            h = torch.gru_cell(step, h, *self.rnn.all_weights[0])
            embeddings.append(h)
        return torch.stack(embeddings, 1), {"h": h}


class StepwiseLSTM(LSTMModule):
    """The same, a step at a time."""

    def embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        state, embeddings = batch[Columns.STATE_IN]["rnn"], []
        h, c = state["h"], state["c"]
        for step in flat(batch[Columns.OBS]).unbind(1):
            h, c = torch.lstm_cell(step, (h, c), *self.rnn.all_weights[0])
            embeddings.append(h)
        return torch.stack(embeddings, 1), {"rnn": {"h": h, "c": c}}


class CounterModule(RLModule, ValueFunctionAPI):
    """Its state is how many steps it has seen, and the sum of all that it saw.

    The policy and the values depend on both. ``model_config``: ``max_seq_len``, and ``first`` (0) to count from.
    """

    def setup(self) -> None:
        self.pi = nn.Linear(2, num_outputs(self.action_space))
        self.vf = nn.Linear(2, 1)
        generator = torch.Generator().manual_seed(self.model_config.get("seed", 0))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"steps": np.array([self.model_config.get("first", 0)], np.int64), "seen": np.zeros(1, np.float32)}

    def _embed(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        before = batch[Columns.STATE_IN]
        observations = flat(batch[Columns.OBS])
        steps = before["steps"].unsqueeze(1) + torch.arange(1, observations.shape[1] + 1).unsqueeze(1)
        seen = before["seen"].unsqueeze(1) + observations.sum(-1, keepdim=True).cumsum(1)
        embeddings = torch.cat([steps.to(torch.float32), torch.tanh(0.01 * seen)], dim=-1)
        return embeddings, {"steps": steps[:, -1], "seen": seen[:, -1]}

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self._embed(batch)
        return {Columns.ACTION_DIST_INPUTS: self.pi(embeddings), Columns.STATE_OUT: state}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.vf(self._embed(batch)[0]).squeeze(-1)


class StatelessModule(RLModule, ValueFunctionAPI):
    """A linear policy without a state, to stand beside the others."""

    def setup(self) -> None:
        size = flat_size(self.observation_space)
        self.pi = nn.Linear(size, num_outputs(self.action_space))
        self.vf = nn.Linear(size, 1)
        generator = torch.Generator().manual_seed(self.model_config.get("seed", 0))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.pi(flat(batch[Columns.OBS], 1))}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> torch.Tensor:
        return self.vf(flat(batch[Columns.OBS], 1)).squeeze(-1)
