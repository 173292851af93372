"""RLlib's functions of target networks."""

from __future__ import annotations

from torch import nn

from marl_connectors.rl_module.apis import follow
from marl_connectors.rl_module.apis import make_target_network as make_target_network


def update_target_network(*, main_net: nn.Module, target_net: nn.Module, tau: float) -> None:
    """Moves a target network towards its network: ``target = tau * network + (1 - tau) * target``."""
    follow(main_net, target_net, tau)
