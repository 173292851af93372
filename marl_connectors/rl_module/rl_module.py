"""RLModule: a torch module that acts and learns for one or more agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from gymnasium import Space
from torch import nn

import marl_connectors
from marl_connectors.checkpoints import Checkpointable, component_state, components
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI, freeze_target_networks
from marl_connectors.rl_module.calls import call_for_columns
from marl_connectors.rl_module.distributions import Distribution, apply_action_mask, default_distribution
from marl_connectors.rl_module.spec_fields import FOLDER, MODEL_CONFIG, SPACE
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID
from marl_connectors.validators import ChecksFields, Switch, Unfit, Validator, instance_of, optional, subclass_of

if TYPE_CHECKING:
    from marl_connectors.rl_module.layers import MLP, RecurrentLayer, TrainingLayers


_NOTHING = nullcontext()


class RLModule(nn.Module, Checkpointable):
    """The base class of all modules: subclass it, build your layers in ``setup``, and override ``_forward``.

    A forward pass accepts a dict of columns (``{Columns.OBS: [B, ...], ...}``) and returns another one, which has
    ``Columns.ACTION_DIST_INPUTS`` (``[B, n]``) or ``Columns.ACTIONS`` (``[B, ...]``). All other columns that it returns
    when acting are kept in the episodes as extra model outputs.

    A new module is in eval mode (``torch.nn.Module.eval``). The learner puts it into train mode only for the forward
    passes of an update, so that dropout, for example, does not affect actions and value estimates.

    If the batch has ``Columns.ACTION_MASK`` (see ActionMasking), the public forward passes make forbidden actions
    impossible, whatever ``_forward`` returns, and keep the mask for training.

    Attributes:
        observation_space: The space of the observations after the env-to-module pipeline.
        action_space: The action space of the agents that the module acts for.
        inference_only: Whether the module leaves out what only training needs.
        learner_only: Whether no agent acts by the module.
        model_config: A user's settings, or ``DefaultModelConfig`` for the default modules.
        catalog_class: The class that was passed to the constructor.
        known_as: The module's id in a MultiRLModule, for error messages.
    """

    known_as: ModuleID | None = None

    holds_modules = False
    """Whether this is a MultiRLModule, which holds several modules."""

    stackable = False
    """Whether the forward passes work on any number of leading axes, so that modules of one architecture can run as one
    batched computation. A class that sets it to True promises that all layers come from
    ``marl_connectors.rl_module.layers`` or hold no parameters, and that no code counts axes from the front. A subclass
    that defines methods or attributes must set it again."""

    handles_action_masks = False
    """Whether ``_forward`` applies ``Columns.ACTION_MASK`` itself. If True, its ``action_dist_inputs`` are not changed.
    The mask is kept for training in both cases."""

    _recorded_inputs: dict[ModuleID, Mapping[str, Any]] | None = None
    _known_dist_cls: tuple[Space, type[Distribution]] | None = None
    _cached_attributes = frozenset({"known_as", "_known_dist_cls"})
    """Attributes in which modules of one architecture may differ, because they can be computed again."""

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
            _delete_attributes(self, self.get_non_inference_attributes())
        self.eval()

    def setup(self) -> None:
        """Builds the layers. Called once, at the end of ``__init__``."""

    # To override.

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The forward pass, for all three purposes unless one of the next three is overridden."""
        raise NotImplementedError(f"{type(self).__name__}: override _forward (or the _forward_... methods).")

    def _forward_inference(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The forward pass for acting without exploration."""
        return self._forward(batch, **kwargs)

    def _forward_exploration(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The forward pass for acting while collecting data."""
        return self._forward(batch, **kwargs)

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The forward pass for computing a loss."""
        return self._forward(batch, **kwargs)

    def get_initial_state(self) -> dict[str, Any]:
        """Returns the state before an episode's first step; ``{}`` for a stateless module."""
        return {}

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """Returns the layers that compute ``action_dist_inputs`` from ``obs`` when acting, in order.

        An empty sequence, the default, means that a forward pass computes more than such layers. At most one of the
        layers is an LSTM or GRU, and its state is the module's state. A runner may compute the layers without calling
        the module: for observations that are vectors of floating point numbers, and for all others if the first layer
        is an Encoder and none is recurrent. The answer applies to the class that defines this method, and to subclasses
        that override no method that a forward pass calls. Any other subclass must define it again.
        """
        return ()

    def acting_states(self) -> Mapping[str, Sequence[MLP | RecurrentLayer]]:
        """Returns the layers that compute each entry of the state from ``obs``, for modules whose state has entries.

        For example ``{"actor": (), "critic": (encoder, lstm)}``, where an empty sequence means ``acting_layers``.
        """
        return {}

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Returns what turns outputs of ``acting_layers`` into ``action_dist_inputs``; None if they are the same.

        Args:
            modules: This module and others of its kind, whose rows stand one after another.
            counts: The number of rows of each of them.

        Returns:
            A function of ``[B, k]`` arrays, which it may change in place. A new one is requested after each update.
        """
        return None

    def training_layers(self) -> TrainingLayers | None:
        """Returns the MLPs that ``forward_train`` and ``compute_values`` compute; None if they compute more than MLPs.

        A learner may then compute the MLPs and their gradients without calling the module. The answer applies to the
        same classes as that of ``acting_layers``.
        """
        return None

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution whose parameters are the ``action_dist_inputs`` of ``_forward_inference``."""
        return self._default_action_dist_cls()

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution whose parameters are the ``action_dist_inputs`` of ``_forward_exploration``."""
        return self._default_action_dist_cls()

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """Returns the distribution whose parameters are the ``action_dist_inputs`` of ``_forward_train``."""
        return self._default_action_dist_cls()

    def _default_action_dist_cls(self) -> type[Distribution]:
        known = self._known_dist_cls
        if known is None or known[0] is not self.action_space:
            if self.action_space is None:
                raise ModuleError(f"{type(self).__name__}: needs an action_space to choose an action distribution.")
            self._known_dist_cls = known = self.action_space, self._dist_cls_for(self.action_space)
        return known[1]

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        """Returns the default distribution class for an action space."""
        return default_distribution(action_space)

    # To call.

    def forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Same as ``forward_train``, so that calling the module does what torch users expect."""
        return self.forward_train(batch, **kwargs)

    def forward_inference(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Returns the columns for acting greedily, without gradients."""
        with _no_gradients():
            return _with_mask(self, batch, call_for_columns(self, self._forward_inference, batch, kwargs))

    def forward_exploration(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Returns the columns for acting while exploring, without gradients."""
        with _no_gradients():
            return _with_mask(self, batch, call_for_columns(self, self._forward_exploration, batch, kwargs))

    def forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Returns the columns for computing a loss."""
        if self._recorded_inputs is not None and self.known_as is not None:
            self._recorded_inputs[self.known_as] = batch
        outputs = call_for_columns(self, self._forward_train, batch, kwargs)
        return _masked(self, batch, outputs) if Columns.ACTION_MASK in batch else outputs

    def is_stateful(self) -> bool:
        """Whether the module carries a state from step to step."""
        return bool(self.get_initial_state())

    def get_state(self) -> dict[str, torch.Tensor]:
        """Returns copies of all parameters and buffers on the CPU, by name."""
        return {name: value.detach().cpu().clone() for name, value in self.state_dict().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            ModuleError: If names or shapes differ.
        """
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        try:
            self.load_state_dict(tensors)
        except RuntimeError as error:
            raise ModuleError(f"{type(self).__name__}: this state is of another architecture. {error}") from error

    def as_multi_rl_module(self) -> marl_connectors.MultiRLModule:
        """Returns a MultiRLModule with this module as its only one, under ``DEFAULT_MODULE_ID``."""
        multi = marl_connectors.MultiRLModule()  # which is imported when it is first used, as it builds on RLModule
        multi.add_module(DEFAULT_MODULE_ID, self)
        return multi

    def unwrapped(self) -> RLModule:
        """Returns the module without wrappers around it."""
        return self


TorchRLModule = RLModule
"""RLlib's name. All modules are torch modules."""


def _delete_attributes(module: nn.Module, paths: Sequence[str]) -> None:
    """Deletes those of the layers and parameters that exist."""
    for path in paths:
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if isinstance(getattr(owner, name, None), (nn.Module, torch.Tensor)):
            delattr(owner, name)


def _no_gradients() -> AbstractContextManager[Any]:
    """Returns ``torch.no_grad()``, or a context that does nothing if gradients are off already."""
    return torch.no_grad() if torch.is_grad_enabled() else _NOTHING


def _with_mask(module: RLModule, batch: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs for acting, with the mask if there is one, so that it is recorded in the episodes."""
    if Columns.ACTION_MASK not in batch:
        return outputs
    return {Columns.ACTION_MASK: batch[Columns.ACTION_MASK], **_masked(module, batch, outputs)}


def _masked(module: RLModule, batch: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs with ``action_dist_inputs`` that make forbidden actions impossible."""
    if module.handles_action_masks or Columns.ACTION_DIST_INPUTS not in outputs:
        return outputs
    inputs = apply_mask_of_module(module, outputs[Columns.ACTION_DIST_INPUTS], batch[Columns.ACTION_MASK])
    return {**outputs, Columns.ACTION_DIST_INPUTS: inputs}


def apply_mask_of_module(module: RLModule, inputs: Any, mask: Any) -> Any:
    """Applies an action mask to ``action_dist_inputs``, arrays or tensors: forbidden actions get probability 0."""
    dist_cls: Any = module.get_train_action_dist_cls() if module.action_space is not None else None
    apply = getattr(dist_cls, "apply_action_mask", apply_action_mask)
    if isinstance(inputs, np.ndarray) and not getattr(dist_cls, "takes_arrays", dist_cls is None):
        return apply(torch.from_numpy(inputs), torch.from_numpy(mask)).numpy()
    return apply(inputs, mask)


def _class_of_one(given: Any) -> type[RLModule]:
    cls = _MODULE_CLASS.keep(given)
    if cls.holds_modules:
        raise Unfit(f"Write MultiRLModuleSpec(multi_rl_module_class={cls.__name__}).")
    return cls


_MODULE_CLASS = subclass_of(RLModule)
_CLASS_OF_ONE = optional(Validator(_MODULE_CLASS.expected, _class_of_one, _MODULE_CLASS.schema))


@dataclasses.dataclass
class RLModuleSpec(ChecksFields):
    """The settings for building an RLModule. Fields that are None follow from the config and the environment.

    Attributes:
        module_class: The RLModule subclass.
        observation_space: The space of its observations.
        action_space: The action space of its agents.
        inference_only: Whether to leave out what only training needs (``InferenceOnlyAPI``).
        learner_only: Whether no agent acts by the module, so that ``load_policy`` leaves it out.
        model_config: Settings for the module.
        catalog_class: A class that is passed to the module unchanged.
        load_state_path: A folder that ``module.save_to_path(path)`` wrote, or the module's place in the checkpoint of
            an algorithm (``CHECKPOINT/learner_group/learner/rl_module/MODULE_ID``), to start from.
    """

    module_class: Annotated[type[RLModule] | None, _CLASS_OF_ONE] = None
    observation_space: Annotated[Space | None, optional(SPACE)] = None
    action_space: Annotated[Space | None, optional(SPACE)] = None
    inference_only: Switch = False
    learner_only: Switch = False
    model_config: Annotated[Any, MODEL_CONFIG] = None
    catalog_class: Annotated[type | None, optional(instance_of(type, expected="a class"))] = None
    load_state_path: Annotated[str | Path | None, FOLDER] = None

    @classmethod
    def from_module(cls, module: RLModule) -> RLModuleSpec:
        """Returns the spec of another module like this one, with new parameters.

        Raises:
            ModuleError: If it is a MultiRLModule.
        """
        if module.holds_modules:
            raise ModuleError(
                f"RLModuleSpec.from_module: expected a single RLModule, but got a {type(module).__name__}. Pass one of "
                f"its modules, or use MultiRLModuleSpec.from_module."
            )
        return cls(
            type(module),
            module.observation_space,
            module.action_space,
            module.inference_only,
            module.learner_only,
            module.model_config,
            module.catalog_class,
        )

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, trusted: bool = True) -> RLModuleSpec:
        """Returns the spec of a module in a checkpoint, whose ``build()`` begins with the parameters there.

        Args:
            path: As ``load_state_path``; or the checkpoint or the run's folder of an algorithm with a single module.
            trusted: As for ``RLModule.from_checkpoint``.

        Raises:
            CheckpointError: If it is missing or damaged, has no such module, or one whose class or settings cannot be
                imported by name.
        """
        return components().spec_from_checkpoint(path, trusted=trusted)

    def as_multi_rl_module_spec(self) -> marl_connectors.MultiRLModuleSpec:
        """Returns a MultiRLModuleSpec with this spec as its only one, under ``DEFAULT_MODULE_ID``."""
        return marl_connectors.MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: self})

    def update(self, other: RLModuleSpec, override: bool = True) -> None:
        """Takes over the fields of another spec that are set there.

        Args:
            other: The other spec. Its fields that are None or False change nothing.
            override: Whether fields that are set here are replaced. If not, only fields that are None are filled.

        Raises:
            ModuleError: If ``other`` is not an RLModuleSpec.
        """
        if not isinstance(other, RLModuleSpec):
            raise ModuleError(f"RLModuleSpec.update: expected an RLModuleSpec, got {type(other).__name__}.")
        for field in dataclasses.fields(RLModuleSpec):
            given, own = getattr(other, field.name), getattr(self, field.name)
            if given not in (None, False) and (own is None or override):
                setattr(self, field.name, given)

    def build(self) -> RLModule:
        """Builds the module.

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
            module.set_state(component_state(self.load_state_path))
        return module


def is_trainable(module: nn.Module) -> bool:
    """Whether a module has parameters that are not frozen. It takes less time than to list ``module.parameters()``."""
    layers = [module]
    while layers:
        layer = layers.pop()
        for parameter in layer._parameters.values():
            if parameter is not None and parameter.requires_grad:
                return True
        layers += [child for child in reversed(layer._modules.values()) if child is not None]  # the first one is next
    return False
