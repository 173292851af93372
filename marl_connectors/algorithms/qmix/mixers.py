"""Mixers, which turn the values of all agents' actions into the value of what they do together."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class VDNMixer(nn.Module):
    """The sum of the values (Sunehag et al., 2018: Value-Decomposition Networks)."""

    def forward(self, values: Tensor, states: Tensor | None) -> Tensor:
        """Returns ``[B]`` values of what all agents do together.

        Args:
            values: ``[B, A]`` values of the agents' actions, 0 for agents that are not there.
            states: Not used.
        """
        return values.sum(-1)


class QMixer(nn.Module):
    """A network over the values whose weights are computed from a state (Rashid et al., 2018: QMIX).

    The weights are absolute values, so the result never falls if an agent's value rises. The best joint action
    therefore consists of each agent's best action. Agents that are not there have the value 0.

    At first the result is about the sum of the values. With the usual initial weights it would be many times as much,
    and so would be every error of a value, which the targets take over.
    """

    def __init__(self, num_agents: int, state_size: int, embed_dim: int):
        """Builds the layers that compute the weights.

        Args:
            num_agents: The number ``A`` of agents.
            state_size: The number of numbers in a state.
            embed_dim: The size of the hidden layer over the values.
        """
        super().__init__()
        self.num_agents, self.embed_dim = num_agents, embed_dim
        self.hyper_w_1 = nn.Linear(state_size, num_agents * embed_dim)
        self.hyper_b_1 = nn.Linear(state_size, embed_dim)
        self.hyper_w_final = nn.Linear(state_size, embed_dim)
        self.v = nn.Sequential(nn.Linear(state_size, embed_dim), nn.ReLU(), nn.Linear(embed_dim, 1))
        with torch.no_grad():
            for layer in (self.hyper_w_1, self.hyper_w_final):
                layer.weight.mul_(embed_dim**-0.5)
                layer.bias.fill_(embed_dim**-0.5)

    def forward(self, values: Tensor, states: Tensor | None) -> Tensor:
        """Returns ``[B]`` values of what all agents do together.

        Args:
            values: ``[B, A]`` values of the agents' actions, 0 for agents that are not there.
            states: ``[B, state_size]``.
        """
        assert states is not None
        weights = self.hyper_w_1(states).abs().unflatten(-1, (self.num_agents, self.embed_dim))
        hidden = F.elu(torch.bmm(values.unsqueeze(-2), weights).squeeze(-2) + self.hyper_b_1(states))
        return (hidden * self.hyper_w_final(states).abs()).sum(-1) + self.v(states).squeeze(-1)
