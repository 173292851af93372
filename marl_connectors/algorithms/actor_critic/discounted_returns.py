"""Advantages of modules without a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.trees import leaves
from marl_connectors.typing import ModuleID


class DiscountedReturns(GeneralAdvantageEstimation):
    """GeneralAdvantageEstimation for runs in which some modules have no critic: their value estimates are 0.

    With ``lambda_`` 1 their advantages are discounted sums of rewards, before they are standardised. Rewards after a
    truncation or a cut are unknown, so they count as 0.

    Args:
        critics: Whether each module has a critic.
        critic_by_default: Whether modules that are not in ``critics`` have one.
    """

    critics: dict[ModuleID, bool] = argument()
    critic_by_default: bool = argument(default=True)

    def begin(self) -> None:
        super().begin()
        self.critics = dict(self.critics)  # the learner changes it

    def critics_of(self, rl_module: Any) -> _ZeroValues:
        """Returns a view of the modules in which the values of those without a critic are 0."""
        return _ZeroValues(rl_module, {m: self.critics.get(m, self.critic_by_default) for m in rl_module})


class _ZeroValues:
    """A view of a MultiRLModule in which the values of modules without a critic are 0."""

    def __init__(self, rl_module: Any, critics: Mapping[ModuleID, bool]):
        self._rl_module = rl_module
        self._critics = critics

    def __getitem__(self, module_id: ModuleID) -> Any:
        return self._rl_module[module_id] if self._critics[module_id] else _NoValue()

    @property
    def has_own_forward(self) -> bool:
        return self._rl_module.has_own_forward

    def forward_train(self, batch: dict[ModuleID, Any]) -> dict[ModuleID, Any]:
        return self._rl_module.forward_train(batch)

    def bucket_of(self, module_ids: Any) -> None:
        """Returns no bucket, so that the values of modules are computed one after another."""
        return None


class _NoValue(ValueFunctionAPI):
    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        first = leaves(batch[Columns.OBS])[0]
        in_sequences = Columns.STATE_IN in batch
        return torch.zeros(first.shape[: 2 if in_sequences else 1], device=first.device)
