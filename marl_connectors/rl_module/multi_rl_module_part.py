"""MultiRLModulePart: some modules of a MultiRLModule, for a learner that updates only these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.stacking import Bucket
from marl_connectors.typing import ModuleID


class MultiRLModulePart(MultiRLModule):
    """Those modules of a MultiRLModule that belong to one learner. They are the same objects, in the same buckets.

    Attributes:
        whole: The MultiRLModule with all modules.
        belongs: Whether a module belongs to this part.
    """

    whole: MultiRLModule

    def __init__(self, whole: MultiRLModule, belongs: Callable[[ModuleID], bool]):
        """Finds the modules.

        Args:
            whole: As above.
            belongs: As above.

        Raises:
            ModuleError: If modules within and outside of this part depend on one another.
        """
        name = type(whole).__name__
        if whole.has_own_forward:
            raise ModuleError(
                f"{name}: it computes all modules together, so one algorithm must train all of them. Use the config of "
                f"that algorithm itself."
            )
        vars(self)["whole"] = whole  # not as a layer, whose parameters would be this object's own
        self.belongs = belongs
        super().__init__(
            observation_space=whole.observation_space,
            action_space=whole.action_space,
            inference_only=whole.inference_only,
            model_config=whole.model_config,
        )
        self._follow()
        joint = set(whole.joint_modules())
        if joint & set(self) and joint - set(self):
            raise ModuleError(
                f"{name}: the modules {', '.join(map(repr, sorted(joint)))} share parameters, so one algorithm must "
                f"train all of them. Give them the same one."
            )

    def _follow(self) -> None:
        """Takes over modules that were added to the whole, or removed from it."""
        own = {m: module for m, module in self.whole.items() if self.belongs(m)}
        if own != self._members._modules:
            self._members._modules = dict(own)
            self._kinds.clear()

    @property
    def spec_class(self) -> type[MultiRLModule]:
        """The class of the whole, with which this part can be built by itself."""
        return self.whole.spec_class

    def leaves_out(self, module_id: ModuleID) -> bool:
        """Whether a module exists, but does not belong to this part."""
        return module_id in self.whole and module_id not in self

    def add_module(self, module_id: ModuleID, module: RLModule, *, override: bool = False) -> None:  # type: ignore[override]
        """Adds an RLModule to the whole."""
        self.whole.add_module(module_id, module, override=override)
        self._follow()

    def remove_module(self, module_id: ModuleID) -> RLModule:
        """Removes a module from the whole, and returns it."""
        module = self.whole.remove_module(module_id)
        self._follow()
        return module

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets of the whole, which may have members that do not belong to this part."""
        return self.whole.buckets

    def bind_buckets(self) -> None:
        """Makes the buckets of the whole valid again."""
        self.whole.bind_buckets()
        self._follow()

    def unbind_buckets(self) -> None:
        """Gives each parameter of the whole its own memory."""
        self.whole.unbind_buckets()

    def act(self) -> None:
        """Puts all modules of the whole into eval mode."""
        self.whole.act()

    def joint_modules(self) -> list[ModuleID]:
        """Returns the modules of this part that depend on one another."""
        return [m for m in self.whole.joint_modules() if m in self]

    def _apply(self, fn: Any, recurse: bool = True) -> MultiRLModulePart:
        self.whole._apply(fn, recurse)
        return self
