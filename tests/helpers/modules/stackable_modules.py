"""Recurrent modules with a value function that may run stacked: they count axes from the back, ``[..., L, n]``."""

from __future__ import annotations

import numpy as np
import torch

from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.layers import Linear
from marl_connectors.rl_module.rl_module import RLModule


class _Recurrent(RLModule, ValueFunctionAPI):
    """``model_config``: ``size`` of the state, ``max_seq_len``."""

    num_gates: int

    def setup(self):
        self.size = self.model_config.get("size", 4)
        self.inputs = Linear(self.observation_space.shape[0], self.num_gates * self.size)
        self.carried = Linear(self.size, self.num_gates * self.size)
        self.pi, self.vf = Linear(self.size, self.action_space.n), Linear(self.size, 1)

    def embed(self, batch):
        """``[..., L, size]`` and the state behind the last step."""
        raise NotImplementedError

    def apply(self, layer, x):
        """A layer of ``[..., L, n]``: stacked weights take ``[M, rows, n]``."""
        lead = x.shape[1:-1] if layer.weight.dim() == 3 else x.shape[:-1]
        flat = x.flatten(1, -2) if layer.weight.dim() == 3 else x.flatten(0, -2)
        return layer(flat).unflatten(-2, lead)

    def _forward(self, batch, **kwargs):
        embeddings, state = self.embed(batch)
        return {"action_dist_inputs": self.apply(self.pi, embeddings), "state_out": state, "embeddings": embeddings}

    def compute_values(self, batch, embeddings=None):
        if embeddings is None:
            embeddings, _ = self.embed(batch)
        return self.apply(self.vf, embeddings).squeeze(-1)


class StackableGRU(_Recurrent):
    """State ``{"h": [size]}``."""

    stackable = True
    num_gates = 3

    def get_initial_state(self):
        return {"h": np.zeros(self.size, np.float32)}

    def embed(self, batch):
        h, embeddings = batch["state_in"]["h"], []
        for x in self.apply(self.inputs, batch["obs"]).unbind(-2):
            r, z, n = x.chunk(3, -1)
            hr, hz, hn = self.carried(h).chunk(3, -1)
            r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            h = (1 - z) * torch.tanh(n + r * hn) + z * h
            embeddings.append(h)
        return torch.stack(embeddings, -2), {"h": h}


class StackableLSTM(_Recurrent):
    """A nested state, ``{"rnn": {"h": [size], "c": [size]}}``, that does not begin at 0."""

    stackable = True
    num_gates = 4

    def get_initial_state(self):
        return {"rnn": {"h": np.full(self.size, 0.25, np.float32), "c": np.full(self.size, -0.5, np.float32)}}

    def embed(self, batch):
        state, embeddings = batch["state_in"]["rnn"], []
        h, c = state["h"], state["c"]
        for x in self.apply(self.inputs, batch["obs"]).unbind(-2):
            i, f, g, o = (x + self.carried(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            embeddings.append(h)
        return torch.stack(embeddings, -2), {"rnn": {"h": h, "c": c}}
