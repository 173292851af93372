"""A learner's optimizers: one step for a whole bucket, or whatever the user registers for a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_connectors.errors import LearnerError, did_you_mean
from marl_connectors.learner.default_adam import DefaultAdam
from marl_connectors.learner.gradients import clip_gradients, clip_stacked_gradients, global_norm
from marl_connectors.learner.loss_stats import FiniteCheck
from marl_connectors.ops.schedule import Schedule, schedule, value_at
from marl_connectors.rl_module.bucket import BucketPart, MemberRow
from marl_connectors.typing import SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


class Optimizers:
    """Computes gradients, clips them, and steps the optimizers of the modules that have new ones.

    A module that registers no optimizer has Adam (``DefaultAdam``). What takes no part in a step stays as it is.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._registered: dict[ModuleID, dict[str, torch.optim.Optimizer]] = {}
        self._held: dict[ModuleID, list[Tensor]] = {}
        self._schedules: dict[tuple[ModuleID, str], Schedule] = {}
        self._with_default: dict[ModuleID, None] = {}
        self._configured: set[ModuleID] = set()
        self._shared: list[Tensor] = []
        self._default = DefaultAdam()
        self._arranged_for: Any = None
        self._parts: dict[tuple[ModuleID, ...], BucketPart | None] = {}  # both of this update
        self._clipping: dict[tuple[ModuleID, ...], list[Any]] = {}

    # Who has which optimizer.

    def register_default(self, module_id: ModuleID) -> None:
        """Gives a module Adam with the config's learning rate, for what no registered optimizer has.

        Parameters that several modules have are left out.
        """
        self._with_default[module_id] = None
        self._arranged_for = None

    def refresh(self) -> None:
        """Sees to it that every parameter that there is now has its optimizer, and sets the learning rates.

        Called at the beginning of each update. It costs little unless modules, layers or parameters came, went or
        moved, or optimizers were registered.
        """
        self._learner.module.bind_buckets()
        self._parts.clear()
        self._clipping.clear()
        if self._learner.module.buckets is not self._arranged_for or not self._default.fits:
            self._configure()
            self._arrange()
        self.set_learning_rates()

    def _configure(self) -> None:
        """Has modules configured that came by another way than ``Learner.add_module``, or lost parameters."""
        learner = self._learner
        for module_id in [m for m in self._configured if m not in learner.module]:
            self.forget(module_id)
        here = {id(p) for p in learner.module.parameters()}
        for module_id in learner.module:
            before = self._registered.get(module_id, {})
            if any(id(p) not in here for p in self._held.get(module_id, ())):
                self.forget(module_id)
            if module_id not in self._configured and module_id not in learner._never_updated:
                self.configure(module_id)
                _carry_over(before, self._registered.get(module_id, {}), module_id)

    def configure(self, module_id: ModuleID) -> None:
        """Has a module's optimizers registered."""
        self._configured.add(module_id)
        config = self._learner.config.get_config_for_module(module_id)
        self._learner.configure_optimizers_for_module(module_id, config)
        self._arranged_for = None

    def _arrange(self) -> None:
        """Divides what there is among the optimizers.

        What no module has for itself gets an Adam of its own, unless an optimizer was registered for it. What nothing
        has changed for keeps its moments.
        """
        self._shared = self._find_shared()
        taken = {id(p) for several in self._registered.values() for o in several.values() for p in _parameters(o)}
        rest = [p for p in self._shared if id(p) not in taken]
        taken.update(id(p) for p in self._shared)
        default = {m: [p for p in self._parameters_of(m) if id(p) not in taken] for m in self._with_default}
        self._default.arrange({**default, **({SHARED: rest} if rest else {})}, self._row_of)
        self._arranged_for = self._learner.module.buckets

    def _row_of(self, module_id: ModuleID) -> MemberRow | None:
        bucket = self._learner.module.bucket_of((module_id,))
        return None if bucket is None else bucket.row(module_id)

    def _find_shared(self) -> list[Tensor]:
        """Parameters of several modules, or of the MultiRLModule itself."""
        owners = Counter(id(p) for module_id in self._learner.module for p in self._parameters_of(module_id))
        return [p for p in self._learner.module.parameters() if owners[id(p)] != 1]

    def register(
        self,
        module_id: ModuleID,
        optimizer: torch.optim.Optimizer,
        name: str,
        params: Iterable[Tensor] | None,
        lr: Schedule | None,
    ) -> None:
        """Adds a user's own optimizer for a module; see ``Learner.register_optimizer``."""
        if params is not None:
            held = {id(p) for p in _parameters(optimizer)}
            wanted = {id(p) for p in params}
            if held != wanted:
                raise LearnerError(
                    f"Learner.register_optimizer: optimizer {name!r} of module {module_id!r} was made for other "
                    f"parameters ({len(held)} tensors) than those in params ({len(wanted)}). Pass the same to both."
                )
        if name in self._registered.get(module_id, {}):
            raise LearnerError(
                f"Learner.register_optimizer: module {module_id!r} has an optimizer {name!r} already. Give each an "
                f"optimizer_name of its own."
            )
        self._held.setdefault(module_id, []).extend(self._checked_parameters(module_id, optimizer, name))
        if lr is not None:
            setting = f"lr_or_lr_schedule of {name!r}"
            self._schedules[module_id, name] = schedule().check(lr, "Learner.register_optimizer", setting)
        self._registered.setdefault(module_id, {})[name] = optimizer
        self._arranged_for = None

    def _checked_parameters(self, module_id: ModuleID, optimizer: torch.optim.Optimizer, name: str) -> list[Tensor]:
        """Those of the modules' parameters that an optimizer has; none may be of other modules only."""
        held = {id(p): p for p in _parameters(optimizer)}
        owners: dict[int, list[ModuleID]] = {}
        for owner in self._learner.module:
            for parameter in self._parameters_of(owner):
                owners.setdefault(id(parameter), []).append(owner)
        for key in held:
            others = owners.get(key, [])
            if others and module_id not in (*others, SHARED):
                raise LearnerError(
                    f"Learner.register_optimizer: optimizer {name!r} of module {module_id!r} has parameters of module "
                    f"{others[0]!r}. Make it of those of self.module[{module_id!r}]: it steps when that one has new "
                    f"gradients."
                )
        return [p for p in self._learner.module.parameters() if id(p) in held]

    def get(self, module_id: ModuleID, name: str) -> torch.optim.Optimizer:
        """An optimizer that was registered."""
        own = self._registered.get(module_id, {})
        if name not in own:
            raise KeyError(f"Learner: module {module_id!r} has no optimizer {name!r}. {did_you_mean(name, own)}")
        return own[name]

    def forget(self, module_id: ModuleID) -> None:
        """Drops a module's optimizers."""
        self._registered.pop(module_id, None)
        self._held.pop(module_id, None)
        self._schedules = {key: value for key, value in self._schedules.items() if key[0] != module_id}
        self._with_default.pop(module_id, None)
        self._configured.discard(module_id)
        self._arranged_for = None

    def _parameters_of(self, module_id: ModuleID) -> list[Tensor]:
        return list[Tensor](self._learner.module[module_id].parameters())

    def part(self, module_ids: Sequence[ModuleID]) -> BucketPart | None:
        """These modules as one computation; None if they are in no bucket."""
        key = tuple(module_ids)
        if key not in self._parts:
            bucket = self._learner.module.bucket_of(key)
            self._parts[key] = None if bucket is None else bucket.part(key)
        return self._parts[key]

    # One step.

    def compute_gradients(self, loss: Tensor, module_ids: Sequence[ModuleID]) -> None:
        """Fills the gradients of the modules' parameters, and of those that they share."""
        part = self.part(module_ids)
        if part is not None:
            part.compute_gradients(loss)
            return
        for parameter in self._shared:
            parameter.grad = None
        for module_id in module_ids:
            if module_id != SHARED:
                self._learner.module[module_id].zero_grad(set_to_none=True)
        loss.backward()

    @property
    def has_shared(self) -> bool:
        """Whether there are parameters that several modules have, or the MultiRLModule itself."""
        return bool(self._shared)

    def gradients_of(self, module_id: ModuleID) -> list[Tensor]:
        """The gradients of a module's own parameters, or of the ``SHARED`` ones, to be changed in place."""
        if module_id == SHARED:
            return [p.grad for p in self._shared if p.grad is not None]
        shared = {id(p) for p in self._shared}
        own = [p for p in self._parameters_of(module_id) if p.requires_grad and id(p) not in shared]
        return [p.grad for p in own if p.grad is not None]

    def norms(self, module_ids: Sequence[ModuleID]) -> Tensor:
        """``[A]`` Euclidean norms of the modules' gradients."""
        part = self.part(module_ids)
        if part is not None:
            return torch.linalg.vector_norm(part.gradients(), dim=1)
        several = [self.gradients_of(module_id) for module_id in module_ids]
        device = self._learner.device
        return torch.stack([global_norm(own) if own else torch.zeros((), device=device) for own in several])

    def clip(self, module_ids: Sequence[ModuleID], norms: Tensor) -> None:
        """Clips the gradients of modules as their configs say; stacked ones at once."""
        key = tuple(module_ids)
        if key not in self._clipping:
            own = [self._learner.config.get_config_for_module(m) for m in key]
            self._clipping[key] = [] if all(config.grad_clip is None for config in own) else own
        configs = self._clipping[key]
        if not configs:
            return
        part = self.part(module_ids)
        if part is None:
            for module_id, config in zip(module_ids, configs, strict=True):
                clip_gradients(self.gradients_of(module_id), config.grad_clip, config.grad_clip_by)
            return
        gradients = part.gradients()
        clip_stacked_gradients(part, gradients, norms, configs)
        part.set_gradients(gradients)

    def step(self, module_ids: Sequence[ModuleID], check: FiniteCheck) -> None:
        """Steps the optimizers of these modules, and of these only; none if ``check`` says so."""
        self._default.step(module_ids, check)
        own = [o for m in module_ids for o in self._registered.get(m, {}).values()]
        if own and check.held():
            for optimizer in own:
                optimizer.step()

    # Learning rates and state.

    def _scheduled_lr(self, module_id: ModuleID) -> float:
        return value_at(self._learner.config.get_config_for_module(module_id).lr, self._learner.timestep)

    def learning_rate(self, module_id: ModuleID) -> float:
        """What a module's parameters are updated with now; where there are several rates, that of Adam or the first."""
        own = self._registered.get(module_id)
        return self._scheduled_lr(module_id) if module_id in self._default or not own else _rate(own)

    def set_learning_rates(self) -> None:
        """Moves all learning rates along their schedules. Optimizers registered without a schedule keep theirs."""
        self._default.set_rates({m: self._scheduled_lr(m) for m in (*self._with_default, SHARED)})
        for (module_id, name), rate in self._schedules.items():
            for group in self._registered[module_id][name].param_groups:
                group["lr"] = value_at(rate, self._learner.timestep)

    def get_state(self) -> dict[ModuleID, dict[str, Any]]:
        """Each module's moments and step counts."""
        self.refresh()
        state: dict[ModuleID, dict[str, Any]] = {m: {"adam": own} for m, own in self._default.get_state().items()}
        for module_id, optimizers in self._registered.items():
            state.setdefault(module_id, {})["registered"] = {name: o.state_dict() for name, o in optimizers.items()}
        return state

    def set_state(self, state: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Takes what ``get_state`` gave.

        Raises:
            LearnerError: If Adam steps other parameters of a module here.
        """
        self.refresh()
        self._default.set_state({m: own["adam"] for m, own in state.items() if "adam" in own}, self._row_of)
        for module_id, own in state.items():
            for name, optimizer_state in own.get("registered", {}).items():
                self.get(module_id, name).load_state_dict(_tensors(optimizer_state))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _rate(optimizers: Mapping[str, torch.optim.Optimizer]) -> float:
    return next(iter(optimizers.values())).param_groups[0]["lr"]


def _carry_over(
    before: Mapping[str, torch.optim.Optimizer], now: Mapping[str, torch.optim.Optimizer], module_id: ModuleID
) -> None:
    """Gives optimizers that were made anew what those in their place knew of parameters that are still there."""
    for name, optimizer in before.items():
        if name not in now:
            raise LearnerError(
                f"Learner: the optimizer {name!r} of module {module_id!r} holds parameters that are no longer there, "
                f"as layers were replaced. Register it in configure_optimizers_for_module, which is called again then."
            )
        if type(now[name]) is type(optimizer):
            kept = {id(p) for p in _parameters(now[name])}
            now[name].state.update({p: own for p, own in optimizer.state.items() if id(p) in kept})


def _tensors(state: Any) -> Any:
    """Arrays of a loaded checkpoint as the tensors that torch's optimizers expect."""
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value) for value in state]
    return torch.as_tensor(state) if hasattr(state, "dtype") else state
