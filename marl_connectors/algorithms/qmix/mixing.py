"""Mixers, which turn the values of all agents' actions into the value of what they do together, and their updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.errors import LearnerError
from marl_connectors.learner.gradients import clip_stacked_gradients
from marl_connectors.learner.loss_stats import FiniteCheck
from marl_connectors.learner.optimizers import OTHERS, AdamState, DefaultAdam
from marl_connectors.rl_module.apis import make_target_network, update_target_network
from marl_connectors.rl_module.architecture import fits_a_row
from marl_connectors.rl_module.stacking import Bucket
from marl_connectors.state import Array, State, read_state

_MIXER = "mixer"


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


class MixingState(State):
    """The state of a Mixing.

    Attributes:
        mixer: The parameters and buffers of the mixer.
        target: Those of its target network.
        adam: The moments of the mixer's parameters; None for one that was never stepped.
    """

    mixer: dict[str, Array]
    target: dict[str, Array]
    adam: dict[str, AdamState | None]


class Mixing:
    """A mixer, its target network, and Adam for its parameters, which stand side by side in memory as a module's do.

    Attributes:
        mixer: Turns the values of all agents' actions into that of what they do together.
        target: Its target network.
    """

    def __init__(self, mixer: nn.Module, device: torch.device):
        """Makes the target network and the optimizer.

        Raises:
            LearnerError: If the mixer's parameters have several dtypes, or are made in its first call.
        """
        self.mixer: Any = mixer.to(device)
        self.target = make_target_network(self.mixer)
        self._adam = DefaultAdam()
        self._bucket: Bucket | None = None  # of a mixer with parameters
        if any(True for _ in self.mixer.parameters()):
            if not fits_a_row(self.mixer):
                raise LearnerError(
                    f"the mixer {type(mixer).__name__} has parameters of several dtypes, or such that its first call "
                    f"makes. Give all of them one dtype, and their sizes when it is built."
                )
            self._bucket = Bucket({_MIXER: self.mixer})
            row = self._bucket.row(_MIXER)
            self._adam.arrange({_MIXER: list(self._trained().values())}, lambda _: row, {})

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.mixer.named_parameters() if p.requires_grad}

    def compute_gradients(self, values: Tensor, mixed: Tensor, slopes: Tensor) -> Tensor:
        """Computes the gradients of the mixer, and returns those of the values that it has mixed.

        Args:
            values: ``[B, A]``, which require gradients.
            mixed: ``[B]``, what the mixer returned.
            slopes: The gradient of the loss with respect to it.
        """
        if self._bucket is not None:
            self._bucket.gradients.zero_()
        if type(self.mixer) is VDNMixer:
            return slopes.unsqueeze(-1).expand_as(values)
        torch.autograd.backward(mixed, slopes)
        assert values.grad is not None
        return values.grad

    def norm(self) -> Tensor:
        """Returns the norm of the gradients, ``[1]``; no numbers if there are no parameters."""
        return torch.zeros(0) if self._bucket is None else torch.linalg.vector_norm(self._bucket.gradients, dim=1)

    def step(self, config: Any, norm: Tensor, lr: float, check: FiniteCheck) -> None:
        """Clips the gradients, which have this norm, as the config says, and steps the parameters."""
        if self._bucket is None:
            return
        if config.grad_clip is not None:
            clip_stacked_gradients(self._bucket.stack_of((_MIXER,)), self._bucket.gradients, norm, [config])
        self._adam.set_rates({_MIXER: {OTHERS: lr}})
        self._adam.step([_MIXER], check)

    def update_target(self, tau: float) -> None:
        """Moves the target network towards the mixer."""
        update_target_network(main_net=self.mixer, target_net=self.target, tau=tau)

    def get_state(self) -> MixingState:
        """Returns copies of the parameters and of the optimizer's moments."""
        kept = {name: value.detach().cpu().clone() for name, value in self.mixer.state_dict().items()}
        slow = {name: value.detach().cpu().clone() for name, value in self.target.state_dict().items()}
        moments = self._adam.keep_state()().get(_MIXER, [])
        return MixingState(mixer=kept, target=slow, adam=dict(zip(self._trained(), moments, strict=True)))

    def set_state(self, state: MixingState | Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            LearnerError: If it is of another mixer.
        """
        known = read_state(MixingState, state)
        for network, saved in ((self.mixer, known.mixer), (self.target, known.target)):
            own = network.state_dict()
            shapes, there = ({n: tuple(v.shape) for n, v in values.items()} for values in (own, saved))
            if shapes != there:
                raise LearnerError(
                    f"the saved mixer has parameters of the shapes {there}, but here they are {shapes}. Build the run "
                    f"with the same mixer, mixing_embed_dim and mixer_state, and the same agents."
                )
            with torch.no_grad():
                for name, value in own.items():
                    value.copy_(torch.as_tensor(saved[name]))
        if self._bucket is not None:
            row = self._bucket.row(_MIXER)
            moments = [known.adam.get(name) for name in self._trained()]
            self._adam.set_state({_MIXER: moments}, lambda _: row)
