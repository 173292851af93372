"""MultiRLModuleSpec: what a MultiRLModule is built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gymnasium import Space

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.typing import SHARED, ModuleID


@dataclasses.dataclass
class MultiRLModuleSpec:
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

    multi_rl_module_class: type[MultiRLModule] | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    inference_only: bool | None = None
    model_config: Any = None
    rl_module_specs: dict[ModuleID, RLModuleSpec] | RLModuleSpec = dataclasses.field(default_factory=dict)
    load_state_path: str | Path | None = None
    modules_to_load: Collection[ModuleID] | None = None

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
