"""The two seams at which accelerators hook in: a forward pass, and an update.

The accelerators are in ``accelerate/``. Each of them decides by itself whether it applies. Where none applies, and
wherever that folder is missing, the functions here return None, and everything is computed in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from marl_connectors.episodes.batch import ColumnGroup
    from marl_connectors.learner.learner import Learner
    from marl_connectors.typing import ModuleID

_FOLDER = "marl_connectors.accelerate"


class BoundGroup(Protocol):
    """Computes the module outputs of a group of rows, and chooses actions where it can.

    Attributes:
        choose: Chooses the actions, in the place of the first two module-to-env pieces; None if these have to do it.
    """

    choose: Callable[[], None] | None

    def load(self) -> None:
        """Copies the current parameters."""
        ...

    def run(self) -> None:
        """Computes the outputs."""
        ...

    def replaces(self, piece: Any) -> bool:
        """Whether a later module-to-env piece (None: there is none) would change nothing."""
        ...


class ActingInArrays(Protocol):
    """Acts for groups of rows without tensors, and without calling their modules.

    Attributes:
        joins_in: Whether it takes the place of NumpyToTensor, the last piece before the modules.
        joins_out: Whether it takes the place of GetActions and TensorToNumpy, the first pieces after the modules.
    """

    joins_in: bool
    joins_out: bool

    @property
    def applies(self) -> bool:
        """Whether forward passes can be bound now."""
        ...

    def bind(
        self, columns: ColumnGroup, out: ColumnGroup, *, explore: bool, noise: Any, call: Callable[..., None]
    ) -> BoundGroup | None:
        """Binds a group of rows; returns None if its modules have to be called.

        Args:
            columns: The forward batch of the rows.
            out: The place for module outputs and actions.
            explore: Whether actions are sampled.
            noise: The ActionNoise from which they are.
            call: Calls the modules, given lists of such ``columns`` and ``out``.
        """
        ...


class BoundUpdate(Protocol):
    """Computes the gradients of modules without autograd."""

    def compute_gradients(self, columns: Mapping[str, Any], weights: Sequence[float] | None = None) -> Tensor | None:
        """Computes the losses of a minibatch, and writes their gradients to where the optimizers read them.

        Args:
            columns: The columns of the minibatch.
            weights: ``MiniBatch.weights``, the factors of the losses.

        Returns:
            A scalar or ``[M]`` losses; None, without a change, if autograd must compute them.
        """
        ...


# Forward passes.


def bind_acting(env_to_module: Any, module_to_env: Any, rl_module: Any) -> ActingInArrays | None:
    """Returns what acts for groups of rows in the place of modules and pieces."""
    try:
        from marl_connectors.accelerate.acting import ArrayActing
    except ModuleNotFoundError as error:
        return _nothing_without_the_folder(error)
    return ArrayActing(env_to_module, module_to_env, rl_module)


def outputs_without_gradients(mlp: Any, rows: Any) -> Tensor | None:
    """Returns the outputs of an MLP, for which no gradients are wanted."""
    if torch.compiler.is_compiling():
        return None
    run = _outputs_of()
    return None if run is None else run(mlp, rows)


@cache
def _outputs_of() -> Callable[[Any, Any], Tensor | None] | None:
    try:
        from marl_connectors.accelerate.array_layers import outputs_of
    except ModuleNotFoundError as error:
        return _nothing_without_the_folder(error)
    return outputs_of


# Updates.


def bind_update(learner: Learner, module_ids: Sequence[ModuleID]) -> BoundUpdate | None:
    """Returns the update of modules with the learner's loss. It is valid as long as the learner's settings are.

    Args:
        learner: The ``Learner``.
        module_ids: One module, or several that are computed together.
    """
    try:
        from marl_connectors.accelerate.closed_update import bind_update
    except ModuleNotFoundError as error:
        return _nothing_without_the_folder(error)
    return bind_update(learner, module_ids)


def _nothing_without_the_folder(error: ModuleNotFoundError) -> None:
    """Raises an error again, unless it says that the folder of the accelerators is missing."""
    if error.name is None or not error.name.startswith(_FOLDER):
        raise error
