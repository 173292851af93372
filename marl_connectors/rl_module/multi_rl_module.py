"""MultiRLModule: several RLModules, each with its own batch, in one forward pass."""

from __future__ import annotations

import dataclasses
import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeAlias, overload

import torch
from gymnasium import Space
from torch import nn

from marl_connectors.checkpoints import component_state
from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.errors import ModuleError, did_you_mean
from marl_connectors.rl_module.architecture import Structure, is_stackable, modules_that_share
from marl_connectors.rl_module.calls import call_multi_module, recorded_inputs, with_inputs
from marl_connectors.rl_module.module_columns import (
    columns_by_module,
    concatenate,
    put_together,
    set_columns_by_module,
    unlike_outputs,
)
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.rl_module.spec_fields import (
    FOLDER,
    MODEL_CONFIG,
    MODULE_ID,
    MODULE_IDS,
    NO_MODULE_ID,
    SPACE,
    is_module_id,
)
from marl_connectors.rl_module.stacking import Bucket, StackedRows, is_whole, run_stacked, sort_into_buckets
from marl_connectors.rl_module.states import output_kind
from marl_connectors.state import Array
from marl_connectors.typing import SHARED, ModuleID
from marl_connectors.validators import (
    ChecksFields,
    boolean,
    dict_of,
    either,
    instance_of,
    optional,
    subclass_of,
)

_TRAINS = attrgetter("training")
_SORTING = threading.RLock()
"""Held while parameters move into buckets, which only one thread at a time may do."""


ModuleStates: TypeAlias = dict[ModuleID, dict[str, Array]]
"""The parameters and buffers of each module, and, under ``SHARED``, those that no module holds."""


class MultiRLModule(RLModule):
    """A dict of RLModules, which runs each module on its own batch.

    Modules of one architecture run as one batched computation; see ``stacking.py``. To run the modules in another way
    (a shared encoder, a central critic), subclass it, build the shared layers in ``setup``, and override ``_forward``,
    which gets ``{module_id: {column: tensor}}``. The losses of all modules together train the shared layers.
    """

    holds_modules = True

    def __init__(
        self,
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        inference_only: bool | None = None,
        model_config: Any = None,
        rl_module_specs: Mapping[ModuleID, RLModuleSpec] | None = None,
    ):
        nn.Module.__init__(self)  # the layers of an RLModule are built at the end of its __init__
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.model_config = {} if model_config is None else model_config
        self.rl_module_specs = dict(rl_module_specs or {})
        self._members = nn.ModuleDict()
        self._buckets: list[Bucket] | None = None
        self._kinds: dict[ModuleID, tuple[Hashable, int | None]] = {}
        self.setup()
        self.eval()

    def setup(self) -> None:
        """Builds the modules from ``rl_module_specs``. An override that adds shared layers calls this one too."""
        for module_id, spec in self.rl_module_specs.items():
            with naming_module(module_id, self.rl_module_specs):
                module = spec.build()
            self.add_module(module_id, module)

    def as_multi_rl_module(self) -> MultiRLModule:
        """Returns this object, which is a MultiRLModule already."""
        return self

    @property
    def spec_class(self) -> type[MultiRLModule]:
        """The class by which a spec builds such an object."""
        return type(self)

    def leaves_out(self, module_id: ModuleID) -> bool:
        """Whether a module exists, but not here: in the part of a MultiRLModule, those of other parts. Here, none."""
        del module_id
        return False

    # A dict of modules.

    @property
    def _rl_modules(self) -> dict[ModuleID, RLModule]:
        """The modules by id, under the name that a ``_forward`` written for RLlib knows."""
        return dict(self.items())

    def __getitem__(self, module_id: ModuleID) -> RLModule:
        try:
            return self._members._modules[module_id]  # type: ignore[return-value]
        except KeyError:
            raise KeyError(f"MultiRLModule: no module {module_id!r}. {did_you_mean(module_id, self.keys())}") from None

    def __contains__(self, module_id: object) -> bool:
        return module_id in self._members._modules

    def __iter__(self) -> Iterator[ModuleID]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._members._modules)

    def keys(self) -> KeysView[ModuleID]:
        """The module ids, in the order in which they were added."""
        return self._members._modules.keys()

    def values(self) -> ValuesView[RLModule]:
        """The modules."""
        return self._members._modules.values()  # type: ignore[return-value]

    def items(self) -> ItemsView[ModuleID, RLModule]:
        """Pairs of module id and module."""
        return self._members._modules.items()  # type: ignore[return-value]

    def add_module(self, module_id: ModuleID, module: RLModule, *, override: bool = False) -> None:  # type: ignore[override]
        """Adds an RLModule. To add a layer, assign an attribute.

        Raises:
            ModuleError: If the id is no text, reserved, or taken without ``override``; or ``module`` is no RLModule.
        """
        if not isinstance(module, RLModule) or module.holds_modules:
            raise ModuleError(f"MultiRLModule: module {module_id!r} must be an RLModule, not {type(module).__name__}.")
        if not is_module_id(module_id):
            raise ModuleError(f"MultiRLModule: {module_id!r} is no module id. {NO_MODULE_ID}")
        if module_id == SHARED:
            raise ModuleError(f"MultiRLModule: {SHARED!r} stands for shared layers. Choose another module id.")
        if module_id in self and not override:
            raise ModuleError(f"MultiRLModule: module {module_id!r} exists already. Pass override=True to replace it.")
        self._members._modules[module_id] = module.eval()
        module.known_as = module_id
        self._buckets = None
        self._kinds.pop(module_id, None)

    def remove_module(self, module_id: ModuleID) -> RLModule:
        """Removes a module and returns it."""
        module = self[module_id]
        del self._members._modules[module_id]
        self._buckets = None
        self._kinds.pop(module_id, None)
        return module

    @overload
    def foreach_module(self, func: Callable[..., Any], *, return_dict: bool) -> dict[ModuleID, Any] | list[Any]: ...
    @overload
    def foreach_module(self, func: Callable[..., Any]) -> list[Any]: ...
    def foreach_module(
        self, func: Callable[[ModuleID, RLModule], Any], *, return_dict: bool = False
    ) -> dict[ModuleID, Any] | list[Any]:
        """Returns the results of ``func(module_id, module)`` for each module."""
        results = {module_id: func(module_id, module) for module_id, module in self.items()}
        return results if return_dict else list(results.values())

    # Forward passes.

    def forward_inference(self, batch: Any, **kwargs: Any) -> Any:
        """The forward pass for acting without exploration.

        Args:
            batch: ``{module_id: {column: tensor}}``, or a ColumnBatch.
            **kwargs: Further arguments for the modules.

        Returns:
            The outputs, in the form of ``batch``.
        """
        return self._dispatch("inference", batch, **kwargs)

    def forward_exploration(self, batch: Any, **kwargs: Any) -> Any:
        """The forward pass for acting while collecting data, with arguments as in ``forward_inference``."""
        return self._dispatch("exploration", batch, **kwargs)

    def forward_train(self, batch: Any, **kwargs: Any) -> Any:
        """The forward pass for computing losses, with gradients and arguments as in ``forward_inference``."""
        return self._dispatch("train", batch, **kwargs)

    def forward(self, batch: Any, **kwargs: Any) -> Any:
        """Same as ``forward_train``."""
        return self.forward_train(batch, **kwargs)

    def _forward(self, batch: dict[ModuleID, dict[str, Any]], *, purpose: str, **kwargs: Any) -> dict[ModuleID, Any]:
        """Runs all modules that have a batch. Override it to run them in another way.

        Args:
            batch: ``{module_id: {column: tensor}}``.
            purpose: ``"inference"``, ``"exploration"`` or ``"train"``.
            **kwargs: The further arguments of the public method.
        """
        return {m: getattr(self[m], f"forward_{purpose}")(columns, **kwargs) for m, columns in batch.items()}

    def _forward_inference(self, batch: dict[ModuleID, dict[str, Any]], **kwargs: Any) -> dict[ModuleID, Any]:
        """``_forward`` for acting without exploration."""
        return self._forward(batch, purpose="inference", **kwargs)

    def _forward_exploration(self, batch: dict[ModuleID, dict[str, Any]], **kwargs: Any) -> dict[ModuleID, Any]:
        """``_forward`` for acting while collecting data."""
        return self._forward(batch, purpose="exploration", **kwargs)

    def _forward_train(self, batch: dict[ModuleID, dict[str, Any]], **kwargs: Any) -> dict[ModuleID, Any]:
        """``_forward`` for computing losses."""
        return self._forward(batch, purpose="train", **kwargs)

    def _run(self, purpose: str, batch: Mapping[ModuleID, Any], **kwargs: Any) -> Any:
        """Runs modules. An overridden ``_forward`` gets columns that it may add to without changing the caller's."""
        if not self.has_own_forward:
            return getattr(self, f"_forward_{purpose}")(batch, **kwargs)
        own = {module_id: ChainMap({}, columns) for module_id, columns in batch.items()}  # type: ignore[misc]
        if purpose != "train":
            return call_multi_module(self, purpose, own, kwargs)
        with recorded_inputs(self.values()) as inputs:
            outputs = call_multi_module(self, purpose, own, kwargs)
        return with_inputs(outputs, inputs, own)

    def _dispatch(self, purpose: str, batch: Any, **kwargs: Any) -> Any:
        if not isinstance(batch, ColumnBatch):
            return self._run(purpose, batch, **kwargs)
        outputs = ColumnBatch([group.like() for group in batch.groups], Phase.TENSORS)
        with torch.set_grad_enabled(purpose == "train" and torch.is_grad_enabled()):
            in_sequences = any(group.sequences is not None for group in batch.groups)
            if in_sequences or self.has_own_forward:
                by_module = self._run(purpose, columns_by_module(batch), **kwargs)
                set_columns_by_module(outputs, by_module, fills_up=purpose != "train")
            else:
                for group, output in zip(batch.groups, outputs.groups, strict=True):
                    self._run_group(purpose, group, output, **kwargs)
        return outputs

    def _run_group(self, purpose: str, group: ColumnGroup, output: ColumnGroup, **kwargs: Any) -> None:
        """Runs a group with one call if it is a single module or a bucket, else with one call for each module."""
        if len(group.module_ids) == 1:
            output.update(getattr(self[group.module_ids[0]], f"forward_{purpose}")(group, **kwargs))
            return
        bucket = self.bucket_of(group.module_ids)
        if bucket is not None and (is_whole(bucket, group) or StackedRows.is_worthwhile(bucket, group)):
            output.update(run_stacked(bucket, group, f"forward_{purpose}", **kwargs))
            return
        outputs = {m: getattr(self[m], f"forward_{purpose}")(c, **kwargs) for m, c in group.module_columns()}
        if purpose != "train":
            _check_states(outputs)
        try:
            if purpose == "train":
                output.update(concatenate(list(outputs.values())))
            else:
                put_together(output, list(outputs.values()))
        except (RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise unlike_outputs(outputs, error) from error

    @property
    def buckets(self) -> list[Bucket]:
        """The modules that can run stacked, by architecture. It is a new list whenever modules or layers have changed.

        The list is empty if a subclass overrides ``_forward``. All threads get the same list.
        """
        found = self._buckets
        if found is not None:
            return found
        with _SORTING:
            found = self._buckets
            if found is None:
                self._joint_modules = None
                members = {} if self.has_own_forward else dict(self.items())
                self._structure = Structure(self, filter(is_stackable, members.values()))
                self._parts = list(self.modules())
                self._buckets = found = sort_into_buckets(members)
            return found

    _structure: Structure
    _parts: Sequence[nn.Module] = ()
    _joint_modules: list[ModuleID] | None = None

    def bucket_of(self, module_ids: Collection[ModuleID]) -> Bucket | None:
        """Returns the bucket that has all these modules, which are given in its order; None if no bucket has them."""
        for bucket in self.buckets:
            if bucket.module_ids == module_ids or bucket.members.issuperset(module_ids):
                return bucket
        return None

    def check_buckets(self) -> None:
        """Lets new buckets be made if layers, parameters, hooks or attributes of the modules have changed."""
        if self._buckets is not None and not self._structure.is_current:
            self._buckets = None

    def bind_buckets(self) -> None:
        """Makes the buckets valid again after changes to layers, parameters, hooks or attributes of the modules."""
        self.check_buckets()
        loose = [bucket for bucket in self.buckets if not bucket.is_bound]
        if all(bucket.is_current for bucket in loose):
            for bucket in loose:
                bucket.bind()
        else:
            self._buckets = None

    def frozen_names(self) -> list[str]:
        """Returns the names of the parameters that are not trained. To be called after ``bind_buckets``."""
        trained = [bucket.members for bucket in self.buckets if all(own.requires_grad for own in bucket.slices)]
        if not self._rest() and self.keys() <= frozenset().union(*trained):
            return []
        return [name for name, parameter in self.named_parameters() if not parameter.requires_grad]

    def act(self) -> None:
        """Puts all modules into eval mode, if some are not."""
        buckets = self.buckets  # sets self._parts
        if True in map(_TRAINS, self._parts):
            self.eval()
            for bucket in buckets:
                bucket.stacked_module.eval()

    def unbind_buckets(self) -> None:
        """Gives each parameter its own memory, as before there were buckets. New buckets are made when needed."""
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        self._buckets = None

    @property
    def has_own_forward(self) -> bool:
        """Whether a subclass overrides ``_forward``."""
        return _has_own_forward(type(self))

    def joint_modules(self) -> list[ModuleID]:
        """Returns the modules that depend on one another, so that they are trained in joint steps.

        These are all modules if a subclass overrides ``_forward``, else those that share parameters.
        """
        if self._joint_modules is None or self._buckets is None:
            self._joint_modules = list(self) if self.has_own_forward else modules_that_share(dict(self.items()))
        return self._joint_modules

    def _apply(self, fn: Any, recurse: bool = True) -> MultiRLModule:
        """Moves modules to another device or dtype. They get new memory, so new buckets are made."""
        self._buckets = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the buckets: the parameters of a copy have their own memory."""
        return {**self.__dict__, "_buckets": None, "_structure": None, "_parts": ()}

    # State.

    def get_initial_state(self) -> dict[ModuleID, Any]:
        """Returns the state of each module before an episode's first step."""
        return {module_id: module.get_initial_state() for module_id, module in self.items()}

    def is_stateful(self) -> bool:
        """Whether any module carries a state from step to step."""
        return any(module.is_stateful() for module in self.values())

    def state_kind(self, module_id: ModuleID) -> Hashable:
        """Returns ``states.state_kind`` of a module."""
        return self.output_kind(module_id)[0]

    def output_kind(self, module_id: ModuleID) -> tuple[Hashable, int | None]:
        """Returns ``states.output_kind`` of a module, which is computed once for each module."""
        if module_id not in self._kinds:
            self._kinds[module_id] = output_kind(self[module_id])
        return self._kinds[module_id]

    def unwrapped(self) -> MultiRLModule:
        """Returns the module without wrappers around it."""
        return self

    def get_state(self) -> ModuleStates:
        """Returns copies of each module's parameters and buffers on the CPU.

        Parameters and buffers that no module holds are under ``SHARED``.
        """
        state = {module_id: module.get_state() for module_id, module in self.items()}
        rest = {name: value.detach().cpu().clone() for name, value in self._rest().items()}
        return {**state, SHARED: rest} if rest else state

    def keep_state(self) -> Callable[[], ModuleStates]:
        """Returns a function that returns what ``get_state`` would return now. To be called after ``bind_buckets``."""
        if type(self).get_state is not MultiRLModule.get_state:  # it may return more
            whole = self.get_state()
            return lambda: whole
        several = [own for own in self.buckets if len(own.modules) > 1 and own.has_plain_states]
        stacked = [(own, own.parameters.clone()) for own in several if own.members & self.keys()]
        found = {module_id for bucket, _ in stacked for module_id in bucket.modules}
        others = {module_id: module.get_state() for module_id, module in self.items() if module_id not in found}
        rest, present = {name: value.detach().cpu().clone() for name, value in self._rest().items()}, frozenset(self)

        def state() -> ModuleStates:
            found = {m: own for bucket, rows in stacked for m, own in bucket.states_of(rows) if m in present}
            return others | found | ({SHARED: rest} if rest else {})

        return state

    def set_state(self, state: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Loads a state that ``get_state`` returned, for the modules that it names.

        Raises:
            ModuleError: If it names a module that does not exist here, or that has another architecture.
        """
        for module_id, module_state in state.items():
            if module_id == SHARED:
                self._set_rest(module_state)
            elif module_id not in self:
                raise ModuleError(
                    f"MultiRLModule: the state is of module {module_id!r}. {did_you_mean(module_id, self.keys())}"
                )
            else:
                self[module_id].set_state(module_state)

    def _rest(self) -> dict[str, torch.Tensor]:
        """Returns the parameters and buffers that no module holds."""
        own: dict[str, torch.Tensor] = {}
        self._save_to_state_dict(own, "", keep_vars=True)
        for name, layer in self.named_children():
            if layer is not self._members:
                layer.state_dict(destination=own, prefix=f"{name}.", keep_vars=True)
        modules = self.values() if own else ()
        held = {id(value) for module in modules for value in module.state_dict(keep_vars=True).values()}
        return {name: value for name, value in own.items() if id(value) not in held}

    def _set_rest(self, state: Mapping[str, Any]) -> None:
        rest = self._rest()
        shapes = {name: tuple(value.shape) for name, value in rest.items()}
        there = {name: tuple(value.shape) for name, value in state.items()}
        if shapes != there:
            raise ModuleError(
                f"{type(self).__name__}: the shared layers of this state are of another architecture: {there}, but "
                f"here {shapes}."
            )
        with torch.no_grad():
            for name, value in state.items():
                rest[name].copy_(torch.as_tensor(value))


@contextmanager
def naming_module(module_id: ModuleID, modules: Collection[ModuleID]) -> Iterator[None]:
    """Names the module in errors of its class, if there are several modules."""
    try:
        yield
    except ModuleError as error:
        if len(modules) == 1:
            raise
        raise ModuleError(f"module {module_id!r}: {error}") from error


@cache
def _has_own_forward(cls: type[MultiRLModule]) -> bool:
    names = ("_forward", "_forward_inference", "_forward_exploration", "_forward_train")
    return any(getattr(cls, name) is not getattr(MultiRLModule, name) for name in names)


def _check_states(outputs: Mapping[ModuleID, Mapping[str, Any]]) -> None:
    """Checks that all modules of a group return a state, or none does."""
    forgetful = [module_id for module_id, output in outputs.items() if Columns.STATE_OUT not in output]
    if 0 < len(forgetful) < len(outputs):
        raise ModuleError(
            f"module {forgetful[0]!r} is stateful, but returned no 'state_out', only {sorted(outputs[forgetful[0]])}, "
            f"so it would lose its state. Return Columns.STATE_OUT from its _forward."
        )


_SPEC = instance_of(RLModuleSpec, expected="an RLModuleSpec")
_SPECS = either(_SPEC, dict_of(MODULE_ID, _SPEC, expected="a dict {module_id: RLModuleSpec}"))


@dataclasses.dataclass
class MultiRLModuleSpec(ChecksFields):
    """The settings for building a MultiRLModule. Fields that are None follow from the config and the environment.

    Attributes:
        multi_rl_module_class: MultiRLModule or a subclass.
        observation_space: Passed to the class.
        action_space: Passed to the class.
        inference_only: If True, all modules are built for inference only, whatever their specs say.
        model_config: Passed to the class.
        rl_module_specs: One spec for each module id, or a single RLModuleSpec for all modules.
        load_state_path: A folder that ``MultiRLModule.save_to_path`` wrote, or its place in the checkpoint of an
            algorithm (``CHECKPOINT/learner_group/learner/rl_module``), to start from.
        modules_to_load: The modules to load from this folder, together with the shared layers; None for all.
    """

    multi_rl_module_class: Annotated[type[MultiRLModule] | None, optional(subclass_of(MultiRLModule))] = None
    observation_space: Annotated[Space | None, optional(SPACE)] = None
    action_space: Annotated[Space | None, optional(SPACE)] = None
    inference_only: Annotated[bool | None, optional(boolean())] = None
    model_config: Annotated[Any, MODEL_CONFIG] = None
    rl_module_specs: Annotated[dict[ModuleID, RLModuleSpec] | RLModuleSpec, _SPECS] = dataclasses.field(
        default_factory=dict
    )
    load_state_path: Annotated[str | Path | None, FOLDER] = None
    modules_to_load: Annotated[Collection[ModuleID] | None, optional(MODULE_IDS)] = None

    @classmethod
    def from_module(cls, module: MultiRLModule) -> MultiRLModuleSpec:
        """Returns the spec of another MultiRLModule with modules like these, and new parameters."""
        return cls(
            module.spec_class,
            module.observation_space,
            module.action_space,
            module.inference_only,
            module.model_config,
            {module_id: RLModuleSpec.from_module(member) for module_id, member in module.items()},
        )

    def add_modules(self, module_specs: Mapping[ModuleID, RLModuleSpec], override: bool = True) -> None:
        """Adds specs, or updates those that exist.

        Args:
            module_specs: The specs by module id.
            override: Whether the specs that exist are replaced. If not, only their fields that are None are filled.

        Raises:
            ModuleError: If there is one spec for all modules.
        """
        own = self._by_id("add_modules")
        for module_id, spec in module_specs.items():
            if override or module_id not in own:
                own[module_id] = spec
            else:
                own[module_id] = dataclasses.replace(own[module_id])
                own[module_id].update(spec, override=False)
        self.rl_module_specs = own

    def remove_modules(self, module_ids: ModuleID | Collection[ModuleID]) -> None:
        """Removes the specs of these modules, as far as they exist."""
        gone = {module_ids} if isinstance(module_ids, str) else set(module_ids)
        own = self._by_id("remove_modules")
        self.rl_module_specs = {module_id: spec for module_id, spec in own.items() if module_id not in gone}

    def update(self, other: MultiRLModuleSpec | RLModuleSpec, override: bool = True) -> None:
        """Takes over the specs of another MultiRLModuleSpec, or the fields of one RLModuleSpec for every module.

        Args:
            other: The other spec.
            override: As in ``add_modules`` and ``RLModuleSpec.update``.

        Raises:
            ModuleError: If one of the two MultiRLModuleSpecs has one spec for all modules, and the other has not.
        """
        if isinstance(other, RLModuleSpec):
            for spec in self._by_id("update").values():
                spec.update(other, override)
            return
        if override:
            self.multi_rl_module_class = other.multi_rl_module_class or self.multi_rl_module_class
            self.model_config = other.model_config or self.model_config
        self.add_modules(other._by_id("update"), override)

    def __contains__(self, module_id: ModuleID) -> bool:
        """Whether there is a spec of this module."""
        return not isinstance(self.rl_module_specs, RLModuleSpec) and module_id in self.rl_module_specs

    def _by_id(self, method: str) -> dict[ModuleID, RLModuleSpec]:
        if isinstance(self.rl_module_specs, RLModuleSpec):
            raise ModuleError(
                f"MultiRLModuleSpec.{method}: rl_module_specs is one RLModuleSpec for all modules. Name the modules: "
                f"{{module_id: RLModuleSpec(...)}}."
            )
        return dict(self.rl_module_specs)

    def build(self) -> MultiRLModule:
        """Builds the module.

        Raises:
            ModuleError: If the specs are incomplete.
        """
        if isinstance(self.rl_module_specs, RLModuleSpec):
            raise ModuleError(
                "MultiRLModuleSpec: rl_module_specs must name the modules: {module_id: RLModuleSpec(...)}."
            )
        module = (self.multi_rl_module_class or MultiRLModule)(
            observation_space=self.observation_space,
            action_space=self.action_space,
            inference_only=self.inference_only,
            model_config=self.model_config,
            rl_module_specs={m: self.completed(spec) for m, spec in self.rl_module_specs.items()},
        )
        self.load_state(module)
        return module

    def completed(self, spec: RLModuleSpec) -> RLModuleSpec:
        """Returns a module's spec with the settings that apply to all modules."""
        return dataclasses.replace(spec, inference_only=True) if self.inference_only else spec

    def load_state(self, module: MultiRLModule) -> None:
        """Loads the state in ``load_state_path``, if it is set.

        Raises:
            ModuleError: If it does not have one of ``modules_to_load``.
        """
        if self.load_state_path is None:
            return
        state = component_state(self.load_state_path)
        if self.modules_to_load is not None:
            for module_id in self.modules_to_load:
                if module_id not in state:
                    raise ModuleError(
                        f"MultiRLModuleSpec: modules_to_load names {module_id!r}, but {self.load_state_path} has no "
                        f"such module. {did_you_mean(module_id, state.keys() - {SHARED})}"
                    )
            wanted = {*self.modules_to_load, *([SHARED] if module._rest() else [])}
            state = {module_id: own for module_id, own in state.items() if module_id in wanted}
        module.set_state(state)
