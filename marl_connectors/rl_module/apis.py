"""What an RLModule may offer beside its forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor


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
    """A module that can leave out what only training needs."""

    @abstractmethod
    def get_non_inference_attributes(self) -> list[str]:
        """Names of the attributes (parameters or submodules) that acting does not need."""


class TargetNetworkAPI(ABC):
    """A module with target networks."""

    @abstractmethod
    def make_target_networks(self) -> None:
        """Creates them as copies; called once by the learner."""

    @abstractmethod
    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``(network, its target network)`` pairs, for the learner to update."""

    @abstractmethod
    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A forward pass through the target networks."""


class SelfSupervisedLossAPI(ABC):
    """A module that brings its own loss."""

    @abstractmethod
    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """A scalar, to be minimised instead of the algorithm's loss."""
