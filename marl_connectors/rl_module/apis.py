"""Interfaces that an RLModule may implement in addition to its forward passes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from marl_connectors.errors import ModuleError

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
    from marl_connectors.learner.learner import Learner

TARGET_NETWORK_ACTION_DIST_INPUTS: Final = "target_network_action_dist_inputs"
"""RLlib's name of the column for the ``action_dist_inputs`` of target networks."""


class ValueFunctionAPI(ABC):
    """A module with a value function, as actor-critic learners need it."""

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> Tensor:
        """Returns ``[B]`` value estimates of ``batch[Columns.OBS]``.

        Args:
            batch: Columns of this module, as in ``forward_train``.
            embeddings: The column ``Columns.EMBEDDINGS`` that ``forward_train`` returned for the same batch, if any.
        """


class InferenceOnlyAPI(ABC):
    """A module that leaves out what only training needs when it is built with ``inference_only=True``."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Returns the names of attributes (parameters or submodules) that acting does not need.

        A name may have dots, as in ``"encoder.vf"``. Attributes that ``setup`` has made nevertheless are deleted after
        it.
        """


class TargetNetworkAPI(ABC):
    """A module with target networks: copies of some of its networks, which are not trained but follow them slowly.

    ``update_target_networks`` moves them. Call it in ``Learner.after_gradient_based_update``.
    """

    @abstractmethod
    def make_target_networks(self) -> None:
        """Makes the target networks as attributes, with ``copy.deepcopy``.

        It is called once, after ``setup``, unless ``inference_only`` is True.
        """

    @abstractmethod
    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns ``(network, its target network)`` pairs."""

    @abstractmethod
    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the target networks forward. A loss calls it, usually under ``torch.no_grad()``."""


class SelfSupervisedLossAPI(ABC):
    """A module with a self-supervised loss. It is updated alone, not stacked with others."""

    @abstractmethod
    def compute_self_supervised_loss(
        self,
        *,
        learner: Learner,
        module_id: str,
        config: AlgorithmConfig,
        batch: Mapping[str, Any],
        fwd_out: Mapping[str, Any],
    ) -> Tensor:
        """Returns a scalar that is minimised instead of the algorithm's loss.

        Args:
            learner: The learner that updates the module; ``learner.log_terms([module_id], {name: tensor})`` logs loss
                statistics.
            module_id: The module's id.
            config: The algorithm's config with the module's overrides.
            batch: Columns of a minibatch, ``[B, ...]``.
            fwd_out: The outputs of ``forward_train`` for this minibatch.
        """


def make_target_network(network: nn.Module) -> nn.Module:
    """Returns a copy of a network that no optimizer updates, for ``TargetNetworkAPI.make_target_networks``."""
    return copy.deepcopy(network).requires_grad_(False)


def update_target_networks(rl_module: nn.Module, tau: float = 1.0) -> None:
    """Moves each target network towards its network: ``target = tau * network + (1 - tau) * target``.

    Call it in ``Learner.after_gradient_based_update``. Buffers, such as running means, are copied.

    Args:
        rl_module: An RLModule, or a MultiRLModule, of which all modules with ``TargetNetworkAPI`` are updated.
        tau: A number from 0 to 1; 1 copies the network.

    Raises:
        ModuleError: If ``tau`` is not from 0 to 1, or the networks of a pair have different parameters.
    """
    if not 0 <= tau <= 1:
        raise ModuleError(f"update_target_networks: tau must be from 0 to 1, not {tau!r}.")
    followers = [Followers.of(module) for module in rl_module.modules() if isinstance(module, TargetNetworkAPI)]
    move_target_networks(followers, tau)


def freeze_target_networks(module: TargetNetworkAPI) -> None:
    """Keeps optimizers away from a module's target networks."""
    for _, target in module.get_target_network_pairs():
        target.requires_grad_(False)


def update_target_network(*, main_net: nn.Module, target_net: nn.Module, tau: float) -> None:
    """Moves one target network towards its network, as ``update_target_networks`` does.

    Raises:
        ModuleError: If they have different parameters.
    """
    own, slow = dict(main_net.named_parameters()), dict(target_net.named_parameters())
    if {n: p.shape for n, p in own.items()} != {n: p.shape for n, p in slow.items()}:
        raise ModuleError(
            f"{type(target_net).__name__}: this target network has other parameters than its network, a "
            f"{type(main_net).__name__}. Make it with make_target_network(network)."
        )
    for name, parameter in own.items():
        slow[name].data.lerp_(parameter.detach(), tau)
    buffers = dict(main_net.named_buffers())
    for name, buffer in target_net.named_buffers():
        buffer.copy_(buffers[name])


class Followers(NamedTuple):
    """The tensors of a module's target networks, and those of the networks that they follow, in the same order.

    Attributes:
        targets: The parameters of the target networks.
        networks: Those of their networks.
        target_buffers: The buffers of the target networks.
        network_buffers: Those of their networks.
    """

    targets: list[Tensor]
    networks: list[Tensor]
    target_buffers: list[Tensor]
    network_buffers: list[Tensor]

    @classmethod
    def of(cls, module: TargetNetworkAPI) -> Followers:
        """Returns the tensors of a module.

        Raises:
            ModuleError: If the networks of a pair have different parameters.
        """
        found = cls([], [], [], [])
        for network, target in module.get_target_network_pairs():
            own, slow = dict(network.named_parameters()), dict(target.named_parameters())
            if {n: p.shape for n, p in own.items()} != {n: p.shape for n, p in slow.items()}:
                raise ModuleError(
                    f"{type(module).__name__}: get_target_network_pairs returned networks with other parameters than "
                    f"their targets. Make the targets in make_target_networks, with copy.deepcopy(network)."
                )
            found.targets.extend(slow.values())
            found.networks.extend(own[name] for name in slow)
            buffers = dict(network.named_buffers())
            for name, buffer in target.named_buffers():
                found.target_buffers.append(buffer)
                found.network_buffers.append(buffers[name])
        return found


@torch.no_grad()
def move_target_networks(followers: Sequence[Followers], tau: float) -> None:
    """Moves target networks towards their networks, as ``update_target_networks`` does.

    Args:
        followers: The tensors of one module or of several.
        tau: A number from 0 to 1; 1 copies the networks.
    """
    targets = [tensor for own in followers for tensor in own.targets]
    if targets:
        networks = [tensor for own in followers for tensor in own.networks]
        torch._foreach_lerp_(targets, networks, tau)  # pyright: ignore[reportPrivateImportUsage]
    for own in followers:
        for buffer, source in zip(own.target_buffers, own.network_buffers, strict=True):
            buffer.copy_(source)
