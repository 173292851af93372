"""LearnerSet: several learners, each of which updates other modules, which look like one to an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from marl_connectors.errors import did_you_mean, listed
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.multi_rl_module import ModuleStates, MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.state import State, read_state
from marl_connectors.typing import ModuleID


class LearnerSetState(State):
    """The state of a LearnerSet.

    Attributes:
        module: The parameters and buffers of each module, and those that modules share.
        learners: The states of the learners, without ``module``.
    """

    module: ModuleStates
    learners: dict[str, dict[str, Any]]


class LearnerSet:
    """The learners of a run with several algorithms. Each has its own settings, pipeline and optimizers.

    Attributes:
        module: All modules. The ``module`` of each learner is a part of it.
        learners: The learners by the patterns of their modules' ids.
    """

    def __init__(self, module: MultiRLModule, learners: Mapping[str, Learner]):
        """Makes a set of learners.

        Args:
            module: As above.
            learners: As above. Each module belongs to one of them.
        """
        self.module = module
        self.learners = dict(learners)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {listed(self.module, 'module')}: {', '.join(map(repr, self.learners))}>"

    @property
    def by_name(self) -> dict[str, Learner]:
        """The learners by names for results and explanations: ``"learner PATTERN"``."""
        return {f"learner {name}": learner for name, learner in self.learners.items()}

    def of_module(self, module_id: ModuleID) -> Learner:
        """Returns the learner that updates a module.

        Raises:
            KeyError: If there is no such module.
        """
        for learner in self.learners.values():
            if module_id in learner.module:
                return learner
        raise KeyError(f"LearnerSet: no module {module_id!r}. {did_you_mean(module_id, self.module)}")

    @property
    def pipeline_seconds(self) -> float:
        """How long making the newest train batches of all learners took."""
        return sum(learner.pipeline_seconds for learner in self.learners.values())

    def should_module_be_updated(self, module_id: ModuleID) -> bool:
        """Whether a module is updated, as ``Learner.should_module_be_updated`` says."""
        return self.of_module(module_id).should_module_be_updated(module_id)

    def update(
        self,
        *,
        episodes: Sequence[Any],
        timesteps: dict[str, int] | None = None,
        names: Collection[str] | None = None,
    ) -> dict[ModuleID, dict[str, float]]:
        """Updates the modules from episodes: each learner its own.

        Args:
            episodes: As for ``Learner.update``.
            timesteps: As for ``Learner.update``.
            names: The learners that update their modules; None for all.

        Returns:
            The results of all of them.
        """
        found: dict[ModuleID, dict[str, float]] = {}
        for name in self.learners if names is None else names:
            found |= self.learners[name].update(episodes=episodes, timesteps=timesteps)
        return found

    def add_module(self, module_id: ModuleID, module: RLModule, *, is_updated: bool = True) -> None:
        """Adds a module to the learner that it belongs to, as ``Learner.add_module`` does."""
        for learner in self.learners.values():
            part: Any = learner.module
            if part.belongs(module_id):
                learner.add_module(module_id, module, is_updated=is_updated)

    def remove_module(self, module_id: ModuleID) -> None:
        """Removes a module and its optimizers."""
        self.of_module(module_id).remove_module(module_id)

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the learners and the modules back to where they are now."""
        parts = [learner.now() for learner in self.learners.values()]

        def go_back() -> None:
            for part in parts:
                part()

        return go_back

    def get_state(self) -> LearnerSetState:
        """Returns everything that the next updates depend on."""
        found = {name: learner.get_state() for name, learner in self.learners.items()}
        for own in found.values():
            del own["module"]
        return LearnerSetState(module=self.module.get_state(), learners=found)

    def set_state(self, state: LearnerSetState | Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            KeyError: If it is the state of other learners.
        """
        known = read_state(LearnerSetState, state)
        if known.learners.keys() != self.learners.keys():
            raise KeyError(f"LearnerSet: expected the states of {list(self.learners)}, got {list(known.learners)}")
        self.module.set_state(known.module)
        for name, own in known.learners.items():
            self.learners[name].set_state({**own, "module": {}})
