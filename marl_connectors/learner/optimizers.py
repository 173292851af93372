"""A learner's optimizers: one step for a whole bucket, or whatever the user registers for a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_connectors.errors import LearnerError, did_you_mean
from marl_connectors.learner.finite_check import FiniteCheck
from marl_connectors.learner.gradient_clipping import clip_gradients, clip_stacked_gradients, global_norm
from marl_connectors.ops.schedule import Schedule, check_schedule, value_at
from marl_connectors.rl_module.bucket import Bucket, BucketPart
from marl_connectors.typing import SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


class Optimizers:
    """Computes gradients, clips them, and steps the optimizers of the modules that have new ones.

    By default a module has Adam. All modules share one Adam object; of a bucket it sees one flat tensor for each
    member. What takes no part in a step has no gradient in it, so its parameters, moments and step count stay.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._registered: dict[ModuleID, dict[str, torch.optim.Optimizer]] = {}
        self._schedules: dict[tuple[ModuleID, str], Schedule] = {}
        self._tensors: dict[ModuleID, list[Tensor]] = {}
        self._shared: list[Tensor] = []
        self._adam: torch.optim.Adam | None = None

    # Who has which optimizer.

    def register_default(self, module_id: ModuleID) -> None:
        """Gives a module Adam with the config's learning rate. Parameters that several modules have are left out."""
        self._tensors[module_id] = self._own_tensors(module_id)
        self.set_learning_rates()

    def _own_tensors(self, module_id: ModuleID) -> list[Tensor]:
        bucket = self._bucket(module_id)
        if bucket is not None:
            return [bucket.rows[bucket.module_ids.index(module_id)]]
        shared = {id(p) for p in self._find_shared()}
        return [p for p in self._parameters_of(module_id) if id(p) not in shared]

    def rearrange(self) -> None:
        """Sees to it that every parameter has its optimizer, after modules came or went.

        What no module has for itself gets an Adam of its own, unless an optimizer was registered for it. What nothing
        has changed for keeps its moments.
        """
        for module_id in [m for m in self._tensors if m != SHARED]:
            own = self._own_tensors(module_id)
            if [id(t) for t in own] != [id(t) for t in self._tensors[module_id]]:
                self._tensors[module_id] = own
        self._shared = self._find_shared()
        covered = {id(p) for o in self._all_registered() for group in o.param_groups for p in group["params"]}
        rest = [p for p in self._shared if id(p) not in covered]
        self._tensors.pop(SHARED, None)
        if rest:
            self._tensors[SHARED] = rest
        self.set_learning_rates()

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
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
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
        if lr is not None:
            check_schedule(f"Learner.register_optimizer: lr_or_lr_schedule of {name!r}", lr)
            self._schedules[module_id, name] = lr
        self._registered.setdefault(module_id, {})[name] = optimizer

    def get(self, module_id: ModuleID, name: str) -> torch.optim.Optimizer:
        """An optimizer that was registered."""
        own = self._registered.get(module_id, {})
        if name not in own:
            raise KeyError(f"Learner: module {module_id!r} has no optimizer {name!r}. {did_you_mean(name, own)}")
        return own[name]

    def forget(self, module_id: ModuleID) -> None:
        """Drops a module's optimizers."""
        self._registered.pop(module_id, None)
        self._schedules = {key: value for key, value in self._schedules.items() if key[0] != module_id}
        for tensor in self._tensors.pop(module_id, []):
            if self._adam is not None:
                self._adam.state.pop(tensor, None)
        self.set_learning_rates()

    def _parameters_of(self, module_id: ModuleID) -> list[Tensor]:
        return list[Tensor](self._learner.module[module_id].parameters())

    def _all_registered(self) -> Iterator[torch.optim.Optimizer]:
        for several in self._registered.values():
            yield from several.values()

    def _bucket(self, module_id: ModuleID) -> Bucket | None:
        return self._learner.module.bucket_of((module_id,))

    def part(self, module_ids: Sequence[ModuleID]) -> BucketPart | None:
        """These modules as one computation; None if they are in no bucket."""
        bucket = self._learner.module.bucket_of(module_ids)
        return None if bucket is None else bucket.part(module_ids)

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
        configs = [self._learner.config.get_config_for_module(m) for m in module_ids]
        if all(config.grad_clip is None for config in configs):
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
        default = [m for m in module_ids if self._tensors.get(m)]
        if default and self._adam is not None:
            self._adam.found_inf = check.skip  # type: ignore[attr-defined]
            active = {id(tensor) for m in default for tensor in self._tensors[m]}
            resting = [(t, t.grad) for several in self._tensors.values() for t in several if id(t) not in active]
            for tensor, _ in resting:
                tensor.grad = None
            with self._frozen_kept(default):
                self._adam.step()
            for tensor, gradient in resting:
                tensor.grad = gradient
        own = [o for m in module_ids for o in self._registered.get(m, {}).values()]
        if own and check.held():
            for optimizer in own:
                optimizer.step()

    @contextmanager
    def _frozen_kept(self, module_ids: Sequence[ModuleID]) -> Iterator[None]:
        """Frozen parameters of a bucket's members, and their moments, come out of a step as they went in."""
        kept: list[tuple[Tensor, Tensor]] = []
        bucket = self._learner.module.bucket_of(module_ids)
        if bucket is not None and bucket.has_frozen:
            assert self._adam is not None
            for (row,) in (self._tensors[module_id] for module_id in module_ids):
                moments = [t for t in self._adam.state.get(row, {}).values() if t.shape == row.shape]
                for tensor in (row.data, *moments):
                    views = [tensor[where.begin : where.end] for where in bucket.slices if not where.requires_grad]
                    kept += [(view, view.clone()) for view in views]
        yield
        for view, value in kept:
            view.copy_(value)

    # Learning rates and state.

    def _scheduled_lr(self, module_id: ModuleID) -> float:
        return value_at(self._learner.config.get_config_for_module(module_id).lr, self._learner.timestep)

    def learning_rate(self, module_id: ModuleID) -> float:
        """What a module's parameters are updated with now."""
        own = self._registered.get(module_id)
        return next(iter(own.values())).param_groups[0]["lr"] if own else self._scheduled_lr(module_id)

    def set_learning_rates(self) -> None:
        """Moves all learning rates along their schedules: Adam has one group for each rate that there is now.

        Optimizers that users registered without a schedule keep theirs.
        """
        by_rate: dict[float, list[Tensor]] = {}
        for module_id, tensors in self._tensors.items():
            by_rate.setdefault(self._scheduled_lr(module_id), []).extend(tensors)
        groups = [{"params": tensors, "lr": rate} for rate, tensors in by_rate.items() if tensors]
        if self._adam is None and groups:
            self._adam = torch.optim.Adam(groups, fused=True)
        elif self._adam is not None:
            self._adam.param_groups[:] = [{**self._adam.defaults, **group} for group in groups]
        for (module_id, name), schedule in self._schedules.items():
            for group in self._registered[module_id][name].param_groups:
                group["lr"] = value_at(schedule, self._learner.timestep)

    def get_state(self) -> dict[ModuleID, dict[str, Any]]:
        """Each module's moments and step counts."""
        state: dict[ModuleID, dict[str, Any]] = {}
        for module_id, tensors in self._tensors.items():
            moments = [dict(self._adam.state[t]) for t in tensors] if self._adam is not None else []
            state[module_id] = {"adam": [{k: v.detach().clone() for k, v in m.items()} for m in moments]}
        for module_id, optimizers in self._registered.items():
            state.setdefault(module_id, {})["registered"] = {name: o.state_dict() for name, o in optimizers.items()}
        return state

    def set_state(self, state: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Takes what ``get_state`` gave.

        Raises:
            LearnerError: If Adam steps other tensors of a module here.
        """
        for module_id, own in state.items():
            tensors, saved = self._tensors.get(module_id, []), own.get("adam", [])
            if saved and len(tensors) != len(saved):
                raise LearnerError(
                    f"Optimizers.set_state: the state has Adam's moments of {len(saved)} tensors of module "
                    f"{module_id!r}, but here it steps {len(tensors)}. Build the learner with the same modules and "
                    f"optimizers as the one that was saved."
                )
            for tensor, moments in zip(tensors if saved else (), saved, strict=True):
                if self._adam is None:
                    continue
                self._adam.state.pop(tensor, None)
                if moments:
                    self._adam.state[tensor] = {
                        name: torch.as_tensor(value).clone().to(tensor.device) for name, value in moments.items()
                    }
            for name, optimizer_state in own.get("registered", {}).items():
                self.get(module_id, name).load_state_dict(_tensors(optimizer_state))


def _tensors(state: Any) -> Any:
    """Arrays of a loaded checkpoint as the tensors that torch's optimizers expect."""
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value) for value in state]
    return torch.as_tensor(state) if hasattr(state, "dtype") else state
