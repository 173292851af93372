"""Mixing: a mixer with its target network and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marl_connectors.errors import LearnerError
from marl_connectors.learner.gradients import clip_gradients, global_norm
from marl_connectors.rl_module.apis import follow, make_target_network


class Mixing:
    """A mixer, its target network, and Adam for its parameters.

    Attributes:
        mixer: Turns the values of all agents' actions into that of what they do together.
        target: Its target network.
    """

    def __init__(self, mixer: nn.Module, device: torch.device):
        """Makes the target network and the optimizer."""
        self.mixer = mixer.to(device)
        self.target = make_target_network(self.mixer)
        self._parameters = list(self.mixer.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=0.0) if self._parameters else None

    def compute_gradients(self, loss: Tensor) -> None:
        """Computes the gradients of the mixer, and of the leaves of the loss."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()

    def norm(self) -> Tensor:
        """Returns the norm of the gradients, ``[1]``; no numbers if there are no parameters."""
        own = self._gradients()
        return global_norm(own).reshape(1) if own else torch.zeros(0)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def step(self, config: Any, lr: float) -> None:
        """Clips the gradients as the config says, and steps the parameters."""
        if self._optimizer is None:
            return
        clip_gradients(self._gradients(), config.grad_clip, config.grad_clip_by)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()

    def update_target(self, tau: float) -> None:
        """Moves the target network towards the mixer."""
        follow(self.mixer, self.target, tau)

    def get_state(self) -> dict[str, Any]:
        """Returns the parameters and the optimizer's moments, as JSON data and tensors."""
        kept = {name: value.detach().cpu().clone() for name, value in self.mixer.state_dict().items()}
        slow = {name: value.detach().cpu().clone() for name, value in self.target.state_dict().items()}
        moments = {}
        if self._optimizer is not None:
            names = [name for name, _ in self.mixer.named_parameters()]
            state = self._optimizer.state
            for name, parameter in zip(names, self.mixer.parameters(), strict=True):
                moments[name] = {key: value.detach().cpu().clone() for key, value in state.get(parameter, {}).items()}
        return {"mixer": kept, "target": slow, "adam": moments}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            LearnerError: If it is of another mixer.
        """
        for network, saved in ((self.mixer, state["mixer"]), (self.target, state["target"])):
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
        if self._optimizer is None:
            return
        for name, parameter in self.mixer.named_parameters():
            moments = {key: torch.as_tensor(value).clone() for key, value in state["adam"].get(name, {}).items()}
            if any(not math.isfinite(float(value.sum())) for value in moments.values()):
                raise LearnerError(f"the saved moments of the mixer's {name} are not finite.")
            self._optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter) for key, value in moments.items()
            }
