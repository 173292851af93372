"""The optimizer of all modules that have none of their own: one Adam, one tensor for each module of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_connectors.errors import LearnerError
from marl_connectors.learner.finite_check import FiniteCheck
from marl_connectors.rl_module.bucket import MemberRow
from marl_connectors.typing import ModuleID

Moments = dict[str, Tensor]
"""What ``torch.optim.Adam`` keeps of a tensor: ``step``, a scalar, and means that have the tensor's own shape."""


class Stretch(NamedTuple):
    """What Adam steps as one tensor.

    Attributes:
        tensor: A parameter, or a flat view of several that stand side by side in a bucket.
        parameters: Those that it consists of.
        shapes: Of these.
        kind: Their dtype and device.
    """

    tensor: Tensor
    parameters: Sequence[Tensor]
    shapes: Sequence[torch.Size]
    kind: tuple[torch.dtype, torch.device]

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, and no view of several."""
        return self.tensor is self.parameters[0]


class DefaultAdam:
    """Steps the parameters of the modules that have new gradients; those of others rest, with moments and step count.

    Moments belong to parameters. They stay with them when modules are stacked differently, frozen or thawed, while
    layers come and go; a new parameter begins without any, at step 0.
    """

    def __init__(self) -> None:
        self._stretches: dict[ModuleID, list[Stretch]] = {}
        self._parameters: dict[ModuleID, Sequence[Tensor]] = {}
        self._resting: dict[Tensor, Moments] = {}
        self._rates: dict[ModuleID, float] = {}
        self._groups: dict[tuple[ModuleID, ...], list[dict[str, Any]]] = {}
        self._adam: torch.optim.Adam | None = None

    def __contains__(self, module_id: object) -> bool:
        return bool(self._parameters.get(module_id))  # type: ignore[call-overload]

    def arrange(
        self, parameters: Mapping[ModuleID, Sequence[Tensor]], row_of: Callable[[ModuleID], MemberRow | None]
    ) -> None:
        """Takes over parameters, in place of those so far. Those that are among both keep their moments.

        Args:
            parameters: Of each module, those that are to be stepped.
            row_of: Where those of a module stand in a bucket, if they do.
        """
        moments = {p: own for p, own in self._moments().items() if own}
        self._parameters = {module_id: list(own) for module_id, own in parameters.items()}
        self._arrange(moments, row_of)

    def _arrange(self, moments: Mapping[Tensor, Moments], row_of: Callable[[ModuleID], MemberRow | None]) -> None:
        everything = [p for own in self._parameters.values() for p in own]
        if self._adam is None and everything:
            self._adam = torch.optim.Adam(everything, fused=True)
        state: dict[Tensor, Moments] = {}
        self._stretches, self._resting, self._groups = {}, {}, {}
        for module_id, own in self._parameters.items():
            row = row_of(module_id)
            kept = {p: _fitting(p, moments[p]) for p in own if p in moments and _fits(p, moments[p])}
            self._stretches[module_id] = stretches = [_stretch(run, row) for run in _runs(own, row, kept)]
            stepped = {p for stretch in stretches for p in stretch.parameters}
            self._resting.update({p: own_moments for p, own_moments in kept.items() if p not in stepped})
            for stretch in stretches:
                if stretch.parameters[0] in kept:
                    state[stretch.tensor] = _joined(stretch, [kept[p] for p in stretch.parameters])
        if self._adam is not None:
            self._adam.param_groups = []
            self._adam.state.clear()
            self._adam.state.update(state)

    @property
    def fits(self) -> bool:
        """Whether those parameters that are stepped by themselves have the shape and kind that they came with."""
        return all(
            (one.tensor.shape, one.tensor.dtype, one.tensor.device) == (one.shapes[0], *one.kind)
            for stretches in self._stretches.values()
            for one in stretches
            if one.is_parameter
        )

    def set_rates(self, rates: Mapping[ModuleID, float]) -> None:
        """Learning rates from now on."""
        self._rates, self._groups = dict(rates), {}

    def step(self, module_ids: Sequence[ModuleID], check: FiniteCheck) -> None:
        """Steps these modules, and these only; none if ``check`` says so. A hot path."""
        key = tuple(module_ids)
        if key not in self._groups:
            self._groups[key] = self._groups_of(key)
        if self._adam is not None and self._groups[key]:
            self._adam.found_inf = check.skip  # type: ignore[attr-defined]
            self._adam.param_groups = self._groups[key]
            self._adam.step()

    def _groups_of(self, module_ids: Sequence[ModuleID]) -> list[dict[str, Any]]:
        """One for each rate."""
        by_rate: dict[float, list[Tensor]] = {}
        for module_id in module_ids:
            if stretches := self._stretches.get(module_id):
                by_rate.setdefault(self._rates[module_id], []).extend(stretch.tensor for stretch in stretches)
        defaults = {} if self._adam is None else self._adam.defaults
        return [{**defaults, "params": tensors, "lr": rate} for rate, tensors in by_rate.items()]

    # State.

    def _moments(self) -> dict[Tensor, Moments]:
        """By parameter; empty for one that was never stepped."""
        found = dict(self._resting)
        for stretch in (stretch for stretches in self._stretches.values() for stretch in stretches):
            assert self._adam is not None
            own = self._adam.state.get(stretch.tensor, {})
            found.update(zip(stretch.parameters, _parts(stretch, own), strict=True))
        return found

    def get_state(self) -> dict[ModuleID, list[Moments]]:
        """The moments of each module's parameters, as copies; empty ones where it was never stepped."""
        moments = self._moments()
        return {
            module_id: [{name: value.detach().clone() for name, value in moments.get(p, {}).items()} for p in own]
            for module_id, own in self._parameters.items()
        }

    def set_state(
        self, state: Mapping[ModuleID, Sequence[Mapping[str, Any]]], row_of: Callable[[ModuleID], MemberRow | None]
    ) -> None:
        """Takes moments that ``get_state`` gave, for the modules named there.

        Raises:
            LearnerError: If they are of other parameters.
        """
        moments = self._moments()
        for module_id, saved in state.items():
            own = self._parameters.get(module_id, ())
            shapes = [tuple(p.shape) for p in own]
            there = [tuple(m["exp_avg"].shape) if m else shape for m, shape in zip(saved, shapes, strict=False)]
            if saved and (len(saved) != len(own) or there != shapes):
                raise LearnerError(
                    f"Optimizers.set_state: the state has Adam's moments of {len(saved)} parameters of module "
                    f"{module_id!r}, of the shapes {there}, but here it steps {len(own)}, of {shapes}. Build the "
                    f"learner with the same modules and optimizers as the one that was saved."
                )
            for parameter, values in zip(own if saved else (), saved, strict=True):
                moments[parameter] = {name: torch.as_tensor(value).clone() for name, value in values.items()}
        self._arrange({p: own for p, own in moments.items() if own}, row_of)


def _fits(parameter: Tensor, moments: Moments) -> bool:
    return moments["exp_avg"].shape == parameter.shape


def _fitting(parameter: Tensor, moments: Moments) -> Moments:
    """A copy of the moments on the parameter's device, and as exact as it is."""
    return {
        name: value.to(parameter.device, value.dtype if name == "step" else parameter.dtype, copy=True)
        for name, value in moments.items()
    }


def _runs(parameters: Sequence[Tensor], row: MemberRow | None, moments: Mapping[Tensor, Moments]) -> Iterator[list]:
    """The parameters that can be stepped as one tensor: side by side, with equal step counts, and not frozen."""
    if row is None:
        yield from ([p] for p in parameters)
        return
    run: list[Tensor] = []
    at = None
    for parameter in parameters:
        where = row.slices[parameter]
        if not where.requires_grad:
            continue
        steps = float(moments[parameter]["step"]) if parameter in moments else 0.0
        if run and at != (where.begin, steps):
            yield run
            run = []
        run.append(parameter)
        at = where.end, steps
    if run:
        yield run


def _stretch(run: Sequence[Tensor], row: MemberRow | None) -> Stretch:
    shapes, kind = [p.shape for p in run], (run[0].dtype, run[0].device)
    if row is None:
        return Stretch(run[0], run, shapes, kind)
    begin, end = row.slices[run[0]].begin, row.slices[run[-1]].end
    tensor = row.values[begin:end].detach().requires_grad_()
    tensor.grad = row.gradients[begin:end]
    return Stretch(tensor, run, shapes, kind)


def _parts(stretch: Stretch, moments: Mapping[str, Tensor]) -> list[Moments]:
    """The moments of each parameter of a stretch; views."""
    if stretch.is_parameter or not moments:
        return [dict(moments) for _ in stretch.parameters]
    sizes = [shape.numel() for shape in stretch.shapes]
    split = {name: value.split(sizes) for name, value in moments.items() if name != "step"}
    return [
        {"step": moments["step"], **{name: parts[i].view(shape) for name, parts in split.items()}}
        for i, shape in enumerate(stretch.shapes)
    ]


def _joined(stretch: Stretch, moments: Sequence[Moments]) -> Moments:
    """The moments of a stretch, of those of its parameters."""
    if stretch.is_parameter:
        return moments[0]
    means = [name for name in moments[0] if name != "step"]
    return {
        "step": moments[0]["step"],
        **{name: torch.cat([own[name].reshape(-1) for own in moments]) for name in means},
    }
