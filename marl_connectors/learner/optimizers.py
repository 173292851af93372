"""A learner's optimizers: one step for a whole bucket, or whatever the user registers for a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_connectors.ops.schedule import value_at
from marl_connectors.rl_module.bucket import Bucket
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner


class Optimizers:
    """Computes gradients, clips them, and steps the optimizers of the modules that have new ones.

    By default a module has Adam. Modules of a bucket share one Adam object that sees one flat tensor for each of them;
    a module that takes no part in a step has no gradient in it, so its parameters and moments stay untouched.
    """

    def __init__(self, learner: Learner):
        self._learner = learner
        self._registered: dict[ModuleID, dict[str, torch.optim.Optimizer]] = {}
        self._default_ids: list[ModuleID] = []
        self._adam: torch.optim.Adam | None = None
        self._tensors: dict[ModuleID, list[Tensor]] = {}

    def register_default(self, module_id: ModuleID) -> None:
        """Gives a module Adam with the config's learning rate."""
        self._default_ids.append(module_id)
        bucket = self._bucket(module_id)
        if bucket is not None:
            tensors = [bucket.rows[bucket.module_ids.index(module_id)]]
        else:
            tensors = list[Tensor](self._learner.get_parameters(self._learner.module[module_id]))
        self._tensors[module_id] = tensors
        if not tensors:
            return
        group = {"params": tensors, "lr": self._scheduled_lr(module_id)}
        if self._adam is None:
            self._adam = torch.optim.Adam([group], fused=True)
        else:
            self._adam.add_param_group(group)

    def register(self, module_id: ModuleID, optimizer: torch.optim.Optimizer, name: str) -> None:
        """Adds a user's own optimizer for a module."""
        self._registered.setdefault(module_id, {})[name] = optimizer

    def forget(self, module_id: ModuleID) -> None:
        """Drops a module's optimizers."""
        self._registered.pop(module_id, None)
        if module_id in self._default_ids:
            self._default_ids.remove(module_id)
            gone = {id(tensor) for tensor in self._tensors.pop(module_id)}
            if self._adam is not None:
                kept = [g for g in self._adam.param_groups if not any(id(p) in gone for p in g["params"])]
                self._adam.param_groups[:] = kept
                for tensor in [p for p in self._adam.state if id(p) in gone]:
                    del self._adam.state[tensor]

    def _bucket(self, module_id: ModuleID) -> Bucket | None:
        return next((b for b in self._learner.module.buckets if module_id in b.module_ids), None)

    # One step.

    def compute_gradients(self, loss: Tensor, module_ids: Sequence[ModuleID]) -> None:
        """Fills the gradients of the modules' parameters."""
        bucket = self._bucket(module_ids[0])
        if bucket is None:
            for module_id in module_ids:
                self._learner.module[module_id].zero_grad(set_to_none=True)
            loss.backward()
            return
        source = bucket.twin if len(module_ids) > 1 else self._learner.module[module_ids[0]]
        parameters = [p for p in source.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            assert parameter.grad is not None  # a view of the bucket's gradients
            if gradient is None:
                parameter.grad.zero_()
            else:
                parameter.grad.copy_(gradient)

    def clip_all(self, module_ids: Sequence[ModuleID]) -> None:
        """Clips the gradients of modules as their configs say; a whole bucket at once where these agree."""
        configs = [self._learner.config.get_config_for_module(m) for m in module_ids]
        settings = {(config.grad_clip, config.grad_clip_by) for config in configs}
        bucket = self._bucket(module_ids[0])
        if bucket is not None and len(module_ids) == len(bucket.module_ids) and len(settings) == 1:
            grad_clip, by = settings.pop()
            if grad_clip is None:
                return
            if by == "global_norm":
                norms = bucket.gradient_norms()
                bucket.clip_gradients(grad_clip, norms)
                self._learner.log_terms(module_ids, {"gradients_global_norm": norms})
                return
        for module_id, config in zip(module_ids, configs, strict=True):
            gradients = [p.grad for p in self._learner.module[module_id].parameters() if p.grad is not None]
            self.clip(module_id, config, gradients)

    def clip(self, module_id: ModuleID, config: Any, gradients: list[Tensor]) -> None:
        """Clips a module's gradients in place, by value, norm of each tensor, or norm of all together."""
        if config.grad_clip is None or not gradients:
            return
        if config.grad_clip_by == "value":
            for gradient in gradients:
                gradient.clamp_(-config.grad_clip, config.grad_clip)
        elif config.grad_clip_by == "norm":
            for gradient in gradients:
                gradient.mul_((config.grad_clip / (gradient.norm() + 1e-6)).clamp(max=1.0))
        else:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            scale = (config.grad_clip / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(scale)
            self._learner.log_terms([module_id], {"gradients_global_norm": norm})

    def step(self, module_ids: Sequence[ModuleID]) -> None:
        """Steps the optimizers of these modules, and of these only."""
        default = [m for m in module_ids if self._tensors.get(m)]
        if default and self._adam is not None:
            active = {id(tensor) for m in default for tensor in self._tensors[m]}
            resting = [(p, p.grad) for p in self._parameters() if id(p) not in active]
            for parameter, _ in resting:
                parameter.grad = None
            self._adam.step()
            for parameter, gradient in resting:
                parameter.grad = gradient
        for module_id in module_ids:
            for optimizer in self._registered.get(module_id, {}).values():
                optimizer.step()

    def _parameters(self) -> Iterator[Tensor]:
        assert self._adam is not None
        for group in self._adam.param_groups:
            yield from group["params"]

    # Learning rates and state.

    def _scheduled_lr(self, module_id: ModuleID) -> float:
        return value_at(self._learner.config.get_config_for_module(module_id).lr, self._learner.timestep)

    def learning_rate(self, module_id: ModuleID) -> float:
        """What a module's parameters are updated with now."""
        own = self._registered.get(module_id)
        return next(iter(own.values())).param_groups[0]["lr"] if own else self._scheduled_lr(module_id)

    def set_learning_rates(self) -> None:
        """Moves all learning rates along their schedules. Optimizers that users registered keep theirs."""
        if self._adam is None:
            return
        rate_of = {id(t): self._scheduled_lr(m) for m in self._default_ids for t in self._tensors[m]}
        for group in self._adam.param_groups:
            group["lr"] = rate_of[id(group["params"][0])]

    def get_state(self) -> dict[ModuleID, dict[str, Any]]:
        """Each module's moments and step counts."""
        state: dict[ModuleID, dict[str, Any]] = {}
        for module_id in self._default_ids:
            tensors = self._tensors[module_id]
            moments = [dict(self._adam.state[t]) for t in tensors] if self._adam is not None else []
            state[module_id] = {"adam": [{k: v.detach().clone() for k, v in m.items()} for m in moments]}
        for module_id, optimizers in self._registered.items():
            state[module_id] = {"registered": {name: o.state_dict() for name, o in optimizers.items()}}
        return state

    def set_state(self, state: Mapping[ModuleID, Mapping[str, Any]]) -> None:
        """Takes what ``get_state`` gave."""
        for module_id, own in state.items():
            for tensor, moments in zip(self._tensors.get(module_id, ()), own.get("adam", ()), strict=False):
                if self._adam is None:
                    continue
                self._adam.state.pop(tensor, None)
                if moments:
                    self._adam.state[tensor] = {
                        name: torch.as_tensor(value).clone().to(tensor.device) for name, value in moments.items()
                    }
            for name, optimizer_state in own.get("registered", {}).items():
                self._registered[module_id][name].load_state_dict(_tensors(optimizer_state))


def _tensors(state: Any) -> Any:
    """Arrays of a loaded checkpoint as the tensors that torch's optimizers expect."""
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value) for value in state]
    return torch.as_tensor(state) if hasattr(state, "dtype") else state
