"""Which loss of a module is minimised: the algorithm's, or one that the module brings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from marl_connectors.rl_module.apis import SelfSupervisedLossAPI
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


def has_own_loss(learner: Learner, module_id: ModuleID) -> bool:
    """Whether a module brings its loss."""
    return isinstance(learner.module[module_id].unwrapped(), SelfSupervisedLossAPI)


def loss_function(learner: Learner, module_id: ModuleID) -> Any:
    """What takes the arguments of ``Learner.compute_loss_for_module`` for a module."""
    if not has_own_loss(learner, module_id):
        return learner.compute_loss_for_module
    module: Any = learner.module[module_id].unwrapped()
    return partial(module.compute_self_supervised_loss, learner=learner)


def who_computes(learner: Learner, module_id: ModuleID) -> str:
    """The class and the method, for messages."""
    if not has_own_loss(learner, module_id):
        return f"{type(learner).__name__}: its compute_loss_for_module"
    return f"{type(learner.module[module_id].unwrapped()).__name__}: its compute_self_supervised_loss"
