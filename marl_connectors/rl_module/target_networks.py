"""Target networks: slow copies of networks, which follow them instead of being trained."""

from __future__ import annotations

from torch import nn

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import TargetNetworkAPI


def update_target_networks(rl_module: nn.Module, tau: float = 1.0) -> None:
    """Moves each target network towards its network: ``target = tau * network + (1 - tau) * target``.

    Meant for ``Learner.after_gradient_based_update``. Buffers, such as running means, are copied.

    Args:
        rl_module: An RLModule, or a MultiRLModule, all of whose modules with ``TargetNetworkAPI`` are meant.
        tau: From 0 to 1; 1 copies the network.

    Raises:
        ModuleError: If ``tau`` is not from 0 to 1, or a pair's networks are not alike.
    """
    if not 0 <= tau <= 1:
        raise ModuleError(f"update_target_networks: tau must be from 0 to 1, not {tau!r}.")
    for module in rl_module.modules():
        for network, target in module.get_target_network_pairs() if isinstance(module, TargetNetworkAPI) else ():
            _follow(module, network, target, tau)


def freeze_target_networks(module: TargetNetworkAPI) -> None:
    """Keeps optimizers away from a module's target networks."""
    for _, target in module.get_target_network_pairs():
        target.requires_grad_(False)


def _follow(module: nn.Module, network: nn.Module, target: nn.Module, tau: float) -> None:
    own, slow = dict(network.named_parameters()), dict(target.named_parameters())
    if {n: p.shape for n, p in own.items()} != {n: p.shape for n, p in slow.items()}:
        raise ModuleError(
            f"{type(module).__name__}: get_target_network_pairs gave networks with other parameters than their "
            f"targets have. Make the targets in make_target_networks, with copy.deepcopy(network)."
        )
    for name, parameter in own.items():
        slow[name].data.lerp_(parameter.detach(), tau)
    buffers = dict(network.named_buffers())
    for name, buffer in target.named_buffers():
        buffer.copy_(buffers[name])
