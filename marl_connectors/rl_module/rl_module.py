"""RLModule: a torch module that acts and learns for one or more agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from gymnasium import Space
from torch import nn

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from marl_connectors.rl_module.distributions import Distribution, default_distribution, without_forbidden
from marl_connectors.rl_module.module_calls import called_for_columns
from marl_connectors.rl_module.target_networks import freeze_target_networks
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID
from marl_connectors.validators import ChecksFields, Switch, Unfit, Validator, instance_of, optional, subclass_of

if TYPE_CHECKING:
    from marl_connectors.rl_module.layers import MLP, TrainingLayers
    from marl_connectors.rl_module.multi_rl_module import MultiRLModule
    from marl_connectors.rl_module.recurrent_layers import RecurrentLayer


_NOTHING = nullcontext()


class RLModule(nn.Module):
    """Base of all modules: subclass it, build your layers in ``setup``, and override ``_forward``.

    A forward pass takes a dict of columns (``{Columns.OBS: [B, ...], ...}``) and gives one back, with
    ``Columns.ACTION_DIST_INPUTS`` (``[B, n]``) or ``Columns.ACTIONS`` (``[B, ...]``) in it. Whatever else it gives
    when acting is kept in the episodes as an extra model output.

    A new module is in eval mode (``torch.nn.Module.eval``). The learner puts it into train mode for the forward passes
    of an update only, so that dropout and its like leave actions and value estimates alone.

    Where the batch has ``Columns.ACTION_MASK`` (see ActionMasking), the public forward passes make what it forbids
    impossible, whatever ``_forward`` put out, and keep the mask for training.

    Attributes:
        observation_space: Of what the module sees, after the env-to-module pipeline.
        action_space: Of the agents that the module acts for.
        model_config: The user's own settings, or ``DefaultModelConfig`` for the default modules.
        known_as: The id under which a MultiRLModule has it, for messages.
    """

    known_as: ModuleID | None = None

    stackable = False
    """Whether the forward passes work on any number of leading axes, so that modules of one architecture can run as one
    batched computation. True promises that: all layers come from ``marl_connectors.rl_module.layers`` or hold no
    parameters, and nothing counts axes from the front. It holds for the class that says it; a subclass
    with methods or attributes of its own says it anew."""

    handles_action_masks = False
    """Whether ``_forward`` sees to ``Columns.ACTION_MASK`` itself. True leaves its ``action_dist_inputs`` as they are;
    the mask is kept for training all the same."""

    _notes_given: dict[ModuleID, Mapping[str, Any]] | None = None
    _known_dist_cls: tuple[Space, type[Distribution]] | None = None
    _remembered = frozenset({"known_as", "_known_dist_cls"})
    """Attributes in which modules of one architecture may differ."""

    def __init__(
        self,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        *,
        inference_only: bool = False,
        learner_only: bool = False,
        model_config: Any = None,
        catalog_class: type | None = None,
    ):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.learner_only = learner_only
        self.model_config = {} if model_config is None else model_config
        self.catalog_class = catalog_class
        self.setup()
        if isinstance(self, TargetNetworkAPI) and not inference_only:
            self.make_target_networks()
            freeze_target_networks(self)
        if inference_only and isinstance(self, InferenceOnlyAPI):
            _take_out(self, self.get_non_inference_attributes())
        self.eval()

    def setup(self) -> None:
        """Builds the layers. Called once, at the end of ``__init__``."""

    # To override.

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The forward pass, for all three purposes unless one of the next three is overridden."""
        raise NotImplementedError(f"{type(self).__name__}: override _forward (or the _forward_... methods).")

    def _forward_inference(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """For acting without exploration."""
        return self._forward(batch, **kwargs)

    def _forward_exploration(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """For acting while collecting data."""
        return self._forward(batch, **kwargs)

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """For computing a loss."""
        return self._forward(batch, **kwargs)

    def get_initial_state(self) -> dict[str, Any]:
        """The state before an episode's first step; ``{}`` for a stateless module."""
        return {}

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """The layers that lead from ``obs`` to ``action_dist_inputs`` when acting, in order; none if more does.

        At most one of them is an LSTM or GRU, whose state is the module's. A runner may compute them without calling
        the module, for observations that are vectors of floating point numbers. It holds for the class that defines it
        and for subclasses that override no method on the way of a forward pass; any other subclass says it anew.
        """
        return ()

    def acting_states(self) -> Mapping[str, Sequence[MLP | RecurrentLayer]]:
        """By the name of each part of the state, the layers from ``obs`` to the one that carries it on.

        It is for modules whose state has parts: ``{"actor": (), "critic": (encoder, lstm)}``. No layers stand for
        ``acting_layers``.
        """
        return {}

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """What makes ``action_dist_inputs`` of the outputs of ``acting_layers``, in arrays; None if they are the same.

        Args:
            modules: This one and others of its kind, whose rows stand one after another.
            counts: How many rows each of them has.

        Returns:
            A function of ``[B, k]`` arrays, which it may change in place. It is asked for anew after each update.
        """
        return None

    def training_layers(self) -> TrainingLayers | None:
        """What ``forward_train`` and ``compute_values`` compute, if it is nothing but MLPs; None if it is more.

        A learner may then compute them, and their gradients, without calling the module. It holds as
        ``acting_layers`` does.
        """
        return None

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """What ``_forward_inference``'s ``action_dist_inputs`` are the parameters of."""
        return self._default_action_dist_cls()

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """What ``_forward_exploration``'s ``action_dist_inputs`` are the parameters of."""
        return self._default_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """What ``_forward_train``'s ``action_dist_inputs`` are the parameters of."""
        return self._default_action_dist_cls()

    def _default_action_dist_cls(self) -> type[Distribution]:
        known = self._known_dist_cls
        if known is None or known[0] is not self.action_space:
            if self.action_space is None:
                raise ModuleError(f"{type(self).__name__}: needs an action_space to choose an action distribution.")
            self._known_dist_cls = known = self.action_space, self._dist_cls_for(self.action_space)
        return known[1]

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        """The distribution class for an action space, unless the module's methods say otherwise."""
        return default_distribution(action_space)

    # To call.

    def forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Same as ``forward_train``, so that calling the module is what torch users expect."""
        return self.forward_train(batch, **kwargs)

    def forward_inference(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Columns for acting greedily, without gradients."""
        with _no_gradients():
            return _with_mask(self, batch, called_for_columns(self, self._forward_inference, batch, kwargs))

    def forward_exploration(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Columns for acting while exploring, without gradients."""
        with _no_gradients():
            return _with_mask(self, batch, called_for_columns(self, self._forward_exploration, batch, kwargs))

    def forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Columns for computing a loss."""
        if self._notes_given is not None and self.known_as is not None:
            self._notes_given[self.known_as] = batch
        outputs = called_for_columns(self, self._forward_train, batch, kwargs)
        return _masked(self, batch, outputs) if Columns.ACTION_MASK in batch else outputs

    def is_stateful(self) -> bool:
        """Whether the module carries a state from step to step."""
        return bool(self.get_initial_state())

    def get_state(self) -> dict[str, torch.Tensor]:
        """All parameters and buffers, by name, as copies on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads what ``get_state`` gave.

        Raises:
            ModuleError: If names or shapes differ.
        """
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        try:
            self.load_state_dict(tensors)
        except RuntimeError as error:
            raise ModuleError(f"{type(self).__name__}: this state is of another architecture. {error}") from error

    def as_multi_rl_module(self) -> MultiRLModule:
        """A MultiRLModule with this module as its only one, under ``DEFAULT_MODULE_ID``."""
        from marl_connectors.rl_module.multi_rl_module import MultiRLModule

        multi = MultiRLModule()
        multi.add_module(DEFAULT_MODULE_ID, self)
        return multi

    def unwrapped(self) -> RLModule:
        """The module itself, without wrappers around it."""
        return self


def _take_out(module: nn.Module, paths: Sequence[str]) -> None:
    """Deletes layers and parameters, as far as they are there."""
    for path in paths:
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if isinstance(getattr(owner, name, None), (nn.Module, torch.Tensor)):
            delattr(owner, name)


def _no_gradients() -> AbstractContextManager[Any]:
    """``torch.no_grad()``, or nothing where a MultiRLModule has seen to that already. A hot path."""
    return torch.no_grad() if torch.is_grad_enabled() else _NOTHING


def _with_mask(module: RLModule, batch: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """What is put out when acting: with the mask, if there is one, so that it is recorded. A hot path."""
    if Columns.ACTION_MASK not in batch:
        return outputs
    return {Columns.ACTION_MASK: batch[Columns.ACTION_MASK], **_masked(module, batch, outputs)}


def _masked(module: RLModule, batch: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs whose distribution has no forbidden actions."""
    if module.handles_action_masks or Columns.ACTION_DIST_INPUTS not in outputs:
        return outputs
    inputs = without_forbidden_actions(module, outputs[Columns.ACTION_DIST_INPUTS], batch[Columns.ACTION_MASK])
    return {**outputs, Columns.ACTION_DIST_INPUTS: inputs}


def without_forbidden_actions(module: RLModule, inputs: torch.Tensor, mask: Any) -> torch.Tensor:
    """``action_dist_inputs`` that make what a mask forbids impossible."""
    dist_cls = module.get_train_action_dist_cls() if module.action_space is not None else None
    return getattr(dist_cls, "without_forbidden", without_forbidden)(inputs, mask)


def _model_config(given: Any) -> Any:
    if not isinstance(given, Mapping) and (isinstance(given, type) or not dataclasses.is_dataclass(given)):
        raise Unfit
    return given


SPACE = instance_of(Space, expected="a gymnasium space")
MODEL_CONFIG = optional(Validator("a dict, or an object of a dataclass such as DefaultModelConfig", _model_config))
FOLDER = optional(instance_of(str, PathLike, expected="the path of a folder"))


@dataclasses.dataclass
class RLModuleSpec(ChecksFields):
    """How to build an RLModule. What is None is filled in from the algorithm's config and the environment.

    Attributes:
        module_class: The RLModule subclass.
        observation_space: Of what the module sees.
        action_space: Of its agents.
        inference_only: Leave out what only training needs (``InferenceOnlyAPI``).
        learner_only: No agent acts by the module, and ``load_policy`` does without it.
        model_config: Settings for the module.
        catalog_class: Handed to the module as it is.
        load_state_path: A folder that ``checkpoints.save_state(path, module.get_state())`` wrote, to start from.
    """

    module_class: Annotated[type[RLModule] | None, optional(subclass_of(RLModule))] = None
    observation_space: Annotated[Space | None, optional(SPACE)] = None
    action_space: Annotated[Space | None, optional(SPACE)] = None
    inference_only: Switch = False
    learner_only: Switch = False
    model_config: Annotated[Any, MODEL_CONFIG] = None
    catalog_class: Annotated[type | None, optional(instance_of(type, expected="a class"))] = None
    load_state_path: Annotated[str | Path | None, FOLDER] = None

    @classmethod
    def from_module(cls, module: RLModule) -> RLModuleSpec:
        """How to build another module like this one, with parameters of its own."""
        return cls(
            type(module),
            module.observation_space,
            module.action_space,
            module.inference_only,
            module.learner_only,
            module.model_config,
            module.catalog_class,
        )

    def build(self) -> RLModule:
        """The module.

        Raises:
            ModuleError: If a class or space is missing, or parameters have no values.
        """
        for name in ("module_class", "observation_space", "action_space"):
            if getattr(self, name) is None:
                raise ModuleError(
                    f"RLModuleSpec: {name} is missing, so the module cannot be built. Set it in the spec."
                )
        assert self.module_class is not None
        module = self.module_class(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            learner_only=self.learner_only,
            model_config=self.model_config,
            catalog_class=self.catalog_class,
        )
        for name, parameter in module.named_parameters():
            if parameter.is_meta:
                raise ModuleError(
                    f"RLModuleSpec: the parameter {name!r} of {type(module).__name__} is on the meta device, so it has "
                    f"no values. Call to_empty(device='cpu') in setup, and initialise it."
                )
        if self.load_state_path is not None:
            from marl_connectors.checkpoints import load_state

            module.set_state(load_state(self.load_state_path))
        return module
