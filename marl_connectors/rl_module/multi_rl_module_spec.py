"""MultiRLModuleSpec: what a MultiRLModule is built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from gymnasium import Space

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import FOLDER, MODEL_CONFIG, SPACE, RLModuleSpec
from marl_connectors.typing import SHARED, ModuleID
from marl_connectors.validators import (
    ChecksFields,
    Unfit,
    Validator,
    boolean,
    dict_of,
    either,
    instance_of,
    optional,
    subclass_of,
    text,
)


def _module_ids(given: Any) -> Any:
    if not isinstance(given, Collection) or isinstance(given, (str, bytes, Mapping, np.ndarray)):
        raise Unfit(f"Write [{given!r}]." if isinstance(given, str) else "")
    make: Any = type(given) if type(given) in (tuple, set, frozenset) else list
    return make(map(text().keep, given))


MODULE_IDS = Validator("a collection of module ids", _module_ids)
_SPEC = instance_of(RLModuleSpec, expected="an RLModuleSpec")
_SPECS = either(_SPEC, dict_of(text(), _SPEC, expected="a dict {module_id: RLModuleSpec}"))


@dataclasses.dataclass
class MultiRLModuleSpec(ChecksFields):
    """How to build a MultiRLModule. What is None is filled in from the algorithm's config and the environment.

    Attributes:
        multi_rl_module_class: MultiRLModule or a subclass.
        observation_space: Handed to the class.
        action_space: Handed to the class.
        inference_only: True for all modules, whatever their own specs say.
        model_config: Handed to the class.
        rl_module_specs: One spec for each module id; a single RLModuleSpec stands for all modules.
        load_state_path: A folder with a saved ``MultiRLModule.get_state()`` to start from.
        modules_to_load: Which modules to load from there, with the layers that are shared; None for all.
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
        """How to build another one with modules like those of this one, and parameters of its own."""
        return cls(
            type(module),
            module.observation_space,
            module.action_space,
            module.inference_only,
            module.model_config,
            {module_id: RLModuleSpec.from_module(member) for module_id, member in module.items()},
        )

    def build(self) -> MultiRLModule:
        """The module.

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
        """A module's spec, with what is said here for all modules."""
        return dataclasses.replace(spec, inference_only=True) if self.inference_only else spec

    def load_state(self, module: MultiRLModule) -> None:
        """Gives a module what ``load_state_path`` holds, if it is set."""
        if self.load_state_path is None:
            return
        from marl_connectors.checkpoints import load_state

        state = load_state(self.load_state_path)
        if self.modules_to_load is not None:
            wanted = {*self.modules_to_load, *([SHARED] if module._rest() else [])}
            state = {module_id: own for module_id, own in state.items() if module_id in wanted}
        module.set_state(state)
