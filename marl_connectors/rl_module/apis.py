"""What an RLModule may offer beside its forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class ValueFunctionAPI(ABC):
    """A module with a value function, as actor-critic learners need it."""

    @abstractmethod
    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> Tensor:
        """``[B]`` value estimates of ``batch[Columns.OBS]``.

        Args:
            batch: Columns of this module, as in ``forward_train``.
            embeddings: What ``forward_train`` put out under ``Columns.EMBEDDINGS`` for the same batch, if anything.
        """


class InferenceOnlyAPI(ABC):
    """A module that can leave out what only training needs: with ``inference_only=True`` it is built without that."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Names of the attributes (parameters or submodules) that acting does not need; ``"encoder.vf"`` for a part.

        Those that ``setup`` has made all the same are taken out after it.
        """


class TargetNetworkAPI(ABC):
    """A module with target networks: copies of some of its networks, which are not trained but follow slowly.

    ``update_target_networks`` lets them; ``Learner.after_gradient_based_update`` is the place to call it.
    """

    @abstractmethod
    def make_target_networks(self) -> None:
        """Makes them, as attributes, with ``copy.deepcopy``; called once, after ``setup``.

        Not with ``inference_only=True``.
        """

    @abstractmethod
    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """``(network, its target network)`` pairs."""

    @abstractmethod
    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A forward pass through the target networks; for a loss to call, usually under ``torch.no_grad()``."""


class SelfSupervisedLossAPI(ABC):
    """A module that brings its own loss. It is updated alone, not stacked with others."""

    @abstractmethod
    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """A scalar, to be minimised in place of the algorithm's loss.

        Args:
            learner: Whose update it is; ``learner.log_terms([module_id], {name: tensor})`` notes loss statistics.
            module_id: The module's id.
            config: The algorithm's config with the module's own overrides.
            batch: Columns of a minibatch, ``[B, ...]``.
            fwd_out: What ``forward_train`` gave for it.
        """
